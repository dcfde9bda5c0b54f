"""Devices that the user describes."""

from __future__ import annotations

from pathlib import Path

import pytest

from servewise.catalog import device_offer, get_gpu, supported_precisions
from servewise.errors import InputError
from servewise.types import DESCRIBED, Precision

FIELDS = {"name": '"my card"', "memory_gib": "64", "bandwidth_gb_per_s": "900.5", "bf16_tflops": "20"}


def written(tmp_path: Path, **changes: str | None) -> str:
    fields = {name: value for name, value in (FIELDS | changes).items() if value is not None}
    path = tmp_path / "card.toml"
    path.write_text("\n".join(f"{name} = {value}" for name, value in fields.items()))
    return str(path)


def test_a_device_is_read_in_si_units(tmp_path: Path) -> None:
    gpu = get_gpu(written(tmp_path))
    assert (gpu.name, gpu.vendor, gpu.architecture) == ("my card", DESCRIBED, DESCRIBED)
    assert gpu.mem_bytes == 64 << 30
    assert gpu.mem_bw_bytes_per_s == pytest.approx(900.5e9)
    assert gpu.peak_flops_per_s["bf16"] == pytest.approx(20e12)
    assert gpu.provenance["mem_bytes"].kind == "assumed"
    assert supported_precisions(gpu, "vllm") == (Precision(),)


def test_its_price_is_the_users(tmp_path: Path) -> None:
    assert device_offer(written(tmp_path), "on_demand") is None
    offer = device_offer(written(tmp_path, usd_per_h="2.5"), "spot")
    assert offer is not None
    assert (offer.gpu, offer.num_gpus, offer.usd_per_gpu_h, offer.kind) == ("my card", 1, 2.5, "spot")


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"memory_gib": None}, "memory_gib is None, must be a number above 0"),
        ({"memory_gib": "-1"}, "memory_gib is -1"),
        ({"memory_gib": "true"}, "memory_gib is True"),
        ({"bf16_tflops": "nan"}, "bf16_tflops is nan"),
        ({"bf16_tflops": "inf"}, "bf16_tflops is inf"),
        ({"name": '""'}, "name is ''"),
        ({"color": '"red"'}, "unknown field 'color'"),
        ({"name": "no text"}, "not TOML"),
    ],
)
def test_a_wrong_file_is_refused_in_words(tmp_path: Path, changes: dict[str, str | None], match: str) -> None:
    with pytest.raises(InputError, match=match):
        get_gpu(written(tmp_path, **changes))


def test_a_missing_or_huge_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        get_gpu(str(tmp_path / "none.toml"))
    (tmp_path / "huge.toml").write_text("#" * 100_000)
    with pytest.raises(InputError, match="larger than"):
        get_gpu(str(tmp_path / "huge.toml"))
