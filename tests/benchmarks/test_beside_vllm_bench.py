"""How the two clients are compared; what they measure needs vLLM."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.beside_vllm_bench import agreement, figures
from servewise.types import RequestLog


def test_figures_count_from_the_actual_send_to_the_last_token() -> None:
    ones = np.ones(2, dtype=np.int64)
    log = RequestLog(
        intended_s=np.array([0.0, 1.0]),
        sent_s=np.array([0.5, 1.0]),
        first_token_s=np.array([0.7, 1.4]),
        last_token_s=np.array([1.7, 4.5]),
        input_tokens=8 * ones,
        output_tokens=11 * ones,
        cached_tokens=-ones,
        num_preemptions=-ones,
        replica=-ones,
        status=np.zeros(2, dtype=np.int8),
    )
    assert figures(log) == pytest.approx(
        {"ttft_p50_s": 0.3, "tpot_p50_s": (0.1 + 0.31) / 2, "throughput_tokens_per_s": 22 / 4.0}
    )


def test_agreement_is_a_ratio_of_means_beside_each_sides_range() -> None:
    found = agreement([{"tpot_p50_s": 1.0}, {"tpot_p50_s": 3.0}], [{"tpot_p50_s": 2.0}, {"tpot_p50_s": 2.2}])
    assert found["tpot_p50_s"] == pytest.approx({"ratio": 1.05, "bench_spread": 1.0, "own_spread": 0.2 / 2.1})
