"""What two servers' named tokens say of how far their distributions are apart."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servewise.quality.divergence import Distribution, compare_step

SIZE = 30
weights = st.lists(st.floats(1e-4, 1.0), min_size=SIZE, max_size=SIZE)


def whole(values: list[float]) -> dict[int, float]:
    total = math.fsum(values)
    return {token: math.log(value / total) for token, value in enumerate(values)}


def most_probable(distribution: Distribution, top: int) -> Distribution:
    return dict(sorted(distribution.items(), key=lambda item: -item[1])[:top])


def true_kl(base: Distribution, other: Distribution) -> float:
    return math.fsum(math.exp(value) * (value - other[token]) for token, value in base.items())


@given(weights, st.integers(1, SIZE))
def test_a_distribution_does_not_diverge_from_itself(values: list[float], top: int) -> None:
    named = most_probable(whole(values), top)
    step = compare_step(named, named)
    assert (step.agrees, step.is_outside) == (True, False)
    assert step.kl_nats == pytest.approx(0.0, abs=1e-12)


@given(weights, weights, st.integers(1, SIZE), st.integers(1, SIZE))
def test_named_tokens_bound_the_divergence_from_below(
    mine: list[float], theirs: list[float], top: int, other_top: int
) -> None:
    base, other = whole(mine), whole(theirs)
    bound = compare_step(most_probable(base, top), most_probable(other, other_top)).kl_nats
    assert 0.0 <= bound <= true_kl(base, other) + 1e-9


@given(weights, weights)
def test_all_tokens_named_give_the_divergence_itself(mine: list[float], theirs: list[float]) -> None:
    base, other = whole(mine), whole(theirs)
    assert compare_step(base, other).kl_nats == pytest.approx(true_kl(base, other), rel=1e-9, abs=1e-9)


@given(weights, weights, st.integers(1, SIZE - 1))
def test_more_names_never_loosen_the_bound(mine: list[float], theirs: list[float], top: int) -> None:
    base, other = whole(mine), whole(theirs)
    fewer = compare_step(most_probable(base, top), most_probable(other, top)).kl_nats
    more = compare_step(most_probable(base, top + 1), most_probable(other, top + 1)).kl_nats
    assert more >= fewer - 1e-9


def test_two_tokens_by_hand() -> None:
    base = {1: math.log(0.5), 2: math.log(0.3)}
    other = {1: math.log(0.25), 3: math.log(0.6)}
    step = compare_step(base, other)
    # token 1 is named by both; 0.5 and 0.75 are what is left
    assert step.kl_nats == pytest.approx(0.5 * math.log(2.0) + 0.5 * math.log(0.5 / 0.75))
    assert step.bucket == pytest.approx(0.5)
    assert (step.agrees, step.is_outside) == (False, False)
    assert compare_step({2: math.log(0.6)}, other).is_outside


def test_equally_probable_tokens_agree() -> None:
    base = {1: math.log(0.4), 2: math.log(0.4), 3: math.log(0.1)}
    assert compare_step(base, {2: math.log(0.5), 1: math.log(0.3)}).agrees
    assert not compare_step(base, {3: math.log(0.5), 1: math.log(0.3)}).agrees


def test_a_token_that_is_impossible_for_the_other_costs_but_stays_finite() -> None:
    base = {1: math.log(0.9), 2: math.log(0.1)}
    assert math.isfinite(compare_step(base, {1: 0.0, 2: -9999.0}).kl_nats)
    assert math.isfinite(compare_step(base, {3: 0.0}).kl_nats)
    assert compare_step({1: 0.0}, {1: 0.0}).kl_nats == 0.0
