"""Every value that ships has a unit, a source, a date and a kind."""

from __future__ import annotations

import re
from importlib import resources

import pytest

from servewise.catalog import facts, read_facts
from servewise.errors import CatalogError

TABLES = [
    "catalog/models.csv",
    "catalog/model_totals.csv",
    "catalog/gpus.csv",
    "catalog/precisions.csv",
    "quality/recovery.csv",
    "quality/scores.csv",
]


@pytest.mark.parametrize("table", TABLES)
def test_facts_are_complete(table: str) -> None:
    entities = read_facts(table)
    assert entities
    for fields in entities.values():
        for fact in fields.values():
            assert fact.value
            assert fact.unit
            assert re.fullmatch(r"20\d\d-\d\d-\d\d", fact.provenance.accessed)
            if fact.provenance.kind == "assumed":
                assert fact.provenance.source.startswith("assumed: ")


@pytest.mark.parametrize("table", [*TABLES, "catalog/prices.csv"])
def test_no_path_of_a_machine_and_no_formula(table: str) -> None:
    text = resources.files("servewise.data").joinpath(table).read_text(encoding="utf-8")
    assert not re.search(r"/(work|tmp|root|home)/", text)
    assert not re.search(r"(^|,)[=+@]", text, re.MULTILINE)


HEADER = ",".join(facts.COLUMNS)


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("", "columns are"),
        ("entity,value\n", "columns are"),
        (f"{HEADER}\na,b,1\n", "line 2: 3 cells"),
        (f"{HEADER}\na,b,1,W,spec,,2026-01-01,\n", "line 2: needs a source"),
        (f"{HEADER}\na,b,1,W,guess,x,2026-01-01,\n", "a kind"),
        (f"{HEADER}\na,b,1,,spec,x,2026-01-01,\n", "a value and a unit"),
        (f"{HEADER}\na,b,1,W,spec,x,2026-01-01,\na,b,2,W,spec,x,2026-01-01,\n", "b twice"),
    ],
)
def test_malformed_tables_are_refused(text: str, match: str, tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "table.csv"  # type: ignore[operator]
    file.write_text(text)
    monkeypatch.setattr(facts.resources, "files", lambda _: tmp_path)
    with pytest.raises(CatalogError, match=match):
        read_facts.__wrapped__("table.csv")


def test_numbers_and_units() -> None:
    fact = read_facts("catalog/gpus.csv")["L4-24GB"]["mem_bw"]
    assert fact.number({"GB/s": 1e9}, "here") == 300e9
    with pytest.raises(CatalogError, match="unit 'GB/s' is none of W"):
        fact.number({"W": 1.0}, "here")
    with pytest.raises(CatalogError, match="not a number"):
        read_facts("catalog/gpus.csv")["L4-24GB"]["vendor"].number({"-": 1.0}, "here")
