"""The step-time formula: the sum of what one forward pass does on the slowest GPU of a replica.

::

    step = L * [ operator_scale * (GEMMs + experts + 2 all-reduces) + layer overhead + elementwise traffic ]
         + decode attention(n, S) + prefill attention(p, a) + head(q) + overhead of a step and of its rows

Coefficients come from :mod:`servewise.perf.operators` (measured operator tables) and
``data/perf/overheads.json``. ``docs/step-model.md`` derives every term.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from servewise.engines import capture_sizes, pads_to_captured_sizes
from servewise.perf.layout import (
    bytes_per_weight,
    compute_type,
    expert_layer,
    layer_matrices,
    local_heads,
    require_supported,
)
from servewise.perf.operators import Attention, Operators, PrefillAttention
from servewise.perf.overheads import Overheads, assumed, overheads_of
from servewise.types import Deployment

__all__ = ["StepFormula", "TokenParts"]

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenParts:
    """What depends on the number of scheduled tokens only, over all layers, arrays over token counts [s].

    ``weights`` is the share of the matrix products that reading weights explains, ``compute`` the rest.
    ``floor`` raises the sum to what launching kernels one by one takes when no CUDA graph is replayed.
    """

    weights: Array
    compute: Array
    all_reduce: Array
    elementwise: Array
    overhead: Array
    floor: Array

    @property
    def total(self) -> Array:
        """Sum of all parts [s]."""
        return np.asarray(self.weights + self.compute + self.all_reduce + self.elementwise + self.overhead + self.floor)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionLayers:
    """Decode and prefill attention of a group of layers with the same window (0: none)."""

    num_layers: int
    window_tokens: int


class StepFormula:
    """Duration of one engine step of a deployment.

    Parameters
    ----------
    deployment : Deployment
    overheads : Overheads, optional
        Instead of those fitted for the deployment's engine.

    Raises
    ------
    InputError
        On parallelism that is not covered.
    """

    def __init__(self, deployment: Deployment, overheads: Overheads | None = None) -> None:
        require_supported(deployment)
        model, tp = deployment.model, deployment.parallelism.tensor_parallel_size
        weights = deployment.precision.weights
        self.deployment = deployment
        self.operators = Operators(deployment.gpu)
        self.tensor_parallel_size = tp
        self.num_heads, self.num_kv_heads = local_heads(model, tp)
        self.matrices = layer_matrices(model, weights, tp)
        self.experts = expert_layer(model, weights, deployment.parallelism)
        self.overheads = overheads or overheads_of(deployment)[0]
        self.capture_sizes = np.asarray(capture_sizes(deployment), np.float64)
        self.pads = pads_to_captured_sizes(deployment)
        kv = deployment.precision.kv
        self.decode_coefficients: Attention = self.operators.decode_attention(model.attention, kv)
        self.prefill_coefficients: PrefillAttention = self.operators.prefill_attention(model.attention, kv)
        num_full = model.num_layers - model.num_sliding_layers
        layers = (
            AttentionLayers(num_layers=num_full, window_tokens=0),
            AttentionLayers(num_layers=model.num_sliding_layers, window_tokens=model.sliding_window_tokens),
        )
        self.layers = tuple(group for group in layers if group.num_layers)

    def padded(self, tokens: Array) -> Array:
        """Tokens after padding to the next captured CUDA graph; larger batches run as they are."""
        if not self.pads or not len(self.capture_sizes):
            return tokens
        index = np.searchsorted(self.capture_sizes, tokens)
        captured = np.append(self.capture_sizes, np.inf)[index]
        return np.asarray(np.where(np.isinf(captured), tokens, captured))

    def replayed(self, tokens: Array) -> NDArray[np.bool_]:
        """Whether a step of so many tokens replays a CUDA graph."""
        if not len(self.capture_sizes):
            return np.zeros(tokens.shape, np.bool_)
        if self.pads:
            return np.asarray(tokens <= self.capture_sizes[-1])
        return np.isin(tokens, self.capture_sizes)

    def token_parts(self, tokens: Array) -> TokenParts:
        """Parts that depend on the number of scheduled tokens (at least 1 each), over all layers [s].

        With pipeline parallelism the tokens are cut into as many micro-batches as there are stages, so a step of
        the replica takes what one micro-batch takes through all layers.
        """
        model, known = self.deployment.model, self.overheads
        stages = self.deployment.parallelism.pipeline_parallel_size
        micro = np.maximum(tokens / stages, 1.0)
        m = self.padded(micro)
        read, products = self._matrix_products(m)
        collectives = self._collectives(m)
        moved = self.elementwise_bytes() * m / self.bandwidth()
        layers = np.full_like(m, 1e-6 * known.layer_us * model.num_layers)
        busy = known.operator_scale * (products + collectives) + moved + layers
        eager = 1e-6 * assumed().eager_layer_us * model.num_layers
        floor = np.where(self.replayed(micro), 0.0, np.maximum(eager - busy, 0.0))
        return TokenParts(
            weights=known.operator_scale * read,
            compute=known.operator_scale * (products - read),
            all_reduce=known.operator_scale * collectives,
            elementwise=moved,
            overhead=layers,
            floor=floor,
        )

    def _collectives(self, m: Array) -> Array:
        """All-reduces of every layer and of the embedding, and what pipeline stages send each other [s]."""
        model, parallelism = self.deployment.model, self.deployment.parallelism
        tp, ranks = parallelism.tensor_parallel_size, parallelism.data_parallel_size
        message = 2.0 * m * model.hidden_size
        one = self.operators.all_reduce_s(message, tp)
        total = (model.num_layers + 1) * one
        if ranks == 1:
            total = total + model.num_layers * one
        else:  # tokens of all ranks are gathered before the experts and their sums scattered after them
            total = total + model.num_layers * self.operators.all_reduce_s(ranks * message, tp * ranks)
        sends = parallelism.pipeline_parallel_size - 1
        # hidden state and residual
        return np.asarray(total + sends * 2.0 * message / tp / self.deployment.gpu.link_bytes_per_s)

    def _matrix_products(self, m: Array) -> tuple[Array, Array]:
        """Share of reading weights, and whole time of GEMMs and experts, over all layers [s]."""
        read, total = np.zeros_like(m), np.zeros_like(m)
        for w in self.matrices:
            time = w.num_layers * self.operators.gemm_s(m, w.num_outputs, w.num_inputs, w.precision)
            rates = self.operators.rates(w.precision)
            move = w.num_outputs * w.num_inputs * bytes_per_weight(w.precision) / rates.bytes_per_s
            math = 2.0 * m * w.num_outputs * w.num_inputs / rates.flops_per_s
            read, total = read + time * move / (move + math), total + time
        e = self.experts
        if e is not None:
            shared = m * self.deployment.parallelism.data_parallel_size
            time = e.num_layers * self.operators.experts_s(shared, e)
            rates = self.operators.rates(e.precision)
            routed = shared * e.top_k
            hit = np.maximum(e.num_experts * (1 - np.exp(-routed / e.num_experts)), 1.0)
            move = hit * bytes_per_weight(e.precision) / rates.bytes_per_s
            math = 2.0 * routed / rates.flops_per_s
            read, total = read + time * move / (move + math), total + time
        return read, total

    def elementwise_bytes(self) -> float:
        """Memory traffic of norms, rotary embedding, activation and quantization of one token [bytes]."""
        model, tp = self.deployment.model, self.tensor_parallel_size
        inner = -(-model.intermediate_size // tp)
        heads = self.num_heads * model.head_dim
        rows = 16.0 * model.hidden_size + 4.0 * (heads + 2 * self.num_kv_heads * model.head_dim)
        num_dense = model.num_layers - (model.moe.num_moe_layers if model.moe else 0)
        total = model.num_layers * rows + num_dense * 6.0 * inner
        if model.moe is not None:
            total += model.moe.num_moe_layers * 6.0 * model.moe.shared_intermediate_size / tp
        weights = self.deployment.precision.weights
        if weights != "bf16" and compute_type(self.deployment.gpu, weights) != "bf16":
            total += 3.0 * model.num_layers * (2 * model.hidden_size + heads) + 3.0 * num_dense * inner
        return total * self.overheads.elementwise_scale

    def bandwidth(self) -> float:
        """Bandwidth that streaming kernels reach [bytes/s]."""
        return self.operators.mem_bw * assumed().elementwise_bandwidth_frac

    def head_s(self, rows: Array) -> Array:
        """Language-model head of ``rows`` rows, gathered over the tensor-parallel GPUs [s]; 0 for 0 rows."""
        model, tp = self.deployment.model, self.tensor_parallel_size
        m = np.maximum(rows, 1.0)
        time = self.operators.gemm_s(m, -(-model.vocab_size // tp), model.hidden_size, "bf16")
        gathered = 0.5 * self.operators.all_reduce_s(2.0 * m * model.vocab_size, tp)
        return np.where(rows > 0, time + gathered, 0.0)

    def rows_s(self, rows: Array) -> Array:
        """Scheduling, sampling and output processing of ``rows`` rows [s]."""
        return np.asarray(1e-6 * self.overheads.row_us * rows)

    def step_overhead_s(self) -> float:
        """Time of a step that nothing in it changes [s]."""
        return 1e-3 * self.overheads.step_ms

    def decode_attention_s(self, num_rows: Array, context_tokens: Array) -> Array:
        """Decode attention over all layers of ``num_rows`` rows whose contexts sum to ``context_tokens`` [s].

        In sliding-window layers every row is taken to have the average context.
        """
        model, c = self.deployment.model, self.decode_coefficients
        stages = self.deployment.parallelism.pipeline_parallel_size
        n, context = num_rows / stages, context_tokens / stages
        total = np.zeros(np.broadcast_shapes(num_rows.shape, context_tokens.shape))
        width = {"bf16": 2.0, "fp8": 1.0}[self.deployment.precision.kv]
        if model.attention == "mla":
            bytes_per_token = width * (model.kv_lora_rank + model.qk_rope_head_dim)
            flops_per_token = 2.0 * self.num_heads * (2 * model.kv_lora_rank + model.qk_rope_head_dim)
        else:
            bytes_per_token = width * self.num_kv_heads * (model.head_dim + model.v_head_dim)
            flops_per_token = 2.0 * self.num_heads * (model.head_dim + model.v_head_dim)
        for group in self.layers:
            seen = np.minimum(context, n * group.window_tokens) if group.window_tokens else context
            read = bytes_per_token * (seen + n * c.extra_tokens) / c.bytes_per_s
            math = flops_per_token * seen / c.flops_per_s
            work = c.launch_s + c.row_head_s * n * self.num_heads
            total = total + group.num_layers * (work + (read**c.norm + math**c.norm) ** (1 / c.norm))
        return np.where(n > 0, self.overheads.attention_scale * total, 0.0)

    def prefill_attention_s(self) -> tuple[float, float, float]:
        """Prefill attention over all layers: (fixed [s], per token [s], per attention pair [s]).

        Sliding-window layers pay for a full window at every token, an upper bound for the first tokens.
        """
        model, c = self.deployment.model, self.prefill_coefficients
        dims = model.head_dim + model.v_head_dim
        flops_per_pair = 2.0 * self.num_heads * (dims + 2.0 * c.exp_dims)
        moved = 2.0 * (self.num_heads + self.num_kv_heads) * dims
        stages, scale = self.deployment.parallelism.pipeline_parallel_size, self.overheads.attention_scale
        fixed = 1e-6 * self.overheads.prefill_layer_us + scale * c.launch_s
        per_token = moved / c.bytes_per_s + flops_per_pair * 0.5 * c.extra_tokens / c.flops_per_s
        num_full = sum(g.num_layers for g in self.layers if not g.window_tokens)
        windows = sum(g.num_layers * g.window_tokens for g in self.layers)
        per_pair = flops_per_pair / c.flops_per_s
        attention_per_token = scale * (model.num_layers * per_token + windows * per_pair)
        return (
            model.num_layers * fixed,
            attention_per_token / stages + 1e-6 * self.overheads.prompt_token_us,
            scale * num_full * per_pair / stages,
        )

    def decode_step_s(self, num_rows: Array, context_tokens: Array) -> Array:
        """Duration of steps without prefill [s]."""
        fixed = self.token_parts(num_rows).total + self.head_s(num_rows) + self.rows_s(num_rows)
        return fixed + self.step_overhead_s() + self.decode_attention_s(num_rows, context_tokens)

    def mixed_step_s(
        self, num_rows: Array, context_tokens: Array, prefill_tokens: Array, pairs: Array, sampled: Array
    ) -> Array:
        """Duration of steps with prefill [s]."""
        fixed, per_token, per_pair = self.prefill_attention_s()
        time = self.token_parts(num_rows + prefill_tokens).total + self.step_overhead_s()
        time = time + self.decode_attention_s(num_rows, context_tokens)
        time = time + self.head_s(sampled) + self.rows_s(sampled)
        return np.asarray(time + fixed + per_token * prefill_tokens + per_pair * pairs)
