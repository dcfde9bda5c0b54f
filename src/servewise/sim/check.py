"""What must hold before a deployment can be simulated."""

from __future__ import annotations

from dataclasses import fields

import numpy as np

from servewise.errors import InputError
from servewise.kernel import fleet, layout
from servewise.types import Deployment, MemoryReport, SglangParams, StepModel, TrtllmParams, VllmParams

__all__ = ["check", "check_reservation"]


def check(
    deployment: Deployment, step_model: StepModel, memory: MemoryReport, *, num_rows: int, num_ranks: int = 1
) -> None:
    """Check what the kernel rests on; ``num_rows`` is the most rows a step of one of ``num_ranks`` ranks can have.

    Raises
    ------
    InputError
        When the deployment does not fit in memory, or a setting contradicts the step table or cannot be simulated.
    """
    table = step_model.table
    if deployment.router == "prefix_aware" and deployment.num_replicas > fleet.MAX_PREFIX_AWARE_REPLICAS:
        raise InputError(
            f"the prefix_aware router is simulated for at most {fleet.MAX_PREFIX_AWARE_REPLICAS} replicas, "
            f"got {deployment.num_replicas}; use least_requests"
        )
    if not memory.fits:
        raise InputError(f"the deployment does not fit: {memory.reason}")
    num_tokens = deployment.max_step_tokens
    match deployment.params:
        case VllmParams() as params:
            _check_vllm(params, memory)
        case TrtllmParams() as params:
            _check_trtllm(params)
        case SglangParams() as params:
            _check_sglang(params)
            num_tokens = params.chunked_prefill_size
    if not all(np.isfinite(getattr(table, field.name)).all() for field in fields(table)):
        raise InputError("the step table has times that are not finite; a simulation with it would never end")
    if table.max_rows < num_rows or table.max_batched_tokens < num_tokens:
        raise InputError(
            f"the step table covers {table.max_rows} rows and {table.max_batched_tokens} tokens, the engine "
            f"can run {num_rows} and {num_tokens}"
        )
    if num_ranks > 1 and len(table.experts_s) <= num_ranks * max(num_rows, num_tokens):
        raise InputError(
            f"the step table covers {max(len(table.experts_s) - 1, 0)} tokens of all data parallel ranks together, "
            f"{num_ranks} ranks can run {num_ranks * max(num_rows, num_tokens)}; tabulate the deployment's own formula"
        )


def check_reservation(reservation: layout.Reservation, engine: layout.Engine, block_size_tokens: int) -> None:
    """Check that every request can be admitted to an empty engine.

    Raises
    ------
    InputError
    """
    most = int(reservation.blocks.max(initial=0))
    if most > engine.num_blocks:
        raise InputError(
            f"a request's prompt and max_tokens set {most} KV blocks of {block_size_tokens} tokens aside, the engine "
            f"has {engine.num_blocks}; lower max_tokens or the context, or use more or larger GPUs"
        )


def _check_vllm(params: VllmParams, memory: MemoryReport) -> None:
    if memory.kv_capacity_tokens < params.max_model_len:
        raise InputError(
            f"max_model_len {params.max_model_len} exceeds the KV capacity of {memory.kv_capacity_tokens} "
            "tokens; lower it, or use more or larger GPUs"
        )
    if not params.enable_chunked_prefill:
        raise InputError("only chunked prefill is simulated; set enable_chunked_prefill")
    if params.block_size_tokens & (params.block_size_tokens - 1):
        raise InputError(f"block_size_tokens must be a power of two, got {params.block_size_tokens}")
    if params.max_num_batched_tokens < params.max_num_seqs:
        raise InputError(
            f"max_num_batched_tokens {params.max_num_batched_tokens} is below max_num_seqs "
            f"{params.max_num_seqs}; raise it, or lower max_num_seqs"
        )


def _check_trtllm(params: TrtllmParams) -> None:
    least = max(params.max_batch_size, params.tokens_per_block if params.enable_chunked_prefill else 1)
    if params.max_num_tokens < least:
        raise InputError(
            f"max_num_tokens {params.max_num_tokens} is below {least}, the larger of max_batch_size and, with chunked "
            "prefill, tokens_per_block; raise it, or lower max_batch_size"
        )


def _check_sglang(params: SglangParams) -> None:
    chunk, page = params.chunked_prefill_size, params.page_size
    if chunk < 1:
        raise InputError(f"only chunked prefill is simulated; chunked_prefill_size must be positive, got {chunk}")
    if chunk % page or chunk > params.max_prefill_tokens:
        raise InputError(
            f"chunked_prefill_size {chunk} must be a multiple of page_size {page} and at most max_prefill_tokens "
            f"{params.max_prefill_tokens}"
        )
