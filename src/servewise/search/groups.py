"""Groups of prefill and decode instances: their load, what they cannot beat, and what happens to each request."""

from __future__ import annotations

from servewise.perf import calibrated_step_model, memory
from servewise.search.bounds import Bounds, StopRule, bounds
from servewise.search.context import mean_tokens
from servewise.search.fleet import Load
from servewise.sim import pack_disaggregated, simulate_disaggregated, to_log
from servewise.types import ROLES, Deployment, MemoryReport, RequestLog, Role, Search, StepModel

__all__ = ["group_bounds", "group_load", "group_log"]

NUM_SAMPLES = 600
"""Of the groups' state over the arrivals' span, as in ``sim.run``."""


def group_load(search: Search, deployment: Deployment, rule: StopRule | None) -> Load:
    """Workload, promise and step times of both pools."""
    prefill = calibrated_step_model(deployment.pool("prefill"), search.calibrations)
    return Load(
        workload=search.workload,
        promise=search.promise,
        rule=rule,
        packed=pack_disaggregated(search.workload, deployment, prefill),
        step_model=calibrated_step_model(deployment.pool("decode"), search.calibrations),
        prefill_model=prefill,
    )


def group_bounds(load: Load, deployment: Deployment) -> Bounds:
    """What no fleet of such groups beats; transfers are taken to cost nothing."""
    group, prefill = deployment.disaggregation, load.prefill_model
    assert group is not None  # noqa: S101 (made by group_load)
    assert prefill is not None  # noqa: S101 (made by group_load)
    pools = load.step_model.table, group.prefill.num_instances, group.decode.num_instances
    return bounds(load.packed, prefill.table, load.promise, load.rule, knows_prefix=False, decode_pool=pools)


def group_log(search: Search, deployment: Deployment) -> RequestLog:
    """What happens to each request of the whole workload, gaps between tokens and the groups' state included."""
    models: dict[Role, StepModel] = {
        role: calibrated_step_model(deployment.pool(role), search.calibrations) for role in ROLES
    }
    memories: dict[Role, MemoryReport] = {role: memory(deployment.pool(role), mean_tokens(search)) for role in ROLES}
    outcome = simulate_disaggregated(
        search.workload, deployment, models, memories, record_itl=True, num_samples=NUM_SAMPLES
    )
    return to_log(search.workload, outcome)
