"""What providers charge for a model by the token: a dated table."""

from __future__ import annotations

from functools import cache

from servewise.catalog.facts import provenance_of, read_table
from servewise.types import HostedPrice

__all__ = ["all_hosted_prices", "hosted_prices"]

HOSTED = "catalog/hosted_prices.csv"
COLUMNS = ("model", "provider", "usd_per_mtok_input", "usd_per_mtok_output", "kind", "source", "accessed", "note")


@cache
def all_hosted_prices() -> tuple[HostedPrice, ...]:
    """Every built-in price [$ per million tokens]."""
    return tuple(
        HostedPrice(
            provider=row["provider"],
            model=row["model"],
            usd_per_mtok_input=float(row["usd_per_mtok_input"]),
            usd_per_mtok_output=float(row["usd_per_mtok_output"]),
            provenance=provenance_of(row),
        )
        for row in read_table(HOSTED, COLUMNS)
    )


def hosted_prices(model: str) -> tuple[HostedPrice, ...]:
    """Built-in prices of a catalog model; none where none is known."""
    return tuple(price for price in all_hosted_prices() if price.model == model)
