"""The drivers by the type of what they are given: one row an engine; numba compiles the row that is used only."""

# ruff: noqa: ARG001 (the rows share one signature, and an overload has that of what it stands for)

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import types
from numba.extending import overload

from servewise.kernel import (
    disaggregated,
    llamacpp,
    orca,
    pipeline,
    ranks,
    sglang,
    sglang_pipeline,
    sglang_ranks,
    speculative,
    staged_ranks,
    static,
    tgi,
    trtllm,
    trtllm_pipeline,
    trtllm_ranks,
    vllm,
)
from servewise.kernel.group import Group
from servewise.kernel.layout import (
    Engine,
    Limits,
    Outputs,
    Prefix,
    Ranks,
    Recorder,
    Replica,
    Requests,
    Times,
)
from servewise.kernel.pipeline import Pipeline
from servewise.kernel.policy import Policy, policy_at
from servewise.kernel.tgi import Tgi
from servewise.kernel.views import prefix_at, recorder_at

__all__ = ["advance"]


def _vllm(rep, i, req, out, times, eng, lim, px, rec, driver, horizon):  # type: ignore[no-untyped-def]
    policy = policy_at(driver, i)
    return vllm.advance(rep, req, out, times, eng, lim, prefix_at(px, i), recorder_at(rec, i), None, policy, horizon)


def _ranks(rep, i, req, out, times, eng, lim, px, rec, driver, horizon):  # type: ignore[no-untyped-def]
    return ranks.advance(rep, driver, i, req, out, times, eng, lim, px, rec, horizon)


def _disaggregated(rep, i, req, out, times, eng, lim, px, rec, driver, horizon):  # type: ignore[no-untyped-def]
    return disaggregated.advance(rep, driver, i, req, out, lim, recorder_at(rec, i), horizon)


def _static(rep, i, req, out, times, eng, lim, px, rec, driver, horizon):  # type: ignore[no-untyped-def]
    return static.advance(rep, req, out, times, eng, lim, driver, recorder_at(rec, i), horizon)


def _orca(rep, i, req, out, times, eng, lim, px, rec, driver, horizon):  # type: ignore[no-untyped-def]
    return orca.advance(rep, req, out, times, eng, lim, driver, prefix_at(px, i), recorder_at(rec, i), horizon)


def _trtllm(rep, i, req, out, times, eng, lim, px, rec, driver, horizon):  # type: ignore[no-untyped-def]
    trt = trtllm.trtllm_at(driver, i)
    px, rec = prefix_at(px, i), recorder_at(rec, i)
    return trtllm.advance(rep, req, out, times, eng, lim, trt, px, rec, None, horizon)


def _trtllm_pipeline(rep, i, req, out, times, eng, lim, px, rec, driver, horizon):  # type: ignore[no-untyped-def]
    state = trtllm_pipeline.TrtllmPipeline(
        driver.pipe, trtllm.trtllm_at(driver.trt, i), driver.prompts, driver.num_prompts
    )
    px, rec = prefix_at(px, i), recorder_at(rec, i)
    return trtllm_pipeline.advance(rep, req, out, times, eng, lim, state, i, px, rec, horizon)


def _trtllm_ranks(rep, i, req, out, times, eng, lim, px, rec, driver, horizon):  # type: ignore[no-untyped-def]
    return trtllm_ranks.advance(rep, driver, i, req, out, times, eng, lim, px, rec, horizon)


def _pipeline(rep, i, req, out, times, eng, lim, px, rec, driver, horizon):  # type: ignore[no-untyped-def]
    px, rec = prefix_at(px, i), recorder_at(rec, i)
    return pipeline.advance(rep, driver, i, req, out, times, eng, lim, px, rec, None, horizon)


def _staged_ranks(rep, i, req, out, times, eng, lim, px, rec, driver, horizon):  # type: ignore[no-untyped-def]
    return staged_ranks.advance(rep, driver, i, req, out, times, eng, lim, px, rec, horizon)


def _tgi(rep, i, req, out, times, eng, lim, px, rec, driver, horizon):  # type: ignore[no-untyped-def]
    return tgi.advance(rep, i, req, out, times, eng, lim, prefix_at(px, i), driver, recorder_at(rec, i), horizon)


def _llamacpp(rep, i, req, out, times, eng, lim, px, rec, driver, horizon):  # type: ignore[no-untyped-def]
    return llamacpp.advance(rep, i, req, out, times, eng, lim, px, recorder_at(rec, i), driver, horizon)


def _sglang(rep, i, req, out, times, eng, lim, px, rec, driver, horizon):  # type: ignore[no-untyped-def]
    state = sglang.sglang_at(driver, i)
    px, rec = prefix_at(px, i), recorder_at(rec, i)
    return sglang.advance(rep, req, out, times, eng, lim, state, px, rec, None, horizon)


def _sglang_ranks(rep, i, req, out, times, eng, lim, px, rec, driver, horizon):  # type: ignore[no-untyped-def]
    return sglang_ranks.advance(rep, driver, i, req, out, times, eng, lim, px, rec, horizon)


def _sglang_pipeline(rep, i, req, out, times, eng, lim, px, rec, driver, horizon):  # type: ignore[no-untyped-def]
    px, rec = prefix_at(px, i), recorder_at(rec, i)
    return sglang_pipeline.advance(rep, driver, i, req, out, times, eng, lim, px, rec, horizon)


def _speculative(rep, i, req, out, times, eng, lim, px, rec, driver, horizon):  # type: ignore[no-untyped-def]
    return speculative.advance(rep, req, out, times, eng, lim, driver, recorder_at(rec, i), horizon)


DRIVERS: dict[type, Callable[..., Any]] = {
    type(None): _vllm,
    Policy: _vllm,
    Ranks: _ranks,
    Group: _disaggregated,
    static.Batching: _static,
    orca.Slots: _orca,
    trtllm.Trtllm: _trtllm,
    trtllm_pipeline.TrtllmPipeline: _trtllm_pipeline,
    trtllm_ranks.TrtllmRanks: _trtllm_ranks,
    Pipeline: _pipeline,
    staged_ranks.StagedRanks: _staged_ranks,
    Tgi: _tgi,
    llamacpp.Slots: _llamacpp,
    sglang.Sglang: _sglang,
    sglang_ranks.SglangRanks: _sglang_ranks,
    sglang_pipeline.SglangPipeline: _sglang_pipeline,
    speculative.Speculative: _speculative,
}


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
