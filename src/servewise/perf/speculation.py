"""Step times with speculative decoding (specification: docs/speculative-decoding.md)."""

from __future__ import annotations

import copy

import numpy as np
from numpy.typing import NDArray

from servewise.perf.drafter import drafter_of
from servewise.perf.formula import StepFormula
from servewise.perf.overheads import Overheads
from servewise.perf.table import (
    DENSE_TOKENS,
    TABLE_ROWS,
    TABLE_TOKENS,
    TOKEN_STEP_FRAC,
    attention_pieces,
    context_knots,
    token_times_s,
)
from servewise.types import Deployment, Provenance, StepTable

__all__ = ["SpeculativeFormula", "speculation_provenance", "tabulate_speculation", "uniform"]

Array = NDArray[np.float64]


class SpeculativeFormula(StepFormula):
    """The model's passes, each over ``queries`` tokens of every decode row, and those of the drafter.

    Parameters
    ----------
    deployment : Deployment
        With speculation.
    overheads : Overheads, optional
        Instead of those fitted for the deployment's engine.

    Raises
    ------
    InputError
        When the deployment is not covered.
    """

    def __init__(self, deployment: Deployment, overheads: Overheads | None = None) -> None:
        super().__init__(deployment, overheads)
        self.queries = deployment.queries_per_row
        self.num_passes = self.queries - 1
        drafter = drafter_of(deployment)
        self.drafter = None if drafter is None else StepFormula(drafter, overheads)

    def decode_attention_s(self, num_rows: Array, context_tokens: Array, queries: int = 1) -> Array:
        """Attention of a step over all passes [s]: the verification's, and the drafter's."""
        del queries  # those of a verification
        verifying = self.verification_attention_s(num_rows, context_tokens)
        return np.asarray(verifying + self.draft_attention_s(num_rows, context_tokens))

    def verification_attention_s(self, num_rows: Array, context_tokens: Array) -> Array:
        """Attention of the model's own pass over all proposals [s]."""
        n, context = num_rows, context_tokens + self.num_passes * num_rows
        verifying = super().decode_attention_s(n, context, self.queries)
        # FlashAttention 2 packs heads only where every row has one query
        per_row, per_token = self.mixed_row_attention_s()
        return np.asarray(np.maximum(verifying, per_row * n + per_token * context))

    def draft_attention_s(self, num_rows: Array, context_tokens: Array) -> Array:
        """Attention of the drafter's passes [s]: the first over all tokens of a row, the others over one."""
        n, context = num_rows, context_tokens + self.num_passes * num_rows
        if self.drafter is None:
            return np.zeros(np.broadcast_shapes(n.shape, context.shape))
        first = self.drafter.decode_attention_s(n, context, self.queries)
        return np.asarray(first + (self.num_passes - 1) * self.drafter.decode_attention_s(n, context))

    def draft_s(self, num_rows: Array, context_tokens: Array, prefill_tokens: int, pairs: float) -> float:
        """The drafter's share of a step [s] with ``prefill_tokens`` prompt tokens that attend to ``pairs``."""
        if self.drafter is None:
            return 0.0
        prompts = prefill_tokens > 0
        first = wide(self.drafter, self) if prompts else uniform(wide(self.drafter, self), self.queries)
        tokens, sampled = self.queries * num_rows + prefill_tokens, num_rows + prompts
        total = first.token_parts(tokens, with_prompts=prompts).total
        total = total + (self.num_passes - 1) * self.drafter.token_parts(sampled).total
        total = total + self.num_passes * self.drafter.head_s(sampled)
        total = total + self.draft_attention_s(num_rows, context_tokens)
        fixed, per_token, per_pair = self.drafter.prefill_attention_s()
        return float(total[0]) + prompts * (fixed + per_token * prefill_tokens + per_pair * pairs)


def uniform(formula: StepFormula, queries: int) -> StepFormula:
    """The formula of steps in which every row has ``queries`` tokens: their graphs hold whole rows.

    Sources
    -------
    vLLM 0.33.0, ``v1/worker/gpu/cudagraph_utils.py``: sizes are rounded up to whole rows, and left out where that goes
    beyond the largest.
    """
    whole = np.unique(-(-formula.capture_sizes // queries) * queries)
    same = copy.copy(formula)
    if len(whole):
        same.capture_sizes = whole[whole <= formula.capture_sizes[-1]]
    return same


def heads_s(formula: StepFormula, rows: Array, queries: int) -> Array:
    """Language-model head of ``queries`` tokens of each row [s], interpolated; 0 for 0 rows."""
    num = int(np.log(max(rows[-1], 2.0)) / TOKEN_STEP_FRAC) + 2
    points = np.unique(np.concatenate([np.arange(1, DENSE_TOKENS + 1), np.rint(np.geomspace(1, rows[-1], num))]))
    points = points[points <= rows[-1]]
    times = np.interp(rows, points, formula.head_s(queries * points))
    times[0] = 0.0
    return np.asarray(times)


def tabulate_speculation(formula: SpeculativeFormula) -> StepTable:
    """Tabulate the steps of a deployment with speculative decoding.

    ``n`` counts decode rows, each of which has several tokens in a step; ``mixed_tokens_s`` goes by all tokens of a
    step. The drafter's first pass has the tokens of the step, its others one of each row that samples.
    """
    deployment, queries, drafter = formula.deployment, formula.queries, formula.drafter
    max_rows = max(deployment.max_rows, TABLE_ROWS)
    max_tokens = max(deployment.max_step_tokens, TABLE_TOKENS, max_rows * queries)
    rows = np.arange(max_rows + 1, dtype=np.float64)

    def verified_s(of: StepFormula) -> Array:
        return token_times_s(uniform(of, queries), max_rows * queries, with_prompts=False)[::queries]

    mixed_s = token_times_s(formula, max_tokens, with_prompts=True)
    fixed_s = verified_s(formula)
    sample_s = heads_s(formula, rows, queries) + formula.rows_s(rows)
    fixed, per_token, per_pair = formula.prefill_attention_s()
    if drafter is not None:
        captured = wide(drafter, formula)
        mixed_s = mixed_s + token_times_s(captured, max_tokens, with_prompts=True)
        fixed_s = fixed_s + verified_s(captured)
        passes = (formula.num_passes - 1) * token_times_s(drafter, max_rows, with_prompts=False)
        sample_s = sample_s + formula.num_passes * heads_s(drafter, rows, 1) + passes
        first, more, pair = drafter.prefill_attention_s()
        fixed, per_token, per_pair = fixed + first, per_token + more, per_pair + pair
    sample_s = np.maximum.accumulate(sample_s)
    fixed_s = fixed_s + sample_s + formula.step_overhead_s()
    fixed_s[0] = 0.0
    knots = context_knots(formula, fixed_s, rows)
    base, slope = attention_pieces(formula, knots, rows)
    return StepTable(
        context_knots=knots,
        attention_base_s=base,
        attention_slope_s=slope,
        decode_fixed_s=fixed_s,
        mixed_tokens_s=mixed_s + formula.step_overhead_s(),
        sample_s=sample_s,
        prefill_fixed_s=fixed,
        prefill_s_per_token=per_token,
        prefill_s_per_pair=per_pair,
        request_fixed_s=1e-3 * formula.overheads.request_ms,
        request_s_per_input_token=1e-6 * formula.overheads.request_us_per_input_token,
    )


def wide(drafter: StepFormula, formula: StepFormula) -> StepFormula:
    """The drafter where it computes a whole step's tokens, with the graphs of such steps."""
    same = copy.copy(drafter)
    same.capture_sizes = formula.capture_sizes
    return same


def speculation_provenance(deployment: Deployment) -> dict[str, Provenance]:
    """Origin of what verification and the drafter take."""
    verification = Provenance(
        kind="assumed",
        source="a step of 1 + k tokens a row takes what the parts measured for as many tokens take; its attention "
        "reads each context once (docs/speculative-decoding.md)",
    )
    known = deployment.speculation
    passes = "vLLM 0.33.0, v1/spec_decode/llm_base_proposer.py: one pass over the step's tokens, k - 1 of one a row; "
    if known is not None and known.method == "ngram":
        source = "assumed: proposals from earlier tokens cost no GPU time and no time of the host"
    elif known is not None and known.draft_model is not None:
        source = passes + "the draft model's own formula, without the host's time for a step"
    else:
        source = passes + "one decoder layer of the model and its head, as published EAGLE heads and MTP modules have"
    return {"verification": verification, "drafter": Provenance(kind="assumed", source=source)}
