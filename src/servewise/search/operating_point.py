"""What ran beside each request of a simulated run, reconstructed from the log."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from servewise.metrics import finished
from servewise.types import Deployment, RequestLog, StepTable

__all__ = ["Decoding", "Prompts", "Run", "Served", "decoding_of", "observe", "prompts_of", "single_steps_s"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompts:
    """How each prompt was computed, arrays over finished requests.

    Parameters
    ----------
    tokens, pairs : float64 array
        Tokens that were computed (those of a prefix hit were not), and the tokens these attend to, summed.
    num_steps : float64 array
        Steps that it took: more than one where the token budget cuts the prompt.
    rows, context_tokens : float64 array
        Decode rows in these steps, and their contexts, summed.
    alone_s : float64 array [s]
        Duration of the steps, had no other prompt been in them.
    """

    tokens: Floats
    pairs: Floats
    num_steps: Floats
    rows: Floats
    context_tokens: Floats
    alone_s: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoding:
    """What a token of each request met on average, arrays over finished requests of more than one token.

    Parameters
    ----------
    rows, context_tokens : float64 array
        Decode rows, its own included, and their contexts, summed.
    stall_s : float64 array [s]
        What the prompts of other requests added to each of its tokens.
    steps_per_token : float64 array
        1 but with speculative decoding, where a step yields several tokens.
    """

    rows: Floats
    context_tokens: Floats
    stall_s: Floats
    steps_per_token: Floats


Columns = TypeVar("Columns", Prompts, Decoding)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A whole run: prompts and decoding of every finished request."""

    input_tokens: Ints
    prompts: Prompts
    decoding: Decoding


class _Replica:
    """State of one replica over time: its decode rows and their contexts.

    Rows are there from their first to their last token. Their contexts are taken to grow evenly in between. With
    pipeline stages they are spread evenly over as many batches, and the state is that of one batch.
    """

    def __init__(self, log: Served, num_stages: int) -> None:
        self.num_stages = num_stages
        span = log.last - log.first
        decoding = (log.outputs > 1) & (span > 0)
        rate = np.divide(log.outputs - 1, span, out=np.zeros_like(span), where=decoding)
        start = log.inputs + 1 - log.first * rate
        signs = np.repeat([1.0, -1.0], np.count_nonzero(decoding))
        moments = np.concatenate([log.first[decoding], log.last[decoding]])
        order = np.argsort(moments, kind="stable")
        self.moments = moments[order]
        self._rows, self._start, self._rate = (
            np.concatenate([[0.0], np.cumsum(signs[order] * np.tile(column[decoding], 2)[order])])
            for column in (np.ones_like(span), start, rate)
        )

    def just_before(self, moments: Floats) -> tuple[Floats, Floats]:
        """Decode rows and their contexts, summed, just before given moments."""
        at = np.searchsorted(self.moments, moments, side="left")
        return self._state(at, moments)

    def _state(self, at: Ints, moments: Floats) -> tuple[Floats, Floats]:
        rows = np.ceil(np.round(self._rows[at]) / self.num_stages)
        context = (self._start[at] + self._rate[at] * moments) / self.num_stages
        return rows, np.where(rows > 0, np.maximum(context, rows), 0.0)

    def means(self, table: StepTable, first: Floats, last: Floats) -> tuple[Floats, Floats]:
        """Mean rows and contexts of the tokens between given moments: short steps count as often as long ones."""
        edges = self.moments
        middle = (edges[1:] + edges[:-1]) / 2
        rows, context = self._state(np.arange(1, len(edges)), middle)
        step_s = decode_s(table, rows, context)
        steps = np.divide(np.diff(edges), step_s, out=np.zeros_like(step_s), where=step_s > 0)
        totals = [np.concatenate([[0.0], np.cumsum(weight * steps)]) for weight in (np.ones_like(rows), rows, context)]
        starts, ends = np.searchsorted(edges, first), np.searchsorted(edges, last)
        num, sum_rows, sum_context = (total[ends] - total[starts] for total in totals)
        return sum_rows / num, sum_context / num


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """Finished requests of schedulers: when the engine emitted their first and last tokens [s], and their tokens."""

    scheduler: Ints
    first: Floats
    last: Floats
    inputs: Floats
    outputs: Floats
    cached: Floats

    def by_scheduler(self, deployment: Deployment) -> Iterator[tuple[Served, _Replica]]:
        """The requests of each scheduler, and its state over time."""
        for number in np.unique(self.scheduler):
            mine = self.scheduler == number
            own = Served(**{field.name: getattr(self, field.name)[mine] for field in fields(Served)})
            yield own, _Replica(own, deployment.parallelism.pipeline_parallel_size)


def prompts_of(served: Served, table: StepTable, deployment: Deployment) -> Prompts:
    """How the prompts were computed."""
    return _joined(Prompts, [_prompts(own, at, table, deployment) for own, at in served.by_scheduler(deployment)])


def decoding_of(served: Served, table: StepTable, deployment: Deployment, *, beside_prompts: bool = True) -> Decoding:
    """What the tokens met; ``beside_prompts`` says whether the same schedulers computed the prompts."""
    return _joined(
        Decoding, [_decoding(own, at, table, deployment, beside_prompts) for own, at in served.by_scheduler(deployment)]
    )


def single_steps_s(served: Served, table: StepTable, deployment: Deployment) -> Floats:
    """The decode step that yields each request's first token [s], beside the rows that are there just before."""
    found = []
    for own, replica in served.by_scheduler(deployment):
        rows, context = replica.just_before(own.first)
        num_rows = np.minimum(rows + 1, table.max_rows)
        found.append(decode_s(table, num_rows, np.maximum(context + own.inputs, num_rows)))
    return np.concatenate(found)


def _prompts(own: Served, replica: _Replica, table: StepTable, deployment: Deployment) -> Prompts:
    rows, context = replica.just_before(own.first)
    tokens = own.inputs - own.cached
    pairs = (own.inputs * (own.inputs + 1) - own.cached * (own.cached + 1)) / 2
    num_steps, alone_s = prefill_s(table, deployment, rows, context, tokens, pairs, np.ones_like(rows))
    alone_s *= (1 + (num_steps - 1) / replica.num_stages) / num_steps  # chunks follow each other through stages
    return Prompts(tokens=tokens, pairs=pairs, num_steps=num_steps, rows=rows, context_tokens=context, alone_s=alone_s)


def _decoding(
    own: Served, replica: _Replica, table: StepTable, deployment: Deployment, beside_prompts: bool
) -> Decoding:
    several = (own.outputs > 1) & (own.last > own.first)
    first, last, tokens = own.first[several], own.last[several], own.outputs[several] - 1
    stall_s = np.zeros_like(first)
    if beside_prompts:
        of_prompts = _prompts(own, replica, table, deployment)
        # prompts that end at one moment were in one step
        moments, step = np.unique(own.first, return_inverse=True)
        new_tokens, pairs, num = (
            np.bincount(step, weight).astype(np.float64)
            for weight in (of_prompts.tokens, of_prompts.pairs, np.ones(len(step)))
        )
        rows, context = replica.just_before(moments)
        num_steps, mixed_s = prefill_s(table, deployment, rows, context, new_tokens, pairs, num)
        extra_s = np.concatenate([[0.0], np.cumsum(mixed_s - num_steps * decode_s(table, rows, context))])
        after, until = (np.searchsorted(moments, at, side="right") for at in (first, last))
        # a batch delays those behind it by a stage of its own
        stall_s = (extra_s[until] - extra_s[after]) / replica.num_stages / tokens
    mean_rows, mean_context = replica.means(table, first, last)
    return Decoding(
        rows=mean_rows,
        context_tokens=mean_context,
        stall_s=stall_s,
        steps_per_token=_num_steps(deployment, tokens) / tokens,
    )


def _num_steps(deployment: Deployment, tokens: Floats) -> Floats:
    """Steps in which so many tokens come, on average over where in the schedule of acceptance they begin."""
    if deployment.speculation is None:
        return tokens
    mean = deployment.speculation.mean_tokens_per_step
    most = np.ceil(tokens / mean)
    return np.asarray(most - 1 + np.minimum(tokens - mean * (most - 1), 1.0))


def observe(log: RequestLog, table: StepTable, deployment: Deployment) -> Run:
    """Reconstruct what ran beside each finished request.

    Parameters
    ----------
    log : RequestLog
        Of a simulated run; ``replica`` numbers what schedules on its own, so data parallel ranks where there are any.
    table : StepTable
        That it was simulated with.
    deployment : Deployment
    """
    done = finished(log)
    outside_s = table.request_fixed_s + table.request_s_per_input_token * log.input_tokens
    served = Served(
        scheduler=log.replica[done],
        first=(log.first_token_s - outside_s)[done],
        last=(log.last_token_s - outside_s)[done],
        inputs=log.input_tokens[done].astype(np.float64),
        outputs=log.output_tokens[done].astype(np.float64),
        cached=np.clip(log.cached_tokens[done], 0, log.input_tokens[done] - 1).astype(np.float64),
    )
    return Run(
        input_tokens=log.input_tokens[done],
        prompts=prompts_of(served, table, deployment),
        decoding=decoding_of(served, table, deployment),
    )


def _joined(kind: type[Columns], parts: Sequence[Columns]) -> Columns:
    """The arrays of all replicas end to end."""
    names = [field.name for field in fields(kind)]
    return kind(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in names})


def attention_s(table: StepTable, rows: Floats, context_tokens: Floats) -> Floats:
    """Decode attention [s] of so many rows; 0 without any."""
    n = rows.astype(np.int64)
    piece = np.searchsorted(table.context_knots, context_tokens / np.maximum(rows, 1), side="right") - 1
    return np.asarray(table.attention_base_s[n, piece] + table.attention_slope_s[n, piece] * context_tokens)


def decode_s(table: StepTable, rows: Floats, context_tokens: Floats) -> Floats:
    """Duration of steps without prompts [s]; 0 without rows."""
    return np.asarray(table.decode_fixed_s[rows.astype(np.int64)] + attention_s(table, rows, context_tokens))


def prefill_s(
    table: StepTable,
    deployment: Deployment,
    rows: Floats,
    context_tokens: Floats,
    tokens: Floats,
    pairs: Floats,
    num_prompts: Floats,
) -> tuple[Floats, Floats]:
    """Number and duration [s] of the steps that compute so many prompt tokens beside decode rows.

    Prompts beyond what the token budget leaves are cut into equal chunks.
    """
    drafter = deployment.speculation
    extra = 0 if drafter is None else drafter.budget_tokens_per_request
    row_tokens = deployment.queries_per_row * rows
    num_steps = np.ceil(tokens / np.maximum(deployment.max_step_tokens - row_tokens - extra * (rows + 1), 1.0))
    in_step = np.rint(row_tokens + tokens / num_steps).astype(np.int64)
    sampled = np.minimum(rows + num_prompts, table.max_rows).astype(np.int64)
    unpacked = table.mixed_row_attention_fixed_s * rows + table.mixed_row_attention_s_per_token * context_tokens
    attention = np.maximum(attention_s(table, rows, context_tokens), unpacked)
    one = table.mixed_tokens_s[in_step] + attention + table.prefill_fixed_s
    sampling = num_steps * table.sample_s[rows.astype(np.int64)]
    sampling += table.sample_s[sampled] - table.sample_s[rows.astype(np.int64)]
    return num_steps, np.asarray(
        num_steps * one + sampling + table.prefill_s_per_token * tokens + table.prefill_s_per_pair * pairs
    )
