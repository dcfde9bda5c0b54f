"""Physical forms that measured operator times are stored against, and carried to other shapes and GPUs with.

A measured time is kept as the logarithm of its ratio to a form. What a form gets right (bytes and arithmetic
of a shape, peak rates of a GPU, bytes of a precision) may then change; what it does not know (efficiency of a
kernel at a size) stays as measured.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "CODE_STEP",
    "DecodeRows",
    "Rates",
    "decode_attention_s",
    "expert_load",
    "experts_floor_s",
    "experts_form_s",
    "from_codes",
    "gemm_form_s",
    "neighbour_log_ratio",
    "to_codes",
]

Array = NDArray[np.float64]
Codes = NDArray[np.int8]

GEMM_LAUNCH_S = 3e-6
"""Part of a small GEMM's time that no rate changes [s]; the shortest GEMMs of all tables take about this."""
GEMM_NORM = 3.0
EXPERTS_LAUNCH_S = 15e-6
"""The same for one layer's routed experts: several kernels that sort, multiply twice and combine [s]."""
EXPERTS_NORM = 2.0
"""Sharpness of the rooflines, between a sum (1) and a maximum; it only decides how ratios are carried over."""
LEAST_READ = 0.8
"""Least share of the experts' bytes, as an even router hits them, that any kernel has to read."""
CODE_STEP, CODE_MIDDLE = 1.0 / 42.0, 1.3
"""Resolution of a stored ln-ratio, and the middle of its range: ratios of 0.18 to 75 are kept to 1.2% at worst."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Peak rates that a roofline needs."""

    flops_per_s: float
    bytes_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeRows:
    """What a decode attention step asks of one GPU and layer.

    Parameters
    ----------
    context_tokens : float64 array [tokens]
        Contexts of the rows, summed.
    num_rows : float64 array
    num_heads : int
        Query heads of this GPU.
    bytes_per_token : float [bytes]
        Keys and values of one token of context on this GPU.
    flops_per_token : float [FLOP]
    """

    context_tokens: Array
    num_rows: Array
    num_heads: int
    bytes_per_token: float
    flops_per_token: float


def gemm_form_s(m: Array, n: Array, k: Array, weight_bytes: float, rates: Rates) -> Array:
    """Roofline of multiplying ``m`` rows by an ``n`` x ``k`` matrix, with a launch [s]."""
    math = 2.0 * m * n * k / rates.flops_per_s
    move = (n * k * weight_bytes + 2.0 * (m * k + m * n)) / rates.bytes_per_s
    return np.asarray(GEMM_LAUNCH_S + (math**GEMM_NORM + move**GEMM_NORM) ** (1 / GEMM_NORM))


def expert_load(tokens: Array, shape: Array) -> Array:
    """Expected tokens an expert sees. ``shape`` holds columns hidden, width, top k, experts, TP, EP."""
    return np.asarray(tokens * shape[..., 2:3] / shape[..., 3:4])


def experts_form_s(tokens: Array, shape: Array, weight_bytes: float, rates: Rates, num_matrices: int = 3) -> Array:
    """Roofline of one layer's routed experts on one GPU, with a launch [s].

    The GPU holds ``experts / EP`` experts, each ``width / TP`` wide, and gets its even share of the routed
    tokens; it reads the experts that are hit at least once.

    Parameters
    ----------
    tokens : float64 array, shape (num_tokens,)
        Tokens of all GPUs together.
    shape : float64 array, shape (..., 6)
        Hidden size, width of an expert, top k, experts, tensor and expert parallel size.
    weight_bytes : float [bytes]
    rates : Rates
    num_matrices : int
        Matrices of an expert, 3 with a gate.

    Returns
    -------
    float64 array, shape (..., num_tokens) [s]
    """
    math, move = _experts_work_s(tokens, shape, weight_bytes, rates, num_matrices)
    return np.asarray(EXPERTS_LAUNCH_S + (math**EXPERTS_NORM + move**EXPERTS_NORM) ** (1 / EXPERTS_NORM))


def experts_floor_s(tokens: Array, shape: Array, weight_bytes: float, rates: Rates, num_matrices: int = 3) -> Array:
    """Least time of one layer's routed experts [s]: all arithmetic at its peak, or most of the bytes at theirs.

    A skewed router hits fewer experts than an even one; a fast table time that goes beyond ``LEAST_READ`` of the bytes
    was measured with few of them. Parameters as in :func:`experts_form_s`.
    """
    math, move = _experts_work_s(tokens, shape, weight_bytes, rates, num_matrices)
    return np.maximum(math, LEAST_READ * move)


def _experts_work_s(
    tokens: Array, shape: Array, weight_bytes: float, rates: Rates, num_matrices: int
) -> tuple[Array, Array]:
    """Arithmetic and reading of one layer's routed experts on one GPU [s]."""
    hidden, width, top_k, experts, tp, ep = (shape[..., i : i + 1] for i in range(6))
    inner, local = width / tp, np.maximum(experts / ep, 1.0)
    routed = np.maximum(tokens * top_k / ep, 1.0)
    hit = np.maximum(local * (1 - np.exp(-routed / local)), 1.0)
    math = 2 * num_matrices * hidden * inner * routed / rates.flops_per_s
    move = hit * num_matrices * hidden * inner * weight_bytes + 2 * routed * (2 * hidden + num_matrices * inner)
    return math, move / rates.bytes_per_s


def decode_attention_s(q: Array, rows: DecodeRows, peak: Rates) -> Array:
    """Decode attention of one layer [s].

    ``q`` holds launch [us], share of bandwidth, work of a row and head [ns], context every row costs beyond
    its own [tokens], the norm that combines reading and arithmetic, and the share of the matrix peak.
    """
    read = rows.bytes_per_token * (rows.context_tokens + rows.num_rows * q[3]) / (peak.bytes_per_s * q[1])
    math = rows.flops_per_token * rows.context_tokens / (peak.flops_per_s * q[5])
    work = 1e-6 * q[0] + 1e-9 * q[2] * rows.num_rows * rows.num_heads
    return np.asarray(work + (read ** q[4] + math ** q[4]) ** (1 / q[4]))


def to_codes(log_ratio: Array) -> Codes:
    """Store ln-ratios as 8-bit differences along the last axis (sizes of a problem), modulo 256.

    That axis is moved to the front: like next to like compresses better.
    """
    codes = np.clip(np.rint((log_ratio - CODE_MIDDLE) / CODE_STEP), -128, 127).astype(np.int8)
    first = codes[..., :1]
    steps = np.concatenate([first, (codes[..., 1:] - codes[..., :-1]).astype(np.int8)], axis=-1)
    return np.moveaxis(steps, -1, 0)


def from_codes(codes: Codes) -> Array:
    """Invert :func:`to_codes`."""
    values = np.cumsum(codes, axis=0, dtype=np.int8).astype(np.float64) * CODE_STEP + CODE_MIDDLE
    return np.ascontiguousarray(np.moveaxis(values, 0, -1))


NEIGHBOURS = 4
NEIGHBOUR_SOFTENING = 0.1
"""Distance at which nearer shapes stop gaining weight, in units of ln(size)."""


def neighbour_log_ratio(tokens: Array, shape: Array, shapes: Array, log_ratios: Array) -> tuple[Array, bool]:
    """ln-ratio of an expert layer's time to its form, from measured shapes.

    A measured shape gives its own ratios. For any other the nearest four count, by distance in the logs of
    hidden size, width on a GPU, top k, experts, experts on a GPU and groups; each is read where its experts
    see as many tokens as here.

    Parameters
    ----------
    tokens : float64 array, shape (num_tokens,)
        Axis of ``log_ratios``.
    shape : float64 array, shape (6,)
        As :func:`experts_form_s` takes it.
    shapes : float64 array, shape (num_shapes, 6)
    log_ratios : float64 array, shape (num_shapes, num_tokens)

    Returns
    -------
    log_ratio : float64 array, shape (num_tokens,)
    measured : bool
        Whether this very shape was measured.
    """
    same = np.flatnonzero((shapes == shape).all(axis=1))
    if len(same):
        return log_ratios[same[0]], True
    distance = np.sqrt(((_features(shapes) - _features(shape[None])) ** 2).sum(axis=1))
    nearest = np.argsort(distance, kind="stable")[:NEIGHBOURS]
    weight = 1 / (distance[nearest] + NEIGHBOUR_SOFTENING) ** 2
    load = np.log(expert_load(tokens, shape))
    parts = [np.interp(load, np.log(expert_load(tokens, shapes[i])), log_ratios[i]) for i in nearest]
    return np.asarray(weight @ np.asarray(parts) / weight.sum()), False


def _features(shapes: Array) -> Array:
    """Logs in which shapes are compared."""
    hidden, width, top_k, experts, tp, ep = shapes.T
    return np.asarray(np.log(np.stack([hidden, width / tp, top_k, experts, experts / ep, ep], axis=1)))
