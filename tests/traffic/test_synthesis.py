"""Synthetic traffic has the properties it was asked for."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from servewise.errors import InputError
from servewise.traffic import (
    Arrivals,
    Conversations,
    EmpiricalLength,
    FixedLength,
    LengthDistribution,
    LognormalLength,
    SynthesisSpec,
    SystemPrompts,
    UniformLength,
    statistics,
    synthesize,
)
from servewise.traffic.arrivals import draw_arrival_times
from servewise.traffic.lengths import draw_lengths_of
from traffic.workloads import bytes_of, check_invariants


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def spec(**changes: object) -> SynthesisSpec:
    fields: dict[str, object] = {
        "num_requests": 1000,
        "arrivals": Arrivals(rate_rps=5),
        "input_tokens": UniformLength(low=1, high=200),
        "output_tokens": UniformLength(low=1, high=50),
        **changes,
    }
    return SynthesisSpec(**fields)  # type: ignore[arg-type]


def test_constant_arrivals() -> None:
    times_s = draw_arrival_times(Arrivals(process="constant", rate_rps=4), 5, rng())
    assert times_s.tolist() == [0, 0.25, 0.5, 0.75, 1.0]


@pytest.mark.parametrize(("process", "cv"), [("poisson", 1.0), ("gamma", 0.5), ("gamma", 3.0)])
def test_rate_and_burstiness(process: str, cv: float) -> None:
    arrivals = Arrivals(process=process, rate_rps=20, cv=cv)  # type: ignore[arg-type]
    gaps_s = np.diff(draw_arrival_times(arrivals, 200_000, rng()))
    assert gaps_s.mean() == pytest.approx(1 / 20, rel=0.02)
    assert gaps_s.std() / gaps_s.mean() == pytest.approx(cv, rel=0.02)


@pytest.mark.parametrize("process", ["constant", "poisson"])
def test_rate_curve_repeats_and_may_pause(process: str) -> None:
    arrivals = Arrivals(process=process, curve=((10, 100), (5, 0), (20, 25)))  # type: ignore[arg-type]
    times_s = draw_arrival_times(arrivals, 150_000, rng())
    assert np.all(np.diff(times_s) >= 0)
    phase = times_s % 35
    cycles = times_s[-1] / 35
    assert np.count_nonzero(phase < 10) / cycles == pytest.approx(1000, rel=0.02)
    # A time that rounding puts on the edge of the pause may fall on either side of it.
    assert np.count_nonzero((phase > 10.000001) & (phase < 14.999999)) == 0
    assert np.count_nonzero(phase >= 14.999999) / cycles == pytest.approx(500, rel=0.02)


@pytest.mark.parametrize(
    ("lengths", "mean", "low", "high"),
    [
        (FixedLength(tokens=7), 7, 7, 7),
        (UniformLength(low=3, high=9), 6, 3, 9),
        (LognormalLength(median=100, sigma=0.5, max_tokens=10_000), 100 * np.exp(0.125), 1, 10_000),
        (EmpiricalLength(values=(1, 1, 4)), 2, 1, 4),
    ],
)
def test_lengths(lengths: LengthDistribution, mean: float, low: int, high: int) -> None:
    tokens = draw_lengths_of(lengths, 100_000, rng())
    assert tokens.dtype == np.int64
    assert tokens.mean() == pytest.approx(mean, rel=0.02)
    assert low <= tokens.min()
    assert tokens.max() <= high


def test_lognormal_is_cut_on_both_sides() -> None:
    tokens = draw_lengths_of(LognormalLength(median=2, sigma=3, max_tokens=50), 10_000, rng())
    assert tokens.min() == 1
    assert tokens.max() == 50


def test_nothing_shared_without_system_prompts() -> None:
    workload = synthesize(spec())
    check_invariants(workload)
    assert statistics(workload).prefix_hit_frac == 0
    assert workload.session is None
    assert workload.provenance.kind == "assumed"


def test_one_system_prompt_is_shared_by_all() -> None:
    workload = synthesize(spec(input_tokens=FixedLength(tokens=100), system_prompts=SystemPrompts(tokens=330)))
    check_invariants(workload)
    assert set(workload.input_tokens.tolist()) == {430}
    # 20 of the 26 full blocks, for all requests but the first.
    assert statistics(workload).prefix_hit_frac == pytest.approx(20 * 16 / 430 * 999 / 1000)


def test_groups_follow_zipf() -> None:
    prompts = SystemPrompts(tokens=32, num_groups=3, zipf_exponent=1.0)
    workload = synthesize(spec(num_requests=30_000, system_prompts=prompts))
    assert workload.prefix is not None
    first = workload.prefix.ids[workload.prefix.offsets[:-1]]
    shares = np.unique(first, return_counts=True)[1] / len(first)
    assert shares == pytest.approx(np.array([6, 3, 2]) / 11, rel=0.05)


def test_a_turn_repeats_everything_before() -> None:
    conversations = Conversations(turns=FixedLength(tokens=4), turn_gap_s=30, turn_gap_sigma=0)
    workload = synthesize(spec(conversations=conversations, system_prompts=SystemPrompts(tokens=50)))
    check_invariants(workload)
    assert workload.session is not None
    assert workload.prefix is not None
    assert np.bincount(workload.session).tolist() == [4] * 250
    for session in range(250):
        turns = np.flatnonzero(workload.session == session)
        assert np.diff(workload.arrival_s[turns]) == pytest.approx([30, 30, 30])
        for above, turn in pairwise(turns):
            before = int(workload.input_tokens[above] + workload.output_tokens[above])
            added = int(workload.input_tokens[turn]) - before
            assert 1 <= added <= 200
            rows = [
                workload.prefix.ids[workload.prefix.offsets[k] : workload.prefix.offsets[k + 1]] for k in (above, turn)
            ]
            # The row goes on over the output, and all of its full blocks come back.
            assert len(rows[0]) == before // 16
            assert np.array_equal(rows[0], rows[1][: len(rows[0])])


@settings(deadline=None, max_examples=30)
@given(
    num_requests=st.integers(1, 200),
    tokens=st.integers(1, 100),
    groups=st.integers(1, 4),
    turns=st.integers(1, 5),
    seed=st.integers(0, 2**32),
)
def test_any_specification_gives_a_valid_workload(
    num_requests: int, tokens: int, groups: int, turns: int, seed: int
) -> None:
    made = spec(
        num_requests=num_requests,
        system_prompts=SystemPrompts(tokens=tokens, num_groups=groups),
        conversations=Conversations(turns=UniformLength(low=1, high=turns), turn_gap_s=10),
    )
    workload = synthesize(made, seed)
    check_invariants(workload)
    assert workload.num_requests == num_requests
    assert bytes_of(workload) == bytes_of(synthesize(made, seed))


def test_declared_limit_ends_outputs() -> None:
    workload = synthesize(spec(max_tokens=20))
    assert workload.max_tokens_kind == "declared"
    assert set(workload.max_tokens.tolist()) == {20}
    assert workload.output_tokens.max() == 20


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Arrivals(), "either rate_rps or a rate curve"),
        (lambda: Arrivals(rate_rps=1, curve=((1, 1),)), "either rate_rps or a rate curve"),
        (lambda: Arrivals(rate_rps=0), "rate_rps is 0; it must be a positive number"),
        (lambda: Arrivals(rate_rps=float("nan")), "it must be a positive number"),
        (lambda: Arrivals(rate_rps=1, process="gamma", cv=-1), "cv is -1"),
        (lambda: Arrivals(rate_rps=1, cv=2), "set process: gamma"),
        (lambda: Arrivals(rate_rps=1, process="bursty"), "allowed: constant, poisson, gamma"),  # type: ignore[arg-type]
        (lambda: Arrivals(curve=((0, 1),)), "durations must be above 0 s"),
        (lambda: Arrivals(curve=((1, 0),)), "at least one must be above"),
        (lambda: FixedLength(tokens=0), "tokens is 0; a length must be at least 1 token"),
        (lambda: UniformLength(low=5, high=4), "high is 4; it must be at least low"),
        (lambda: LognormalLength(median=float("nan"), sigma=1, max_tokens=5), "median is nan"),
        (lambda: LognormalLength(median=5, sigma=-1, max_tokens=5), "sigma is -1"),
        (lambda: EmpiricalLength(values=()), "at least one value"),
        (lambda: EmpiricalLength(values=(3, 0)), "the smallest value is 0"),
        (lambda: SystemPrompts(tokens=0), "tokens of system prompts is 0"),
        (lambda: SystemPrompts(tokens=1, num_groups=0), "num_groups of system prompts is 0"),
        (lambda: SystemPrompts(tokens=1, zipf_exponent=-1), "zipf_exponent is -1"),
        (lambda: Conversations(turns=FixedLength(tokens=1), turn_gap_s=0), "turn_gap_s is 0"),
        (lambda: spec(num_requests=0), "num_requests is 0"),
        (lambda: spec(max_tokens=0), "max_tokens is 0"),
    ],
)
def test_impossible_specifications(make: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()  # type: ignore[operator]
