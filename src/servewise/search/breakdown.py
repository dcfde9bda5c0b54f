"""A step of a deployment taken apart, and the means that consist of such steps."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from servewise import perf
from servewise.search.operating_point import Decoding, Prompts, Run
from servewise.types import Breakdown, Deployment, Part, Provenance, StepModel

__all__ = ["Steps", "sources_of"]

NUM_PROMPT_GROUPS = 8
"""Groups of prompts of like length whose mean prompt is taken apart: short ones read weights, long ones compute."""
SOURCES: Mapping[str, tuple[str, ...]] = {
    "weights": ("gemm", "moe", "verification"),
    "compute": ("gemm", "moe", "verification"),
    "head": ("gemm",),
    "kv": ("attention", "verification"),
    "draft": ("drafter", "gemm", "moe", "attention"),
    "prefill_attention": ("attention",),
    "all_reduce": ("all_reduce",),
    "elementwise": ("elementwise",),
    "overhead": ("overhead", "eager_launch"),
    "prompts": ("gemm", "moe", "attention", "all_reduce"),
    "first_step": ("gemm", "moe", "attention", "all_reduce", "overhead"),
    "wire": ("bytes_per_s",),
    "handshake": ("latency_s",),
    "network": ("request",),
    "tokenizer": ("request",),
}
"""Coefficients behind each part, as a step model's provenance names them, or a link's."""
SPREAD_NOTE = "spread is what steps vary around the operating point"


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """Steps of a deployment, taken apart; ``beside_prompts`` says whether decode steps compute prompts, too."""

    deployment: Deployment
    model: StepModel
    beside_prompts: bool = True

    def ttft(self, run: Run, mean_s: float) -> Breakdown:
        """Mean TTFT: time outside the engine, the steps that compute the prompt, and waiting."""
        outside, prefill = self.outside(run.input_tokens.astype(np.float64)), self.prefill(run.prompts)
        queue_s = mean_s - sum(part.value for part in (*outside, *prefill))
        return Breakdown(
            number="ttft",
            value=mean_s,
            unit="s",
            parts=(self.part("queue", "queue", queue_s), *prefill, *outside),
            note=(
                f"queue is what is left: waiting for the step under way, for other prompts and for room; {SPREAD_NOTE}"
            ),
        )

    def outside(self, input_tokens: NDArray[np.float64]) -> list[Part]:
        """What a request takes outside the engine, on average."""
        table = self.model.table
        tokenizer_s = table.request_s_per_input_token * float(input_tokens.mean())
        return [
            self.part("network", "network", table.request_fixed_s),
            self.part("network", "tokenizer", tokenizer_s),
        ]

    def prefill(self, prompts: Prompts) -> list[Part]:
        """The steps that compute a prompt, on average; the parts sum to the mean of ``prompts.alone_s``."""
        found: dict[str, float] = {}
        groups = np.array_split(np.argsort(prompts.tokens, kind="stable"), min(NUM_PROMPT_GROUPS, len(prompts.tokens)))
        for members in groups:
            chunks = float(prompts.num_steps[members].mean())
            parts = self.step(
                float(prompts.rows[members].mean()),
                float(prompts.context_tokens[members].mean()),
                float(prompts.tokens[members].mean()) / chunks,
                float(prompts.pairs[members].mean()) / chunks,
            )
            for name, value in parts.items():
                found[name] = found.get(name, 0.0) + value * chunks * len(members) / len(prompts.tokens)
        found["spread"] = float(prompts.alone_s.mean()) - sum(found.values())
        return [self.part("prefill", name, value) for name, value in found.items() if value]

    def tpot(self, decoding: Decoding, mean_s: float, before: Sequence[Part] = ()) -> Breakdown:
        """Mean TPOT: a decode step at the operating point, and what other requests' prompts add to it.

        With speculative decoding a token is charged its share of a step. ``before`` are parts that are not steps.
        """
        drafter = self.deployment.speculation
        share = float(decoding.steps_per_token.mean())
        step = self.step(float(decoding.rows.mean()), float(decoding.context_tokens.mean()), 0.0, 0.0)
        group = "decode step" if drafter is None else "verification"
        parts = [
            self.part("drafter" if name == "draft" else group, name, share * value)
            for name, value in step.items()
            if value
        ]
        notes = [SPREAD_NOTE]
        if self.beside_prompts:
            parts.append(self.part("other prompts", "prompts", float(decoding.stall_s.mean())))
            notes.insert(0, "prompts is what steps take longer that compute prompts of other requests, too")
        spread_s = mean_s - math.fsum(part.value for part in (*before, *parts))
        if drafter is not None:
            notes.insert(
                0,
                f"a step of {1e3 * sum(step.values()):.1f} ms verifies {drafter.num_speculative_tokens} proposals of "
                f"each request and yields {drafter.mean_tokens_per_step:.2f} tokens on average; a token is charged "
                f"{share:.3f} of it (the last step of an answer may yield more than it needs)",
            )
        return Breakdown(
            number="tpot",
            value=mean_s,
            unit="s",
            parts=(*before, *parts, self.part(group, "spread", spread_s)),
            note="; ".join(notes),
        )

    def step(self, rows: float, context_tokens: float, prefill_tokens: float, pairs: float) -> dict[str, float]:
        """Parts of a step [s] with a fraction of a row: between those of the whole numbers beside it."""
        low = int(rows) if prefill_tokens else max(1, int(rows))
        above = min(max(rows - low, 0.0), 1.0)
        found: dict[str, float] = {}
        for num_rows, share in ((low, 1.0 - above), (low + 1, above)):
            if share:
                context = context_tokens * num_rows / rows if rows else 0.0
                tokens = round(prefill_tokens) or int(prefill_tokens > 0)
                step = perf.explain(
                    self.deployment,
                    num_rows,
                    max(context, num_rows),
                    tokens,
                    pairs if tokens else None,
                    self.model.correction,
                )
                for name, value in step.items():
                    found[name] = found.get(name, 0.0) + share * value
        return found

    def part(self, group: str, name: str, value: float) -> Part:
        """A part with the origins of its coefficients."""
        return Part(
            group=group, name=name, value=value, sources=sources_of(self.model.provenance, SOURCES.get(name, ()))
        )


def sources_of(provenance: Mapping[str, Provenance], names: Iterable[str]) -> tuple[Provenance, ...]:
    """Origins by name, each once, of those that are known."""
    return tuple(dict.fromkeys(provenance[name] for name in names if name in provenance))
