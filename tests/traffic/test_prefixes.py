"""Identities are canonical, and the LRU hit rate is that of a replay."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from servewise.traffic.lru import hit_tokens_by_cache, reuse_distances
from servewise.traffic.prefixes import prefix_of_requests, repeat_prefix
from traffic.workloads import check_prefix, prefix_of, workload_of

ROWS = st.lists(st.lists(st.integers(-3, 5), max_size=6), min_size=1, max_size=12)


@settings(deadline=None)
@given(ROWS)
def test_equal_identity_is_equal_prefix(rows: list[list[int]]) -> None:
    """Both ways, whether or not the ids were chained already."""
    prefix = prefix_of(rows)
    check_prefix(prefix, len(rows))
    whole: dict[int, tuple[int, ...]] = {}
    identity: dict[tuple[int, ...], int] = {}
    for row, start in zip(rows, prefix.offsets[:-1].tolist(), strict=True):
        for depth in range(len(row)):
            block = int(prefix.ids[start + depth])
            beginning = tuple(row[: depth + 1])
            assert whole.setdefault(block, beginning) == beginning
            assert identity.setdefault(beginning, block) == block
    assert prefix.num_ids == len(identity)


def test_chained_ids_keep_their_order() -> None:
    prefix = prefix_of([[10, 20, 30], [10, 20, 40], [5]])
    assert prefix.ids.tolist() == [1, 2, 3, 1, 2, 4, 0]


def test_blocks_hashed_alone_are_chained() -> None:
    prefix = prefix_of([[1, 2, 2], [3, 2, 2]])
    assert len(set(prefix.ids.tolist())) == 6


@settings(deadline=None)
@given(ROWS, st.integers(0, 1000))
def test_rows_of_a_part(rows: list[list[int]], seed: int) -> None:
    prefix = prefix_of(rows)
    chosen = np.random.default_rng(seed).permutation(len(rows))
    part = prefix_of_requests(prefix, chosen)
    for place, request in enumerate(chosen.tolist()):
        expected = prefix.ids[prefix.offsets[request] : prefix.offsets[request + 1]]
        assert part.ids[part.offsets[place] : part.offsets[place + 1]].tolist() == expected.tolist()


def test_copies_share_only_system_prompts() -> None:
    rows = [[0, 100 + request] for request in range(50)]
    prefix = prefix_of(rows)
    twice = repeat_prefix(prefix, 2)
    check_prefix(twice, 100)
    first, second = twice.ids.reshape(2, 50, 2)
    assert np.all(first[:, 0] == second[:, 0])
    assert set(first[:, 1].tolist()).isdisjoint(second[:, 1].tolist())


@settings(deadline=None)
@given(st.lists(st.integers(0, 8), min_size=1, max_size=60))
def test_reuse_distance_is_the_place_in_an_lru_stack(ids: list[int]) -> None:
    stack: list[int] = []
    for block, distance in zip(ids, reuse_distances(np.array(ids, dtype=np.int64)).tolist(), strict=True):
        if block in stack:
            assert distance == stack.index(block) + 1
            stack.remove(block)
        else:
            assert distance == np.iinfo(np.int64).max
        stack.insert(0, block)


def replay(rows: list[list[int]], num_blocks: int) -> int:
    """Blocks found by a plain LRU cache."""
    cache: OrderedDict[tuple[int, ...], None] = OrderedDict()
    found = 0
    for row in rows:
        blocks = [tuple(row[: depth + 1]) for depth in range(len(row))]
        found += next((depth for depth, block in enumerate(blocks) if block not in cache), len(blocks))
        for block in reversed(blocks):
            cache[block] = None
            cache.move_to_end(block)
        while len(cache) > num_blocks:
            cache.popitem(last=False)
    return found


@settings(deadline=None)
@given(ROWS, st.integers(1, 20))
def test_hits_are_those_of_a_replay(rows: list[list[int]], num_blocks: int) -> None:
    workload = workload_of(
        [float(request) for request in range(len(rows))],
        input_tokens=[16 * len(row) + 1 for row in rows],
        prefix=prefix_of(rows),
    )
    hits = hit_tokens_by_cache(workload, [16 * num_blocks, np.inf])
    assert hits == [16 * replay(rows, num_blocks), 16 * replay(rows, 10**6)]


def test_output_blocks_are_cached_but_not_hits() -> None:
    """A row that names its output fills the cache; only blocks inside a prompt count as found."""
    workload = workload_of([0, 1], input_tokens=[16, 32], output_tokens=[16, 16], prefix=prefix_of([[1, 2], [1, 2, 3]]))
    assert hit_tokens_by_cache(workload, [np.inf]) == [32]


def test_unknown_prefixes_have_no_hits() -> None:
    with pytest.raises(ValueError, match="no prefix blocks"):
        hit_tokens_by_cache(workload_of([0, 1]), [100])
