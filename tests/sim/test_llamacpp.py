"""llama.cpp and Ollama: the compiled driver against the plain server, and what ``sim`` promises for them."""

from __future__ import annotations

import dataclasses
from collections import Counter

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from oracle.llamacpp_cases import SlotCase, seeded_slot_case, server, slot_cases
from oracle.strategies import req, unit_table
from servewise.engines import ollama
from servewise.errors import InputError
from servewise.kernel import layout
from servewise.sim import to_log
from servewise.types import OllamaParams, RequestStatus, Router
from sim import properties
from sim.llamacpp_agree import (
    LLAMACPP,
    assert_closed_loop_agrees,
    assert_open_agrees,
    deployment_of,
    normalized,
    run_open,
    workload_of,
)

some = settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.too_slow])

ROUTERS: tuple[Router, ...] = ("round_robin", "least_requests")

A, B, C = range(3)

# ------------------------------------------------------------------ against the plain server


def kind_of(case: SlotCase) -> str:
    params = normalized(case).params
    name = "ollama" if params.is_ollama else "llama.cpp"
    return f"{name} {'split' if params.is_split else 'one slot' if params.num_slots == 1 else 'unified'}"


@pytest.mark.parametrize("fast_forward", [True, False], ids=["windows", "single steps"])
def test_one_replica(fast_forward: bool) -> None:
    seen: Counter[str] = Counter()
    for seed in range(160):
        case = seeded_slot_case(seed, 40)
        kernel = assert_open_agrees(case, fast_forward=fast_forward)
        seen[kind_of(case)] += 1
        for name in ("slots_bound", "memory_bound", "budget_bound"):
            seen[name] += getattr(kernel, name)
        seen["windows"] += bool(kernel.counters[0, layout.NUM_WINDOWS] < kernel.counters[0, layout.NUM_STEPS])
        seen["failed"] += int(kernel.outputs.rejected.sum())
        seen["cached"] += int((kernel.outputs.cached > 0).sum())
        without = run_open(dataclasses.replace(case, params=dataclasses.replace(case.params, host_tokens=0)))
        seen["from the host"] += int((kernel.outputs.cached > without.outputs.cached).sum())
        for flag in ("has_windows", "context_shift"):
            seen[flag] += getattr(case.params, flag)
    least = {
        **{f"{name} {what}": 8 for name in ("llama.cpp", "ollama") for what in ("split", "one slot")},
        "llama.cpp unified": 8,
        "slots_bound": 60,
        "memory_bound": 12,
        "budget_bound": 60,
        "failed": 60,
        "cached": 400,
        "from the host": 200,
        "has_windows": 15,
        "context_shift": 25,
    }
    if fast_forward:
        least["windows"] = 100
    assert {name: seen[name] for name in least if seen[name] < least[name]} == {}


@some
@given(case=slot_cases(), fast_forward=st.booleans())
def test_one_replica_on_any_case(case: SlotCase, fast_forward: bool) -> None:
    assert_open_agrees(case, fast_forward=fast_forward)


@some
@given(case=slot_cases(), num_replicas=st.integers(1, 4), router=st.sampled_from(ROUTERS), windows=st.booleans())
def test_fleets_on_any_case(case: SlotCase, num_replicas: int, router: Router, windows: bool) -> None:
    assert_open_agrees(case, num_replicas=num_replicas, router=router, fast_forward=windows)


@some
@given(
    case=slot_cases(),
    concurrency=st.integers(1, 10),
    think_s=st.sampled_from([0.0, 0.0, 0.07, 3.0]),
    windows=st.booleans(),
)
def test_a_closed_loop_on_any_case(case: SlotCase, concurrency: int, think_s: float, windows: bool) -> None:
    case = dataclasses.replace(case, params=dataclasses.replace(case.params, starts_loaded=True))
    assert_closed_loop_agrees(case, concurrency=concurrency, think_s=think_s, fast_forward=windows)


@some
@given(case=slot_cases(), fast_forward=st.booleans())
def test_gaps_between_tokens(case: SlotCase, fast_forward: bool) -> None:
    properties.assert_gaps_are_those_of_the_tokens(LLAMACPP, case, fast_forward)


@some
@given(case=slot_cases())
def test_samples_count_the_requests_in_the_server(case: SlotCase) -> None:
    case = dataclasses.replace(case, times=properties.without_constants(case.times))
    outcome = run_open(case, num_samples=50)
    if not outcome.outputs.rejected.any():  # when a request that failed left is not kept
        properties.assert_samples_count_the_requests(outcome)
    for _, running, _, used in properties.samples_of(outcome):
        assert used > 0
        assert 0 < running <= case.params.num_slots


@some
@given(case=slot_cases(), num_replicas=st.integers(1, 3), share=st.floats(0.0, 1.0))
def test_a_run_stops_exactly_when_too_many_are_bad(case: SlotCase, num_replicas: int, share: float) -> None:
    properties.assert_stops_exactly_when_too_many_are_bad(LLAMACPP, case, num_replicas, share)


# ------------------------------------------------------------------ size


def served(*, unified: bool) -> SlotCase:
    """A benchmark's run: 320 requests in front of 8 slots."""
    rng = np.random.default_rng(7)
    requests = tuple(
        req(i, 0.0, int(p), int(o))
        for i, (p, o) in enumerate(zip(rng.integers(820, 1025, 320), rng.integers(820, 1025, 320), strict=True))
    )
    params = dataclasses.replace(server(8, unified=unified, batch=2048, ubatch=512, context=2304))
    if unified:
        params = dataclasses.replace(params, cells=8 * 2304)
    times = properties.curved_table(8, 512)
    return SlotCase(requests=requests, params=params, times=times)


@pytest.mark.parametrize("unified", [True, False], ids=["unified", "split"])
@pytest.mark.parametrize("closed", [True, False], ids=["closed loop", "burst"])
def test_windows_change_nothing(unified: bool, closed: bool) -> None:
    case = served(unified=unified)
    properties.assert_windows_change_nothing(LLAMACPP, case, concurrency=8 if closed else 0, most=0.1)


def fingerprint() -> str:
    """Digest of every output bit of some runs."""
    cases = [seeded_slot_case(seed, 30) for seed in range(12)]
    return properties.digest_of(properties.open_and_closed(LLAMACPP, cases))


def test_compiled_code_computes_what_the_source_says() -> None:
    properties.assert_compiled_equals_source(fingerprint)


# ------------------------------------------------------------------ what is accepted


def test_a_prompt_of_the_whole_context_is_rejected_and_an_output_ends_there() -> None:
    params = server(2, batch=512, ubatch=512, context=256)
    requests = (req(A, 0.0, 256, 1), req(B, 0.0, 255, 9), req(C, 0.0, 200, 100))
    case = SlotCase(requests=requests, params=params, times=unit_table(8, 512))
    log = to_log(workload_of(case), run_open(case))
    assert log.status.tolist() == [RequestStatus.REJECTED, RequestStatus.OK, RequestStatus.OK]
    assert log.output_tokens[1:].tolist() == [1, 56]
    shifting = dataclasses.replace(case, params=dataclasses.replace(params, context_shift=True))
    log = to_log(workload_of(shifting), run_open(shifting))
    assert log.status.tolist() == [RequestStatus.REJECTED, RequestStatus.OK, RequestStatus.OK]
    assert log.output_tokens[1:].tolist() == [9, 100]


def test_ollama_cuts_long_prompts_and_bounds_outputs() -> None:
    # A context of 256: the first 5 tokens stay, and the last of the rest, so that 256 - 251 // 2 = 131 are left.
    params = dataclasses.replace(
        server(1, batch=512, ubatch=512, context=256), is_ollama=True, context_shift=True, block_size_tokens=1
    )
    requests = (req(A, 0.0, 256, 3000, ids=tuple(range(256))), req(B, 0.0, 255, 1, ids=tuple(range(255))))
    case = SlotCase(requests=requests, params=params, times=unit_table(8, 512))
    outcome = run_open(case)
    assert outcome.packed.requests.input_tokens.tolist() == [131, 255]
    assert outcome.packed.requests.output_tokens.tolist() == [2560, 1]
    assert outcome.outputs.cached.tolist() == [0, 0]
    refusing = dataclasses.replace(case, params=dataclasses.replace(params, context_shift=False))
    status = to_log(workload_of(refusing), run_open(refusing)).status
    assert status.tolist() == [RequestStatus.REJECTED, RequestStatus.OK]


def test_more_slots_than_tokens_in_a_pass_are_refused() -> None:
    case = SlotCase(requests=(req(A, 0.0, 4, 1),), params=server(8, ubatch=4), times=unit_table(8, 512))
    with pytest.raises(InputError, match="8 slots can generate 8 tokens a step, more than the 4 of a pass"):
        run_open(case)


def test_ollama_is_the_server_that_it_starts() -> None:
    params = dataclasses.replace(server(3, batch=32, ubatch=32, context=512), is_ollama=True)
    deployment = deployment_of(SlotCase(requests=(), params=params, times=unit_table()))
    assert isinstance(deployment.params, OllamaParams)
    inner = ollama.as_llama_server(deployment)
    assert inner.engine == "llama.cpp"
    assert (inner.max_rows, inner.max_step_tokens, inner.max_request_tokens) == (3, 32, 512)
    assert ollama.as_llama_server(inner) is inner
