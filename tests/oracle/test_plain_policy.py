"""Laws of the settings that are off by default: rows for all, order of priorities, blocks below the watermark."""

from __future__ import annotations

import math

import pytest
from hypothesis import HealthCheck, given, settings

from oracle.plain_engine import Row
from oracle.strategies import PROFILES, Case, Profile, option_case, option_cases, seeded_case
from oracle.test_plain_laws import audit, check_steps
from oracle.vllm_plain import Engine, Live

some = settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.too_slow])


class Watched(Engine):
    """The plain scheduler, checked after every plan."""

    num_preemptions = 0
    num_unfinished = 0
    """Plans that left more than one prompt unfinished."""

    def _preempt(self, victim: Live) -> None:
        assert all(live.turn < victim.turn for live in self.running) or self.params.scheduling_policy == "fcfs"
        super()._preempt(victim)
        self.num_preemptions += 1

    def _plan(self) -> list[Row]:
        before, running = self.num_preemptions, list(self.running)
        rows = super()._plan()
        served = {id(row.live) for row in rows}
        for live in self.running:
            by_length = live.in_flight > 0 and live.generated + live.in_flight >= live.request.max_tokens
            assert id(live) in served or by_length, "everybody in the running list has a row"
        admitted = [live for live in self.running if live not in running]
        assert not admitted or self.num_preemptions == before, "a plan that preempts admits nobody"
        if self.params.scheduling_policy == "priority":
            assert self.waiting == sorted(self.waiting, key=lambda live: live.turn)
            assert not admitted or not self.waiting or max(live.turn for live in admitted) < self.waiting[0].turn
        if len(self.running) > 1 and admitted:
            kept = int(self.params.watermark * (self.params.num_kv_blocks + 1))
            assert len(self.pool.free) >= kept, "an admission beside others leaves the watermark"
        if len(running) > 1 and self.params.long_prefill_token_threshold:
            assert all(row.tokens <= self.params.long_prefill_token_threshold for row in rows)
        self.num_unfinished += sum(live.computed < live.prefill_target for live in self.running) > 1
        return rows


def run_watched(case: Case) -> Watched:
    """Run a case, checking the blocks after every event; returns the engine."""
    engine = Watched(case.params, case.times)
    for request in case.requests:
        engine.submit(request)
    while engine.advance(math.inf):
        audit(engine)
    assert all(live.generated == live.request.output_tokens for live in engine.lives)
    assert len(engine.pool.free) == case.params.num_kv_blocks
    check_steps(case, engine.result())
    return engine


@some
@given(case=option_cases())
def test_laws(case: Case) -> None:
    run_watched(case)


@pytest.mark.parametrize("profile", PROFILES)
def test_laws_on_longer_runs(profile: Profile) -> None:
    runs = [run_watched(option_case(seed, profile, 40)) for seed in range(30)]
    assert sum(engine.num_preemptions for engine in runs) > 20
    assert sum(engine.num_unfinished for engine in runs) > 20


@pytest.mark.parametrize("profile", PROFILES)
def test_without_a_cap_one_prompt_is_unfinished_at_most(profile: Profile) -> None:
    assert sum(run_watched(seeded_case(seed, profile, 40)).num_unfinished for seed in range(10)) == 0
