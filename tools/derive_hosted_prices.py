"""Write servewise/data/catalog/hosted_prices.csv from the price table in a wheel of litellm (MIT).

    pip download litellm==1.110.2 --no-deps -d DIR
    python -m tools.derive_hosted_prices DIR/litellm-*.whl 2026-11-30

A row is taken when its name ends in a catalog model's own, its price is above zero, and it names the page that the
price was read from. Other variants (``-Turbo``, ``-fp8``) are other products, and are left out.
"""

from __future__ import annotations

import csv
import json
import sys
import zipfile
from pathlib import Path

from servewise.catalog import list_models

TABLE = "litellm/model_prices_and_context_window_backup.json"
TARGET = Path(__file__).parents[1] / "src/servewise/data/catalog/hosted_prices.csv"
COLUMNS = ["model", "provider", "usd_per_mtok_input", "usd_per_mtok_output", "kind", "source", "accessed", "note"]
MTOK = 1e6


def plain(name: str) -> str:
    """A model's own name as providers write it: without its publisher, Meta's prefix and case."""
    return name.rsplit("/", 1)[-1].lower().removeprefix("meta-")


def main(wheel: str, accessed: str) -> None:
    """Write the table."""
    version = Path(wheel).name.split("-")[1]
    with zipfile.ZipFile(wheel) as archive:
        prices = json.loads(archive.read(TABLE))
    models = {plain(name): name for name in list_models()}
    rows = {}
    for key, entry in prices.items():
        model = models.get(plain(key))
        per_input, per_output = entry.get("input_cost_per_token"), entry.get("output_cost_per_token")
        page, provider = entry.get("source"), entry.get("litellm_provider")
        if model is None or not per_input or not per_output or not page or not provider:
            continue
        source = f"{page}, as BerriAI/litellm {version} (PyPI) has it in {TABLE}: {key}"
        figures = [f"{price * MTOK:.6g}" for price in (per_input, per_output)]
        rows.setdefault((model, provider), [model, provider, *figures, "spec", source, accessed, ""])
    with TARGET.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows(rows[key] for key in sorted(rows))


if __name__ == "__main__":
    main(*sys.argv[1:])
