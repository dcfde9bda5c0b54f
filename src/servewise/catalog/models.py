"""The built-in models."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from functools import cache

from servewise.catalog.config_json import read_config_json, spec_from_config
from servewise.catalog.facts import Fact, read_facts
from servewise.catalog.names import AliasTable
from servewise.errors import CatalogError
from servewise.types import ModelSpec

__all__ = ["get_model", "list_models"]

MODELS = "catalog/models.csv"


def list_models() -> tuple[str, ...]:
    """Names of the built-in models, in the order of the catalog."""
    return tuple(read_facts(MODELS))


def get_model(name_or_path: str) -> ModelSpec:
    """Find a model in the catalog, or read it from its ``config.json``.

    Parameters
    ----------
    name_or_path : str
        A catalog name or alias (case does not matter), the path of a ``config.json``, or a folder with one.

    Returns
    -------
    ModelSpec

    Raises
    ------
    InputError
        When an alias is ambiguous or the file is wrong.
    UnknownNameError
        When no model has that name; nothing is downloaded.
    """
    if looks_like_path(name_or_path):
        return read_config_json(name_or_path)
    hint = "(for any other model, pass the path of its config.json; nothing is downloaded)"
    return built_in(alias_table().resolve(name_or_path, hint))


def looks_like_path(name: str) -> bool:
    """A hub id may hold a slash; a file that is there, a ``.json`` or an explicit path is a path."""
    if name.endswith(".json") or name.startswith((".", "~", os.sep)):
        return True
    return os.path.isfile(os.path.join(name, "config.json"))


@cache
def alias_table() -> AliasTable:
    """Names and aliases of the built-in models."""
    return AliasTable(
        "model", {name: json.loads(fields["aliases"].value) for name, fields in read_facts(MODELS).items()}
    )


@cache
def built_in(name: str) -> ModelSpec:
    """Build the spec of a catalog model through the same reader as any config.json."""
    fields = read_facts(MODELS)[name]
    origin = fields["architectures"].provenance
    return spec_from_config(nest(name, fields), name, origin)


def nest(name: str, fields: Mapping[str, Fact]) -> Mapping[str, object]:
    """Rebuild the nested config from dotted field names."""
    config: dict[str, object] = {}
    for path, fact in fields.items():
        if path == "aliases":
            continue
        *parents, leaf = path.split(".")
        target = config
        for parent in parents:
            child = target.setdefault(parent, {})
            if not isinstance(child, dict):
                raise CatalogError(f"{MODELS}: {name} {path}: {parent} is both a value and an object")
            target = child
        target[leaf] = json.loads(fact.value)
    return config
