"""Textbook formulas of LLM serving: what an engineer computes on paper before a simulation says better.

Each holds under the assumptions that it names. None of them knows a queue, an engine or a real step time: for those
there are ``servewise.perf`` and ``servewise.sim``. ``docs/seeds.md`` uses them to check published claims.
"""

from __future__ import annotations

import math
from statistics import NormalDist

from servewise.errors import OutOfRangeError
from servewise.units import SECONDS_PER_HOUR

__all__ = [
    "decode_share",
    "disaggregation_saving",
    "e2e_s",
    "goodput_tokens_per_s",
    "lognormal_percentile",
    "lognormal_sigma",
    "max_batch_of_power_law",
    "min_micro_batches",
    "paged_over_naive",
    "pipeline_bubble",
    "power_law_throughput",
    "prefix_savings_bytes",
    "quantized_bytes",
    "usd_per_mtok",
]


def paged_over_naive(naive_waste_frac: float, paged_waste_frac: float) -> float:
    """Throughput of paged over naive KV allocation when the KV cache alone limits the batch [1].

    A share ``waste`` of the cache is reserved and unused, so ``1 - waste`` of it serves requests; where throughput
    is proportional to the batch, it is proportional to that share.

    Parameters
    ----------
    naive_waste_frac, paged_waste_frac : float in [0, 1)

    Raises
    ------
    OutOfRangeError

    Sources
    -------
    Kwon et al., "Efficient Memory Management for Large Language Model Serving with PagedAttention", SOSP 2023,
    https://arxiv.org/abs/2309.06180, figure 2 and section 1 (waste of 60-80% against under 4%).
    """
    _within("naive_waste_frac", naive_waste_frac, 0.0, 1.0, open_end=True)
    _within("paged_waste_frac", paged_waste_frac, 0.0, 1.0, open_end=True)
    return (1.0 - paged_waste_frac) / (1.0 - naive_waste_frac)


def prefix_savings_bytes(num_requests: int, prefix_tokens: int, kv_bytes_per_token: float) -> float:
    """KV cache that requests in flight at once save when they share a prefix [bytes].

    One copy is kept instead of ``num_requests``.

    Parameters
    ----------
    num_requests : int, at least 1
    prefix_tokens : int [tokens]
    kv_bytes_per_token : float [bytes]
        ``2 * layers * kv_heads * head_dim * bytes`` of one GPU or of all, as is asked.

    Raises
    ------
    OutOfRangeError

    Sources
    -------
    Zheng et al., "SGLang: Efficient Execution of Structured Language Model Programs", 2024,
    https://arxiv.org/abs/2312.07104 (RadixAttention).
    """
    _within("num_requests", num_requests, 1, math.inf)
    _within("prefix_tokens", prefix_tokens, 0, math.inf)
    _within("kv_bytes_per_token", kv_bytes_per_token, 0.0, math.inf)
    return (num_requests - 1) * prefix_tokens * kv_bytes_per_token


def e2e_s(ttft_s: float, tpot_s: float, output_tokens: int) -> float:
    """Latency of a whole answer [s]: ``TTFT + (output_tokens - 1) * TPOT``, an identity of the definitions.

    Raises
    ------
    OutOfRangeError
    """
    _within("output_tokens", output_tokens, 1, math.inf)
    return ttft_s + (output_tokens - 1) * tpot_s


def decode_share(ttft_s: float, tpot_s: float, output_tokens: int) -> float:
    """Share of an answer's latency after its first token [1].

    Raises
    ------
    OutOfRangeError
        Also when the whole takes no time.
    """
    whole = e2e_s(ttft_s, tpot_s, output_tokens)
    _within("ttft_s + (output_tokens - 1) * tpot_s", whole, 0.0, math.inf, open_start=True)
    return 1.0 - ttft_s / whole


def lognormal_percentile(p50_s: float, sigma: float, percentile: float) -> float:
    """A percentile of lognormal latencies [s], from their median and the deviation of their logarithm.

    Parameters
    ----------
    p50_s : float [s]
    sigma : float
    percentile : float in (0, 100)

    Raises
    ------
    OutOfRangeError
    """
    _within("p50_s", p50_s, 0.0, math.inf, open_start=True)
    _within("sigma", sigma, 0.0, math.inf)
    return p50_s * math.exp(sigma * _normal_quantile(percentile))


def lognormal_sigma(p50_s: float, tail_s: float, percentile: float) -> float:
    """Deviation of the logarithm at which lognormal latencies have this median and this upper percentile [1].

    Raises
    ------
    OutOfRangeError
        Also when the percentile is not above the median.
    """
    _within("p50_s", p50_s, 0.0, math.inf, open_start=True)
    _within("percentile", percentile, 50.0, 100.0, open_start=True, open_end=True)
    _within("tail_s", tail_s, p50_s, math.inf)
    return math.log(tail_s / p50_s) / _normal_quantile(percentile)


def goodput_tokens_per_s(throughput_tokens_per_s: float, good_tokens_frac: float) -> float:
    """Output tokens of requests that kept the promise, per second: a share of throughput, never more [tokens/s].

    Loosening a limit cannot turn a good request bad: goodput never falls when the limit is raised.

    Raises
    ------
    OutOfRangeError
    """
    _within("throughput_tokens_per_s", throughput_tokens_per_s, 0.0, math.inf)
    _within("good_tokens_frac", good_tokens_frac, 0.0, 1.0)
    return throughput_tokens_per_s * good_tokens_frac


def pipeline_bubble(num_stages: int, num_micro_batches: int) -> float:
    """Idle share of a pipeline that is filled and drained once for so many equal micro-batches [1].

    ``(stages - 1) / (micro_batches + stages - 1)``. A server does not drain its pipeline: as long as there is work
    for ``num_stages`` micro-batches in flight, its bubble comes from unequal steps instead.

    Raises
    ------
    OutOfRangeError

    Sources
    -------
    Huang et al., "GPipe", 2019, https://arxiv.org/abs/1811.06965, section 2.3.
    """
    _within("num_stages", num_stages, 1, math.inf)
    _within("num_micro_batches", num_micro_batches, 1, math.inf)
    return (num_stages - 1) / (num_micro_batches + num_stages - 1)


def min_micro_batches(num_stages: int, max_bubble_frac: float) -> int:
    """Fewest micro-batches for which :func:`pipeline_bubble` is below a share.

    Raises
    ------
    OutOfRangeError
    """
    _within("num_stages", num_stages, 1, math.inf)
    _within("max_bubble_frac", max_bubble_frac, 0.0, 1.0, open_start=True, open_end=True)
    least = (num_stages - 1) * (1.0 - max_bubble_frac) / max_bubble_frac
    found = max(1, math.floor(least))
    while pipeline_bubble(num_stages, found) >= max_bubble_frac:  # strict, and rounding may be off by one
        found += 1
    return found


def usd_per_mtok(usd_per_h: float, tokens_per_s: float) -> float:
    """Dollars per million tokens at a steady rate [$]; which tokens and at which promise is the caller's to say.

    Raises
    ------
    OutOfRangeError
    """
    _within("usd_per_h", usd_per_h, 0.0, math.inf)
    _within("tokens_per_s", tokens_per_s, 0.0, math.inf, open_start=True)
    return usd_per_h * 1e6 / (tokens_per_s * SECONDS_PER_HOUR)


def max_batch_of_power_law(limit_s: float, latency_1_s: float, exponent: float) -> float:
    """Largest batch whose latency ``latency_1_s * batch ** exponent`` keeps a limit [requests], not rounded.

    A real batch is whole: round down. Below 1 no batch keeps the limit.

    Raises
    ------
    OutOfRangeError
    """
    _within("limit_s", limit_s, 0.0, math.inf, open_start=True)
    _within("latency_1_s", latency_1_s, 0.0, math.inf, open_start=True)
    _within("exponent", exponent, 0.0, math.inf, open_start=True)
    return math.pow(limit_s / latency_1_s, 1.0 / exponent)


def power_law_throughput(batch: float, latency_1_s: float, exponent: float) -> float:
    """Requests per second of batches whose latency is ``latency_1_s * batch ** exponent`` [requests/s].

    Raises
    ------
    OutOfRangeError
    """
    _within("batch", batch, 0.0, math.inf, open_start=True)
    _within("latency_1_s", latency_1_s, 0.0, math.inf, open_start=True)
    return batch / (latency_1_s * math.pow(batch, exponent))


def disaggregation_saving(
    prefill_usd_per_h: float, decode_usd_per_h: float, prefill_frac: float, aggregated_usd_per_h: float
) -> float:
    """Share of the cost saved by pools priced by their share of the work [1]; negative when they cost more.

    ``1 - (prefill_frac * prefill + (1 - prefill_frac) * decode) / aggregated``. It takes the pools to do in an hour
    what the aggregated deployment does, to be divisible, and the transfer of the KV cache to be free.

    Raises
    ------
    OutOfRangeError
    """
    _within("prefill_frac", prefill_frac, 0.0, 1.0)
    _within("aggregated_usd_per_h", aggregated_usd_per_h, 0.0, math.inf, open_start=True)
    pools = prefill_frac * prefill_usd_per_h + (1.0 - prefill_frac) * decode_usd_per_h
    return 1.0 - pools / aggregated_usd_per_h


def quantized_bytes(num_weights: float, bits: float, group_size: int = 0, scale_bits: float = 0.0) -> float:
    """Memory of quantized weights with their scales [bytes].

    Parameters
    ----------
    num_weights : float
    bits : float
        Of one weight.
    group_size : int
        Weights that share a scale; 0 for none.
    scale_bits : float
        Of one group's scale and zero point together.

    Raises
    ------
    OutOfRangeError
    """
    _within("num_weights", num_weights, 0.0, math.inf)
    _within("bits", bits, 0.0, math.inf, open_start=True)
    _within("group_size", group_size, 0, math.inf)
    _within("scale_bits", scale_bits, 0.0, math.inf)
    shared = scale_bits / group_size if group_size else 0.0
    return num_weights * (bits + shared) / 8.0


def _normal_quantile(percentile: float) -> float:
    _within("percentile", percentile, 0.0, 100.0, open_start=True, open_end=True)
    return NormalDist().inv_cdf(percentile / 100.0)


def _within(
    name: str, value: float, low: float, high: float, *, open_start: bool = False, open_end: bool = False
) -> None:
    below = value <= low if open_start else value < low
    above = value >= high if open_end or math.isinf(high) else value > high
    if below or above or value != value:
        start, end = "(" if open_start else "[", ")" if open_end or math.isinf(high) else "]"
        raise OutOfRangeError(f"{name} must lie in {start}{low:g}, {high:g}{end}, not {value:g}")
