"""Prices: the built-in table and rows a user gives."""

from __future__ import annotations

import csv
import re
from typing import Any

import pytest

from servewise.catalog import all_offers, get_gpu, list_gpus, offers, offers_from_rows
from servewise.errors import InputError, UnknownNameError

UNPRICED = {
    "GB200-186GB",
    "GB300-279GB",
    "H100-NVL-94GB",
    "GH200-96GB",
    "GH200-144GB",
    "RTX-3090-24GB",
    "GB10-128GB",
    "MI325X-256GB",
    "ARC-PRO-B60-24GB",
    "GAUDI2-96GB",
    "GAUDI3-128GB",
    "M2-ULTRA-192GB",
    "M3-MAX-128GB",
    "M4-MAX-128GB",
}
"""No public price was found, or none was looked for."""


@pytest.mark.parametrize("name", [n for n in list_gpus() if n not in UNPRICED])
def test_every_gpu_has_one_consistent_set_of_prices(name: str) -> None:
    found = offers(name)
    assert len({o.provider for o in found}) == 1
    assert len({o.num_gpus for o in found}) == len(found)
    assert [o.num_gpus for o in found] == sorted(o.num_gpus for o in found)
    assert all(o.gpu == name and o.kind == "on_demand" for o in found)
    assert offers(get_gpu(name)) == found


@pytest.mark.parametrize("name", sorted(UNPRICED))
def test_a_gpu_without_a_price_asks_for_one(name: str) -> None:
    with pytest.raises(InputError, match="give one in prices"):
        offers(name)


def test_gpus_of_the_example_come_in_all_node_sizes_from_one_snapshot() -> None:
    sets = [offers(n) for n in ("H100-SXM-80GB", "H200-SXM-141GB", "A100-SXM-80GB", "L40S-48GB")]
    assert {o.provenance.source for found in sets for o in found} == {sets[0][0].provenance.source}
    assert all([o.num_gpus for o in found] == [1, 2, 4, 8] for found in sets)


def test_table_is_sane() -> None:
    for offer in all_offers():
        gpu = get_gpu(offer.gpu)
        assert gpu.name == offer.gpu
        assert 0.1 < offer.usd_per_gpu_h < 15
        assert 1 <= offer.num_gpus <= gpu.gpus_per_node
        assert re.fullmatch(r"20\d\d-\d\d-\d\d", offer.date)
        assert offer.provenance.source
    keys = [(o.gpu, o.num_gpus, o.kind, o.provider) for o in all_offers()]
    assert len(keys) == len(set(keys))


def test_spot_is_another_kind_and_cheaper() -> None:
    spot, on_demand = offers("H100-SXM-80GB", "spot"), all_offers()
    assert all(o.kind == "spot" for o in spot)
    same = [o for o in on_demand if o.gpu == "H100-SXM-80GB" and o.provider == spot[0].provider]
    assert spot[0].usd_per_gpu_h < min(o.usd_per_gpu_h for o in same if o.kind == "on_demand")


def test_median_provider_among_equals() -> None:
    """Of those who sell H200 only runpod has all node sizes; of two equals the cheaper counts."""
    assert offers("H200")[0].provider == "runpod"
    assert offers("RTX-5090")[0].usd_per_gpu_h == min(o.usd_per_gpu_h for o in all_offers() if o.gpu == "RTX-5090-32GB")


@pytest.mark.parametrize(("gpu", "kind"), [("GB200", "on_demand"), ("L4", "reserved"), ("L4", "spot")])
def test_a_missing_price_is_never_assumed(gpu: str, kind: Any) -> None:
    with pytest.raises(InputError, match=f"no built-in {kind} price.*give one"):
        offers(gpu, kind)


def test_unknown_kind() -> None:
    with pytest.raises(InputError, match=r"on_demand, spot, reserved"):
        offers("L4", "cheap")  # type: ignore[arg-type]


def test_rows() -> None:
    rows = [
        {"gpu": "h200", "num_gpus": 8, "usd_per_gpu_h": 3, "provider": "own", "date": "2026-11-01"},
        {"gpu": "H100-SXM", "usd_per_gpu_h": 2.5, "kind": "reserved", "source": "contract", "note": "1 year"},
    ]
    first, second = offers_from_rows(rows)
    assert (first.gpu, first.num_gpus, first.usd_per_gpu_h, first.kind) == (
        "H100-SXM-80GB",
        1,
        2.5,
        "reserved",
    )
    assert (first.provider, first.date, first.provenance.source) == ("user", "", "contract")
    assert (second.gpu, second.num_gpus, second.date) == ("H200-SXM-141GB", 8, "2026-11-01")


GOOD: dict[str, Any] = {"gpu": "L4", "num_gpus": 1, "usd_per_gpu_h": 0.5}


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"usd_per_gpu_h": 0}, r"row 1: usd_per_gpu_h is 0, must be above 0"),
        ({"usd_per_gpu_h": -1.0}, "must be above 0"),
        ({"usd_per_gpu_h": float("nan")}, "usd_per_gpu_h is nan"),
        ({"usd_per_gpu_h": float("inf")}, "usd_per_gpu_h is inf"),
        ({"usd_per_gpu_h": 5000}, "at most 1000"),
        ({"usd_per_gpu_h": "$1"}, "must be a number"),
        ({"usd_per_gpu_h": True}, "must be a number"),
        ({"usd_per_gpu_h": None}, "usd_per_gpu_h is missing"),
        ({"num_gpus": 0}, "num_gpus is 0"),
        ({"num_gpus": 16}, "from 1 to 8"),
        ({"num_gpus": 1.0}, "must be an integer"),
        ({"gpu": None}, "gpu is missing"),
        ({"gpu": 4090}, "gpu is 4090, must be text"),
        ({"gpu": "H100"}, "ambiguous"),
        ({"kind": "cheap"}, "kind 'cheap' is unknown"),
        ({"date": "yesterday"}, "date 'yesterday' must be written like"),
        ({"usd": 1}, "unknown field 'usd'"),
    ],
)
def test_bad_rows(change: dict[str, Any], match: str) -> None:
    with pytest.raises(InputError, match=match):
        offers_from_rows([GOOD | change])


def test_unknown_gpu_in_a_row() -> None:
    with pytest.raises(UnknownNameError, match="GTX"):
        offers_from_rows([GOOD | {"gpu": "GTX-480"}])


def test_no_rows_repeated_rows_and_no_mapping() -> None:
    with pytest.raises(InputError, match="empty"):
        offers_from_rows([])
    with pytest.raises(InputError, match="row 2: L4-24GB x1 on_demand is priced twice"):
        offers_from_rows([GOOD, GOOD | {"usd_per_gpu_h": 0.6}])
    with pytest.raises(InputError, match=r"row 1.*must be a mapping"):
        offers_from_rows(["L4"])  # type: ignore[list-item]


@pytest.mark.shared
def test_collected_prices_are_transcribed_right(shared_dir: Any) -> None:
    gpus = {"H100-SXM": "H100-SXM-80GB", "H200-SXM": "H200-SXM-141GB", "B200-SXM": "B200-SXM-180GB"}
    gpus["L40S"] = "L40S-48GB"
    built_in = {(o.provider, o.gpu, o.num_gpus, o.kind): o.usd_per_gpu_h for o in all_offers()}
    checked = 0
    with (shared_dir / "data" / "prices.csv").open(newline="") as stream:
        for row in csv.DictReader(stream):
            key = (row["provider"], gpus.get(row["gpu"], ""), int(row["gpu_count"]))
            if (*key, "on_demand") not in built_in:
                continue
            assert built_in[*key, "on_demand"] == pytest.approx(float(row["usd_per_gpu_hour"]), rel=1e-3)
            if row["spot_usd_per_hour"]:
                spot = float(row["spot_usd_per_hour"]) / key[2]
                assert built_in[*key, "spot"] == pytest.approx(spot, rel=1e-3)
            checked += 1
    assert checked >= 10
