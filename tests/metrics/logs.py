"""Logs made by hand for the tests of metrics."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from servewise.types import ItlSegments, RequestLog, RequestStatus


def make_log(
    intended: Sequence[float],
    first: Sequence[float],
    last: Sequence[float],
    output: Sequence[int],
    *,
    status: Sequence[int] | None = None,
    sent: Sequence[float] | None = None,
    inputs: Sequence[int] | None = None,
    cached: Sequence[int] | None = None,
    preemptions: Sequence[int] | None = None,
    itl: ItlSegments | None = None,
) -> RequestLog:
    """A log from plain lists; everything not given is unremarkable."""
    num = len(intended)

    def ints(values: Sequence[int] | None, default: int) -> np.ndarray:
        return np.asarray([default] * num if values is None else values, dtype=np.int64)

    return RequestLog(
        intended_s=np.asarray(intended, dtype=np.float64),
        sent_s=np.asarray(intended if sent is None else sent, dtype=np.float64),
        first_token_s=np.asarray(first, dtype=np.float64),
        last_token_s=np.asarray(last, dtype=np.float64),
        input_tokens=ints(inputs, 10),
        output_tokens=ints(output, 1),
        cached_tokens=ints(cached, -1),
        num_preemptions=ints(preemptions, -1),
        replica=ints(None, 0),
        status=np.asarray([RequestStatus.OK] * num if status is None else status, dtype=np.int8),
        itl=itl,
    )


def make_segments(rows: Sequence[tuple[float, float, int, int]]) -> ItlSegments:
    """Segments from (first_s, increment_s, steps, weight) rows."""
    first, increment, steps, weight = zip(*rows, strict=True) if rows else ((), (), (), ())
    return ItlSegments(
        first_s=np.asarray(first, dtype=np.float64),
        increment_s=np.asarray(increment, dtype=np.float64),
        steps=np.asarray(steps, dtype=np.int64),
        weight=np.asarray(weight, dtype=np.int64),
    )
