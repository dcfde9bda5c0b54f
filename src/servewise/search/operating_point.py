"""What ran beside each request of a simulated run, reconstructed from the log."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from servewise.metrics import finished
from servewise.types import Deployment, RequestLog, StepTable

__all__ = ["Decoding", "Prompts", "Run", "observe"]

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
    """

    rows: Floats
    context_tokens: Floats
    stall_s: Floats


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

    def __init__(self, log: _Columns, num_stages: int) -> None:
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
class _Columns:
    """Finished requests of one replica: times at which the engine emitted their tokens, and their tokens."""

    first: Floats
    last: Floats
    inputs: Floats
    outputs: Floats
    cached: Floats

    def prompts(self, replica: _Replica, table: StepTable, deployment: Deployment) -> Prompts:
        """How the prompts were computed."""
        rows, context = replica.just_before(self.first)
        tokens = self.inputs - self.cached
        pairs = (self.inputs * (self.inputs + 1) - self.cached * (self.cached + 1)) / 2
        num_steps, alone_s = prefill_s(table, deployment, rows, context, tokens, pairs, np.ones_like(rows))
        alone_s *= (1 + (num_steps - 1) / replica.num_stages) / num_steps  # chunks follow each other through stages
        return Prompts(
            tokens=tokens, pairs=pairs, num_steps=num_steps, rows=rows, context_tokens=context, alone_s=alone_s
        )

    def decoding(self, replica: _Replica, table: StepTable, deployment: Deployment) -> Decoding:
        """What the tokens met."""
        of_prompts = self.prompts(replica, table, deployment)
        # prompts that end at one moment were in one step
        moments, step = np.unique(self.first, return_inverse=True)
        tokens, pairs, num = (
            np.bincount(step, weight).astype(np.float64)
            for weight in (of_prompts.tokens, of_prompts.pairs, np.ones(len(step)))
        )
        rows, context = replica.just_before(moments)
        num_steps, mixed_s = prefill_s(table, deployment, rows, context, tokens, pairs, num)
        extra_s = np.concatenate([[0.0], np.cumsum(mixed_s - num_steps * decode_s(table, rows, context))])
        several = (self.outputs > 1) & (self.last > self.first)
        first, last = self.first[several], self.last[several]
        after, until = (np.searchsorted(moments, at, side="right") for at in (first, last))
        mean_rows, mean_context = replica.means(table, first, last)
        return Decoding(
            rows=mean_rows,
            context_tokens=mean_context,
            # a batch delays those behind it by a stage of its own
            stall_s=(extra_s[until] - extra_s[after]) / replica.num_stages / (self.outputs[several] - 1),
        )


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
    prompts, decoding = [], []
    for number in np.unique(log.replica[done]):
        mine = done & (log.replica == number)
        columns = _Columns(
            first=(log.first_token_s - outside_s)[mine],
            last=(log.last_token_s - outside_s)[mine],
            inputs=log.input_tokens[mine].astype(np.float64),
            outputs=log.output_tokens[mine].astype(np.float64),
            cached=np.clip(log.cached_tokens[mine], 0, log.input_tokens[mine] - 1).astype(np.float64),
        )
        replica = _Replica(columns, deployment.parallelism.pipeline_parallel_size)
        prompts.append(columns.prompts(replica, table, deployment))
        decoding.append(columns.decoding(replica, table, deployment))
    return Run(
        input_tokens=log.input_tokens[done],
        prompts=_joined(Prompts, prompts),
        decoding=_joined(Decoding, decoding),
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
    num_steps = np.ceil(tokens / np.maximum(deployment.max_step_tokens - rows, 1.0))
    in_step = np.rint(rows + tokens / num_steps).astype(np.int64)
    sampled = np.minimum(rows + num_prompts, table.max_rows).astype(np.int64)
    one = table.mixed_tokens_s[in_step] + attention_s(table, rows, context_tokens) + table.prefill_fixed_s
    sampling = num_steps * table.sample_s[rows.astype(np.int64)]
    sampling += table.sample_s[sampled] - table.sample_s[rows.astype(np.int64)]
    return num_steps, np.asarray(
        num_steps * one + sampling + table.prefill_s_per_token * tokens + table.prefill_s_per_pair * pairs
    )
