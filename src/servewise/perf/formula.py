"""The step-time formula: the sum of what one forward pass does on the slowest GPU of a replica.

::

    step = L * [ GEMMs + experts + collectives + layer overhead + elementwise traffic ]
         + decode attention(n, S) + prefill attention(p, a) + head(q) + overhead of a step and of its rows

Coefficients come from :mod:`servewise.perf.operators` (measured operator tables) and
``data/perf/overheads.json``. ``docs/step-model.md`` derives every term.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from servewise.engines import capture_sizes, ollama, pads_to_captured_sizes, replays_graphs_with_prompts
from servewise.perf.communication import collectives_s, exchange_s
from servewise.perf.host_layers import host_layers
from servewise.perf.layout import (
    Experts,
    bytes_per_weight,
    compute_type,
    expert_layer,
    head_precision,
    kv_element_bytes,
    layer_matrices,
    local_heads,
    require_supported,
)
from servewise.perf.memory_baselines import timed_as
from servewise.perf.operators import Attention, Operators, PrefillAttention, Tables
from servewise.perf.overheads import Overheads, assumed, overheads_of
from servewise.types import Deployment, VllmParams

__all__ = ["StepFormula", "TokenParts"]

Array = NDArray[np.float64]

FLASH_ATTENTION_ROWS = 64
"""Query rows of a tile of FlashAttention 2 over a paged KV cache (``kBlockM``, flash_fwd_launch_template.h)."""
FLASH_ATTENTION_KEYS = ((64, 256), (128, 128), (10**9, 64))
"""Longest head dimension and keys of a tile (``kBlockN``, there)."""


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
    decode: Attention
    prefill: PrefillAttention


def unpacks_rows_beside_prompts(deployment: Deployment, num_heads: int, num_kv_heads: int) -> bool:
    """Whether a prompt in a step keeps FlashAttention 2 from packing the query heads of decode rows.

    Sources
    -------
    vLLM 0.33.0, ``v1/attention/backends/fa_utils.py``: FlashAttention 3 on compute capability 9, 4 on 10, else 2;
    ``platforms/cuda.py`` (commit 002db49, accessed 2026-11-29): FlashAttention first but on compute capability 10;
    ``flash_attn.py``: an fp8 KV cache and attention sinks need version 3 or 4, MLA has backends of its own.
    vllm-project/flash-attention, ``flash_api.cpp``: ``seqlenq_ngroups_swapped`` asks for ``max_seqlen_q == 1``, fewer
    key heads than query heads, and no window.
    """
    model = deployment.model
    return (
        deployment.engine == "vllm"
        and int(deployment.gpu.compute_capability) in (8, 12)
        and deployment.precision.kv == "bf16"
        and model.attention == "gqa"
        and not model.attention_sinks
        and num_heads > num_kv_heads
    )


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
        deployment = ollama.as_llama_server(deployment)
        require_supported(deployment)
        deployment = timed_as(deployment)
        model, tp = deployment.model, deployment.parallelism.tensor_parallel_size
        weights = deployment.precision.weights
        self.deployment = deployment
        params = deployment.params
        # without asynchronous scheduling the host's launches of block-fp8 products are not hidden (runs of vLLM 0.12)
        exposed = isinstance(params, VllmParams) and not params.async_scheduling
        tables: Tables = "launched" if exposed else "best"
        self.operators = Operators(deployment.gpu, deployment.engine, deployment.engine_version, tables)
        self.tensor_parallel_size = tp
        self.num_heads, self.num_kv_heads = local_heads(model, tp)
        self.matrices = layer_matrices(model, weights, tp, deployment.engine)
        self.experts = expert_layer(model, weights, deployment.parallelism)
        self.host = host_layers(deployment, self.matrices, self.experts)
        self.overheads = overheads or overheads_of(deployment)[0]
        self.capture_sizes = np.asarray(capture_sizes(deployment), np.float64)
        self.pads = pads_to_captured_sizes(deployment)
        self.graphs_with_prompts = replays_graphs_with_prompts(deployment)
        self.unpacked_rows = unpacks_rows_beside_prompts(deployment, self.num_heads, self.num_kv_heads)
        full = model.num_layers - model.num_sliding_layers
        self.layers = tuple(
            self._attention_layers(num, window)
            for num, window in ((full, 0), (model.num_sliding_layers, model.sliding_window_tokens))
            if num
        )

    def _attention_layers(self, num_layers: int, window_tokens: int) -> AttentionLayers:
        """Coefficients of layers with the same window."""
        model, kv = self.deployment.model, self.deployment.precision.kv
        heads = {
            "num_heads": self.num_heads,
            "num_kv_heads": self.num_kv_heads,
            "head_dim": model.head_dim,
            "window_tokens": window_tokens,
        }
        return AttentionLayers(
            num_layers=num_layers,
            window_tokens=window_tokens,
            decode=self.operators.decode_attention(model.attention, kv, **heads),
            prefill=self.operators.prefill_attention(model.attention, kv, **heads),
        )

    def padded(self, tokens: Array) -> Array:
        """Tokens after padding to the next captured CUDA graph; larger batches run as they are."""
        if not self.pads or not len(self.capture_sizes):
            return tokens
        index = np.searchsorted(self.capture_sizes, tokens)
        captured = np.append(self.capture_sizes, np.inf)[index]
        return np.asarray(np.where(np.isinf(captured), tokens, captured))

    def replayed(self, tokens: Array, *, with_prompts: bool = False) -> NDArray[np.bool_]:
        """Whether a step of so many tokens, some of them of prompts or none, replays a CUDA graph.

        llama.cpp enqueues its kernels from C++, in graphs or not: as fast as from one.
        """
        if self.deployment.engine == "llama.cpp":
            return np.ones(tokens.shape, np.bool_)
        if not len(self.capture_sizes) or (with_prompts and not self.graphs_with_prompts):
            return np.zeros(tokens.shape, np.bool_)
        if self.pads:
            return np.asarray(tokens <= self.capture_sizes[-1])
        return np.isin(tokens, self.capture_sizes)

    def padded_tokens(self, *, with_prompts: bool) -> int:
        """Most tokens of a step for which all data parallel ranks are padded to the largest batch [tokens].

        They are where a CUDA graph is replayed (vLLM, ``v1/worker/dp_utils.py``; SGLang, ``layers/dp_attention.py``).
        """
        if not len(self.capture_sizes) or (with_prompts and not self.graphs_with_prompts):
            return 0
        return int(self.capture_sizes[-1])

    def token_parts(self, tokens: Array, *, with_prompts: bool = False) -> TokenParts:
        """Parts that depend on the number of scheduled tokens (at least 1 each), over all layers [s].

        With pipeline parallelism the tokens are those of one batch, and the times those of its whole pass.
        """
        model, known = self.deployment.model, self.overheads
        tokens = np.maximum(tokens, 1.0)
        replayed = self.replayed(tokens, with_prompts=with_prompts)
        m = np.where(replayed, self.padded(tokens), tokens)
        read, products = self._matrix_products(m)
        if self.host is not None:
            read, products = self.host.on_gpu_frac(m) * read, self.host.on_gpu_frac(m) * products
        moved = self.elementwise_bytes() * m / self.bandwidth()
        num_expert_layers = self.experts.num_layers if self.experts is not None else 0
        gaps = known.layer_us * model.num_layers + known.expert_layer_us * num_expert_layers
        layers = np.full_like(m, 1e-6 * gaps)
        weights, compute = known.weights_scale * read, known.compute_scale * (products - read)
        weights = weights if self.host is None else weights + self.host.products_s(m)
        collectives = self.collective_scale() * collectives_s(self.deployment, self.operators, m)
        busy = weights + compute + collectives + moved + layers
        eager = 1e-6 * known.eager_layer_us * model.num_layers
        floor = np.where(replayed, 0.0, np.maximum(eager - busy, 0.0))
        return TokenParts(
            weights=weights,
            compute=compute,
            all_reduce=collectives,
            elementwise=moved,
            overhead=layers,
            floor=floor,
        )

    def _matrix_products(self, m: Array) -> tuple[Array, Array]:
        """Share of reading weights, and whole time of GEMMs and experts, over all layers [s]."""
        read, total = np.zeros_like(m), np.zeros_like(m)
        for w in self.matrices:
            time = w.num_layers * self.operators.gemm_s(m, w.num_outputs, w.num_inputs, w.precision)
            rates = self.operators.rates(w.precision)
            move = w.num_outputs * w.num_inputs * bytes_per_weight(w.precision) / rates.bytes_per_s
            math = 2.0 * m * w.num_outputs * w.num_inputs / rates.flops_per_s
            read, total = read + time * move / (move + math), total + time
        if self.experts is not None:
            moved, whole = self._experts(m * self.deployment.parallelism.data_parallel_size, self.experts)
            read, total = read + moved, total + whole
        return read, total

    def _experts(self, tokens: Array, e: Experts) -> tuple[Array, Array]:
        """Share of reading weights, and whole time of experts for the tokens of all ranks, over all layers [s]."""
        time = e.num_layers * self.operators.experts_s(tokens, e)
        if e.expert_parallel_size > 1:
            time = time * assumed().expert_imbalance_scale
        rates = self.operators.rates(e.precision)
        routed = tokens * e.top_k
        hit = np.maximum(e.num_experts * (1 - np.exp(-routed / e.num_experts)), 1.0)
        move = hit * bytes_per_weight(e.precision) / rates.bytes_per_s
        math = 2.0 * routed / rates.flops_per_s
        return time * move / (move + math), time

    def experts_s(self, tokens: Array) -> Array:
        """Routed experts over all layers, for ``tokens`` of all data parallel ranks together [s].

        With SGLang, which exchanges no padding where it computes none, the exchange around them is in it.
        """
        if self.experts is None:
            return np.zeros_like(tokens)
        read, whole = self._experts(tokens, self.experts)
        time = self.overheads.weights_scale * read + self.overheads.compute_scale * (whole - read)
        if self.deployment.engine == "sglang" and not self.deployment.parallelism.expert_all_to_all:
            time = time + self.collective_scale() * exchange_s(self.deployment, self.operators, tokens)
        return np.asarray(time)

    def collective_scale(self) -> float:
        """By which collectives are off: fitted on NVLink, where kernels decide; over PCIe the bus does."""
        return self.overheads.collective_scale if self.deployment.gpu.link_kind == "nvlink" else 1.0

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
        precision = head_precision(self.deployment.precision.weights, self.deployment.engine)
        time = self.operators.gemm_s(m, -(-model.vocab_size // tp), model.hidden_size, precision)
        gathered = 0.5 * self.operators.all_reduce_s(2.0 * m * model.vocab_size, tp)
        return np.where(rows > 0, time + gathered, 0.0)

    def rows_s(self, rows: Array) -> Array:
        """Scheduling, sampling and output processing of ``rows`` rows [s]."""
        return np.asarray(1e-6 * self.overheads.row_us * rows)

    def step_overhead_s(self) -> float:
        """Time of a step that nothing in it changes [s]; each pipeline stage has a host of its own that spends it."""
        return 1e-3 * self.overheads.step_ms * self.deployment.parallelism.pipeline_parallel_size

    def decode_attention_s(self, num_rows: Array, context_tokens: Array, queries: int = 1) -> Array:
        """Decode attention over all layers of ``num_rows`` rows whose contexts sum to ``context_tokens`` [s].

        With several ``queries`` a row its context is read once, and each does its arithmetic. In sliding-window
        layers every row is taken to have the average context.
        """
        model = self.deployment.model
        n, context = num_rows, context_tokens
        total = np.zeros(np.broadcast_shapes(num_rows.shape, context_tokens.shape))
        key, value = kv_element_bytes(self.deployment)
        if model.attention == "mla":
            bytes_per_token = key * (model.kv_lora_rank + model.qk_rope_head_dim)
            flops_per_token = 2.0 * self.num_heads * (2 * model.kv_lora_rank + model.qk_rope_head_dim)
        else:
            bytes_per_token = self.num_kv_heads * (model.head_dim * key + model.v_head_dim * value)
            flops_per_token = 2.0 * self.num_heads * (model.head_dim + model.v_head_dim)
        for group in self.layers:
            c = group.decode
            seen = np.minimum(context, n * group.window_tokens) if group.window_tokens else context
            read = bytes_per_token * (seen + n * c.extra_tokens) / c.bytes_per_s
            math = queries * flops_per_token * seen / c.flops_per_s
            work = c.launch_s + c.row_head_s * n * self.num_heads
            time = group.num_layers * (work + (read**c.norm + math**c.norm) ** (1 / c.norm))
            if self.host is not None:
                time = (1 - self.host.frac) * time + self.host.read_s(group.num_layers * bytes_per_token * seen)
            total = total + time
        return np.where(n > 0, self.overheads.attention_scale * total, 0.0)

    def mixed_row_attention_s(self) -> tuple[float, float]:
        """Least decode attention of a step with prompts: (per row [s], per token of context [s]).

        FlashAttention 2 packs the query heads that share a key head into one tile only if no row of the step has
        more than one token. In any other step each of them takes a tile of 64 rows to itself, and computes as a
        prompt of 64 tokens does, over a context that is filled up to whole tiles of keys.
        """
        if not self.unpacked_rows:
            return 0.0, 0.0
        per_token = FLASH_ATTENTION_ROWS * self.prefill_attention_s()[2]
        head_dim = self.deployment.model.head_dim
        keys = next(keys for longest, keys in FLASH_ATTENTION_KEYS if head_dim <= longest)
        return 0.5 * keys * per_token, per_token

    def mixed_attention_s(self, num_rows: Array, context_tokens: Array) -> Array:
        """Decode attention as :meth:`decode_attention_s`, in a step with prompts [s].

        Layers with a window are never packed; a model that has some pays the larger of all its decode attention and
        the unpacked attention of its full layers, a little less than the sum of the parts.
        """
        per_row, per_token = self.mixed_row_attention_s()
        packed = self.decode_attention_s(num_rows, context_tokens)
        return np.maximum(packed, per_row * num_rows + per_token * context_tokens)

    def prefill_attention_s(self) -> tuple[float, float, float]:
        """Prefill attention over all layers: (fixed [s], per token [s], per attention pair [s]).

        Sliding-window layers pay for a full window at every token, an upper bound for the first tokens.
        """
        model = self.deployment.model
        scale = self.overheads.attention_scale
        dims = model.head_dim + model.v_head_dim
        moved = 2.0 * (self.num_heads + self.num_kv_heads) * dims
        fixed = 1e-6 * self.overheads.prefill_layer_us * model.num_layers
        per_token = per_pair = 0.0
        for group in self.layers:
            c = group.prefill
            flops_per_pair = 2.0 * self.num_heads * (dims + 2.0 * c.exp_dims)
            pair_s = scale * group.num_layers * flops_per_pair / c.flops_per_s
            if self.host is not None:
                pair_s = (1 - self.host.frac) * pair_s + self.host.attend_s(group.num_layers * flops_per_pair)
            fixed += scale * group.num_layers * c.launch_s
            per_token += scale * group.num_layers * moved / c.bytes_per_s
            per_token += pair_s * (group.window_tokens + 0.5 * c.extra_tokens)
            per_pair += 0.0 if group.window_tokens else pair_s
        return fixed, per_token + 1e-6 * self.overheads.prompt_token_us, per_pair

    def decode_step_s(self, num_rows: Array, context_tokens: Array) -> Array:
        """Duration of steps without prefill [s]."""
        fixed = self.token_parts(num_rows).total + self.head_s(num_rows) + self.rows_s(num_rows)
        return fixed + self.step_overhead_s() + self.decode_attention_s(num_rows, context_tokens)

    def mixed_step_s(
        self, num_rows: Array, context_tokens: Array, prefill_tokens: Array, pairs: Array, sampled: Array
    ) -> Array:
        """Duration of steps with prefill [s]."""
        fixed, per_token, per_pair = self.prefill_attention_s()
        time = self.token_parts(num_rows + prefill_tokens, with_prompts=True).total + self.step_overhead_s()
        time = time + self.mixed_attention_s(num_rows, context_tokens)
        time = time + self.head_s(sampled) + self.rows_s(sampled)
        return np.asarray(time + fixed + per_token * prefill_tokens + per_pair * pairs)
