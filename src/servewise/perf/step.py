"""Step models and what a step's time consists of."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from servewise.engines import baselines, llamacpp
from servewise.errors import OutOfRangeError
from servewise.perf.formula import StepFormula
from servewise.perf.layout import unvalidated
from servewise.perf.operators import nearest_system
from servewise.perf.overheads import Overheads, overhead_document, overheads_of
from servewise.perf.speculation import SpeculativeFormula, speculation_provenance, tabulate_speculation, uniform
from servewise.perf.table import tabulate
from servewise.types import UNCORRECTED, Deployment, LlamacppParams, Provenance, StepCorrection, StepModel

__all__ = ["explain", "step_model"]

MEASURED_CONTEXT_TOKENS = 131072
"""Longest context in the measured decode attention tables [tokens]."""
MEASURED_STEP_TOKENS = 16384
"""Most rows of a GEMM in the measured tables [tokens]."""
SLOW_LINK_GPUS = 4
"""L40S all-reduce was measured without peer-to-peer copies from so many GPUs on."""


def step_model(deployment: Deployment, overheads: Overheads | None = None) -> StepModel:
    """Step times of one replica, tabulated, with provenance and limits.

    Parameters
    ----------
    deployment : Deployment
    overheads : Overheads, optional
        Instead of those fitted for the deployment's engine.

    Returns
    -------
    StepModel

    Raises
    ------
    InputError
        When the deployment uses parallelism that is not covered yet.

    Sources
    -------
    ``docs/step-model.md``; ``data/perf``.
    """
    speculative = None if deployment.speculation is None else SpeculativeFormula(deployment, overheads)
    formula = speculative or StepFormula(deployment, overheads)
    table = tabulate(formula) if speculative is None else tabulate_speculation(speculative)
    provenance = provenance_of(formula)  # operators know which of their tables were asked for once a step was computed
    if speculative is not None:
        provenance |= speculation_provenance(deployment)
    return StepModel(
        table=table,
        provenance=MappingProxyType(provenance),
        max_context_tokens=MEASURED_CONTEXT_TOKENS,
        warnings=(*baseline_warnings(deployment), *warnings_of(formula)),
    )


def provenance_of(formula: StepFormula) -> dict[str, Provenance]:
    """Origin of each part."""
    _, overhead = overheads_of(formula.deployment)
    assumed = Provenance(kind="assumed", source=overhead_document()["assumed"]["source"])
    parts = {
        "gemm": formula.operators.provenance("gemm"),
        "attention": formula.operators.provenance("attention"),
    }
    if formula.experts is not None:
        parts["moe"] = formula.operators.provenance("moe")
    if formula.host is not None:
        parts["host"] = llamacpp.host_provenance()
    params = formula.deployment.params
    if isinstance(params, LlamacppParams) and params.cache_ram_mib > 0:
        parts["host_copies"] = llamacpp.host_provenance()
    if formula.tensor_parallel_size > 1:
        parts["all_reduce"] = formula.operators.provenance("all_reduce")
    return {
        **parts,
        "overhead": overhead,
        "request": overhead,
        "elementwise": assumed,
        "eager_launch": overhead,
    }


def warnings_of(formula: StepFormula) -> tuple[str, ...]:
    """Transfers and extrapolations, in words."""
    deployment = formula.deployment
    notes = [*formula.operators.notes.values(), *unvalidated(deployment)]
    if formula.host is not None:
        rates = llamacpp.host_provenance().source
        notes.append(f"{formula.host.frac:.0%} of the layers are on the host, whose rates are {rates}")
    if deployment.max_request_tokens > MEASURED_CONTEXT_TOKENS:
        notes.append(
            f"contexts above {MEASURED_CONTEXT_TOKENS} tokens extrapolate attention (longest request "
            f"{deployment.max_request_tokens})"
        )
    if deployment.max_step_tokens > MEASURED_STEP_TOKENS:
        notes.append(f"steps above {MEASURED_STEP_TOKENS} tokens extrapolate matrix products in proportion")
    if formula.tensor_parallel_size >= SLOW_LINK_GPUS and nearest_system(formula.deployment.gpu)[0] == "l40s":
        notes.append(
            "all-reduce between 4 or more L40S was measured on one machine without peer-to-peer copies (1-3 GB/s); "
            "machines with a better PCIe fabric are faster"
        )
    return tuple(notes)


def baseline_warnings(deployment: Deployment) -> tuple[str, ...]:
    """That the step times of a textbook baseline are another engine's."""
    if not baselines.is_baseline(deployment):
        return ()
    return (f"unvalidated: nobody runs the textbook baselines; {baselines.provenance().source}",)


def explain(
    deployment: Deployment,
    num_rows: int,
    context_tokens: float,
    prefill_tokens: int = 0,
    attention_pairs: float | None = None,
    correction: StepCorrection | None = None,
) -> Mapping[str, float]:
    """Parts of one step's duration [s]; their sum is the step time within the table's tolerance.

    Parameters
    ----------
    deployment : Deployment
    num_rows : int
        Decode rows, 0 or more.
    context_tokens : float [tokens]
        Sum of their contexts.
    prefill_tokens : int [tokens]
        Prompt tokens in the step.
    attention_pairs : float or None
        Tokens that prompt tokens attend to, summed; default: one prompt from its start.
    correction : StepCorrection, optional
        By measured runs.

    Returns
    -------
    mapping of str to float [s]
        ``weights`` and ``compute`` (matrix products, split by what the roofline says limits them), ``kv``
        (decode attention), ``prefill_attention``, ``all_reduce``, ``elementwise``, ``head``, ``overhead``; with
        speculative decoding these are of the verification of all proposals, and ``draft`` is what the drafter takes.

    Raises
    ------
    OutOfRangeError
        When the step is empty.
    """
    if num_rows < 0 or prefill_tokens < 0 or num_rows + prefill_tokens < 1 or context_tokens < num_rows:
        raise OutOfRangeError(
            f"a step of {num_rows} rows with {context_tokens:g} tokens of context and {prefill_tokens} "
            "prompt tokens does not exist; give at least one row or token, and one token of context a row"
        )
    pairs = attention_pairs if attention_pairs is not None else prefill_tokens * (prefill_tokens + 1) / 2
    prompts = prefill_tokens > 0
    n, context, sampled = (np.array([float(x)]) for x in (num_rows, context_tokens, num_rows + prompts))
    drafts: dict[str, float] = {}
    if deployment.speculation is None:
        formula = one_pass = StepFormula(deployment)
        attention = (formula.mixed_attention_s if prompts else formula.decode_attention_s)(n, context)
    else:
        formula = speculative = SpeculativeFormula(deployment)
        one_pass = formula if prompts else uniform(formula, formula.queries)
        attention = speculative.verification_attention_s(n, context)
        drafts["draft"] = speculative.draft_s(n, context, prefill_tokens, pairs)
    queries = deployment.queries_per_row
    parts = one_pass.token_parts(queries * n + prefill_tokens, with_prompts=prompts)
    fixed, per_token, per_pair = formula.prefill_attention_s()
    by = correction or UNCORRECTED
    work, attend = by.products_scale, by.attention_scale
    prefill = attend * per_pair * pairs + by.pair_s * pairs
    prefill = work * (fixed + per_token * prefill_tokens) + prefill if prompts else 0.0
    rows = work * (formula.rows_s(sampled)[0] + formula.step_overhead_s())
    rows += by.step_s + by.row_s * sampled[0] + by.prompt_token_s * prefill_tokens
    return MappingProxyType(
        {
            "weights": float(work * parts.weights[0]),
            "compute": float(work * parts.compute[0]),
            "kv": float(attend * attention[0] + by.context_token_s * context_tokens),
            "prefill_attention": float(prefill),
            "all_reduce": float(work * parts.all_reduce[0]),
            "elementwise": float(work * parts.elementwise[0]),
            "head": float(work * formula.head_s(queries * sampled)[0]),
            "overhead": float(work * (parts.overhead[0] + parts.floor[0]) + rows),
            **drafts,
        }
    )
