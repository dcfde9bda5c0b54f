"""The built-in models and GPUs as rows of figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from servewise.catalog.gpus import get_gpu, list_gpus
from servewise.catalog.models import get_model, list_models
from servewise.catalog.params import param_counts
from servewise.catalog.prices import all_offers, offers
from servewise.types import GpuOffer

__all__ = ["gpu_rows", "model_rows"]


def model_rows() -> Sequence[Mapping[str, str | int | float | None]]:
    """The built-in models, a row each."""
    rows: list[Mapping[str, str | int | float | None]] = []
    for name in list_models():
        model = get_model(name)
        counts = param_counts(model)
        rows.append(
            {
                "model": name,
                "params [1e9]": counts.total / 1e9,
                "active [1e9]": counts.active / 1e9,
                "layers": model.num_layers,
                "attention": model.attention,
                "native precision": model.native_precision,
                "longest context [tokens]": model.max_context_tokens,
            }
        )
    return rows


def gpu_rows() -> Sequence[Mapping[str, str | int | float | None]]:
    """The built-in GPUs, a row each; the price is that of the smallest node offered on demand."""
    priced: dict[str, GpuOffer] = {}
    for offer in all_offers():
        if offer.kind == "on_demand":
            priced.setdefault(offer.gpu, offers(offer.gpu)[0])
    rows: list[Mapping[str, str | int | float | None]] = []
    for name in list_gpus():
        gpu = get_gpu(name)
        best = priced.get(name)
        rows.append(
            {
                "GPU": name,
                "memory [GiB]": gpu.mem_bytes / 2**30,
                "bandwidth [GB/s]": gpu.mem_bw_bytes_per_s / 1e9,
                "bf16 [TFLOP/s]": gpu.peak_flops_per_s.get("bf16", 0.0) / 1e12,
                "fp8 [TFLOP/s]": gpu.peak_flops_per_s["fp8"] / 1e12 if "fp8" in gpu.peak_flops_per_s else None,
                "on demand [$/GPU h]": best.usd_per_gpu_h if best else None,
                "price of": best.date if best else None,
            }
        )
    return rows
