"""Batch limits that ``trtllm-bench build`` chose while they were listed by model (0.12 to 0.15)."""

from __future__ import annotations

import re

__all__ = ["DEFAULT_LIMITS", "built_limits"]

DEFAULT_LIMITS = (2048, 8192)
"""``BuildConfig``'s ``max_batch_size`` and ``max_num_tokens``, for models that are not listed."""
LISTED: tuple[tuple[str, int, int, int, int], ...] = (
    (r"llama-2-7b", 1, 0, 4096, 8192),
    (r"llama-2-70b", 2, 0, 2048, 2048),
    (r"llama-2-70b", 4, 0, 4096, 8192),
    (r"llama-2-70b", 4, 4224, 256, 8192),
    (r"llama-2-70b", 8, 0, 8192, 16384),
    (r"llama-2-70b", 8, 2176, 1024, 16384),
    (r"falcon-180b", 4, 0, 4096, 8192),
    (r"falcon-180b", 8, 0, 2048, 8192),
    (r"gpt-j-6b", 1, 0, 128, 2048),
    (r"gpt-j-6b", 1, 256, 2048, 2048),
    (r"llama-3(\.\d)?-8b", 1, 0, 2048, 8192),
    (r"llama-3(\.\d)?-70b", 1, 0, 2048, 2048),
    (r"llama-3(\.\d)?-70b", 2, 0, 256, 1024),
    (r"llama-3(\.\d)?-70b", 2, 4096, 2048, 1024),
    (r"llama-3(\.\d)?-70b", 4, 0, 2048, 1024),
    (r"llama-3(\.\d)?-70b", 8, 0, 8192, 16384),
    (r"mixtral-8x7b", 2, 0, 2048, 3072),
    (r"mixtral-8x7b", 4, 0, 8192, 8192),
    (r"mistral-7b", 1, 0, 4098, 8192),
)
"""Model, tensor parallel size, longest request (0: any other), ``max_batch_size``, ``max_num_tokens``."""


def built_limits(model: str, tensor_parallel_size: int, longest_tokens: int) -> tuple[int, int]:
    """``max_batch_size`` and ``max_num_tokens`` of a build.

    Parameters
    ----------
    model : str
        Catalog name; the 3.1 generation of Llama is built as the third.
    tensor_parallel_size : int
        Sizes above the listed ones take the largest listed.
    longest_tokens : int [tokens]
        Input and output of a request.

    Sources
    -------
    NVIDIA/TensorRT-LLM ``tensorrt_llm/bench/build/benchmark_config.yml`` @8fcf9fc (read 2026-11-29).
    """
    rows = [r for r in LISTED if re.search(r[0], model.lower()) and r[1] <= tensor_parallel_size]
    if not rows:
        return DEFAULT_LIMITS
    size = max(r[1] for r in rows)
    by_length = {r[2]: (r[3], r[4]) for r in rows if r[1] == size}
    return by_length.get(longest_tokens, by_length[0])
