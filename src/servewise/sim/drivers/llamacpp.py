"""llama.cpp's server, and Ollama, which runs it: slots with a KV cache each, batches computed in passes."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from servewise.engines import llamacpp, ollama
from servewise.errors import InputError
from servewise.kernel import layout
from servewise.kernel.llamacpp import Slots, new_slots
from servewise.sim.drivers.base import plain_engine
from servewise.sim.pack import Packed
from servewise.types import Deployment, LlamacppParams, MemoryReport, OllamaParams, PrefixBlocks, Workload
from servewise.units import MIB

__all__ = ["Llamacpp", "Ollama"]

BOS_TOKENS = 1
"""A context shift keeps the begin-of-sequence token, which nearly all models add."""
CELL_BYTES = 12
"""Position, number of sequences and sequence, which are kept of a token beside its keys and values."""


def _params(deployment: Deployment) -> LlamacppParams:
    """Parameters of the ``llama-server`` that runs."""
    params = ollama.as_llama_server(deployment).params
    assert isinstance(params, LlamacppParams)  # noqa: S101 (the registry is keyed by this type)
    return params


class Llamacpp:
    """See ``servewise.kernel.llamacpp``."""

    def caches_prefixes(self, deployment: Deployment) -> bool:
        """Every slot keeps what it has computed."""
        del deployment
        return True

    def check(self, deployment: Deployment, memory: MemoryReport) -> int:
        """Check what the kernel rests on."""
        del memory
        params = _params(deployment)
        if params.parallel > params.ubatch_size:
            raise InputError(
                f"{params.parallel} slots can generate {params.parallel} tokens a step, more than the "
                f"{params.ubatch_size} of a pass; raise ubatch_size (num_batch for Ollama), or lower parallel"
            )
        return params.ubatch_size

    def accepts(self, workload: Workload, deployment: Deployment) -> NDArray[np.bool_]:
        """All."""
        del deployment
        return np.ones(workload.num_requests, np.bool_)

    def adapt(self, workload: Workload, deployment: Deployment) -> tuple[Workload, NDArray[np.int64]]:
        """The workload, and the most output tokens of each request: up to the context, or beyond with a shift."""
        context = deployment.max_request_tokens
        room = context - workload.input_tokens
        if _params(deployment).context_shift:
            room = np.where(room >= 1, np.iinfo(np.int32).max, room)
        return workload, room

    def engine(self, deployment: Deployment, num_kv_blocks: int) -> layout.Engine:
        """Slots and the logical batch."""
        params = _params(deployment)
        return plain_engine(deployment, num_kv_blocks)._replace(
            max_num_seqs=params.parallel, max_num_batched_tokens=params.batch_size, lag=0
        )

    def driver(self, packed: Packed, deployment: Deployment, engine: layout.Engine, memory: MemoryReport) -> Slots:
        """The slots of all replicas, and how they are served."""
        del engine
        params, served = _params(deployment), deployment.params
        token_bytes = memory.kv_bytes_per_token * deployment.parallelism.num_gpus + CELL_BYTES
        host_tokens = int(params.cache_ram_mib * MIB // token_bytes)
        context = ollama.as_llama_server(deployment).max_request_tokens
        shortest = int(packed.requests.input_tokens.min(initial=context))  # no content has fewer tokens
        if params.context_shift:  # but one of which half was dropped when it was full
            shortest = min(shortest, context // 4)
        is_ollama = isinstance(served, OllamaParams)
        keep_alive_s, load_s = math.inf, 0.0
        if isinstance(served, OllamaParams):
            keep_alive_s = math.inf if served.keep_alive_s is None else served.keep_alive_s
            load_s = ollama.load_s(memory.weights_bytes)
        return new_slots(
            deployment.num_replicas,
            params.parallel,
            split=params.is_split,
            cells=params.slot_context_tokens,
            context=context,
            ubatch=params.ubatch_size,
            windows=deployment.model.num_sliding_layers > 0,
            shift=params.context_shift,
            keep=BOS_TOKENS + (ollama.NUM_KEEP if is_ollama else 0),
            fifo=is_ollama,
            keep_alive=keep_alive_s,
            load=load_s,
            starts_loaded=not isinstance(served, OllamaParams) or served.starts_loaded,
            host_tokens=host_tokens,
            copy=token_bytes / llamacpp.host_rates().copy_bytes_per_s,
            max_saved=min(len(packed.requests.input_tokens), host_tokens // max(shortest, 1)) + 1,
        )


class Ollama(Llamacpp):
    """The same server behind a queue of its own, with long prompts cut and a model that may have to be loaded."""

    def adapt(self, workload: Workload, deployment: Deployment) -> tuple[Workload, NDArray[np.int64]]:
        """The workload with long prompts cut, as Ollama does where the context is shifted."""
        params = deployment.params
        assert isinstance(params, OllamaParams)  # noqa: S101
        if not params.context_shift:
            return super().adapt(workload, deployment)
        context = params.context_length
        cut = workload.input_tokens > context - 1
        kept = min(BOS_TOKENS + ollama.NUM_KEEP, context - 1)
        inputs = np.where(cut, context - max((context - kept) // 2, 1), workload.input_tokens)
        prefix = None if workload.prefix is None else _without(workload.prefix, cut)
        room = np.full(len(inputs), ollama.MAX_OUTPUT_CONTEXTS * context)
        return replace(workload, input_tokens=inputs, prefix=prefix), room


def _without(prefix: PrefixBlocks, rows: NDArray[np.bool_]) -> PrefixBlocks:
    """Forget what some requests share."""
    lengths = np.diff(prefix.offsets)
    return replace(
        prefix,
        offsets=np.concatenate(([0], np.cumsum(np.where(rows, 0, lengths)))),
        ids=prefix.ids[np.repeat(~rows, lengths)],
    )
