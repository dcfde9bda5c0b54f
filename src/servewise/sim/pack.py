"""From the shared types to the kernel's arrays."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from servewise.errors import InputError
from servewise.kernel import layout
from servewise.types import Deployment, PrefixBlocks, StepTable, Workload

__all__ = ["Packed", "pack_accepted", "pack_times", "select_prefix"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """A workload as one engine accepts it.

    Parameters
    ----------
    requests : layout.Requests
        Those the engine accepts, in order of arrival.
    accepted : int64 array or None
        Their places in the workload; None when all are accepted.
    num_rejected : int
        Requests whose prompt leaves no room for a token within the context, or fits no step and may not be cut.
    max_tokens : int64 array, shape (num_accepted,)
        The declared limit on output tokens, cut at the context.
    node_offsets, nodes : int64 and int32 array
        Prefix nodes of each request (CSR).
    span_shift, num_shared, names_output
        See ``layout.new_prefix``.
    prompt_nodes : int64 array
        Nodes of each request that lie within its prompt.
    session : int64 array or None
        Conversation of each request, numbered from 0; None when unknown.
    priority : int64 array, shape (num_accepted,), or None
        As the workload has it.
    """

    requests: layout.Requests
    accepted: NDArray[np.int64] | None
    num_rejected: int
    max_tokens: NDArray[np.int64]
    node_offsets: NDArray[np.int64]
    nodes: NDArray[np.int32]
    span_shift: int
    num_shared: int
    names_output: bool
    prompt_nodes: NDArray[np.int64]
    session: NDArray[np.int64] | None
    priority: NDArray[np.int64] | None = None


def pack_times(table: StepTable) -> layout.Times:
    """Flatten a step table.

    Raises
    ------
    InputError
        When a knot is not a whole number of tokens, on which exact fast-forward rests.
    """
    if table.context_knots[0] != 0 or np.any(table.context_knots != np.floor(table.context_knots)):
        raise InputError("a step table's context_knots must be whole numbers of tokens that start at 0")
    return layout.Times(
        knots=table.context_knots,
        attention_base=table.attention_base_s,
        attention_slope=table.attention_slope_s,
        decode_fixed=table.decode_fixed_s,
        mixed_tokens=table.mixed_tokens_s,
        sample=table.sample_s,
        prefill_fixed=table.prefill_fixed_s,
        prefill_per_token=table.prefill_s_per_token,
        prefill_per_pair=table.prefill_s_per_pair,
        mixed_row_fixed=table.mixed_row_attention_fixed_s,
        mixed_row_per_token=table.mixed_row_attention_s_per_token,
        experts=table.experts_s,
        padded_decode_tokens=table.padded_decode_tokens,
        padded_mixed_tokens=table.padded_mixed_tokens,
    )


def pack_accepted(
    workload: Workload,
    deployment: Deployment,
    table: StepTable,
    accepts: NDArray[np.bool_],
    max_output: NDArray[np.int64] | None = None,
) -> Packed:
    """Requests and prefix nodes as the engine sees them.

    Prompts that leave no room for a token are rejected, and those that the engine does not accept. Outputs are cut
    at the longest context, or at ``max_output`` of each request.
    """
    room = deployment.max_request_tokens - workload.input_tokens if max_output is None else max_output
    fits = (room >= 1) & accepts
    accepted: NDArray[np.int64] | None = None
    prefix = workload.prefix
    priority = workload.priority
    arrival, inputs, outputs, declared = (
        workload.arrival_s,
        workload.input_tokens,
        workload.output_tokens,
        workload.max_tokens,
    )
    if not fits.all():
        accepted = np.flatnonzero(fits)
        arrival = arrival[accepted]
        inputs, outputs, declared, room = (a[accepted] for a in (inputs, outputs, declared, room))
        prefix = None if prefix is None else select_prefix(prefix, accepted)
    outputs = np.minimum(outputs, room)
    by_length = (outputs >= declared) | (outputs == room)
    requests = layout.Requests(
        arrival=np.ascontiguousarray(arrival),
        input_tokens=inputs.astype(np.int32),
        output_tokens=outputs.astype(np.int32),
        by_length=by_length.astype(np.int8),
        extra=np.asarray(table.request_fixed_s + table.request_s_per_input_token * inputs, np.float64),
        think=-1.0,
    )
    offsets, nodes, span_shift, num_shared, node_tokens = _nodes(prefix, len(arrival), deployment.kv_block_tokens)
    listed = np.diff(offsets)
    return Packed(
        requests=requests,
        accepted=accepted,
        num_rejected=workload.num_requests - len(arrival),
        max_tokens=np.minimum(declared, room),
        node_offsets=offsets,
        nodes=nodes,
        span_shift=span_shift,
        num_shared=num_shared,
        names_output=bool(np.any(listed * node_tokens > inputs)),
        prompt_nodes=np.minimum(listed, inputs // node_tokens),
        session=_numbered(workload.session, accepted),
        priority=priority if priority is None or accepted is None else priority[accepted],
    )


def _numbered(session: NDArray[np.int64] | None, accepted: NDArray[np.int64] | None) -> NDArray[np.int64] | None:
    """Conversations of the accepted requests, numbered from 0."""
    if session is None:
        return None
    _, numbers = np.unique(session if accepted is None else session[accepted], return_inverse=True)
    return np.asarray(numbers, np.int64)


def select_prefix(prefix: PrefixBlocks, chosen: NDArray[np.int64]) -> PrefixBlocks:
    """The given rows of a CSR table, in the given order; a row may come several times."""
    lengths = np.diff(prefix.offsets)[chosen]
    offsets = np.concatenate(([0], np.cumsum(lengths)))
    places = np.repeat(prefix.offsets[chosen] - offsets[:-1], lengths) + np.arange(offsets[-1])
    return PrefixBlocks(
        offsets=offsets,
        ids=prefix.ids[places],
        num_ids=prefix.num_ids,
        block_size_tokens=prefix.block_size_tokens,
    )


def _shared_only(prefix: PrefixBlocks) -> PrefixBlocks:
    """Leave out the blocks that no other request has: to the cache they are private.

    They stand at the end of each row, since whoever shares a block shares all before it.
    """
    shared = np.bincount(prefix.ids, minlength=prefix.num_ids)[prefix.ids] > 1
    ids = prefix.ids[shared]
    used = np.zeros(prefix.num_ids, bool)
    used[ids] = True
    return PrefixBlocks(
        offsets=np.concatenate(([0], np.cumsum(shared)))[prefix.offsets],
        ids=(np.cumsum(used) - 1)[ids],
        num_ids=int(np.count_nonzero(used)),
        block_size_tokens=prefix.block_size_tokens,
    )


def _nodes(
    prefix: PrefixBlocks | None, num_requests: int, block_size_tokens: int
) -> tuple[NDArray[np.int64], NDArray[np.int32], int, int, int]:
    """Trace blocks as nodes of whole engine blocks: offsets, nodes, span shift, their number, tokens each."""
    if prefix is None:
        return np.zeros(num_requests + 1, np.int64), np.zeros(0, np.int32), 0, 0, block_size_tokens
    prefix = _shared_only(prefix)
    traced = prefix.block_size_tokens
    if traced >= block_size_tokens:
        if traced % block_size_tokens:
            raise InputError(
                f"prefix blocks of {traced} tokens cannot be cut into engine blocks of {block_size_tokens}; "
                "use a trace whose block size is a multiple of the engine's"
            )
        span_shift = (traced // block_size_tokens).bit_length() - 1
        if traced != block_size_tokens << span_shift:
            raise InputError(f"prefix blocks must be a power of two times the engine's block, got {traced} tokens")
        return prefix.offsets, prefix.ids.astype(np.int32), span_shift, prefix.num_ids, traced
    ratio, left = divmod(block_size_tokens, traced)
    if left:
        raise InputError(
            f"engine blocks of {block_size_tokens} tokens cannot be made of prefix blocks of {traced}; "
            "the engine's block size must be a multiple of the trace's"
        )
    # the identity of an engine block is that of its last trace block, which stands for all before it
    lengths = np.diff(prefix.offsets) // ratio
    offsets = np.concatenate(([0], np.cumsum(lengths)))
    within = np.arange(offsets[-1]) - np.repeat(offsets[:-1], lengths)
    places = np.repeat(prefix.offsets[:-1], lengths) + within * ratio + ratio - 1
    return offsets, prefix.ids[places].astype(np.int32), 0, prefix.num_ids, block_size_tokens
