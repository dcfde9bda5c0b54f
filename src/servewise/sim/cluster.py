"""A fleet whose replicas come and go: they start, fail, and drain before they are stopped.

Requests that a failing replica has not finished are sent again, whole, to another one at that moment: what was streamed
is lost. Requests that come while nothing is up wait for the next replica. Both count from their first intended send.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from servewise.errors import InputError
from servewise.kernel import layout
from servewise.kernel.fleet import DRAINING, GONE, UP, route
from servewise.sim.check import check
from servewise.sim.disaggregated import group_task
from servewise.sim.drivers import driver_of, routes_by_kv_use
from servewise.sim.group_run import GroupTask, completed_groups
from servewise.sim.outcome import gaps_of
from servewise.sim.pack import pack_times, select_prefix
from servewise.sim.run import pack_requests
from servewise.sim.task import ROUTERS, Arrays, Task, completed, num_engines, num_ranks
from servewise.types import Deployment, MemoryReport, RequestLog, RequestStatus, Role, StepModel, Workload

__all__ = ["ClusterRun", "Life", "simulate_cluster", "simulate_group_cluster"]

AnyTask = TypeVar("AnyTask", Task, GroupTask)


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """One replica from the moment it can serve to its end.

    Parameters
    ----------
    ready_s : float [s]
        When the router may send it requests.
    until_s : float [s]
        When it ends; infinite if it does not.
    ends : {"failure", "drain"}
        Whether its requests are lost then, or are the last that it is sent.
    """

    ready_s: float = 0.0
    until_s: float = math.inf
    ends: Literal["failure", "drain"] = "drain"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterRun:
    """What happened to the requests and to the replicas.

    Parameters
    ----------
    log : RequestLog
        ``num_preemptions`` and ``cached_tokens`` of the attempt that was finished.
    num_retries : int64 array, shape (num_requests,)
        Times that a request lost its replica.
    busy_until_s : float64 array, shape (num_lives,) [s]
        When each replica has finished its last request; its ``until_s`` where it failed.
    """

    log: RequestLog
    num_retries: NDArray[np.int64]
    busy_until_s: NDArray[np.float64]


@dataclass(slots=True, kw_only=True)
class _Attempts:
    """Requests on their way to replicas, one row each time that one is sent."""

    request: NDArray[np.int64]
    entry_s: NDArray[np.float64]
    lost: dict[int, NDArray[np.int64]]
    """Rows that each failure takes back, by the number of the replica."""


def simulate_cluster(
    workload: Workload,
    deployment: Deployment,
    step_model: StepModel,
    memory: MemoryReport,
    lives: Sequence[Life],
    *,
    record_itl: bool = False,
    fast_forward: bool = True,
) -> ClusterRun:
    """Simulate replicas that come and go behind the deployment's router.

    Parameters
    ----------
    workload, deployment, step_model, memory
        As for ``sim.simulate``; ``deployment.num_replicas`` is not used.
    lives : sequence of Life
        One for each replica and each time it is started.
    record_itl : bool
        Keep the gaps between tokens, those that were streamed before a failure included.
    fast_forward : bool
        False computes every single step, for comparison.

    Raises
    ------
    InputError
        When there is no replica, or as ``sim.simulate``.
    """
    fleet = replace(deployment, num_replicas=len(lives))
    engines = num_engines(deployment)
    slots = [life for life in lives for _ in range(engines)]
    ranks = num_ranks(fleet)
    check(fleet, step_model, memory, num_rows=fleet.max_rows, num_ranks=ranks)

    def task_of(sent: Workload) -> Task:
        return Task(
            packed=pack_requests(sent, fleet, step_model.table),
            deployment=fleet,
            memory=memory,
            engine=driver_of(fleet).engine(fleet, memory.num_kv_blocks)._replace(single_step=int(not fast_forward)),
            times=pack_times(step_model.table),
            limits=layout.Limits(ttft=np.inf, tpot=np.inf, e2e=np.inf, max_bad=1 << 60),
            router=ROUTERS[fleet.router],
            record_itl=record_itl,
            num_samples=0,
            sample_every_s=1.0,
            num_slots=len(slots),
            ranks=ranks,
            kv_aware=routes_by_kv_use(fleet),
            starts_and_ends=True,
        )

    def complete(task: Task, attempt: Callable[[Task, Arrays], int]) -> Arrays:
        return completed(task, attempt, knows_prefix=workload.prefix is not None)

    return _until_all_failures_are_known(workload, lives, slots, task_of, complete)


def simulate_group_cluster(
    workload: Workload,
    deployment: Deployment,
    step_models: Mapping[Role, StepModel],
    memories: Mapping[Role, MemoryReport],
    lives: Sequence[Life],
    *,
    record_itl: bool = False,
    fast_forward: bool = True,
) -> ClusterRun:
    """Simulate groups of prefill and decode instances that come and go, each as a whole.

    Parameters
    ----------
    workload, deployment, step_models, memories
        As for ``sim.simulate_disaggregated``; ``deployment.num_replicas`` is not used.
    lives, record_itl, fast_forward
        As for :func:`simulate_cluster`, a life being a group's.

    Raises
    ------
    InputError
        When there is no group, or as ``sim.simulate_disaggregated``.
    """
    fleet = replace(deployment, num_replicas=len(lives))

    def task_of(sent: Workload) -> GroupTask:
        task = group_task(sent, fleet, step_models, memories, record_itl=record_itl, fast_forward=fast_forward)
        return replace(task, starts_and_ends=True)

    return _until_all_failures_are_known(workload, lives, lives, task_of, completed_groups)


def _until_all_failures_are_known(
    workload: Workload,
    lives: Sequence[Life],
    slots: Sequence[Life],
    task_of: Callable[[Workload], AnyTask],
    complete: Callable[[AnyTask, Callable[[AnyTask, Arrays], int]], Arrays],
) -> ClusterRun:
    """Run, and run again with what each failure lost sent to others, until no failure is new.

    ``slots`` are the lives of what the router sends to; ``task_of`` makes the kernel's input of the requests as they
    are sent, ``complete`` runs it to its end.
    """
    if not lives or any(not life.ready_s < life.until_s for life in lives):
        raise InputError("a cluster needs replicas, each of which is ready before it ends")
    arrival_s = workload.arrival_s
    attempts = _Attempts(request=np.arange(workload.num_requests), entry_s=_next_up(lives, arrival_s), lost={})
    while True:
        sent = _rows(workload, attempts)
        task = task_of(sent)
        failures: dict[int, NDArray[np.int64]] = {}

        def attempt(task: AnyTask, state: Arrays, failures: dict[int, NDArray[np.int64]] = failures) -> int:
            failures.clear()
            return _live(task, state, slots, attempts.lost, failures)

        end = complete(task, attempt)
        new = [i for i in failures if i not in attempts.lost]
        if not new:
            for rows in failures.values():  # what was streamed before the replica failed
                end.outputs.first[rows] = end.outputs.last[rows] = np.nan
            return _cluster_run(workload, lives, attempts, task, end)
        accepted = np.arange(sent.num_requests) if task.packed.accepted is None else task.packed.accepted
        for i in new:
            attempts.lost[i] = attempts.request[accepted[failures[i]]]
            entry_s = _next_up(lives, np.full(len(failures[i]), slots[i].until_s))
            attempts.request = np.concatenate((attempts.request, attempts.lost[i]))
            attempts.entry_s = np.concatenate((attempts.entry_s, entry_s))
        order = np.argsort(attempts.entry_s, kind="stable")
        attempts.request, attempts.entry_s = attempts.request[order], attempts.entry_s[order]


def _next_up(lives: Sequence[Life], time_s: NDArray[np.float64]) -> NDArray[np.float64]:
    """When something is up, from given times on [s]; infinite where nothing will be."""
    found = np.full(len(time_s), np.inf)
    for life in lives:
        found = np.where(time_s < life.until_s, np.minimum(found, np.maximum(time_s, life.ready_s)), found)
    return found


def _rows(workload: Workload, attempts: _Attempts) -> Workload:
    """The requests as they are sent; those that no replica will ever be up for are left out."""
    ever = np.isfinite(attempts.entry_s)
    attempts.request, attempts.entry_s = attempts.request[ever], attempts.entry_s[ever]
    chosen = attempts.request
    return replace(
        workload,
        arrival_s=attempts.entry_s,
        input_tokens=workload.input_tokens[chosen],
        output_tokens=workload.output_tokens[chosen],
        max_tokens=workload.max_tokens[chosen],
        prefix=None if workload.prefix is None else select_prefix(workload.prefix, chosen),
        session=None if workload.session is None else workload.session[chosen],
    )


def _live(
    task: Task | GroupTask,
    state: Arrays,
    lives: Sequence[Life],
    known: dict[int, NDArray[np.int64]],
    failures: dict[int, NDArray[np.int64]],
) -> int:
    """Run from one start or end of a replica to the next; stops at the first failure that is not ``known`` yet."""
    arrival, serving = state.requests.arrival, state.routing.serving
    events = sorted({t for life in lives for t in (life.ready_s, life.until_s) if math.isfinite(t)})
    start = 0
    for event_s, next_s in zip(events, [*events[1:], math.inf], strict=True):
        for i, life in enumerate(lives):
            if life.until_s == event_s:
                serving[i] = DRAINING if life.ends == "drain" else GONE
                if life.ends == "failure":
                    failures[i] = _unfinished(state, i, start, event_s)
                    if i not in known and len(failures[i]):
                        return layout.DONE
            elif life.ready_s == event_s:
                serving[i] = UP
                state.fleet.floats[i, layout.NOW] = event_s
        stop = int(np.searchsorted(arrival, next_s, side="left"))
        status = route(
            state.fleet,
            state.requests,
            state.outputs,
            task.times,
            task.engine,
            task.limits,
            state.prefix,
            state.recorder,
            state.driver,
            state.routing,
            start,
            stop,
            next_s,
        )
        if status != layout.DONE:
            return status
        start = stop
    return layout.DONE


def _unfinished(state: Arrays, replica: int, num_sent: int, time_s: float) -> NDArray[np.int64]:
    """Requests that a replica was sent and has not finished at a time; what its last step emits later is lost, too."""
    sent = np.flatnonzero(state.routing.replica_of[:num_sent] == replica)
    last_s = state.outputs.last[sent] - state.requests.extra[sent]
    return np.asarray(sent[~(last_s <= time_s) & (state.outputs.rejected[sent] == 0)])


def _cluster_run(
    workload: Workload, lives: Sequence[Life], attempts: _Attempts, task: Task | GroupTask, end: Arrays
) -> ClusterRun:
    """The log by request: times of the attempt that was finished, counted from the first intended send."""
    n = workload.num_requests
    rows = np.arange(len(attempts.request)) if task.packed.accepted is None else task.packed.accepted
    request = attempts.request[rows]  # a later attempt overwrites an earlier one
    status = np.full(n, RequestStatus.REJECTED, np.int8)
    status[np.setdiff1d(np.arange(n), attempts.request)] = RequestStatus.UNFINISHED
    first, last = np.full(n, np.nan), np.full(n, np.nan)
    first[request], last[request] = end.outputs.first, end.outputs.last
    status[request] = np.where(np.isnan(end.outputs.last), RequestStatus.UNFINISHED, RequestStatus.OK)
    status[request[end.outputs.rejected != 0]] = RequestStatus.REJECTED
    output_tokens = np.zeros(n, np.int64)
    output_tokens[request] = end.requests.output_tokens
    cached = np.full(n, -1, np.int64)
    if workload.prefix is not None:
        cached[request] = end.outputs.cached
    served_by = end.routing.replica_of // num_engines(task.deployment)
    preemptions, replica = np.zeros(n, np.int64), np.full(n, -1, np.int64)
    preemptions[request], replica[request] = end.outputs.preemptions, served_by
    retries = np.zeros(n, np.int64)
    for lost in attempts.lost.values():
        retries[lost] += 1
    busy_until_s = np.array([life.ready_s for life in lives])
    served = ~np.isnan(end.outputs.last)
    np.maximum.at(busy_until_s, served_by[served], end.outputs.last[served])
    failed = np.array([life.ends == "failure" and math.isfinite(life.until_s) for life in lives])
    busy_until_s[failed] = [life.until_s for life in lives if life.ends == "failure" and math.isfinite(life.until_s)]
    return ClusterRun(
        log=RequestLog(
            intended_s=workload.arrival_s,
            sent_s=workload.arrival_s,
            first_token_s=first,
            last_token_s=last,
            input_tokens=workload.input_tokens,
            output_tokens=output_tokens,
            cached_tokens=cached,
            num_preemptions=preemptions,
            replica=replica,
            status=status,
            itl=gaps_of(end.recorder),
            timeline=None,
        ),
        num_retries=retries,
        busy_until_s=busy_until_s,
    )
