"""What GPUs and engines without tables borrow: achieved rates, board power, links, GGUF kernels, bounds of experts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray
from perf_deployments import deploy

from servewise import perf
from servewise.catalog import get_gpu, get_model, list_gpus
from servewise.engines import llamacpp
from servewise.errors import InputError
from servewise.perf.layout import Experts, bytes_per_weight, head_precision, layer_matrices
from servewise.perf.operator_data import array, array_names, document
from servewise.perf.operator_forms import Rates, experts_floor_s, experts_form_s, from_codes
from servewise.perf.operator_rates import gguf_kernels, transfer_of
from servewise.perf.operators import Operators
from servewise.types import Deployment, EngineName, Parallelism, Precision, WeightPrecision

Array = NDArray[np.float64]

MANY = np.array([8192.0])
SCOUT = Experts(
    hidden_size=5120,
    intermediate_size=8192,
    top_k=1,
    num_experts=16,
    tensor_parallel_size=1,
    expert_parallel_size=4,
    num_layers=48,
    precision="fp8",
    gated=True,
)

CODES = (("RTX-4090-24GB", "l40s"), ("L4-24GB", "l40s"), ("A10G-24GB", "a100_sxm"), ("RTX-3090-24GB", "a100_sxm"))


def compute_frac(gpu: str, system: str) -> float:
    return transfer_of(get_gpu(gpu), system, float(document()["gpus"][system]["peaks"]["bf16"])).compute_frac


def test_arithmetic_follows_achieved_rates() -> None:
    """RTX 4090 reaches 178.8 of 165.2 TFLOP/s, L40S 252 of 362.05; MI300X 758.3 of 1307, H100 821.2 of 989."""
    assert compute_frac("RTX-4090-24GB", "l40s") == pytest.approx((178.8 / 165.2) / (252.0 / 362.05))
    assert compute_frac("MI300X-192GB", "h100_sxm") == pytest.approx((758.3 / 1307) / (821.2 / 989))
    card = Operators(get_gpu("RTX-4090-24GB"))
    reached = 2 * MANY * 8192 * 8192 / card.gemm_s(MANY, 8192, 8192, "bf16")
    assert 0.85 * 178.8e12 < reached[0] < 1.05 * 178.8e12
    assert "by achieved matrix rates" in card.notes["gpu"]


def test_a_board_sustains_no_more_than_its_power_allows() -> None:
    """A100 PCIe has 300 W for the peak that SXM has 400 W for; its burst of 0.96 of SXM's rate does not last."""
    assert compute_frac("A100-PCIe-80GB", "a100_sxm") == pytest.approx(0.75**0.75)
    assert compute_frac("L4-24GB", "l40s") < 0.75
    assert "by board power (300 W)" in Operators(get_gpu("A100-PCIe-80GB")).notes["gpu"]
    more = replace(get_gpu("A100-PCIe-80GB"), tdp_w=800.0)
    assert transfer_of(more, "a100_sxm", 312e12).compute_frac == pytest.approx(256.4 / 267.9)


def test_codes_in_the_same_memory_take_bandwidth() -> None:
    """On L40S and L4 1/16 of the memory holds codes, on GeForce cards none does; A100's HBM has its own."""
    shares = {g: transfer_of(get_gpu(g), system, 1e15).bandwidth_frac for g, system in CODES}
    assert shares == pytest.approx(dict(zip(shares, (16 / 15, 1.0, 15 / 16, 1.0), strict=True)))
    assert "error correction codes" in Operators(get_gpu("RTX-4090-24GB")).notes["gpu"]
    assert "error correction codes" not in Operators(get_gpu("L4-24GB")).notes["gpu"]


def test_without_a_figure_peaks_alone_count_and_that_is_said() -> None:
    card = replace(get_gpu("MI325X-256GB"), name="NO-SUCH-GPU")
    assert transfer_of(card, "h100_sxm", 989e12).compute_frac == 1.0
    assert "by peak rates alone" in Operators(card).notes["gpu"]


def test_measured_gpus_take_nothing_from_the_transfer() -> None:
    for gpu in list_gpus():
        operators = Operators(get_gpu(gpu))
        assert ("gpu" in operators.notes) != operators.exact


def bus_gb_per_s(gpu: str, num_gpus: int) -> float:
    message = np.array([3e7])
    time_s = Operators(get_gpu(gpu)).all_reduce_s(message, num_gpus)
    return float(2 * (num_gpus - 1) / num_gpus * message[0] / time_s[0] / 1e9)


def test_servers_with_l40s_are_taken_to_copy_from_gpu_to_gpu() -> None:
    """Two were measured so; four and eight reach what PCIe 4.0 gives, not the 2 to 5 GB/s of the measured machine."""
    assert bus_gb_per_s("L40S-48GB", 2) == pytest.approx(20, rel=0.1)
    for num_gpus in (4, 8):
        assert bus_gb_per_s("L40S-48GB", num_gpus) == pytest.approx(bus_gb_per_s("A100-PCIe-80GB", num_gpus))
        assert 10 < bus_gb_per_s("L40S-48GB", num_gpus) < 16
        assert bus_gb_per_s("RTX-4090-24GB", num_gpus) < 6
    operators = Operators(get_gpu("L40S-48GB"))
    operators.all_reduce_s(np.array([1e6]), 2)
    assert "all_reduce_peers" not in operators.notes
    operators.all_reduce_s(np.array([1e6]), 8)
    assert "3 to 7 times as long" in operators.provenance("all_reduce").note


def tables_of(system: str) -> list[str]:
    return sorted(n.split("/")[2] for n in array_names() if n.startswith(f"moe/{system}/"))


@pytest.mark.parametrize("system", sorted(document()["gpus"]))
def test_experts_lie_between_the_roofline_and_a_multiple_of_it(system: str) -> None:
    """From 1,024 tokens on: the busiest of 16 groups of experts takes several times the mean, untuned kernels more.

    Weight-only int4 is the one format whose kernels stay far from it.
    """
    tokens, peaks = array("moe_tokens"), document()["gpus"][system]["peaks"]
    many = tokens >= 1024
    for precision in tables_of(system):
        name: WeightPrecision = "mxfp4" if precision == "mxfp4_mxfp8" else precision  # type: ignore[assignment]
        rates = Rates(flops_per_s=float(peaks[precision]), bytes_per_s=float(peaks["mem_bw"]))
        shapes = array(f"moe_shapes/{system}/{precision}").T.astype(float)
        form = experts_form_s(tokens, shapes, bytes_per_weight(name), rates)
        time_s = form * np.exp(from_codes(array(f"moe/{system}/{precision}")))
        ratio = (time_s / experts_floor_s(tokens, shapes, bytes_per_weight(name), rates))[:, many]
        assert ratio.min() > 0.8
        assert precision == "int4" or np.quantile(ratio, 0.9) < 13
        assert ratio.max() < (80 if precision == "int4" else 35)


def test_experts_never_beat_the_roofline() -> None:
    for gpu in ("B200-SXM-180GB", "H200-SXM-141GB", "RTX-PRO-6000-96GB"):
        operators = Operators(get_gpu(gpu))
        for tokens in (8.0, 64.0, 8192.0):
            layer = replace(
                SCOUT, hidden_size=4096, intermediate_size=14336, top_k=2, num_experts=8, expert_parallel_size=1
            )
            rates = operators.measured_rates("fp8")
            shape = np.array([4096, 14336, 2, 8, 1, 1], float)
            floor = experts_floor_s(np.array([tokens]), shape, 1.0, rates)
            assert operators.experts_s(np.array([tokens]), layer)[0] >= 0.999 * floor[0]


def test_a_faster_memory_never_slows_the_same_chip_down() -> None:
    """H200 is H100 with faster memory: its untuned fp8 kernel for Llama 4 Scout does not count."""
    tokens = np.array([64.0, 1024.0, 8192.0])
    h100, h200 = (Operators(get_gpu(g)).experts_s(tokens, SCOUT) for g in ("H100-SXM-80GB", "H200-SXM-141GB"))
    assert np.all(h200 <= 1.03 * h100)


def gguf(weights: WeightPrecision, engine: EngineName = "llama.cpp") -> Deployment:
    model, gpu = get_model("meta-llama/Llama-3.1-8B-Instruct"), get_gpu("RTX-4090-24GB")
    if engine != "llama.cpp":
        return deploy("meta-llama/Llama-3.1-8B-Instruct", "RTX-4090-24GB", weights=weights)
    version = llamacpp.default_version()
    return Deployment(
        model=model,
        gpu=gpu,
        engine="llama.cpp",
        engine_version=version,
        precision=Precision(weights=weights),
        parallelism=Parallelism(),
        params=replace(llamacpp.default_params(version, gpu, model), ctx_size=8192),
    )


@pytest.mark.parametrize(("weights", "bits"), [("q8_0", 8.5), ("q4_0", 4.5), ("q4_k_m", 4.8944)])
def test_gguf_blocks_by_hand(weights: WeightPrecision, bits: float) -> None:
    assert 8 * bytes_per_weight(weights) == pytest.approx(bits)
    report = perf.memory(gguf(weights))
    assert report.weights_bytes == pytest.approx(8.03e9 * bits / 8, rel=0.04)


@pytest.mark.parametrize("weights", ["fp8", "int4", "int8", "nvfp4", "fp8_block"])
def test_llama_cpp_refuses_other_engines_precisions(weights: WeightPrecision) -> None:
    with pytest.raises(InputError, match=f"no weights in {weights}; allowed: bf16"):
        perf.memory(gguf(weights))


@pytest.mark.parametrize("weights", ["q8_0", "q4_0", "q4_k_m"])
def test_other_engines_refuse_gguf(weights: WeightPrecision) -> None:
    with pytest.raises(InputError, match="GGUF type, which vllm"):
        perf.memory(gguf(weights, "vllm"))
    with pytest.raises(InputError, match=r"use llama\.cpp"):
        perf.StepFormula(gguf(weights, "vllm"))


def test_gguf_files_of_gpt_oss_keep_attention_in_q8_0() -> None:
    model = get_model("openai/gpt-oss-20b")
    for engine, expected in (("vllm", "bf16"), ("llama.cpp", "q8_0")):
        matrices = layer_matrices(model, "mxfp4", 1, engine)  # type: ignore[arg-type]
        assert {m.precision for m in matrices if m.module == "attention"} == {expected}
        assert head_precision("mxfp4", engine) == expected  # type: ignore[arg-type]
        assert {m.precision for m in matrices if m.module == "router"} == {"bf16"}
    assert head_precision("bf16", "llama.cpp") == "bf16"


def test_llama_cpp_computes_at_its_kernels_share_of_the_peak() -> None:
    kernels = gguf_kernels("llama.cpp")
    assert kernels is not None
    card = get_gpu("GB10-128GB")
    operators = Operators(card, "llama.cpp")
    for weights in ("q8_0", "q4_0", "q4_k_m", "mxfp4"):
        reached = 2 * MANY * 4096 * 4096 / operators.gemm_s(MANY, 4096, 4096, weights)
        assert reached[0] == pytest.approx(kernels.matrix_compute_frac * card.peak_flops_per_s["bf16"])
    assert operators.gemm_s(MANY, 4096, 4096, "bf16") < operators.gemm_s(MANY, 4096, 4096, "q8_0")
    one = operators.gemm_s(np.ones(1), 8192, 8192, "q8_0") / operators.gemm_s(np.ones(1), 8192, 8192, "bf16")
    assert 0.4 < one[0] < 0.65
    assert "llama.cpp's" in operators.provenance("gemm").note
    assert gguf_kernels("vllm") is None
