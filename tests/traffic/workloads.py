"""Small workloads for the tests."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from servewise.traffic.prefixes import canonical_prefix
from servewise.types import PrefixBlocks, Provenance, Workload


def prefix_of(rows: Sequence[Sequence[int]], block_size_tokens: int = 16) -> PrefixBlocks:
    offsets = np.concatenate(([0], np.cumsum([len(row) for row in rows]))).astype(np.int64)
    ids = np.array([block for row in rows for block in row], dtype=np.int64)
    return canonical_prefix(offsets, ids, block_size_tokens)


def workload_of(
    arrival_s: Sequence[float],
    input_tokens: Sequence[int] | None = None,
    output_tokens: Sequence[int] | None = None,
    prefix: PrefixBlocks | None = None,
    session: Sequence[int] | None = None,
) -> Workload:
    num = len(arrival_s)
    outputs = np.array(output_tokens if output_tokens is not None else [10] * num, dtype=np.int64)
    return Workload(
        name="test",
        arrival_s=np.array(arrival_s, dtype=np.float64),
        input_tokens=np.array(input_tokens if input_tokens is not None else [100] * num, dtype=np.int64),
        output_tokens=outputs,
        max_tokens=outputs.copy(),
        max_tokens_kind="assumed",
        prefix=prefix,
        session=None if session is None else np.array(session, dtype=np.int64),
        provenance=Provenance(kind="assumed", source="assumed: a test"),
    )


def bytes_of(workload: Workload) -> bytes:
    """Everything in a workload that could differ between two runs."""
    arrays = [workload.arrival_s, workload.input_tokens, workload.output_tokens, workload.max_tokens]
    if workload.prefix is not None:
        arrays += [workload.prefix.offsets, workload.prefix.ids]
    if workload.session is not None:
        arrays.append(workload.session)
    return b"".join(array.tobytes() for array in arrays)


def check_invariants(workload: Workload) -> None:
    """What the type promises of every workload."""
    assert np.all(np.diff(workload.arrival_s) >= 0)
    assert workload.arrival_s[0] >= 0
    assert workload.arrival_s.dtype == np.float64
    for tokens in (workload.input_tokens, workload.output_tokens, workload.max_tokens):
        assert tokens.dtype == np.int64
        assert len(tokens) == workload.num_requests
        assert tokens.min() >= 1
    assert np.all(workload.max_tokens >= workload.output_tokens)
    if workload.session is not None:
        assert workload.session.dtype == np.int64
        assert len(workload.session) == workload.num_requests
    if workload.prefix is not None:
        check_prefix(workload.prefix, workload.num_requests)


def check_prefix(prefix: PrefixBlocks, num_requests: int) -> None:
    """Equal identities have equal parents, hence equal whole prefixes."""
    assert len(prefix.offsets) == num_requests + 1
    assert prefix.offsets.dtype == prefix.ids.dtype == np.int64
    assert prefix.offsets[0] == 0
    assert prefix.offsets[-1] == len(prefix.ids)
    assert len(prefix.ids) == 0 or (prefix.ids.min() >= 0 and prefix.ids.max() < prefix.num_ids)
    parents: dict[int, int] = {}
    for start, end in zip(prefix.offsets[:-1], prefix.offsets[1:], strict=True):
        above = -1
        for block in prefix.ids[start:end].tolist():
            assert parents.setdefault(block, above) == above
            above = block
