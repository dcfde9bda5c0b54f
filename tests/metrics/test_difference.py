"""Comparisons of runs: rarely an alarm without a difference, a real one found, and what cannot be told said so."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metrics.logs import make_log, make_segments
from perf.perf_deployments import deploy
from servewise.errors import InputError
from servewise.metrics import difference
from servewise.metrics.bootstrap import effective_number
from servewise.metrics.student import student_p_value, student_quantile
from servewise.perf import memory, step_model
from servewise.sim import run
from servewise.traffic import Arrivals, LognormalLength, SynthesisSpec, synthesize
from servewise.types import Difference, FigureDifference, Promise, RequestLog, StepModel

PROMISE = Promise(ttft_s=0.15, tpot_s=0.02)
NUM_REQUESTS = 1000
RATE_RPS = 10.0


@pytest.fixture(scope="module")
def simulated() -> Simulated:
    return Simulated()


class Simulated:
    """Runs of one deployment; nothing differs between them but the seed and, where asked, the time of a step."""

    def __init__(self) -> None:
        self.deployment = deploy("meta-llama/Llama-3.1-8B-Instruct", tp=1)
        self.model = step_model(self.deployment)
        self.memory = memory(self.deployment)

    def log(self, seed: int, *, slower: float = 1.0, gaps: bool = False) -> RequestLog:
        spec = SynthesisSpec(
            num_requests=NUM_REQUESTS,
            arrivals=Arrivals(process="poisson", rate_rps=RATE_RPS),
            input_tokens=LognormalLength(median=500, sigma=0.8, max_tokens=4000),
            output_tokens=LognormalLength(median=150, sigma=0.7, max_tokens=1000),
        )
        model = self.model if slower == 1.0 else self.slowed(slower)
        return run(synthesize(spec, seed=seed), self.deployment, model, self.memory, record_itl=gaps, num_samples=2)

    def slowed(self, factor: float) -> StepModel:
        table = self.model.table
        times = {
            field.name: getattr(table, field.name) * factor
            for field in dataclasses.fields(table)
            if field.name.endswith("_s") and isinstance(getattr(table, field.name), np.ndarray)
        }
        return dataclasses.replace(self.model, table=dataclasses.replace(table, **times))


def alarms(found: Difference) -> list[str]:
    return [figure.name for figure in found.figures if figure.verdict in ("higher", "lower")]


def named(found: Difference, name: str) -> FigureDifference:
    return next(figure for figure in found.figures if figure.name == name)


def at_most(num: int, share: float) -> float:
    """What a count stays below in all but one of a thousand experiments."""
    return num * share + 3.1 * math.sqrt(num * share * (1.0 - share))


def test_runs_that_differ_in_their_seed_alone_are_rarely_told_apart(simulated: Simulated) -> None:
    num = 60
    logs = [simulated.log(seed) for seed in range(2 * num)]
    found = [difference([logs[2 * i]], [logs[2 * i + 1]], PROMISE, seed=i) for i in range(num)]
    # Any alarm in a comparison; and each figure alone, where the nominal 0.05 is nearly kept (docs/comparing-runs.md).
    assert sum(bool(alarms(one)) for one in found) <= at_most(num, 0.05)
    p_values = [figure.p_value for one in found for figure in one.figures if not math.isnan(figure.p_value)]
    assert len(p_values) > 8 * num
    assert 0.01 < np.mean(np.array(p_values) <= 0.05) < 0.11


def test_a_step_slower_by_a_tenth_is_found(simulated: Simulated) -> None:
    found = [
        difference([simulated.log(2 * i)], [simulated.log(2 * i + 1, slower=1.1)], PROMISE, seed=i) for i in range(10)
    ]
    tpots = [named(one, "tpot_p50_s") for one in found]
    assert sum(figure.verdict == "higher" for figure in tpots) >= 9
    # Slower steps keep more requests in flight, which makes steps slower: the change is more than a tenth.
    change = float(np.mean([figure.change for figure in tpots]))
    assert 0.1 < change < 0.2
    assert sum(figure.low < change < figure.high for figure in tpots) >= 8


def test_the_same_load_on_both_sides_sharpens_the_comparison(simulated: Simulated) -> None:
    base, same, other = simulated.log(1), simulated.log(1, slower=1.03), simulated.log(2, slower=1.03)
    paired, apart = difference([base], [same], PROMISE), difference([base], [other], PROMISE)
    near, far = named(paired, "e2e_p50_s"), named(apart, "e2e_p50_s")
    assert near.high - near.low < (far.high - far.low) / 2
    assert {"tpot_p50_s", "e2e_p50_s"} <= set(alarms(paired))


def test_a_run_against_itself_has_no_difference(simulated: Simulated) -> None:
    log = simulated.log(3, gaps=True)
    found = difference([log], [log], PROMISE)
    assert {figure.name for figure in found.figures} >= {"itl_p50_s", "itl_p99_s", "throughput_tokens_per_s"}
    for figure in found.figures:
        assert figure.change == 0.0
        assert figure.verdict in ("same", "unknown")


def test_the_other_way_round_says_the_opposite(simulated: Simulated) -> None:
    a, b = simulated.log(4), simulated.log(5, slower=1.2)
    for one, other in zip(difference([a], [b]).figures, difference([b], [a]).figures, strict=True):
        assert (one.a, one.b) == (other.b, other.a)
        opposite = {"higher": "lower", "lower": "higher"}
        assert other.verdict == opposite.get(one.verdict, one.verdict)


def test_between_repeats_what_changes_from_run_to_run_is_seen(simulated: Simulated) -> None:
    """Each run is faster or slower as a whole by some per cent: one a side is an alarm, several a side are not."""
    factors = (1.0, 1.06, 0.95, 1.04, 1.05, 0.97, 1.01, 0.96)
    logs = [simulated.log(10 + i, slower=factor) for i, factor in enumerate(factors)]
    assert "tpot_p50_s" in alarms(difference([logs[2]], [logs[1]], PROMISE))
    repeated = difference(logs[:4], logs[4:], PROMISE)
    assert alarms(repeated) == []
    assert repeated.num_runs == (4, 4)
    assert not any("one run a side" in note for note in repeated.notes)
    slower = [simulated.log(20 + i, slower=1.3 * factor) for i, factor in enumerate(factors[4:])]
    assert "tpot_p50_s" in alarms(difference(logs[:4], slower, PROMISE))


def test_too_few_requests_are_said_to_be_too_few() -> None:
    times = np.linspace(0.1, 0.2, 100)
    log = make_log(np.arange(100.0) * 10, np.arange(100.0) * 10 + times, np.arange(100.0) * 10 + 1 + times, [5] * 100)
    figures = {figure.name: figure for figure in difference([log], [log]).figures}
    assert figures["ttft_p99_s"].verdict == "unknown"
    assert "independent values" in figures["ttft_p99_s"].reason
    assert math.isnan(figures["ttft_p99_s"].low)


def test_a_run_no_longer_than_its_requests_tells_nothing() -> None:
    log = make_log([0.0] * 50, np.linspace(0.1, 0.2, 50), np.linspace(9.0, 10.0, 50), [5] * 50)
    for figure in difference([log], [log]).figures:
        assert figure.verdict == "unknown"


def test_a_perfect_score_is_not_certain() -> None:
    start = np.arange(400.0)
    perfect = make_log(start, start + 0.1, start + 0.2, [5] * 400)
    failed = make_log(
        start, start + 0.1, start + 0.2, [5] * 400, status=[2 if i in (100, 300) else 0 for i in range(400)]
    )
    figure = named(difference([perfect], [failed]), "attainment")
    assert figure.change == pytest.approx(-2 / 400)
    assert figure.verdict == "same"
    assert figure.low < -2 / 400 < figure.high


def test_what_is_not_there_is_not_compared() -> None:
    start = np.arange(400.0)
    unknown = make_log(start, start + 0.1, start + 0.2, [-1] * 400)
    gaps = make_log(start, start + 0.1, start + 0.2, [5] * 400, itl=make_segments([(0.1, 0.0, 400, 1)]))
    figures = {figure.name: figure for figure in difference([unknown], [gaps]).figures}
    assert "itl_p50_s" not in figures
    assert figures["tpot_p50_s"].reason == "not defined for any request"
    assert "unknown" in figures["throughput_tokens_per_s"].reason
    without = difference([gaps], [gaps], with_rates=False)
    assert "throughput_tokens_per_s" not in {figure.name for figure in without.figures}


def test_nothing_to_compare_is_refused() -> None:
    with pytest.raises(InputError, match="at least one run"):
        difference([], [])
    with pytest.raises(InputError, match="empty"):
        difference([make_log([], [], [], [])], [make_log([], [], [], [])])


def test_correlated_values_are_worth_fewer() -> None:
    rng = np.random.default_rng(0)
    noise = rng.normal(size=20_000)
    slow = np.empty_like(noise)
    slow[0] = noise[0]
    for i in range(1, len(noise)):
        slow[i] = 0.8 * slow[i - 1] + noise[i]
    assert effective_number(noise) > 0.85 * len(noise)
    # An autoregression is worth (1 - phi) / (1 + phi) of its length: here a ninth.
    assert effective_number(slow) == pytest.approx(len(slow) / 9, rel=0.2)
    assert effective_number(np.full(50, np.nan)) == 0.0


@pytest.mark.parametrize(
    ("degrees", "quantile"),
    [(1, 12.706204736), (2, 4.302652730), (10, 2.228138852), (30, 2.042272456), (1e7, 1.959964)],
)
def test_quantiles_of_student_are_those_of_the_tables(degrees: float, quantile: float) -> None:
    assert student_quantile(0.95, degrees) == pytest.approx(quantile, rel=1e-6)


@given(st.floats(0.5, 0.999), st.floats(1.0, 1e6))
def test_quantile_and_p_value_of_student_are_inverse(confidence: float, degrees: float) -> None:
    assert student_p_value(student_quantile(confidence, degrees), degrees) == pytest.approx(1 - confidence, abs=1e-6)
