"""GPU names and figures."""

from __future__ import annotations

import pytest

from servewise.catalog import get_gpu, list_gpus
from servewise.errors import InputError, UnknownNameError
from servewise.units import GB, GIB


def test_at_least_eight_gpus_and_those_of_the_example() -> None:
    assert len(list_gpus()) >= 8
    assert {"H100-SXM-80GB", "H200-SXM-141GB", "A100-SXM-80GB", "L40S-48GB"} <= set(list_gpus())


@pytest.mark.parametrize(
    ("alias", "name"),
    [
        ("h200", "H200-SXM-141GB"),
        ("H100 SXM", "H100-SXM-80GB"),
        ("NVIDIA H100 80GB HBM3", "H100-SXM-80GB"),
        ("a100_pcie", "A100-PCIe-80GB"),
        ("A100-40GB", "A100-SXM-40GB"),
        ("  l40s ", "L40S-48GB"),
        ("4090", "RTX-4090-24GB"),
        ("mi300x-192gb", "MI300X-192GB"),
        ("DGX Spark", "GB10-128GB"),
        ("Arc B60", "ARC-PRO-B60-24GB"),
        ("gb300", "GB300-279GB"),
        ("Gaudi 3", "GAUDI3-128GB"),
    ],
)
def test_aliases(alias: str, name: str) -> None:
    assert get_gpu(alias).name == name


@pytest.mark.parametrize(
    ("alias", "candidates"),
    [
        ("H100", ["H100-SXM-80GB", "H100-PCIe-80GB"]),
        ("a100", ["A100-SXM-80GB", "A100-PCIe-80GB", "A100-SXM-40GB"]),
        ("A100-80GB", ["A100-SXM-80GB", "A100-PCIe-80GB"]),
        ("A100-SXM", ["A100-SXM-80GB", "A100-SXM-40GB"]),
        ("GH200", ["GH200-96GB", "GH200-144GB"]),
    ],
)
def test_ambiguous_names_ask_which(alias: str, candidates: list[str]) -> None:
    with pytest.raises(InputError, match="ambiguous") as caught:
        get_gpu(alias)
    assert all(name in str(caught.value) for name in candidates)
    assert not isinstance(caught.value, UnknownNameError)


def test_unknown_name_offers_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="H200-SXM-141GB"):
        get_gpu("H2000-SXM")


@pytest.mark.parametrize("name", list_gpus())
def test_figures_are_sane(name: str) -> None:
    gpu = get_gpu(name)
    assert gpu.name == name
    box_gb = float(name.rsplit("-", 1)[1].removesuffix("GB"))
    assert 0.88 * box_gb < gpu.mem_bytes / GIB <= box_gb
    assert 200 * GB < gpu.mem_bw_bytes_per_s < 10_000 * GB
    assert (50e12 if gpu.vendor != "apple" else 10e12) < gpu.peak_flops_per_s["bf16"] < 5e15
    assert set(gpu.peak_flops_per_s) <= {"bf16", "fp8", "int8", "fp4"}
    assert 1 * GB < gpu.link_bytes_per_s <= 900 * GB
    assert 1 * GB < gpu.nic_bytes_per_s <= 100 * GB
    assert gpu.nic_bytes_per_s <= gpu.link_bytes_per_s or gpu.link_kind == "pcie"
    assert 1e-6 <= gpu.nic_latency_s <= 100e-6
    assert gpu.link_gpus in {gpu.gpus_per_node, 72}
    assert gpu.link_kind in {"nvlink", "pcie", "xgmi", "roce", "thunderbolt"}
    assert gpu.gpus_per_node in {1, 4, 8}
    assert 50 < gpu.tdp_w < 2000
    assert (gpu.compute_capability > 0) == (gpu.vendor == "nvidia")


@pytest.mark.parametrize("name", list_gpus())
def test_compute_types_follow_the_architecture(name: str) -> None:
    gpu = get_gpu(name)
    peaks = gpu.peak_flops_per_s
    assert ("fp8" in peaks) == (gpu.architecture not in {"ampere", "apple"})
    assert ("fp4" in peaks) == gpu.architecture.startswith("blackwell")
    if "fp8" in peaks and name not in {"ARC-PRO-B60-24GB", "GAUDI3-128GB"}:  # no faster than bf16 on these
        assert peaks["fp8"] == pytest.approx(2 * peaks["bf16"], rel=0.02)


@pytest.mark.parametrize("name", list_gpus())
def test_every_figure_has_its_origin(name: str) -> None:
    gpu = get_gpu(name)
    figures = {
        "compute_capability",
        "mem_bytes",
        "mem_bw_bytes_per_s",
        "peak_flops_per_s",
        "link_bytes_per_s",
        "link_gpus",
        "nic_bytes_per_s",
        "nic_latency_s",
        "gpus_per_node",
        "tdp_w",
    }
    assert figures <= set(gpu.provenance)
    assert all(p.source and p.accessed for p in gpu.provenance.values())


def test_memory_is_what_the_engine_sees() -> None:
    assert get_gpu("H100-SXM-80GB").mem_bytes / GIB == pytest.approx(79.19)
    assert get_gpu("H200").mem_bytes / GIB == pytest.approx(139.8)


def test_specs_are_not_shared_mutable_state() -> None:
    with pytest.raises(TypeError):
        get_gpu("L4").peak_flops_per_s["fp4"] = 1.0  # type: ignore[index]
