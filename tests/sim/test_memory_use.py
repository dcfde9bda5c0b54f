"""What is set aside and what of it is used: worked out by hand, and added up step by step from the plain engine.

In the examples by hand every step takes one second, so a request of P prompt and O output tokens has P + 1 tokens in
the cache in the first second after its first token, P + 2 in the next, up to P + O - 1.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from oracle.baseline_cases import BaselineCase, baseline_cases, seeded_baseline_case, table_size
from oracle.baselines_plain import Engine, Params
from oracle.plain_engine import Request
from oracle.sglang_cases import SglangCase, small
from oracle.strategies import Case, params, req, unit_table
from oracle.trtllm_cases import TrtllmCase, trtllm
from servewise.errors import InputError
from servewise.sim.memory_use import Held, integrals, memory_use, peaks
from servewise.types import LlamacppParams, MemoryUse
from sim import agree, baselines_agree, sglang_agree, trtllm_agree

A, B, C, D = range(4)


def use_of(requests: tuple[Request, ...], settings_: Params) -> MemoryUse:
    case = BaselineCase(requests=requests, params=settings_, times=unit_table(*table_size(settings_)))
    outcome = baselines_agree.run_open(case)
    return memory_use(
        baselines_agree.workload_of(case),
        outcome,
        baselines_agree.deployment_of(case),
        baselines_agree.memory_of(case),
    )


# ------------------------------------------------------------------ by hand


def test_the_waste_of_static_batching() -> None:
    # 2 slots of 8 tokens, 20 tokens in all. A: P3 O3 and B: P2 O1 make a batch, at 1; their first tokens are out at 2.
    # Used from 2 to 3: A's 4, from 3 to 4: A's 5; B has ended. Set aside: 16 from 2 to 4.
    # C: P2 O2 follows, first token at 5, last at 6: used 3 of 8.
    # D: P1 O1 has its only token at 11.5. Used 4 + 5 + 3 = 12, set aside 16 * 2 + 8 = 40: 70% of it is empty.
    # Most is empty at 2: 16 - 4 = 12. From the arrival at 0 to 11.5: 28 empty token seconds of 20 * 11.5.
    requests = (req(A, 0.0, 3, 3), req(B, 1.0, 2, 1), req(C, 1.2, 2, 2), req(D, 9.0, 1, 1))
    found = use_of(
        requests,
        Params(engine="static", max_batch_size=8, max_seq_len=7, num_kv_blocks=5, block_size_tokens=4, max_wait_s=1.5),
    )
    assert (found.reserved_token_s, found.used_token_s) == pytest.approx((40.0, 12.0))
    assert found.unused_of_reserved_frac == pytest.approx(0.7)
    assert (found.capacity_tokens, found.span_s) == (20, 11.5)
    assert found.mean_unused_frac == pytest.approx(28 / (20 * 11.5))
    assert (found.peak_reserved_tokens, found.peak_unused_tokens) == pytest.approx((16.0, 12.0))
    assert found.peak_unused_frac == pytest.approx(12 / 20)
    assert (found.prefix_tokens_saved, found.prefix_bytes_saved) == (0, 0.0)


def test_batches_of_two_replicas_are_two() -> None:
    # A: P2 O2 and B: P2 O4 have their first tokens at 1, on replicas of their own: slots of 8 for 1 s and for 3 s.
    requests = (req(A, 0.0, 2, 2), req(B, 0.0, 2, 4))
    knobs = Params(engine="static", max_batch_size=4, max_seq_len=8, num_kv_blocks=4, block_size_tokens=4)
    case = BaselineCase(requests=requests, params=knobs, times=unit_table(*table_size(knobs)))
    outcome = baselines_agree.run_open(case, num_replicas=2)
    deployment = baselines_agree.deployment_of(case, num_replicas=2)
    found = memory_use(baselines_agree.workload_of(case), outcome, deployment, baselines_agree.memory_of(case))
    assert (found.reserved_token_s, found.used_token_s) == pytest.approx((8.0 * 4, 3.0 + 3.0 + 4.0 + 5.0))
    assert found.capacity_tokens == 2 * 16


def test_the_waste_of_orcas_slots() -> None:
    # Slots of 8. A: P3 O3 from 1 to 3, used 4, then 5. B: P6 O2 from 2 to 3, used 7. C: P1 O1 has one token.
    # Set aside 8 * 2 + 8 * 1 = 24, used 4 + 5 + 7 = 16. Most is set aside from 2 on: 16. Tokens grow linearly for the
    # peak, A from 4 at 1 to 5 at 3, so at 2: 16 - (4.5 + 7) = 4.5.
    requests = (req(A, 0.0, 3, 3), req(B, 0.5, 6, 2), req(C, 0.5, 1, 1))
    found = use_of(
        requests, Params(engine="orca", max_batch_size=4, max_seq_len=8, num_kv_blocks=4, block_size_tokens=4)
    )
    assert (found.reserved_token_s, found.used_token_s) == pytest.approx((24.0, 16.0))
    assert (found.peak_reserved_tokens, found.peak_unused_tokens) == pytest.approx((16.0, 4.5))


def test_blocks_waste_less_than_a_block_a_request() -> None:
    # Blocks of 4. A: P3 O6 has 4, 5, 6, 7, 8 tokens in 1, 2, 2, 2, 2 blocks: 36 set aside, 30 used.
    # B: P4 O2 has 5 in 2 blocks: 8 set aside, in the first second, in which A has 4: 12 is the most.
    requests = (req(A, 0.0, 3, 6), req(B, 0.0, 4, 2))
    case = Case(requests=requests, params=params(block=4, blocks=30, lag=False), times=unit_table())
    outcome = agree.run_kernel(case)
    found = memory_use(agree.workload_of(case), outcome, agree.deployment_of(case), agree.memory_of(case))
    assert (found.reserved_token_s, found.used_token_s) == pytest.approx((36.0 + 8.0, 30.0 + 5.0))
    assert found.unused_of_reserved_frac == pytest.approx(9 / 44)
    assert found.peak_unused_tokens < 2 * 4
    assert found.peak_reserved_tokens == 4 + 8


def test_tensorrt_llm_sets_the_declared_limit_aside_and_sglang_tokens() -> None:
    # A: P3 O3 of at most 103, ended by a stop token: 4 + 5 = 9 used in 2 s, ceil(106 / 4) blocks of 4 = 108 set aside.
    requests = (req(A, 0.0, 3, 3, stop=True),)
    reserving = TrtllmCase(requests=requests, params=trtllm(), times=unit_table())
    by_token = SglangCase(requests=requests, params=small(), times=unit_table())
    for module, case, expected in ((trtllm_agree, reserving, 2 * 108.0), (sglang_agree, by_token, 9.0)):
        found = memory_use(
            module.workload_of(case), module.run_open(case), module.deployment_of(case), module.memory_of(case)
        )
        assert (found.reserved_token_s, found.used_token_s) == pytest.approx((expected, 9.0))
    assert found.peak_unused_tokens == 0.0
    assert found.prefix_tokens_saved == 0


def test_what_the_prefix_cache_saved() -> None:
    # B comes when A's two full blocks of 2 are in the cache, and its prompt of 5 begins with them: 4 tokens.
    requests = (req(A, 0.0, 5, 1, ids=(1, 2)), req(B, 5.0, 5, 1, ids=(1, 2)))
    case = Case(requests=requests, params=params(caching=True), times=unit_table())
    for tensor_parallel_size in (1, 4):
        deployment = agree.deployment_of(case)
        deployment = replace(
            deployment, parallelism=replace(deployment.parallelism, tensor_parallel_size=tensor_parallel_size)
        )
        report = replace(agree.memory_of(case), kv_bytes_per_token=100.0)
        found = memory_use(agree.workload_of(case), agree.run_kernel(case), deployment, report)
        assert found.prefix_tokens_saved == 4
        assert found.prefix_bytes_saved == 400.0 * tensor_parallel_size
    unknown = replace(agree.workload_of(case), prefix=None)
    found = memory_use(unknown, agree.run_kernel(case), agree.deployment_of(case), agree.memory_of(case))
    assert found.prefix_tokens_saved is None
    uncached = replace(case, params=params(caching=False))
    found = memory_use(unknown, agree.run_kernel(uncached), agree.deployment_of(uncached), agree.memory_of(uncached))
    assert found.prefix_tokens_saved == 0


def test_an_engine_whose_rule_is_not_described_is_refused() -> None:
    case = seeded_baseline_case(0)
    slots = LlamacppParams(ctx_size=64, parallel=2, batch_size=8, ubatch_size=8, kv_unified=False)
    deployment = replace(baselines_agree.deployment_of(case), engine="llama.cpp", params=slots)
    with pytest.raises(InputError, match=r"what 'llama\.cpp' sets aside"):
        memory_use(
            baselines_agree.workload_of(case),
            baselines_agree.run_open(case),
            deployment,
            baselines_agree.memory_of(case),
        )


# ------------------------------------------------------------------ added up step by step


class Clock(Engine):
    """The plain engine, which adds up from token to token."""

    def sums(self) -> tuple[float, float]:
        """Tokens set aside and used, gap by gap between tokens [token s]."""
        size, reserved, used = self.params.block_size_tokens, 0.0, 0.0
        for live in self.lives:
            times, prompt = live.token_s, live.request.input_tokens
            for j, gap_s in enumerate(np.diff(times), start=1):
                used += gap_s * (prompt + j)
                if self.params.engine == "sarathi":
                    reserved += gap_s * math.ceil((prompt + j) / size) * size
            if self.params.engine != "sarathi":
                until_s = times[-1]
                if self.params.engine == "static":
                    until_s = max(other.token_s[-1] for other in self.lives if other.token_s[0] == times[0])
                reserved += (until_s - times[0]) * self.blocks_of_slot * size
        return reserved, used


def use_of_case(case: BaselineCase) -> MemoryUse:
    return memory_use(
        baselines_agree.workload_of(case),
        baselines_agree.run_open(case),
        baselines_agree.deployment_of(case),
        baselines_agree.memory_of(case),
    )


@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.too_slow])
@given(case=baseline_cases())
def test_with_equal_steps_the_integrals_are_exact(case: BaselineCase) -> None:
    case = replace(case, times=unit_table(*table_size(case.params)))
    plain = Clock(case.params, case.times)
    if plain.serve(case.requests).num_preemptions:
        return  # its tokens do not come evenly
    found = use_of_case(case)
    assert (found.reserved_token_s, found.used_token_s) == pytest.approx(plain.sums())


def test_with_unequal_steps_the_integrals_are_close() -> None:
    for seed in range(60):
        case = seeded_baseline_case(seed)
        plain = Clock(case.params, case.times)
        if plain.serve(case.requests).num_preemptions:
            continue
        found = use_of_case(case)
        assert (found.reserved_token_s, found.used_token_s) == pytest.approx(plain.sums(), rel=0.03)


def test_nothing_is_set_aside_twice() -> None:
    for seed in range(60):
        case = seeded_baseline_case(seed)
        outcome, found = baselines_agree.run_open(case), use_of_case(case)
        assert 0.0 <= found.used_token_s <= found.reserved_token_s
        block = case.params.block_size_tokens
        assert found.mean_unused_frac <= found.peak_unused_frac + 1e-12
        if case.params.engine == "sarathi":  # growth that is taken to be even meets no block's end on the token
            assert found.peak_unused_tokens <= outcome.peak_running * block
        else:
            assert found.peak_reserved_tokens <= outcome.peak_kv_blocks * block <= found.capacity_tokens


# ------------------------------------------------------------------ sums in closed form


@settings(deadline=None, max_examples=150)
@given(case=baseline_cases())
def test_closed_forms_are_sums(case: BaselineCase) -> None:
    """For one request at a time: integral and peak over intervals written out."""
    size = case.params.block_size_tokens
    for r in case.requests:
        one = Held(
            input_tokens=np.array([r.input_tokens]),
            output_tokens=np.array([r.output_tokens]),
            first_s=np.array([2.0]),
            last_s=np.array([2.0 + 0.5 * (r.output_tokens - 1)]),
            until_s=np.array([2.0 + 0.5 * (r.output_tokens - 1)]),
            fixed_tokens=np.array([0]),
            block_size_tokens=size,
        )
        tokens = [r.input_tokens + j for j in range(1, r.output_tokens)]
        reserved = [size * math.ceil(n / size) for n in tokens]
        assert integrals(one) == pytest.approx((0.5 * sum(reserved), 0.5 * sum(tokens)))
        peak_reserved, peak_unused = peaks(one)
        assert peak_reserved == pytest.approx(max(reserved, default=0))
        exact = max((a - b for a, b in zip(reserved, tokens, strict=True)), default=0)
        assert exact - 1e-6 <= peak_unused < exact + 1 + 1e-6
