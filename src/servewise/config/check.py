"""Hold a document against a pydantic model and explain the first thing that is wrong in one sentence."""

from __future__ import annotations

import difflib
import re
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from servewise.config.document import Document, Location

__all__ = ["Section", "validate"]

_UNITS = {"s": "seconds", "rps": "requests per second", "h": "US dollars per hour", "pct": "percent"}
_QUANTITY = re.compile(r"\s*[-+]?[0-9.]+\s*(ms|us|s|sec|secs|seconds|min|m|h|hours?|%|rps|\$)\s*", re.IGNORECASE)
_WORD_BOOLEANS = frozenset({"yes", "no", "on", "off", "y", "n"})


class Section(BaseModel):
    """A mapping of a user file: strict types, finite numbers, no unknown keys."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)

    key_pattern: ClassVar[re.Pattern[str] | None] = None
    """Keys beyond the fields that the section takes as well."""
    pattern_examples: ClassVar[tuple[str, ...]] = ()
    """A few of them, offered when a key is misspelt."""


SectionT = TypeVar("SectionT", bound=Section)


def validate(document: Document, model: type[SectionT], location: Location = ()) -> SectionT:
    """Turn a document, or the part of it at ``location``, into a section.

    Raises
    ------
    InputError
        With file, line, key, value, what is allowed and the nearest known name of a misspelt key.
    """
    values: Any = document.values
    for part in location:
        values = values[part]
    _check_keys(document, model, values, location)
    try:
        return model.model_validate(values)
    except ValidationError as error:
        first = min(error.errors(), key=lambda e: document.line_of((*location, *e["loc"])))
        raise document.error((*location, *_named(first["loc"])), _sentence(dict(first))) from error


def _named(loc: tuple[int | str, ...]) -> tuple[int | str, ...]:
    """Drop the names of union branches, which pydantic appends and the file does not have."""
    return tuple(part for part in loc if isinstance(part, int) or re.fullmatch(r"\w+", part))


def _check_keys(document: Document, model: type[Section], values: Any, location: Location) -> None:
    if not isinstance(values, Mapping):
        return
    for key, value in values.items():
        if key in model.model_fields:
            for inner in _sections(model.model_fields[key].annotation):
                _check_keys(document, inner, value, (*location, key))
        elif model.key_pattern is None or not model.key_pattern.fullmatch(key):
            raise document.error((*location, key), _unknown_key(key, model))


def _sections(annotation: Any) -> Iterator[type[Section]]:
    """The section a field holds, looking through ``X | None``; a union of sections is left to pydantic."""
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        inner = [a for a in typing.get_args(annotation) if a is not type(None)]
        if len(inner) == 1:
            yield from _sections(inner[0])
    elif isinstance(annotation, type) and issubclass(annotation, Section):
        yield annotation


def _unknown_key(key: str, model: type[Section]) -> str:
    known = sorted(model.model_fields)
    near = difflib.get_close_matches(key, [*known, *model.pattern_examples], n=1, cutoff=0.6)
    return f"unknown key; did you mean {near[0]}?" if near else f"unknown key; known here: {', '.join(known)}"


def _sentence(error: dict[str, Any]) -> str:
    kind, value, context = error["type"], error["input"], error.get("ctx", {})
    key = next((part for part in reversed(error["loc"]) if isinstance(part, str)), "")
    match kind:
        case "missing":
            return "this key is required and missing"
        case "value_error":
            return str(context["error"])
        case "greater_than" | "greater_than_equal" | "less_than" | "less_than_equal":
            sign = {
                "greater_than": ">",
                "greater_than_equal": ">=",
                "less_than": "<",
                "less_than_equal": "<=",
            }[kind]
            return f"{value!r} is out of range; it must be {sign} {next(iter(context.values()))}"
        case "finite_number":
            return f"{value} is not a finite number"
        case "literal_error":
            return _one_of(value, str(context["expected"]))
        case "float_type" | "int_type":
            return _number_wanted(key, value, "whole number" if kind == "int_type" else "number")
        case "bool_type":
            hint = " (yes and no are words in YAML 1.2)" if str(value).lower() in _WORD_BOOLEANS else ""
            return f"{_show(value)} is not a boolean; write true or false{hint}"
        case "string_type":
            return f"{_show(value)} is not text; put it in quotes if it is a name"
        case "model_type" | "dict_type" | "model_attributes_type":
            return f"{_show(value)} is not a mapping; write 'key: value' lines under it"
        case "list_type" | "tuple_type":
            return f"{_show(value)} is not a list; write [a, b] or '- a' lines"
        case "too_short":
            return "the list is empty; name at least one"
        case "string_too_short":
            return "the text is empty"
    return f"{_show(value)}: {error['msg'][0].lower()}{error['msg'][1:]}"


def _show(value: object) -> str:
    """A value as the user wrote it, cut to a length that fits in a sentence."""
    if value is None:
        return "an empty value"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _one_of(value: object, expected: str) -> str:
    names = re.findall(r"'([^']*)'", expected)
    near = difflib.get_close_matches(str(value), names, n=1, cutoff=0.6)
    hint = f"; did you mean {near[0]}?" if near else ""
    return f"{_show(value)} is not one of {', '.join(names)}{hint}"


def _number_wanted(key: str, value: object, what: str) -> str:
    unit = _UNITS.get(key.rsplit("_", 1)[-1], "")
    wanted = f"a {what}{' of ' + unit if unit else ''}"
    if isinstance(value, str) and _QUANTITY.fullmatch(value):
        return f"{value!r} carries a unit; write {wanted} without it (e.g. {_bare(key, value)})"
    if isinstance(value, bool):
        return f"{_show(value)} is a boolean; it must be {wanted}"
    return f"{_show(value)} is not {wanted}"


def _bare(key: str, quantity: str) -> str:
    """The quantity as the number that was meant, in the key's unit where that is seconds."""
    number = re.sub(r"[^-+0-9.]", "", quantity)
    unit = quantity.strip().lower().lstrip("-+.0123456789").strip()
    factor = {"ms": 1e-3, "us": 1e-6, "min": 60.0, "m": 60.0, "h": 3600.0, "hour": 3600.0, "hours": 3600.0}
    try:
        value = float(number)
    except ValueError:
        return "1.0"
    return f"{value * factor.get(unit, 1.0):g}" if key.endswith("_s") else f"{value:g}"
