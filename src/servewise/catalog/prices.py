"""What renting a GPU costs: the built-in dated table, and rows of the user's own."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from functools import cache
from typing import get_args

from servewise.catalog.facts import provenance_of, read_table
from servewise.catalog.gpus import get_gpu
from servewise.errors import CatalogError, InputError
from servewise.types import GpuOffer, GpuSpec, PriceKind, Provenance

__all__ = ["all_offers", "offers", "offers_from_rows"]

PRICES = "catalog/prices.csv"
COLUMNS = (
    "gpu",
    "num_gpus",
    "usd_per_h",
    "price_kind",
    "provider",
    "instance",
    "region",
    "date",
    "kind",
    "source",
    "accessed",
    "note",
)
KINDS: tuple[PriceKind, ...] = get_args(PriceKind)
NODE_SIZES = (1, 2, 4, 8)
MAX_USD_PER_GPU_H = 1000.0
"""A price above it is a price of something else."""

ROW_FIELDS = ("gpu", "num_gpus", "usd_per_gpu_h", "kind", "provider", "date", "source", "note")
ISO_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")


@cache
def all_offers() -> tuple[GpuOffer, ...]:
    """Every built-in price, of all providers and kinds.

    Returns
    -------
    tuple of GpuOffer
        In [$/h per GPU].
    """
    rows = []
    for row in read_table(PRICES, COLUMNS):
        num_gpus = int(row["num_gpus"])
        kind = next((k for k in KINDS if k == row["price_kind"]), None)
        if kind is None:
            raise CatalogError(f"{PRICES}: price_kind {row['price_kind']!r} is none of {', '.join(KINDS)}")
        rows.append(
            GpuOffer(
                gpu=row["gpu"],
                num_gpus=num_gpus,
                usd_per_gpu_h=float(row["usd_per_h"]) / num_gpus,
                kind=kind,
                provider=row["provider"],
                date=row["date"],
                provenance=provenance_of(row),
            )
        )
    return tuple(rows)


def offers(gpu: GpuSpec | str, kind: PriceKind = "on_demand") -> tuple[GpuOffer, ...]:
    """Nodes of a GPU that one provider rents, from the built-in table.

    Prices of several providers are not mixed into one fleet. The provider is the one with the most of the
    node sizes 1, 2, 4 and 8; among equals the one whose largest node has the lower-median price per GPU;
    among equals again the first by name.

    Parameters
    ----------
    gpu : GpuSpec or str
        Name or alias.
    kind : PriceKind

    Returns
    -------
    tuple of GpuOffer
        By number of GPUs, in [$/h per GPU].

    Raises
    ------
    InputError
        When the table has no such price: give one.
    """
    name = gpu.name if isinstance(gpu, GpuSpec) else get_gpu(gpu).name
    if kind not in KINDS:
        raise InputError(f"price kind {kind!r} is unknown; allowed: {', '.join(KINDS)}")
    by_provider: dict[str, list[GpuOffer]] = {}
    for offer in all_offers():
        if offer.gpu == name and offer.kind == kind:
            by_provider.setdefault(offer.provider, []).append(offer)
    if not by_provider:
        built_in = sorted({o.kind for o in all_offers() if o.gpu == name})
        raise InputError(
            f"no built-in {kind} price for {name} (built in: {', '.join(built_in) or 'none'}); give one in prices"
        )
    sizes = {p: len({o.num_gpus for o in found} & set(NODE_SIZES)) for p, found in by_provider.items()}
    widest = [p for p in sizes if sizes[p] == max(sizes.values())]
    largest = {p: max(by_provider[p], key=lambda o: o.num_gpus).usd_per_gpu_h for p in widest}
    ranked = sorted(widest, key=lambda p: (largest[p], p))
    return tuple(sorted(by_provider[ranked[(len(ranked) - 1) // 2]], key=lambda o: o.num_gpus))


def offers_from_rows(rows: Iterable[Mapping[str, object]]) -> tuple[GpuOffer, ...]:
    """Check prices that a user gives.

    Parameters
    ----------
    rows : iterable of mapping
        Each with ``gpu`` (name or alias), ``num_gpus`` (GPUs of the node, 1 when left out), ``usd_per_gpu_h``
        [$/h] and optionally ``kind``, ``provider``, ``date`` (ISO), ``source``, ``note``.

    Returns
    -------
    tuple of GpuOffer
        By GPU and number of GPUs.

    Raises
    ------
    InputError
        Naming the row: an unknown or missing field, a price that is zero, negative, NaN, not a number or
        absurd, an unknown or ambiguous GPU, the same node priced twice.
    """
    found: dict[tuple[str, int, str], GpuOffer] = {}
    for number, row in enumerate(rows, start=1):
        where = f"prices, row {number}"
        offer = offer_from_row(row, where)
        key = (offer.gpu, offer.num_gpus, offer.kind)
        if key in found:
            raise InputError(f"{where}: {offer.gpu} x{offer.num_gpus} {offer.kind} is priced twice; keep one")
        found[key] = offer
    if not found:
        raise InputError("prices: the list is empty; leave it out to use the built-in table")
    return tuple(found[key] for key in sorted(found))


def offer_from_row(row: Mapping[str, object], where: str) -> GpuOffer:
    """Check one row."""
    if not isinstance(row, Mapping):
        raise InputError(f"{where}: got {row!r:.60}, must be a mapping with {', '.join(ROW_FIELDS)}")
    unknown = [str(key) for key in row if key not in ROW_FIELDS]
    if unknown:
        raise InputError(f"{where}: unknown field {unknown[0]!r}; allowed: {', '.join(ROW_FIELDS)}")
    gpu = get_gpu(text_of(row, "gpu", None, where))
    kind_name = text_of(row, "kind", "on_demand", where)
    kind = next((k for k in KINDS if k == kind_name), None)
    if kind is None:
        raise InputError(f"{where}: kind {kind_name!r} is unknown; allowed: {', '.join(KINDS)}")
    date = text_of(row, "date", "", where)
    if date and not ISO_DATE.fullmatch(date):
        raise InputError(f"{where}: date {date!r} must be written like 2026-11-29")
    source = text_of(row, "source", "given by the user", where)
    return GpuOffer(
        gpu=gpu.name,
        num_gpus=num_gpus_of(row, gpu, where),
        usd_per_gpu_h=price_of(row, where),
        kind=kind,
        provider=text_of(row, "provider", "user", where),
        date=date,
        provenance=Provenance(kind="spec", source=source, note=text_of(row, "note", "", where)),
    )


def text_of(row: Mapping[str, object], name: str, default: str | None, where: str) -> str:
    """Text of a row's field; None as default makes it required."""
    value = row.get(name, default)
    if value is None:
        raise InputError(f"{where}: {name} is missing")
    if not isinstance(value, str):
        raise InputError(f"{where}: {name} is {value!r:.60}, must be text")
    return value


def num_gpus_of(row: Mapping[str, object], gpu: GpuSpec, where: str) -> int:
    """Number of GPUs of the node."""
    value = row.get("num_gpus", 1)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= gpu.gpus_per_node:
        raise InputError(
            f"{where}: num_gpus is {value!r:.60}, must be an integer from 1 to {gpu.gpus_per_node}, the GPUs "
            f"of a node of {gpu.name}"
        )
    return value


def price_of(row: Mapping[str, object], where: str) -> float:
    """Price [$/h per GPU]."""
    value = row.get("usd_per_gpu_h")
    if value is None:
        raise InputError(f"{where}: usd_per_gpu_h is missing; a price is never assumed")
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InputError(f"{where}: usd_per_gpu_h is {value!r:.60}, must be a number of dollars")
    if not math.isfinite(value) or not 0 < value <= MAX_USD_PER_GPU_H:
        raise InputError(f"{where}: usd_per_gpu_h is {value}, must be above 0 and at most {MAX_USD_PER_GPU_H:g} $/h")
    return float(value)
