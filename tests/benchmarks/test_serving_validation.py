"""Held-out predictions see nothing of what they are for, and intervals are made of other groups' residuals."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray
from serving_table import placed_row

from benchmarks.serving_fit import (
    Fit,
    Linear,
    Predicted,
    Prepared,
    all_overheads,
    fit_rows,
    linearize,
    predict,
    prepare,
)
from benchmarks.serving_rows import Placed
from benchmarks.serving_validation import (
    FEWEST_GROUPS,
    FEWEST_RESIDUALS,
    GROUPINGS,
    HeldOut,
    Interval,
    groups_of,
    hold_out,
    interval_score,
    intervals,
    quantiles,
)
from servewise.errors import InputError

Array = NDArray[np.float64]

SERVERS = (
    {},
    {"tp_size": "2"},
    {"precision": "fp8", "gpu_system": "h200_sxm"},
    {"engine": "trtllm", "engine_version": "1.0.0rc3"},
)
LOADS = ("2", "16")
ROWS = len(SERVERS) * len(LOADS)


@pytest.fixture(scope="module")
def prepared() -> Prepared:
    """Rows of three groups (the second deployment is the first at two GPUs), as long as they were measured."""
    rows = [
        placed_row(2 + len(LOADS) * i + j, **server, batch_size_field=load, concurrency_from_source=load, osl="64")
        for i, server in enumerate(SERVERS)
        for j, load in enumerate(LOADS)
    ]
    found = prepare(rows)
    times = predict(found, all_overheads(found, fit_rows(found, [], num_steps=0))).times_ms
    slower = times * np.array([1.3, 1.1]) * np.exp(np.random.default_rng(3).normal(0.0, 0.02, times.shape))
    return measured_as(found, slower)


def measured_as(prepared: Prepared, times_ms: Array) -> Prepared:
    """The same rows with other measured times."""
    rows: list[Placed] = []
    for placed, (ttft, tpot) in zip(prepared.rows, times_ms.tolist(), strict=True):
        rows.append(replace(placed, row=replace(placed.row, ttft_ms=ttft, tpot_ms=tpot)))
    return replace(prepared, rows=tuple(rows))


@pytest.fixture(scope="module")
def fitted(prepared: Prepared) -> Fit:
    return fit_rows(prepared, range(ROWS), num_steps=2)


@pytest.fixture(scope="module")
def linear(prepared: Prepared, fitted: Fit) -> Linear:
    return linearize(prepared, fitted, range(ROWS))


# ----------------------------------------------------------------------------------------------------------- held out


def test_what_is_left_out_together(prepared: Prepared) -> None:
    sizes = {name: len(set(groups_of(prepared, name))) for name in GROUPINGS}
    assert sizes == {"group": 3, "model": 1, "gpu": 2, "engine": 2, "deployment": 4}
    assert groups_of(prepared, "gpu")[4] == "H200-SXM-141GB"
    assert groups_of(prepared, "engine")[6] == "tensorrt-llm"


@pytest.mark.parametrize("grouping", ["group", "engine"])
def test_held_out_rows_have_no_say(prepared: Prepared, fitted: Fit, linear: Linear, grouping: str) -> None:
    """With nonsense for what is known of a group its rows are predicted alike, to the last digit."""
    usual = hold_out(prepared, fitted, linear, grouping)
    labels = np.array(groups_of(prepared, grouping))
    assert usual.groups == tuple(labels)
    assert np.isfinite(usual.predicted.times_ms).all()
    for name in set(labels):
        held = labels == name
        nonsense = Linear(
            residuals=np.where(held[:, None], linear.residuals - 0.5, linear.residuals),
            slopes=np.where(held[:, None, None], 0.5 - linear.slopes, linear.slopes),
        )
        other = hold_out(prepared, fitted, nonsense, grouping)
        assert np.array_equal(other.predicted.times_ms[held], usual.predicted.times_ms[held])
        # the rows of the other groups are predicted by fits that do see it
        assert not np.allclose(other.predicted.times_ms[~held], usual.predicted.times_ms[~held], rtol=1e-3)


def test_a_group_measured_otherwise_is_predicted_alike(prepared: Prepared, fitted: Fit, linear: Linear) -> None:
    """From the measured times on, fit included: only the point of linearization moves, worth 1% of TPOT, 3% of TTFT.

    The fit to all rows, which does see the group, predicts it several times more differently.
    """
    held = np.array([name == groups_of(prepared, "group")[4] for name in groups_of(prepared, "group")])
    times = np.exp(prepared.measured)
    times[held] *= 0.6
    other = measured_as(prepared, times)
    refitted = fit_rows(other, range(ROWS), num_steps=2)
    again = hold_out(other, refitted, linearize(other, refitted, range(ROWS)), "group").predicted.times_ms
    usual = hold_out(prepared, fitted, linear, "group").predicted.times_ms
    moved = np.abs(np.log(again / usual))
    seen = np.abs(
        np.log(
            predict(other, all_overheads(other, refitted)).times_ms
            / predict(prepared, all_overheads(prepared, fitted)).times_ms
        )
    )
    assert (moved[held].max(axis=0) < (0.03, 0.01)).all()
    assert (seen[held].min(axis=0) > 3 * moved[held].max(axis=0)).all()


def test_it_is_the_fit_without_the_group(prepared: Prepared, fitted: Fit, linear: Linear) -> None:
    """One step from the fit to all rows comes within 3% of a fit from the prior that never saw the group."""
    labels = np.array(groups_of(prepared, "engine"))
    held = [int(i) for i in np.flatnonzero(labels == "tensorrt-llm")]
    never = fit_rows(prepared, [int(i) for i in np.flatnonzero(labels != "tensorrt-llm")], num_steps=3)
    exact = predict(prepared, all_overheads(prepared, never), held).times_ms
    usual = hold_out(prepared, fitted, linear, "engine").predicted.times_ms[held]
    assert np.abs(np.log(usual / exact)).max() < 0.03


def test_one_group_cannot_be_left_out(prepared: Prepared, fitted: Fit, linear: Linear) -> None:
    with pytest.raises(InputError, match=r"same model \(meta-llama/Llama-3.1-8B-Instruct\)"):
        hold_out(prepared, fitted, linear, "model")


# ---------------------------------------------------------------------------------------------------------- intervals


def with_ratio(rows: list[Placed], ratio: Array, groups: list[str], saturated: list[bool]) -> tuple[Prepared, HeldOut]:
    """Rows that were predicted at 100 ms and measured at ``ratio`` times that."""
    few = prepare([rows[0]])
    placed = tuple(
        replace(p, row=replace(p.row, ttft_ms=float(100 * r[0]), tpot_ms=float(100 * r[1])))
        for p, r in zip(rows, ratio, strict=True)
    )
    prepared = replace(few, rows=placed, groups=tuple(groups))
    predicted = Predicted(times_ms=np.full(ratio.shape, 100.0), saturated=np.array(saturated))
    return prepared, HeldOut(grouping="group", groups=tuple(groups), predicted=predicted)


def test_an_interval_is_made_of_other_groups_of_the_same_engine_and_load() -> None:
    vllm, trtllm = placed_row(), placed_row(engine="trtllm")
    num = FEWEST_RESIDUALS + 4  # 8 in each of three groups
    rows = [vllm] + [vllm] * num + [trtllm] * num + [vllm] * num
    groups = ["own", *(f"{kind}{i % FEWEST_GROUPS}" for kind in "abc" for i in range(num))]
    saturated = [False] * (1 + 2 * num) + [True] * num
    spread = np.linspace(0.9, 1.1, num)
    column = np.concatenate([[9.0], spread, 5.0 * spread, 0.2 * spread])
    prepared, held_out = with_ratio(rows, np.stack([column, column], axis=1), groups, saturated)
    found = intervals(prepared, held_out).ratio
    assert found.shape == (len(rows), 2, 2)
    assert found[0, 1] == pytest.approx(quantiles(spread))
    others = {kind: np.arange(num) % FEWEST_GROUPS != FEWEST_GROUPS - 1 for kind in "ac"}
    # without its own group too few rows of vLLM's are left: it borrows from the other engines at the same load
    last_a = num
    assert found[last_a, 1] == pytest.approx(quantiles(np.concatenate([[9.0], spread[others["a"]], 5.0 * spread])))
    # nothing but the groups c is saturated: all other rows
    everything = np.concatenate([[9.0], spread, 5.0 * spread, 0.2 * spread[others["c"]]])
    assert found[-1, 1] == pytest.approx(quantiles(everything))


def test_many_rows_of_few_groups_make_no_interval_of_their_own() -> None:
    vllm, trtllm = placed_row(), placed_row(engine="trtllm")
    num = 2 * FEWEST_RESIDUALS
    rows = [vllm] + [vllm] * num + [trtllm] * num
    groups = ["own", *(f"{kind}{i % 2}" for kind in "ab" for i in range(num))]
    spread = np.linspace(0.9, 1.1, num)
    column = np.concatenate([[1.0], spread, 5.0 * spread])
    prepared, held_out = with_ratio(rows, np.stack([column, column], axis=1), groups, [False] * len(rows))
    found = intervals(prepared, held_out).ratio
    assert found[0, 1] == pytest.approx(quantiles(np.concatenate([spread, 5.0 * spread])))


def test_a_row_and_its_group_never_make_their_own_interval() -> None:
    num = FEWEST_RESIDUALS
    rows, groups = [placed_row()] * (2 * num), ["a"] * num + ["b"] * num
    ratio = np.tile(np.linspace(0.9, 1.1, 2 * num)[:, None], (1, 2))
    usual = intervals(*with_ratio(rows, ratio, groups, [False] * len(rows))).ratio
    ratio[:num] *= 7.0
    moved = intervals(*with_ratio(rows, ratio, groups, [False] * len(rows))).ratio
    assert np.allclose(usual[:num], moved[:num], rtol=1e-12)
    assert np.allclose(7.0 * usual[num:], moved[num:], rtol=1e-12)


def test_figures_that_a_rule_sets_aside_make_no_interval() -> None:
    num = FEWEST_RESIDUALS
    good, bad = placed_row(), replace(placed_row(), excluded=frozenset({"ttft"}))
    rows, groups = [good] + [good] * num + [bad] * num, ["own"] + ["a"] * num + ["b"] * num
    ratio = np.ones((len(rows), 2))
    ratio[num + 1 :] = 50.0
    found = intervals(*with_ratio(rows, ratio, groups, [False] * len(rows))).ratio
    assert found[0, 0] == pytest.approx([1.0, 1.0])
    assert found[0, 1, 1] == pytest.approx(50.0)


def test_quantiles_by_hand() -> None:
    """99 values: 5% and 95%, moved out by one hundredth; 19 and fewer: all of them."""
    values = np.arange(1.0, 100.0)
    assert quantiles(values) == pytest.approx((1 + 0.04 * 98, 1 + 0.96 * 98))
    assert quantiles(np.arange(1.0, 20.0)) == (1.0, 19.0)
    assert quantiles(np.array([2.0])) == (2.0, 2.0)
    with pytest.raises(InputError, match="nothing to make intervals of"):
        quantiles(np.zeros(0))


def test_quantiles_hold_what_they_promise() -> None:
    """New values fall within the quantiles of 40 old ones nine times out of ten, at least."""
    draw = np.random.default_rng(1)
    hits = []
    for _ in range(400):
        low, high = quantiles(draw.lognormal(0.0, 0.2, 40))
        fresh = draw.lognormal(0.0, 0.2, 50)
        hits.append(((low <= fresh) & (fresh <= high)).mean())
    assert 0.9 <= np.mean(hits) < 0.95


def test_interval_score_by_hand() -> None:
    interval = Interval(ratio=np.array([[[0.8, 1.2], [0.9, 1.1]]] * 3))
    ratio = np.array([[1.0, 1.0], [1.5, 1.0], [0.7, 1.11]])
    assert interval.holds(ratio).tolist() == [[True, True], [False, True], [False, False]]
    assert interval.width[0] == pytest.approx([0.4, 0.2])
    # widths of 0.4; one is missed by 0.3, one by 0.1: 20 times that
    assert interval_score(interval, ratio, [0, 1, 2], 0) == pytest.approx((3 * 0.4 + 20 * 0.3 + 20 * 0.1) / 3)
    assert interval_score(interval, ratio, [0, 1], 1) == pytest.approx(0.2)
    assert interval_score(interval, ratio, np.array([2]), 1) == pytest.approx(0.2 + 20 * 0.01)


def test_edges_are_held() -> None:
    interval = Interval(ratio=np.array([[[0.8, 1.2], [0.8, 1.2]]]))
    assert interval.holds(np.array([[0.8, 1.2]])).tolist() == [[True, True]]
