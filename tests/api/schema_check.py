"""The part of JSON Schema that the plan's schema uses, so that a plan is held against the published file."""

from __future__ import annotations

from typing import Any

TYPES = {
    "object": dict,
    "array": list,
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "null": type(None),
}
ANNOTATIONS = {"title", "description", "default", "$defs", "$schema"}
CHECKED = {
    "$ref", "anyOf", "const", "enum", "type", "properties", "required", "additionalProperties", "items",
    "prefixItems", "minItems", "maxItems",
}  # fmt: skip


def problems(value: Any, schema: Any, root: Any, where: str = "plan") -> list[str]:
    """What a value violates; a keyword that is not understood is a problem too."""
    if isinstance(schema, bool):
        return [] if schema else [f"{where}: not allowed"]
    found = [f"{where}: unknown keyword {k}" for k in schema if k not in ANNOTATIONS | CHECKED]
    if "$ref" in schema:
        found += problems(value, root["$defs"][schema["$ref"].removeprefix("#/$defs/")], root, where)
    if "anyOf" in schema and all(problems(value, option, root, where) for option in schema["anyOf"]):
        found.append(f"{where}: {value!r:.40} fits no alternative")
    if "const" in schema and value != schema["const"]:
        found.append(f"{where}: {value!r:.40} is not {schema['const']!r}")
    if "enum" in schema and value not in schema["enum"]:
        found.append(f"{where}: {value!r:.40} is not one of {schema['enum']}")
    names = schema.get("type", [])
    names = [names] if isinstance(names, str) else names
    if names and not any(_is(value, name) for name in names):
        return [*found, f"{where}: {value!r:.40} is not of type {names}"]
    if isinstance(value, dict):
        found += _object_problems(value, schema, root, where)
    if isinstance(value, list):
        found += _array_problems(value, schema, root, where)
    return found


def _is(value: Any, name: str) -> bool:
    return isinstance(value, TYPES[name]) and (name == "boolean" or not isinstance(value, bool))


def _object_problems(value: dict[str, Any], schema: Any, root: Any, where: str) -> list[str]:
    found = [f"{where}: {key} is missing" for key in schema.get("required", ()) if key not in value]
    known, others = schema.get("properties", {}), schema.get("additionalProperties", True)
    for key, inner in value.items():
        found += problems(inner, known.get(key, others), root, f"{where}.{key}")
    return found


def _array_problems(value: list[Any], schema: Any, root: Any, where: str) -> list[str]:
    found = []
    if not schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", len(value)):
        found.append(f"{where}: {len(value)} items")
    first = schema.get("prefixItems", [])
    for i, inner in enumerate(value):
        found += problems(inner, first[i] if i < len(first) else schema.get("items", True), root, f"{where}[{i}]")
    return found
