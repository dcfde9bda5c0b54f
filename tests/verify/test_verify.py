"""Each form of the promise is judged by the interval of the run."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.calibrate.sweeps import deployed

from servewise.errors import MeasurementError
from servewise.types import (
    Candidate,
    Chunks,
    Endpoint,
    Measurement,
    PercentileLimit,
    Promise,
    RequestDetails,
    RequestLog,
    RequestStatus,
    Trust,
    Verification,
)
from servewise.verify import endpoint_warnings, verify

ENDPOINT = Endpoint(
    base_url="http://localhost:1",
    api="openai-chat",
    model="Llama-3.1-8B-Instruct",
    engine="vllm",
    engine_version="0.19.0",
)


def measurement(ttft_s: np.ndarray, *, failed: int = 0, streamed: bool = True) -> Measurement:
    """Requests a second apart with these first tokens, and ten tokens 20 ms apart."""
    num = len(ttft_s)
    none = np.zeros(num, np.int64)
    sent = np.arange(num, dtype=np.float64)
    status = none.astype(np.int8)
    status[:failed] = RequestStatus.FAILED
    log = RequestLog(
        intended_s=sent,
        sent_s=sent,
        first_token_s=sent + ttft_s if streamed else np.full(num, np.nan),
        last_token_s=sent + ttft_s + 0.2,
        input_tokens=none + 100,
        output_tokens=none + 11,
        cached_tokens=none - 1,
        num_preemptions=none - 1,
        replica=none - 1,
        status=status,
    )
    details = RequestDetails(
        request=np.arange(num),
        intended_input_tokens=none,
        first_answer_s=log.first_token_s,
        end_s=log.last_token_s,
        http_status=none,
        retries=none,
        finish_reason=[""] * num,
        failure=[""] * num,
    )
    return Measurement(
        name="run",
        endpoint=ENDPOINT,
        load_words="the plan's",
        started="2026-11-30T00:00:00Z",
        log=log,
        details=details,
        chunks=Chunks(offsets=np.zeros(num + 1, np.int64), time_s=np.zeros(0)),
        trust=Trust(reasons=(), notes=(), facts={}),
        server_metrics={},
    )


def judged(promise: Promise, found: Measurement) -> Verification:
    candidate = Candidate(index=0, deployment=deployed(), status="kept", reason="")
    return verify("plan", candidate, promise, found)


def mixed(num: int, slow_frac: float) -> np.ndarray:
    """First tokens of 0.1 s, some of 5 s."""
    random = np.random.default_rng(0)
    return np.where(random.random(num) < slow_frac, 5.0, 0.1)


@pytest.mark.parametrize(
    ("num", "slow_frac", "verdict"),
    [(2000, 0.0, "kept"), (2000, 0.02, "kept"), (2000, 0.1, "broken"), (200, 0.05, "too short to tell")],
)
def test_a_share_is_judged_by_its_interval(num: int, slow_frac: float, verdict: str) -> None:
    assert judged(Promise(ttft_s=1.0, attainment=0.95), measurement(mixed(num, slow_frac))).verdict == verdict


@pytest.mark.parametrize(
    ("num", "slow_frac", "verdict"), [(2000, 0.0, "kept"), (2000, 0.05, "broken"), (100, 0.0, "too short to tell")]
)
def test_a_percentile_is_a_share_of_the_requests(num: int, slow_frac: float, verdict: str) -> None:
    promise = Promise(percentiles=(PercentileLimit(metric="ttft", percentile=99.0, limit_s=1.0),))
    found = judged(promise, measurement(mixed(num, slow_frac)))
    assert found.verdict == verdict
    assert found.limits[0].wanted_frac == 0.99


def test_one_broken_part_breaks_the_promise() -> None:
    promise = Promise(
        ttft_s=1.0, attainment=0.95, percentiles=(PercentileLimit(metric="tpot", percentile=50.0, limit_s=0.001),)
    )
    found = judged(promise, measurement(mixed(1000, 0.0)))
    assert [check.standing for check in found.limits] == ["kept", "broken"]
    assert found.verdict == "broken"


def test_a_deadline_and_failed_requests() -> None:
    quick = measurement(mixed(100, 0.0))
    assert judged(Promise(deadline_s=200.0), quick).verdict == "kept"
    assert judged(Promise(deadline_s=50.0), quick).verdict == "broken"
    assert judged(Promise(), quick).verdict == "kept"
    assert judged(Promise(), measurement(mixed(100, 0.0), failed=1)).verdict == "broken"


def test_how_many_requests_would_tell() -> None:
    found = judged(Promise(ttft_s=1.0, attainment=0.99), measurement(mixed(50, 0.0)))
    assert found.verdict == "too short to tell"
    assert 368 <= (found.more_requests or 0) <= 420  # 0.99 ** 368 = 2.5%
    assert judged(Promise(ttft_s=1.0, attainment=0.95), measurement(mixed(2000, 0.1))).more_requests is None


def test_what_cannot_be_judged_is_no_verdict() -> None:
    empty = replace(measurement(mixed(10, 0.0)), counted_s=(1e6, 2e6))
    with pytest.raises(MeasurementError, match="no request"):
        judged(Promise(ttft_s=1.0), empty)
    with pytest.raises(MeasurementError, match="cannot be judged"):
        judged(Promise(ttft_s=1.0), measurement(mixed(100, 0.0), streamed=False))


def test_an_endpoint_is_compared_as_far_as_it_can_be_recognised() -> None:
    deployment = deployed()
    assert endpoint_warnings(deployment, ENDPOINT, 8192) == ()
    unknown = replace(ENDPOINT, engine="unknown", engine_version="")
    assert "not recognised" in endpoint_warnings(deployment, unknown, None)[0]
    assert "does not say its version" in endpoint_warnings(deployment, replace(ENDPOINT, engine_version=""), None)[0]
    found = endpoint_warnings(deployment, replace(ENDPOINT, engine_version="0.32.0", model="gpt"), 4096)
    assert [word in text for word, text in zip(("0.32.0", "gpt", "4,096"), found, strict=True)] == [True] * 3
