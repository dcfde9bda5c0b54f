"""What makes a run's numbers not trustworthy."""

from __future__ import annotations

from array import array
from dataclasses import replace

import numpy as np
import pytest
from tests.loop.engine import make_load

from servewise.measure.record import Outcome, Record
from servewise.measure.sketch import Sketch
from servewise.measure.trust import ClientFacts, judge
from servewise.types import RequestStatus, Trust

MS = 1_000_000


def facts(lag_ms: float = 0.1, *, stamped: float = 1.0, stall_ms: float = 0.0, **changes: object) -> ClientFacts:
    lag = Sketch()
    lag.add(int(lag_ms * MS), 10_000)
    if stall_ms:
        lag.add(int(stall_ms * MS))
    client = ClientFacts(lag=lag, num_reads=1000, num_stamped=int(1000 * stamped), can_stamp=stamped > 0)
    return replace(client, **changes)  # type: ignore[arg-type]


def trust(
    client: ClientFacts | None = None,
    *,
    num: int = 200,
    late_ms: float = 0.1,
    gap_ms: float = 10.0,
    drift: float = 1.0,
    concurrency: int | None = None,
    takes_ms: float = 100.0,
    num_failed: int = 0,
    output_tokens: int = 4,
    chunks: int = 4,
) -> Trust:
    """The verdict on a run of requests that are late by so much, answered after so long."""
    record = Record()
    start = 1_000 * MS
    for i in range(num):
        intended = start + int(i * gap_ms * MS)
        sent = intended + int(late_ms * MS) + int(i * gap_ms * (drift - 1.0) * MS)
        times = [sent + (j + 1) * MS for j in range(chunks)]
        failed = i < num_failed
        record.add(
            Outcome(
                request=i,
                intended_ns=intended,
                sent_ns=sent,
                first_answer_ns=times[0] if times else 0,
                last_token_ns=times[-1] if times else 0,
                end_ns=sent + int(takes_ms * MS),
                input_tokens=7,
                output_tokens=output_tokens,
                cached_tokens=-1,
                intended_input_tokens=7,
                status=RequestStatus.FAILED if failed else RequestStatus.OK,
                http_status=200,
                retries=0,
                finish_reason="stop",
                failure="connection refused" if failed else "",
                chunks_ns=array("q", times),
            )
        )
    log, details, parts = record.tables(start, streamed=True)
    load = make_load([0.0] * num, concurrency=concurrency)
    return judge(client or facts(), load, log, details, parts, streamed=True, interrupted=False)


def test_a_client_that_kept_up_is_trusted() -> None:
    verdict = trust()
    assert verdict.trustworthy
    assert verdict.notes == ()
    assert verdict.facts["send_lag_p99_s"] == pytest.approx(1e-4)
    assert verdict.facts["client_lag_p99_s"] == pytest.approx(1e-4, rel=0.02)
    assert verdict.facts["offered_rps"] == pytest.approx(100.0)
    assert verdict.facts["requested_rps"] == pytest.approx(100.0)
    assert verdict.facts["tokens_per_chunk"] == 1.0
    assert verdict.facts["kernel_stamped_frac"] == 1.0
    assert "requested_concurrency" not in verdict.facts


@pytest.mark.parametrize(
    ("client", "words"),
    [
        (facts(30.0), "late: by"),
        (facts(8.0, stamped=0.0), "more than 5 ms"),
        (facts(stall_ms=300.0), "stood still for 300 ms"),
        (facts(lost_workers=1), "worker processes ended early"),
    ],
)
def test_what_the_client_saw_of_itself(client: ClientFacts, words: str) -> None:
    verdict = trust(client)
    assert not verdict.trustworthy
    assert words in verdict.reasons[0]


def test_stamps_make_up_for_lateness() -> None:
    assert trust(facts(8.0)).trustworthy
    assert not trust(facts(8.0, stamped=0.5)).trustworthy


def test_sends_that_were_late() -> None:
    assert "sent late: by 25.0 ms" in trust(late_ms=25.0).reasons[0]


def test_a_rate_that_was_not_offered() -> None:
    words = " ".join(trust(drift=1.1).reasons)
    assert "offered 90.9" in words
    assert "not the 100.0" in words


def test_places_that_the_client_left_empty() -> None:
    # One place; each request takes 9 ms and is sent 1 ms late.
    verdict = trust(concurrency=1, gap_ms=10.0, late_ms=1.0, takes_ms=9.0)
    assert "it left 0.1 places empty" in verdict.reasons[0]
    assert verdict.facts["held_concurrency"] == pytest.approx(0.9, rel=0.02)


def test_places_that_the_load_left_empty_are_a_note() -> None:
    verdict = trust(concurrency=20, gap_ms=10.0, late_ms=0.0, takes_ms=100.0)
    assert verdict.trustworthy
    assert "not 20: the load had no more to send" in verdict.notes[0]


def test_failures() -> None:
    verdict = trust(num_failed=3)
    assert verdict.facts["failed_frac"] == pytest.approx(0.015)
    assert "3 of 200 requests failed (1.5%), most often: connection refused" in verdict.reasons[0]
    assert trust(num_failed=2).trustworthy


def test_unknown_counts_and_silent_answers_are_notes() -> None:
    assert "200 of 200 answers: they are unknown" in trust(output_tokens=-1).notes[0]
    assert "tokens_per_chunk" not in trust(output_tokens=-1).facts
    assert "200 answers held no token" in trust(output_tokens=0, chunks=0).notes[0]
    assert trust(output_tokens=12).facts["tokens_per_chunk"] == 3.0


def test_how_times_were_taken_is_a_note() -> None:
    assert "plain TCP on Linux" in trust(facts(stamped=0.0)).notes[0]
    assert "only 50%" in trust(facts(stamped=0.5)).notes[0]
    assert "wall clock was set 2 times" in trust(facts(clock_steps=2)).notes[0]


def test_no_request_at_all() -> None:
    assert trust(num=1).trustworthy
    record = Record()
    log, details, chunks = record.tables(0, streamed=True)
    verdict = judge(facts(), make_load([0.0]), log, details, chunks, streamed=True, interrupted=True)
    assert verdict.reasons == ("no request was sent",)


def test_sketches_are_off_by_one_percent_at_most() -> None:
    sample = np.random.default_rng(1).lognormal(15.0, 2.0, 20_000).astype(np.int64)
    at_once, one_by_one, half = Sketch(), Sketch(), Sketch()
    at_once.add_all(sample)
    for value in sample[:10_000].tolist():
        one_by_one.add(value)
    half.add_all(sample[10_000:])
    one_by_one.merge(half)
    for percent in (1.0, 50.0, 99.0, 100.0):
        exact = np.percentile(sample, percent, method="inverted_cdf") / 1e9
        assert at_once.percentile_s(percent) == one_by_one.percentile_s(percent)
        assert at_once.percentile_s(percent) == pytest.approx(exact, rel=0.0101)
    assert np.isnan(Sketch().percentile_s(50.0))
