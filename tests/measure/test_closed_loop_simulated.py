"""A measured closed loop can be simulated: the same workload and concurrency, without translation."""

from __future__ import annotations

import numpy as np

from oracle.strategies import Case, params, req, unit_table
from servewise.measure.loads import closed_loop, made_up
from servewise.sim import simulate_closed_loop, to_log
from servewise.traffic import UniformLength
from sim.agree import deployment_of, memory_of, model_of


def test_the_workload_of_a_closed_loop_is_what_the_simulator_takes() -> None:
    workload = made_up(UniformLength(low=1, high=4), UniformLength(low=1, high=4), concurrency=2, num_requests=9)
    assert closed_loop(workload, 2).num_requests == workload.num_requests
    case = Case(requests=(req(0, 0.0, 3, 3),), params=params(lag=False), times=unit_table())
    outcome = simulate_closed_loop(workload, deployment_of(case), model_of(case), memory_of(case), concurrency=2)
    log = to_log(workload, outcome)
    assert (log.status == 0).all()
    assert log.output_tokens.tolist() == workload.output_tokens.tolist()
    arrival_s = outcome.packed.requests.arrival
    in_flight = [int(np.sum((arrival_s <= t) & (log.last_token_s > t))) for t in arrival_s]
    assert max(in_flight) <= 2
