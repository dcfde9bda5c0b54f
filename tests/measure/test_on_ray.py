"""Several machines by Ray: here one, with a clock that is off."""

from __future__ import annotations

from array import array

import numpy as np
import pytest

from servewise.errors import InputError
from servewise.measure.record import Outcome, Record
from servewise.types import RequestStatus


def test_times_of_another_clock_are_brought_to_this_one() -> None:
    record = Record()
    numbers = {"request": 0, "input_tokens": 1, "output_tokens": 2, "cached_tokens": -1, "intended_input_tokens": 1}
    times = {"intended_ns": 1_000, "sent_ns": 2_000, "first_answer_ns": 0, "last_token_ns": 4_000, "end_ns": 5_000}
    rest = {"http_status": 200, "retries": 0, "finish_reason": "", "failure": "", "status": RequestStatus.OK}
    record.add(Outcome(**numbers, **times, **rest, chunks_ns=array("q", [3_000, 4_000])))  # type: ignore[arg-type]
    record.shift(500)
    log, details, chunks = record.tables(1_500, streamed=True)
    assert log.intended_s.tolist() == [0.0]
    assert (chunks.time_s * 1e9).round().tolist() == [2_000, 3_000]
    assert details.end_s[0] == pytest.approx(4e-6)
    assert np.isnan(details.first_answer_s[0])  # what did not happen did not happen at another time


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from servewise.measure.on_ray import RayTeam

    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    with pytest.raises(InputError, match=r"servewise\[ray\]"):
        RayTeam("auto")


@pytest.mark.usefixtures("unhurried")
def test_a_cluster_sends_each_request_once() -> None:
    pytest.importorskip("ray", reason="the extra is not installed")
    from tests.measure import servers
    from tests.measure.server import serve

    from servewise.measure.job import Target, measure
    from servewise.measure.spec import LoadSpec
    from servewise.traffic import FixedLength

    spec = LoadSpec(
        concurrency=4, num_requests=20, input_tokens=FixedLength(tokens=40), output_tokens=FixedLength(tokens=5)
    )
    with serve(servers.measurable()) as script:
        result = measure(Target(url=script.url, workers=2, ray_address="local"), spec)
    measured = result.measurement
    assert sorted(measured.details.request.tolist()) == list(range(20))
    assert measured.trust.reasons == ()
    assert (measured.log.status == RequestStatus.OK).all()
    assert (measured.log.sent_s >= measured.log.intended_s).all()
