"""llama.cpp's and Ollama's cases as ``sim`` takes them, and the plain server."""

from __future__ import annotations

import math
from dataclasses import replace

from oracle.llamacpp_cases import SlotCase
from oracle.llamacpp_plain import Engine, Params
from servewise.engines import llamacpp, ollama
from servewise.sim.drivers.llamacpp import CELL_BYTES
from servewise.types import Deployment, LlamacppParams, MemoryReport, OllamaParams, Router
from servewise.units import MIB
from sim import agree

WINDOWED = replace(agree.MODEL, num_sliding_layers=16, sliding_window_tokens=1024)
"""The kernel sees only that there are windows."""


def deployment_of(case: SlotCase, num_replicas: int = 1, router: Router = "round_robin") -> Deployment:
    """A deployment with the case's settings.

    A slot whose context is shorter than its stream is one of a model with a short context. Only Ollama has all its own
    settings; what a case combines with them that Ollama does not (shared cells, a larger batch) is not compared.
    """
    params = case.params
    model = replace(WINDOWED if params.has_windows else agree.MODEL, max_context_tokens=params.context)
    knobs: LlamacppParams | OllamaParams
    if params.is_ollama:
        knobs = OllamaParams(
            num_parallel=params.num_slots,
            context_length=params.cells,
            num_batch=params.n_ubatch,
            keep_alive_s=None if math.isinf(params.keep_alive_s) else params.keep_alive_s,
            context_shift=params.context_shift,
            starts_loaded=params.starts_loaded,
            cache_ram_mib=cache_ram_mib(params),
        )
    else:
        knobs = LlamacppParams(
            ctx_size=params.cells * (params.num_slots if params.is_split else 1),
            parallel=params.num_slots,
            batch_size=params.n_batch,
            ubatch_size=params.n_ubatch,
            kv_unified=params.is_unified,
            context_shift=params.context_shift,
            cache_ram_mib=cache_ram_mib(params),
        )
    engine, version = ("ollama", ollama.default_version()) if params.is_ollama else ("llama.cpp", "b10488")
    return agree.deployment(engine, version, knobs, num_replicas, router, model=model)


def normalized(case: SlotCase) -> SlotCase:
    """The case as Ollama can be set up: slots with a KV cache each. Its prompts fit, so that none is cut."""
    params = case.params
    if not params.is_ollama:
        return case
    load_s = ollama.load_s(_weights_bytes(params.load_s))
    params = replace(params, is_unified=params.num_slots == 1, n_batch=params.n_ubatch, load_s=load_s)
    return replace(case, params=params)


def _weights_bytes(load_s: float) -> int:
    """Weights that take this long to load."""
    return round(load_s / ollama.load_s(1 << 40) * (1 << 40))


def token_bytes(params: Params) -> int:
    """Bytes of a token that are copied in the case's time."""
    return round(params.copy_s * llamacpp.host_rates().copy_bytes_per_s)


def cache_ram_mib(params: Params) -> int:
    """Host memory for the case's tokens, and for no further one."""
    found = -(-params.host_tokens * token_bytes(params) // MIB)
    assert found * MIB < (params.host_tokens + 1) * token_bytes(params) or found == 0
    return found


def memory_of(case: SlotCase) -> MemoryReport:
    """A report with the case's cells, weights that load in the case's time, and tokens that are copied in it."""
    cells = case.params.cells * (case.params.num_slots if case.params.is_split else 1)
    return replace(
        agree.memory(cells, 1),
        weights_bytes=_weights_bytes(case.params.load_s),
        kv_bytes_per_token=max(1.0, float(token_bytes(case.params) - CELL_BYTES)),
    )


LLAMACPP = agree.Comparison(
    deployment_of=deployment_of,
    engine_of=lambda case: Engine(case.params, case.times),
    memory_of=memory_of,
    normalized=normalized,
)
workload_of = agree.workload_of
model_of = agree.model_of
run_open = LLAMACPP.run_open
run_plain = LLAMACPP.run_plain
assert_open_agrees = LLAMACPP.assert_open_agrees
assert_closed_loop_agrees = LLAMACPP.assert_closed_loop_agrees
