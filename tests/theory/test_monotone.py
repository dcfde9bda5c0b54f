"""What can only get better or worse.

Batches are not monotone in general: a faster step may admit a request into another batch and delay a third one, and
so may a seat, a block or a replica more. The claims here are those that hold for every request.
"""

from __future__ import annotations

import dataclasses

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from servewise.sim import simulate
from sim.agree import deployment_of, memory_of, model_of
from theory.test_queueing import engine, geometric_tokens, poisson, run, workload_of

some = settings(deadline=None, max_examples=50)
loads = st.floats(0.1, 1.5)
seeds = st.integers(0, 10_000)


@some
@given(load=loads, seed=seeds, faster=st.floats(0.3, 1.0))
def test_on_one_seat_a_faster_engine_finishes_no_request_later(load: float, seed: int, faster: float) -> None:
    workload = poisson(load, geometric_tokens(10.0, seed, 200), seed + 1)
    slow = run(engine(), workload)
    fast = run(engine(step_s=faster * 1e-3), workload)
    assert (fast.outputs.last <= slow.outputs.last + 1e-9).all()
    assert (fast.outputs.first <= slow.outputs.first + 1e-9).all()


@some
@given(load=loads, seed=seeds, share=st.floats(0.1, 0.9))
def test_on_one_seat_fewer_requests_are_served_no_later(load: float, seed: int, share: float) -> None:
    workload = poisson(load, geometric_tokens(10.0, seed, 200), seed + 1)
    kept = np.flatnonzero(np.random.default_rng(seed).random(200) < share)
    if not len(kept):
        return
    fewer = workload_of(workload.arrival_s[kept], workload.output_tokens[kept])
    last_s = run(engine(), workload).outputs.last[kept]
    assert (run(engine(), fewer).outputs.last <= last_s + 1e-9).all()


@some
@given(seed=seeds, faster=st.floats(0.3, 0.99))
def test_alone_every_request_is_faster_on_a_faster_engine(seed: int, faster: float) -> None:
    """At so low a load that no two requests meet, each one's time shrinks in proportion."""
    tokens = geometric_tokens(10.0, seed, 50)
    workload = workload_of(np.arange(50) * float(tokens.max() + 2) * 1e-3, tokens)
    slow_s = run(engine(seats=8), workload).outputs.last - workload.arrival_s
    fast_s = run(engine(seats=8, step_s=faster * 1e-3), workload).outputs.last - workload.arrival_s
    np.testing.assert_allclose(fast_s, faster * slow_s, rtol=1e-6)


@some
@given(load=st.floats(0.1, 3.0), seed=seeds)
def test_blocks_and_seats_that_are_never_used_change_nothing(load: float, seed: int) -> None:
    workload = poisson(load, geometric_tokens(10.0, seed, 200), seed + 1)
    roomy = engine(seats=200)
    plenty = run(roomy, workload)
    assert plenty.num_preemptions == 0
    smaller = dataclasses.replace(
        roomy.params, num_kv_blocks=plenty.peak_kv_blocks + 8, max_num_seqs=plenty.peak_running + 1
    )
    limit = int((workload.input_tokens + workload.output_tokens).max())
    tight = dataclasses.replace(roomy, params=smaller)
    deployment = deployment_of(tight)
    deployment = dataclasses.replace(deployment, params=dataclasses.replace(deployment.params, max_model_len=limit))
    exact = simulate(workload, deployment, model_of(tight), memory_of(tight))
    assert exact.outputs.last.tobytes() == plenty.outputs.last.tobytes()
