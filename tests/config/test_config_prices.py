"""Price files."""

from __future__ import annotations

from pathlib import Path

import pytest

from servewise.config import read_prices
from servewise.errors import InputError

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "prices.yaml"


def write(folder: Path, text: str) -> Path:
    path = folder / "prices.yaml"
    path.write_text(text)
    return path


def test_rows_become_offers(tmp_path: Path) -> None:
    text = (
        "prices:\n"
        "  - {gpu: H100-SXM-80GB, num_gpus: 8, usd_per_gpu_h: 2, provider: ours,\n"
        "     date: 2026-11-29, source: contract}\n"
        "  - {gpu: H100-SXM-80GB, usd_per_gpu_h: 0.9, kind: spot}\n"
    )
    single, node = read_prices(write(tmp_path, text))
    assert (node.gpu, node.num_gpus, node.usd_per_gpu_h, node.kind) == ("H100-SXM-80GB", 8, 2.0, "on_demand")
    assert (node.provider, node.date, node.provenance.source) == ("ours", "2026-11-29", "contract")
    assert (single.num_gpus, single.usd_per_gpu_h, single.kind) == (1, 0.9, "spot")


def test_the_example_prices_the_chatbots_gpus() -> None:
    offers = read_prices(EXAMPLE)
    assert {o.gpu for o in offers} == {"H100-SXM-80GB", "H200-SXM-141GB", "A100-SXM-80GB", "L40S-48GB"}
    assert all(o.provenance.source and o.date for o in offers)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("price:\n  - {gpu: a}\n", ", line 1: price: unknown key"),
        ("prices: {}\n", ", line 1: prices: must be a list of prices"),
        ("prices: []\n", ": prices: the list is empty"),
        ("prices:\n  - {gpu: H100-SXM-80GB, usd_per_gpu_h: 0}\n", ": prices, row 1: usd_per_gpu_h is 0"),
        ("prices:\n  - {gpu: H100-SXM-80GB, usd_per_gpu_h: -1}\n", ": prices, row 1: usd_per_gpu_h is -1"),
        ("prices:\n  - {gpu: H100-SXM-80GB, usd_per_gpu_h: .nan}\n", ": prices, row 1: usd_per_gpu_h is nan"),
        ("prices:\n  - {gpu: H100-SXM-80GB}\n", ": prices, row 1: usd_per_gpu_h is missing"),
        (
            "prices:\n  - {gpu: H100-SXM-80GB, usd_per_gpu_h: 2, colour: red}\n",
            ": prices, row 1: unknown field 'colour'",
        ),
        ("prices:\n  - cheap\n", ": prices, row 1: got 'cheap'"),
    ],
)
def test_mistakes_name_file_and_row(tmp_path: Path, text: str, expected: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(InputError) as caught:
        read_prices(path)
    assert str(caught.value).startswith(f"{path}{expected}")
