"""Runs that cannot be fitted are refused in words; what a user must know of the others is said."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from tests.calibrate.sweeps import deployed, sweep

from servewise.calibrate import MeasuredRun, calibrate, measured_run
from servewise.calibrate.runs import checked
from servewise.errors import InputError, MeasurementError
from servewise.types import (
    UNCORRECTED,
    Chunks,
    Endpoint,
    Measurement,
    RequestDetails,
    RequestLog,
    RequestStatus,
    Trust,
)


@pytest.fixture(scope="module")
def runs() -> list[MeasuredRun]:
    return sweep(deployed(), UNCORRECTED, concurrencies=(1, 4, 16), num=60)


def with_log(run: MeasuredRun, **columns: object) -> MeasuredRun:
    return replace(run, log=replace(run.log, **columns))


def refused(runs: Sequence[MeasuredRun], match: str, error: type[Exception] = InputError) -> None:
    with pytest.raises(error, match=match):
        checked(runs, deployed())


def test_too_few_points_are_refused(runs: list[MeasuredRun]) -> None:
    refused(runs[:2], "2 load points .* at least 3")
    repeats = [replace(run, load="the same") for run in runs]
    refused(repeats, "1 load point ")


def test_runs_of_several_or_other_engines_are_refused(runs: list[MeasuredRun]) -> None:
    refused([replace(runs[0], engine="sglang"), *runs[1:]], "several engines: sglang, vllm")
    refused([replace(run, engine="sglang") for run in runs], "runs are of sglang, the deployment is of vllm")


def test_an_engine_that_was_not_recognised_is_noted(runs: list[MeasuredRun]) -> None:
    notes = checked([replace(run, engine="unknown") for run in runs], deployed())[1]
    assert any("not recognised" in note for note in notes)


def test_a_run_that_cannot_be_trusted_is_refused(runs: list[MeasuredRun]) -> None:
    late = replace(runs[1], distrust=("the client was late",))
    refused([runs[0], late, runs[2]], "run 1 cannot be trusted: the client was late", MeasurementError)


def test_failed_requests_are_left_out_or_refused(runs: list[MeasuredRun]) -> None:
    def failing(num: int) -> MeasuredRun:
        status = runs[1].log.status.copy()
        status[:num] = RequestStatus.FAILED
        return with_log(runs[1], status=status)

    kept, notes = checked([runs[0], failing(2), runs[2]], deployed())
    assert kept[1].log.num_requests == runs[1].log.num_requests - 2
    assert any("failed and are left out" in note for note in notes)
    refused([runs[0], failing(30), runs[2]], "were not answered", MeasurementError)


def test_a_short_run_is_refused(runs: list[MeasuredRun]) -> None:
    short = replace(runs[1], counted_s=(0.0, float(runs[1].log.intended_s[8])))
    refused([runs[0], short, runs[2]], "answers that count, at least 20")


def test_runs_without_what_is_fitted_are_refused(runs: list[MeasuredRun]) -> None:
    num = runs[1].log.num_requests
    refused([runs[0], with_log(runs[1], first_token_s=np.full(num, np.nan)), runs[2]], "measure with streaming")
    refused([runs[0], with_log(runs[1], input_tokens=np.full(num, -1)), runs[2]], "without token counts")
    refused([runs[0], with_log(runs[1], output_tokens=np.ones(num, np.int64)), runs[2]], "one token only")


def test_prompts_from_the_cache_are_refused_or_noted(runs: list[MeasuredRun]) -> None:
    def cached(frac: float) -> list[MeasuredRun]:
        return [*runs[:2], with_log(runs[2], cached_tokens=np.rint(frac * runs[2].log.input_tokens).astype(np.int64))]

    refused(cached(0.6), "prompts that share nothing")
    assert any("prefix cache" in note for note in checked(cached(0.05), deployed())[1])
    assert not any("prefix cache" in note for note in checked(cached(0.0), deployed())[1])


def test_a_narrow_sweep_is_noted() -> None:
    narrow = sweep(deployed(), UNCORRECTED, concurrencies=(2, 3, 4), num=60)
    assert any("less than 4 times" in note for note in checked(narrow, deployed())[1])


def test_an_overloaded_run_says_nothing_of_first_tokens() -> None:
    runs = sweep(deployed(), UNCORRECTED, concurrencies=(1, 16), rates_rps=(400.0,), num=1500, outputs=(200, 400))
    kept, notes = checked(runs, deployed())
    assert [run.queue_grew for run in kept] == [False, False, True]
    assert any("overloaded" in note for note in notes)


def test_a_deployment_that_would_refuse_what_was_answered_is_refused(runs: list[MeasuredRun]) -> None:
    small = deployed()
    small = replace(small, params=replace(small.vllm_params, max_model_len=600))
    with pytest.raises(InputError, match=r"refuses .* requests that were answered"):
        calibrate(runs, small)


def test_only_one_plain_replica_is_calibrated(runs: list[MeasuredRun]) -> None:
    with pytest.raises(InputError, match="one replica"):
        calibrate(runs, replace(deployed(), num_replicas=2))


def measurement(log: RequestLog, facts: dict[str, float]) -> Measurement:
    num = log.num_requests
    none = np.zeros(num, np.int64)
    return Measurement(
        name="a run",
        endpoint=Endpoint(base_url="http://localhost:1", api="openai-chat", model="m", engine="vllm"),
        load_words="closed loop of 4, 60 requests, seed 7",
        started="2026-11-30T00:00:00Z",
        log=log,
        details=RequestDetails(
            request=np.arange(num),
            intended_input_tokens=log.input_tokens,
            first_answer_s=log.first_token_s,
            end_s=log.last_token_s,
            http_status=none,
            retries=none,
            finish_reason=[""] * num,
            failure=[""] * num,
        ),
        chunks=Chunks(offsets=np.zeros(num + 1, np.int64), time_s=np.zeros(0)),
        trust=Trust(reasons=(), notes=(), facts=facts),
        server_metrics={},
        counted_s=(1.0, np.inf),
    )


def test_a_measurement_becomes_a_load_point(runs: list[MeasuredRun]) -> None:
    closed = measured_run(measurement(runs[0].log, {"requested_concurrency": 4.0}))
    assert (closed.concurrency, closed.engine, closed.counted_s) == (4, "vllm", (1.0, np.inf))
    assert closed.load == "closed loop of 4, 60 requests"  # repeats with other seeds are the same load
    assert measured_run(measurement(runs[0].log, {"requested_rps": 4.0})).concurrency is None
