"""Facts with sources: the one reader of the long tables in ``servewise/data``."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from types import MappingProxyType
from typing import get_args

from servewise.errors import CatalogError
from servewise.types import Kind, Provenance

__all__ = ["Fact", "read_facts", "read_table"]

COLUMNS = ("entity", "field", "value", "unit", "kind", "source", "accessed", "note")
KINDS: tuple[str, ...] = get_args(Kind)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """One value of one entity.

    Parameters
    ----------
    value : str
        As written in the table.
    unit : str
        ``-`` for a value that has none.
    provenance : Provenance
    """

    value: str
    unit: str
    provenance: Provenance

    def number(self, units: Mapping[str, float], where: str) -> float:
        """Value in the unit whose factor is 1 in ``units``.

        Raises
        ------
        CatalogError
            When the unit is not one of ``units`` or the value is not a number.
        """
        if self.unit not in units:
            raise CatalogError(f"{where}: unit {self.unit!r} is none of {', '.join(units)}")
        try:
            return float(self.value) * units[self.unit]
        except ValueError:
            raise CatalogError(f"{where}: {self.value!r} is not a number") from None


def read_table(name: str, columns: tuple[str, ...]) -> tuple[Mapping[str, str], ...]:
    """Read a CSV table that ships with the project.

    Parameters
    ----------
    name : str
        Path below ``servewise/data``, e.g. ``catalog/prices.csv``.
    columns : tuple of str
        The header it must have.

    Raises
    ------
    CatalogError
        On another header, a row of another length, or an empty source.
    """
    text = resources.files("servewise.data").joinpath(name).read_text(encoding="utf-8")
    reader = csv.reader(text.splitlines(), strict=True)
    header = tuple(next(reader, ()))
    if header != columns:
        raise CatalogError(f"{name}: columns are {header}, expected {columns}")
    rows = []
    for cells in reader:
        if len(cells) != len(columns):
            raise CatalogError(f"{name}, line {reader.line_num}: {len(cells)} cells, expected {len(columns)}")
        row = dict(zip(columns, cells, strict=True))
        if not row["source"] or not row["accessed"] or row["kind"] not in KINDS:
            raise CatalogError(f"{name}, line {reader.line_num}: needs a source, a date and a kind of {KINDS}")
        rows.append(MappingProxyType(row))
    return tuple(rows)


def provenance_of(row: Mapping[str, str]) -> Provenance:
    """Origin of a table row."""
    kind: Kind = next(k for k in get_args(Kind) if k == row["kind"])
    return Provenance(kind=kind, source=row["source"], accessed=row["accessed"], note=row["note"])


@cache
def read_facts(name: str) -> Mapping[str, Mapping[str, Fact]]:
    """Read a long table of facts, in the order it is written.

    Parameters
    ----------
    name : str
        Path below ``servewise/data``, e.g. ``catalog/gpus.csv``.

    Returns
    -------
    mapping of entity to mapping of field to Fact

    Raises
    ------
    CatalogError
        On a malformed table, an empty unit, or a field given twice.
    """
    entities: dict[str, dict[str, Fact]] = {}
    for row in read_table(name, COLUMNS):
        fields = entities.setdefault(row["entity"], {})
        if row["field"] in fields:
            raise CatalogError(f"{name}: {row['entity']} has {row['field']} twice")
        if not row["unit"] or not row["value"]:
            raise CatalogError(f"{name}: {row['entity']} {row['field']} needs a value and a unit ('-' for none)")
        fields[row["field"]] = Fact(value=row["value"], unit=row["unit"], provenance=provenance_of(row))
    return MappingProxyType({entity: MappingProxyType(fields) for entity, fields in entities.items()})
