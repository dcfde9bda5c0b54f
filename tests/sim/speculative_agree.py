"""Run one case through the kernel with speculative decoding and through the independent plain scheduler."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from fractions import Fraction

import numpy as np
from hypothesis import strategies as st

from oracle.router_plain import simulate_fleet
from oracle.speculative_plain import Drafter, Engine
from oracle.strategies import PROFILES, Case, Profile, make_case, random_table
from servewise.sim import Outcome, simulate
from servewise.types import Deployment, Router, Speculation, Workload, chain_acceptance
from sim.agree import MODEL, assert_same, deployment_of, memory_of, model_of, normalized, workload_of


def drafter_of(speculation: Speculation) -> Drafter:
    """The same, for the plain scheduler."""
    return Drafter(
        proposed=speculation.num_speculative_tokens,
        accepted=Fraction(round(1_000_000 * math.fsum(speculation.acceptance)), 1_000_000),
        lookahead=0 if speculation.method == "ngram" else speculation.num_speculative_tokens,
        extra=1 if speculation.method == "draft_model" else 0,
    )


def speculation_of(method: str, acceptance: tuple[float, ...]) -> Speculation:
    """A drafter; a draft model is any model."""
    return Speculation(
        method=method,  # type: ignore[arg-type]
        num_speculative_tokens=len(acceptance),
        acceptance=acceptance,
        draft_model=MODEL if method == "draft_model" else None,
    )


def speculating(case: Case, speculation: Speculation, rng: random.Random) -> Case:
    """The case with a budget that holds every row, no prefix cache, and a table that covers it."""
    case = normalized(case)
    seats = case.params.max_num_seqs
    least = seats * (speculation.queries_per_row + speculation.budget_tokens_per_request)
    budget = max(case.params.max_num_batched_tokens, least + rng.choice([0, 0, 1, 7]))
    params = replace(case.params, max_num_batched_tokens=budget, enable_prefix_caching=False)
    times = random_table(rng.randrange(2**31), seats, budget)
    return replace(case, params=params, times=times, requests=tuple(replace(r, block_ids=()) for r in case.requests))


def random_speculation(rng: random.Random) -> Speculation:
    """Any drafter; often one whose rates are whole, zero or one."""
    k = rng.randint(1, 5)
    method = rng.choice(["draft_model", "eagle", "mtp", "ngram"])
    kind = rng.random()
    if kind < 0.4:
        rates = chain_acceptance(rng.random(), k)
    elif kind < 0.6:
        rates = tuple(sorted((rng.choice([0.0, 1.0]) for _ in range(k)), reverse=True))
    else:
        rates = tuple(sorted((rng.random() for _ in range(k)), reverse=True))
    return speculation_of(method, rates)


@st.composite
def speculative_cases(draw: st.DrawFn, max_requests: int = 12) -> tuple[Case, Speculation]:
    """Cases with a drafter, for Hypothesis."""
    rng = draw(st.randoms(use_true_random=False))
    speculation = random_speculation(rng)
    case = make_case(rng, draw(st.sampled_from(PROFILES)), draw(st.integers(1, max_requests)))
    return speculating(case, speculation, rng), speculation


def seeded_speculative(seed: int, profile: Profile, num_requests: int = 60) -> tuple[Case, Speculation]:
    """The same case for the same arguments."""
    rng = random.Random(f"speculative-{profile}-{seed}")  # noqa: S311 (not a secret)
    speculation = random_speculation(rng)
    return speculating(make_case(rng, profile, num_requests), speculation, rng), speculation


def deployed(case: Case, speculation: Speculation, num_replicas: int = 1, router: Router = "round_robin") -> Deployment:
    """The case's deployment with a drafter."""
    return replace(deployment_of(case, num_replicas, router), speculation=speculation)


def run_kernel(
    case: Case,
    speculation: Speculation,
    *,
    num_replicas: int = 1,
    router: Router = "round_robin",
    fast_forward: bool = True,
    workload: Workload | None = None,
    record_itl: bool = False,
    num_samples: int = 0,
) -> Outcome:
    """The kernel's view of a case."""
    return simulate(
        workload or workload_of(case),
        deployed(case, speculation, num_replicas, router),
        model_of(case),
        memory_of(case),
        record_itl=record_itl,
        num_samples=num_samples,
        fast_forward=fast_forward,
    )


def assert_agrees(
    case: Case,
    speculation: Speculation,
    *,
    num_replicas: int = 1,
    router: Router = "round_robin",
    fast_forward: bool = True,
) -> Outcome:
    """Compare one case in both implementations; return the kernel's outcome."""
    plain = simulate_fleet(
        case.requests,
        case.params,
        case.times,
        num_replicas=num_replicas,
        router=router,
        engine=lambda: Engine(case.params, case.times, drafter_of(speculation)),
    )
    kernel = run_kernel(case, speculation, num_replicas=num_replicas, router=router, fast_forward=fast_forward)
    assert_same(kernel, plain)
    return kernel


def plain_tokens(case: Case, speculation: Speculation) -> list[np.ndarray]:
    """When each token of each request comes, in the plain scheduler [s]."""
    engine = Engine(case.params, case.times, drafter_of(speculation))
    lives = [engine.submit(request) for request in case.requests]
    engine.run_until(math.inf)
    return [np.array(live.token_s) for live in lives]
