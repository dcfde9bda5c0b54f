"""Another rate, the same traffic."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from servewise.errors import InputError
from servewise.traffic import load_profile, rescale, statistics
from servewise.traffic.rescale import families
from servewise.types import Workload
from traffic.workloads import bytes_of, check_invariants, prefix_of, workload_of


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    num = draw(st.integers(2, 40))
    gaps_s = draw(st.lists(st.floats(0, 50), min_size=num, max_size=num))
    arrival_s = np.cumsum(gaps_s)
    arrival_s[-1] += 1.0
    rows = draw(st.lists(st.lists(st.integers(0, 3), max_size=4), min_size=num, max_size=num))
    session = draw(st.none() | st.lists(st.integers(0, 5), min_size=num, max_size=num))
    inputs = [16 * len(row) + 1 for row in rows]
    # Outputs are unique: they tell which request is which.
    outputs = list(range(1, num + 1))
    return workload_of(arrival_s.tolist(), inputs, outputs, prefix_of(rows), session)


@settings(deadline=None)
@given(workloads(), st.floats(0.05, 5.0), st.integers(0, 100), st.sampled_from(["thinning", "time"]))
def test_exact_rate_valid_and_repeatable(workload: Workload, factor: float, seed: int, method: str) -> None:
    rate_rps = factor * workload.num_requests / workload.span_s
    if method == "thinning" and round(rate_rps * workload.span_s) < 2:
        with pytest.raises(InputError, match="fewer than 2 requests"):
            rescale(workload, rate_rps, seed=seed)
        return
    rescaled = rescale(workload, rate_rps, method=method, seed=seed)  # type: ignore[arg-type]
    check_invariants(rescaled)
    assert bytes_of(rescaled) == bytes_of(rescale(workload, rate_rps, method=method, seed=seed))  # type: ignore[arg-type]
    if method == "time":
        assert rescaled.num_requests == workload.num_requests
        assert rescaled.num_requests / rescaled.span_s == pytest.approx(rate_rps)
    else:
        assert rescaled.num_requests == round(rate_rps * workload.span_s)
        assert rescaled.span_s == pytest.approx(workload.span_s)
    assert set(rescaled.output_tokens.tolist()) <= set(workload.output_tokens.tolist())
    assert "rescaled from" in rescaled.provenance.note


@settings(deadline=None)
@given(workloads(), st.integers(0, 100))
def test_thinning_takes_requests_as_they_are(workload: Workload, seed: int) -> None:
    wanted = max(2, workload.num_requests // 2)
    thinned = rescale(workload, wanted / workload.span_s, seed=seed)
    kept = (thinned.output_tokens - 1).tolist()
    assert kept == sorted(set(kept))
    assert np.array_equal(thinned.arrival_s, workload.arrival_s[kept])


def test_same_rate_changes_nothing() -> None:
    workload = load_profile("azure-code-2023")
    same = rescale(workload, workload.num_requests / workload.span_s)
    assert bytes_of(same) == bytes_of(workload)


def test_conversations_are_thinned_whole() -> None:
    """A third of the requests keeps nearly the same share of prefix hits."""
    workload = load_profile("mooncake-conversation")
    before = statistics(workload, cache_tokens=[])
    after = statistics(rescale(workload, before.num_requests / before.duration_s / 3), cache_tokens=[])
    assert before.prefix_hit_frac is not None
    assert after.prefix_hit_frac == pytest.approx(before.prefix_hit_frac, rel=0.06)


def test_copies_keep_the_prefix_hits_and_not_more() -> None:
    workload = load_profile("mooncake-conversation")
    before = statistics(workload, cache_tokens=[])
    after = statistics(rescale(workload, 3 * before.num_requests / before.duration_s), cache_tokens=[])
    assert before.prefix_hit_frac is not None
    assert after.prefix_hit_frac == pytest.approx(before.prefix_hit_frac, rel=0.02)


@pytest.mark.parametrize("name", ["azure-code-2023", "azure-conversation-2023"])
def test_peaks_stay_when_the_rate_changes(name: str) -> None:
    workload = load_profile(name)
    before = statistics(workload)
    assert before.mean_rate_rps is not None
    for factor in (0.5, 2.0):
        after = statistics(rescale(workload, factor * before.mean_rate_rps))
        assert after.peak_to_mean == pytest.approx(before.peak_to_mean, rel=0.12)


def test_families() -> None:
    session = workload_of([0, 1, 2], session=[7, 3, 7])
    assert families(session).tolist() == [1, 0, 1]
    assert families(workload_of([0, 1, 2])).tolist() == [0, 1, 2]
    # All begin with block 0, a system prompt; the next block tells them apart.
    rows = [[0, 1 + request // 2] for request in range(60)] + [[0]]
    family = families(workload_of([float(k) for k in range(61)], prefix=prefix_of(rows))).tolist()
    assert family[0] == family[1] != family[2] == family[3]
    assert len(set(family)) == 31


@pytest.mark.parametrize("rate_rps", [0, -1, float("nan"), float("inf")])
def test_impossible_rates(rate_rps: float) -> None:
    with pytest.raises(InputError, match="it must be a positive number"):
        rescale(workload_of([0, 1]), rate_rps)


def test_no_rate_to_change() -> None:
    with pytest.raises(InputError, match="all requests arrive at once"):
        rescale(workload_of([0, 0]), 1)
    with pytest.raises(InputError, match="allowed: thinning, time"):
        rescale(workload_of([0, 1]), 1, method="magic")  # type: ignore[arg-type]
