"""Promises as a command line writes them."""

from __future__ import annotations

import pytest

from servewise.config import parse_promise
from servewise.errors import InputError
from servewise.types import PercentileLimit, Promise


def test_limits_are_read_as_in_a_service_file() -> None:
    assert parse_promise("ttft_s=1, tpot_s=0.05,attainment=0.9") == Promise(ttft_s=1.0, tpot_s=0.05, attainment=0.9)
    limit = PercentileLimit(metric="itl", percentile=99.9, limit_s=0.2)
    assert parse_promise("itl_p99.9_s=0.2,deadline_s=60") == Promise(percentiles=(limit,), deadline_s=60.0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not KEY=VALUE"),
        ("ttft_s", "not KEY=VALUE"),
        ("tpot_ms=5", "unknown limit 'tpot_ms'"),
        ("ttft_s=1,ttft_s=2", "promised twice"),
        ("ttft_s=-1", "must be a positive number"),
        ("ttft_s=nan", "must be a positive number"),
        ("ttft_s=1,attainment=99", "write a share of requests below 1"),
        ("attainment=0.9,ttft_p99_s=1", "needs limits to meet"),
        ("ttft_p0_s=1", "not a percentile between"),
    ],
)
def test_everything_else_is_refused(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_promise(text)
