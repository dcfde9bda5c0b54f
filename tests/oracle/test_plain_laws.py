"""Laws that every run of the plain scheduler keeps: conservation, causality, order, no starvation."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from oracle.plain_engine import Result
from oracle.strategies import PROFILES, Case, Profile, cases, params, req, seeded_case, unit_table
from oracle.vllm_plain import Engine, simulate
from servewise.types import StepTable

some = settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])


def audit(engine: Engine) -> None:
    """Blocks are conserved: each is free, or held by as many running requests as its count says."""
    pool = engine.pool
    held = Counter(block for live in engine.running for block in live.blocks)
    free = set(pool.free)
    assert len(free) == len(pool.free)
    assert not any(live.blocks for live in engine.waiting)
    for block in pool.blocks:
        assert block.ref == held[block]
        assert (block in free) == (block.ref == 0)
    for live in engine.running:
        assert len(live.blocks) == math.ceil(live.computed / engine.params.block_size_tokens)
        for index in range(live.num_hashed):
            assert live.blocks[index].identity == live.identity(index)
    # The dictionary of hashed blocks and the blocks' own marks agree.
    for identity, copies in pool.hashed.items():
        assert copies
        assert all(block.identity == identity for block in copies)
    marked = sum(block.identity is not None for block in pool.blocks)
    assert marked == len({block for copies in pool.hashed.values() for block in copies})
    assert marked == sum(len(copies) for copies in pool.hashed.values())
    assert pool.caching or marked == 0
    # A request is in one list, once.
    listed = [*engine.running, *engine.waiting, *engine.inbox]
    assert len(set(map(id, listed))) == len(listed)
    assert sum(not live.finished for live in engine.lives) == len(listed)


def check_steps(case: Case, result: Result) -> None:
    """Steps follow one another, within the limits, and the engine rests only when it has nothing to do."""
    arrivals = {request.arrival_s for request in case.requests}
    end_s = -math.inf
    for step in result.steps:
        assert step.start_s == end_s or (step.start_s > end_s and step.start_s in arrivals)
        assert step.duration_s > 0
        end_s = step.end_s
        numbers = [number for number, _ in step.rows]
        assert len(set(numbers)) == len(numbers) <= case.params.max_num_seqs
        assert min(tokens for _, tokens in step.rows) > 0
        assert sum(tokens for _, tokens in step.rows) <= case.params.max_num_batched_tokens
    assert result.peak_blocks <= case.params.num_kv_blocks
    assert result.peak_running <= case.params.max_num_seqs


def check_requests(case: Case, engine: Engine, result: Result) -> None:
    """Every request gets all its tokens, in order, and no work beyond them but one wasted row."""
    computed: Counter[int] = Counter()
    for step in result.steps:
        computed.update(dict(step.rows))
    ends = {step.end_s for step in result.steps}
    starts = {step.start_s for step in result.steps}
    for request, live, got in zip(case.requests, engine.lives, result.requests, strict=True):
        assert live.generated == request.output_tokens
        assert request.arrival_s <= got.scheduled_s < got.first_token_s <= got.last_token_s
        assert got.scheduled_s in starts
        assert {got.first_token_s, got.last_token_s} <= ends
        assert (got.first_token_s == got.last_token_s) == (request.output_tokens == 1)
        assert got.cached_tokens % case.params.block_size_tokens == 0
        assert 0 <= got.cached_tokens < request.input_tokens
        # Every token but the last is computed, or was cached.
        needed = request.input_tokens + request.output_tokens - 1 - got.cached_tokens
        wasted = computed[request.id] - needed
        if got.num_preemptions == 0:
            may_waste = case.params.async_scheduling and request.max_tokens > request.output_tokens
            assert wasted in ({0, 1} if may_waste else {0})
        elif not case.params.enable_prefix_caching:
            assert wasted >= 0
    assert result.num_preemptions == sum(got.num_preemptions for got in result.requests)
    # First come, first admitted.
    scheduled = [got.scheduled_s for got in result.requests]
    assert scheduled == sorted(scheduled)


def check_laws(case: Case) -> Result:
    """Run a case, auditing the blocks after every event; return the result."""
    engine = Engine(case.params, case.times)
    for request in case.requests:
        engine.submit(request)
    while engine.advance(math.inf):
        audit(engine)
    assert not [*engine.running, *engine.waiting, *engine.inbox, *engine.step]
    assert len(engine.pool.free) == case.params.num_kv_blocks
    result = engine.result()
    check_steps(case, result)
    check_requests(case, engine, result)
    return result


@settings(some, max_examples=150)
@given(case=cases())
def test_laws(case: Case) -> None:
    check_laws(case)


def chunked(result: Result) -> int:
    """Requests with rows in two steps before their first token."""
    first_token_s = {got.id: got.first_token_s for got in result.requests}
    chunks = Counter(number for step in result.steps for number, _ in step.rows if step.end_s <= first_token_s[number])
    return sum(count > 1 for count in chunks.values())


def one_token_last_chunks(result: Result) -> int:
    """Requests whose first token came from a row of one token after a longer one."""
    first_token_s = {got.id: got.first_token_s for got in result.requests}
    longer: set[int] = set()
    count = 0
    for step in result.steps:
        for number, tokens in step.rows:
            count += tokens == 1 and number in longer and step.end_s == first_token_s[number]
            if tokens > 1:
                longer.add(number)
    return count


def finished_as_victims(case: Case) -> int:
    """Requests preempted while their last token was in flight: they finish in the waiting list."""
    engine = Engine(case.params, case.times)
    for request in case.requests:
        engine.submit(request)
    count = 0
    waiting: set[int] = set()
    while engine.advance(math.inf):
        count += sum(live.finished and live.request.id in waiting for live in engine.lives)
        waiting = {live.request.id for live in engine.waiting}
    return count


@pytest.mark.parametrize("profile", PROFILES)
def test_laws_on_longer_runs_which_reach_the_corners(profile: Profile) -> None:
    seen: Counter[str] = Counter()
    for seed in range(12):
        case = seeded_case(seed, profile)
        result = check_laws(case)
        seen["preempted"] += result.num_preemptions
        seen["hit"] += sum(got.cached_tokens > 0 for got in result.requests)
        seen["chunked"] += chunked(result)
        seen["one-token last chunk"] += one_token_last_chunks(result)
        seen["together"] += len(case.requests) - len({request.arrival_s for request in case.requests})
        seen["one token out"] += sum(request.output_tokens == 1 for request in case.requests)
        seen["stop"] += sum(request.max_tokens > request.output_tokens for request in case.requests)
        seen["finished as victim"] += finished_as_victims(case)
    least = Counter({"preempted": 10, "hit": 10, "chunked": 20, "together": 20, "one token out": 50, "stop": 100})
    if profile == "preempting":
        least.update({"preempted": 200, "finished as victim": 5})
    if profile == "prefix":
        least["hit"] = 150
    if profile == "chunks":
        least.update({"chunked": 100, "one-token last chunk": 20})
    assert {name: seen[name] for name in least if seen[name] < least[name]} == {}


@some
@given(case=cases())
def test_time_has_no_unit(case: Case) -> None:
    """A table twice as slow and arrivals twice as late: everything twice as late, exactly."""
    names = [field.name for field in dataclasses.fields(StepTable) if field.name != "context_knots"]
    times = dataclasses.replace(case.times, **{name: getattr(case.times, name) * 2.0 for name in names})
    requests = [dataclasses.replace(r, arrival_s=2.0 * r.arrival_s) for r in case.requests]
    plain = simulate(case.requests, case.params, case.times)
    doubled = simulate(requests, case.params, times)
    assert [(2 * s.start_s, s.rows) for s in plain.steps] == [(s.start_s, s.rows) for s in doubled.steps]
    assert [2 * r.last_token_s for r in plain.requests] == [r.last_token_s for r in doubled.requests]


@some
@given(case=cases(), fraction=st.floats(0.01, 0.99))
def test_running_in_pieces_changes_nothing(case: Case, fraction: float) -> None:
    """What a router does: advance to each arrival, then submit it."""
    engine = Engine(case.params, case.times)
    last_s = 0.0
    for request in case.requests:
        engine.run_until(last_s + fraction * (request.arrival_s - last_s))
        engine.run_until(request.arrival_s)
        engine.submit(request)
        last_s = request.arrival_s
    engine.run_until(math.inf)
    assert engine.result() == simulate(case.requests, case.params, case.times)


@some
@given(case=cases())
def test_a_plan_does_not_know_the_future(case: Case) -> None:
    """Without the last request everything that started before it arrived is the same."""
    last_s = case.requests[-1].arrival_s
    full = simulate(case.requests, case.params, case.times)
    without = simulate(case.requests[:-1], case.params, case.times)
    before = [step for step in full.steps if step.start_s < last_s]
    assert before == [step for step in without.steps if step.start_s < last_s]


@some
@given(case=cases(profiles=("mixed", "burst", "chunks")))
def test_a_cache_that_nobody_shares_matters_only_after_a_preemption(case: Case) -> None:
    requests = [dataclasses.replace(r, block_ids=()) for r in case.requests]
    off = simulate(requests, dataclasses.replace(case.params, enable_prefix_caching=False), case.times)
    on = simulate(requests, dataclasses.replace(case.params, enable_prefix_caching=True), case.times)
    assert off.num_preemptions > 0 or on == off


@settings(deadline=None)
@given(input_tokens=st.integers(1, 40), output_tokens=st.integers(1, 9), lag=st.booleans(), stop=st.booleans())
def test_a_lone_request(input_tokens: int, output_tokens: int, lag: bool, stop: bool) -> None:
    """ceil(P / budget) chunks, then O - 1 decode steps; with lag a stop token costs one more."""
    requests = [req(0, 3.0, input_tokens, output_tokens, stop=stop)]
    result = simulate(requests, params(budget=7, lag=lag), unit_table())
    chunks = math.ceil(input_tokens / 7)
    (got,) = result.requests
    assert got.first_token_s == 3.0 + chunks
    assert got.last_token_s == got.first_token_s + output_tokens - 1
    assert len(result.steps) == chunks + output_tokens - 1 + (lag and stop)
