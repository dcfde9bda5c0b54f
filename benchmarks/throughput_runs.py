"""Runs behind published throughput figures: static batches, queued requests, requests at a rate."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from servewise.perf import StepFormula, tabulate
from servewise.perf.formula import TokenParts
from servewise.sim import Outcome, simulate
from servewise.types import Deployment, MemoryReport, Provenance, StepModel, StepTable, Workload

__all__ = [
    "SideBySide",
    "StaticTimes",
    "output_tokens_per_s",
    "poisson",
    "queued",
    "replaying_every_size",
    "run",
    "static_batch",
    "with_beams",
    "with_graph_sizes",
]

Array = NDArray[np.float64]
Tokens = NDArray[np.int64]
SEED = 20260


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticTimes:
    """A batch that is prefilled together and decoded together [s]."""

    prefill_s: float
    decode_s: float


def static_batch(
    formula: StepFormula, *, batch: int, input_tokens: int, output_tokens: int, cached_tokens: int = 0, chunk: int = 0
) -> StaticTimes:
    """Time of ``batch`` equal requests that start and end together.

    Parameters
    ----------
    formula : StepFormula
    batch : int
    input_tokens, output_tokens : int [tokens]
        Of each request; the prompts yield the first output token, the others take a decode step each.
    cached_tokens : int [tokens]
        Context that each request has before its prompt.
    chunk : int [tokens]
        Most prompt tokens computed in one step; 0 computes all prompts at once.
    """
    prefill_s, left = 0.0, batch * input_tokens
    size = chunk or max(left, 1)
    done_of_request = 0
    while left:
        now = min(size, left)
        pairs, room = 0.0, now
        while room:  # the chunk may end one prompt and begin the next
            part = min(room, input_tokens - done_of_request)
            first = cached_tokens + done_of_request
            pairs += part * first + part * (part + 1) / 2
            done_of_request = (done_of_request + part) % input_tokens
            room -= part
        left -= now
        sampled = batch if chunk == 0 else float(left == 0)
        prefill_s += float(
            formula.mixed_step_s(
                np.zeros(1), np.zeros(1), np.array([float(now)]), np.array([pairs]), np.array([float(sampled)])
            )[0]
        )
    steps = max(output_tokens - 1, 0) if input_tokens else output_tokens
    context = cached_tokens + input_tokens + 1.0 + np.arange(steps)
    rows = np.full(steps, float(batch))
    decode_s = float(formula.decode_step_s(rows, rows * context).sum()) if steps else 0.0
    return StaticTimes(prefill_s=prefill_s, decode_s=decode_s)


class SideBySide(StepFormula):
    """A step of all pipeline stages at once: its tokens are cut into as many batches as there are stages, which take
    turns, so that it lasts as long as one of them takes through all layers.

    It stands for a pipeline that is full of equal batches, where no pipeline is simulated.
    """

    def token_parts(self, tokens: Array, *, with_prompts: bool = False) -> TokenParts:
        """Of one of the batches [s]."""
        return super().token_parts(tokens / self.num_stages, with_prompts=with_prompts)

    @property
    def num_stages(self) -> int:
        """Stages, and batches of a step."""
        return self.deployment.parallelism.pipeline_parallel_size

    def step_overhead_s(self) -> float:
        """Once a step [s]."""
        return super().step_overhead_s() / self.num_stages

    def decode_attention_s(self, num_rows: Array, context_tokens: Array) -> Array:
        """Of one of the batches [s]."""
        return super().decode_attention_s(num_rows / self.num_stages, context_tokens / self.num_stages)

    def prefill_attention_s(self) -> tuple[float, float, float]:
        """Of one of the batches, whose tokens and pairs are its share [s]; the input processor sees them all."""
        fixed, per_token, per_pair = super().prefill_attention_s()
        prompt = 1e-6 * self.overheads.prompt_token_us
        return fixed, (per_token - prompt) / self.num_stages + prompt, per_pair / self.num_stages


def with_graph_sizes(formula: StepFormula, sizes: tuple[int, ...]) -> StepFormula:
    """Let decode batches be padded to these captured sizes."""
    formula.pads = True
    formula.capture_sizes = np.asarray(sizes, np.float64)
    return formula


def replaying_every_size(formula: StepFormula, max_tokens: int) -> StepFormula:
    """Let every step run as if from a CUDA graph, unpadded: an engine whose kernels are enqueued ahead from C++."""
    formula.pads = False
    formula.graphs_with_prompts = True
    formula.capture_sizes = np.arange(1.0, max_tokens + 1)
    return formula


def queued(name: str, input_tokens: Tokens, output_tokens: Tokens, provenance: Provenance) -> Workload:
    """Requests that are all there at the start."""
    return _workload(name, np.zeros(len(input_tokens)), input_tokens, output_tokens, provenance)


def poisson(name: str, rate_rps: float, input_tokens: Tokens, output_tokens: Tokens, prov: Provenance) -> Workload:
    """Requests that arrive independently of each other, ``rate_rps`` a second on average."""
    gaps = np.random.default_rng(SEED).exponential(1.0 / rate_rps, len(input_tokens))
    gaps[0] = 0.0
    return _workload(name, np.cumsum(gaps), input_tokens, output_tokens, prov)


def _workload(name: str, arrival_s: Array, inputs: Tokens, outputs: Tokens, provenance: Provenance) -> Workload:
    return Workload(
        name=name,
        arrival_s=arrival_s,
        input_tokens=inputs,
        output_tokens=outputs,
        max_tokens=outputs,
        max_tokens_kind="declared",
        prefix=None,
        session=None,
        provenance=provenance,
    )


def with_beams(table: StepTable, beams: int) -> StepTable:
    """Step times when every request decodes ``beams`` sequences; the table's rows are sequences, the result's requests.

    In steps with prompts the further sequences cost what as many prompt tokens cost on average.
    """
    rows = np.arange(0, table.max_rows + 1, beams)
    token_s = float(table.mixed_tokens_s[-1] - table.mixed_tokens_s[0]) / table.max_batched_tokens
    return replace(
        table,
        attention_base_s=table.attention_base_s[rows],
        attention_slope_s=beams * table.attention_slope_s[rows],
        decode_fixed_s=table.decode_fixed_s[rows],
        sample_s=table.sample_s[rows] + token_s * (beams - 1) * np.arange(len(rows)),
    )


def run(
    workload: Workload, deployment: Deployment, formula: StepFormula, memory: MemoryReport, *, beams: int = 1
) -> Outcome:
    """Simulate a workload on a deployment whose step times the formula gives, without network.

    With ``beams`` the formula's deployment runs that many times the rows of ``deployment``.
    """
    table = tabulate(formula) if beams == 1 else with_beams(tabulate(formula), beams)
    table = replace(table, request_fixed_s=0.0, request_s_per_input_token=0.0)
    model = StepModel(table=table, provenance={}, max_context_tokens=deployment.max_request_tokens)
    return simulate(workload, deployment, model, memory)


def output_tokens_per_s(workload: Workload, outcome: Outcome) -> float:
    """Output tokens over the time from the first arrival to the last token [tokens/s]."""
    end_s = float(np.nanmax(outcome.outputs.last))
    return float(workload.output_tokens.sum()) / (end_s - float(workload.arrival_s[0]))
