"""The drivers by the type of what they are given: one row an engine; numba compiles the row that is used only."""

# ruff: noqa: ARG001 (the rows share one signature, and an overload has that of what it stands for)

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import types
from numba.extending import overload

from servewise.kernel import ranks, reserving, vllm
from servewise.kernel.layout import (
    Engine,
    Limits,
    Outputs,
    Prefix,
    Ranks,
    Recorder,
    Replica,
    Requests,
    Reservation,
    Times,
)
from servewise.kernel.policy import Policy, policy_at
from servewise.kernel.views import prefix_at, recorder_at

__all__ = ["advance"]


def _vllm(rep, i, req, out, times, eng, lim, px, rec, driver, horizon):  # type: ignore[no-untyped-def]
    policy = policy_at(driver, i)
    return vllm.advance(rep, req, out, times, eng, lim, prefix_at(px, i), recorder_at(rec, i), None, policy, horizon)


def _ranks(rep, i, req, out, times, eng, lim, px, rec, driver, horizon):  # type: ignore[no-untyped-def]
    return ranks.advance(rep, driver, i, req, out, times, eng, lim, px, rec, horizon)


def _reserving(rep, i, req, out, times, eng, lim, px, rec, driver, horizon):  # type: ignore[no-untyped-def]
    return reserving.advance(rep, req, out, times, eng, lim, driver, recorder_at(rec, i), horizon)


DRIVERS: dict[type, Callable[..., Any]] = {type(None): _vllm, Policy: _vllm, Ranks: _ranks, Reservation: _reserving}


def advance(
    rep: Replica,
    i: int,
    req: Requests,
    out: Outputs,
    times: Times,
    eng: Engine,
    lim: Limits,
    px: Prefix,
    rec: Recorder,
    driver: Any,
    horizon: float,
) -> int:
    """Simulate every step of replica ``i`` that is planned before ``horizon``; returns a status of ``layout``.

    ``rep`` is the replica's own part of the fleet; ``px``, ``rec`` and ``driver`` are the whole fleet's.
    """
    return int(DRIVERS[type(driver)](rep, i, req, out, times, eng, lim, px, rec, driver, horizon))


@overload(advance, jit_options={"nogil": True, "_nrt": False})  # type: ignore[typeddict-unknown-key]
def _choose_driver(rep, i, req, out, times, eng, lim, px, rec, driver, horizon):  # type: ignore[no-untyped-def]
    return DRIVERS[type(None) if isinstance(driver, types.NoneType) else driver.instance_class]
