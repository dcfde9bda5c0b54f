"""Checked access to an untrusted config: a field has its type and range, or an error names it."""

from __future__ import annotations

from collections.abc import Mapping

from servewise.errors import InputError

__all__ = ["MISSING", "ConfigFields"]

MISSING = object()
"""Default of a field that must be there."""

LARGEST_INT = 10**8
"""No width, count or vocabulary of a real model comes near it."""


class ConfigFields:
    """One JSON object of a config.

    Parameters
    ----------
    data : mapping of str to object
    label : str
        The model or file, for messages.
    prefix : str
        Path of this object inside the file, e.g. ``text_config.``.
    """

    def __init__(self, data: Mapping[str, object], label: str, prefix: str = "") -> None:
        self._data = data
        self.label = label
        self._prefix = prefix

    def __contains__(self, name: str) -> bool:
        return self._data.get(name) is not None

    def named(self, fields: Mapping[str, object]) -> ConfigFields:
        """The same object with fields added under the names that other architectures use."""
        return ConfigFields({**self._data, **fields}, self.label, self._prefix)

    def error(self, name: str, problem: str) -> InputError:
        """Build the error that names a field."""
        return InputError(f"{self.label}: {self._prefix}{name}: {problem}")

    def _get(self, name: str, default: object) -> object:
        value = self._data.get(name)
        if value is not None:
            return value
        if default is MISSING:
            raise self.error(name, "the field is missing and is never guessed; use the model's own config.json")
        return default

    def integer(self, name: str, default: int | object = MISSING, *, low: int = 1, high: int = LARGEST_INT) -> int:
        """Integer in [low, high]; ``null`` counts as missing."""
        value = self._get(name, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.error(name, f"got {shorten(value)}, must be an integer from {low} to {high}")
        if not low <= value <= high:
            raise self.error(name, f"got {value}, must be from {low} to {high}")
        return value

    def boolean(self, name: str, default: bool | object = MISSING) -> bool:
        """True or false; ``null`` counts as missing."""
        value = self._get(name, default)
        if not isinstance(value, bool):
            raise self.error(name, f"got {shorten(value)}, must be true or false")
        return value

    def text(self, name: str, default: str | object = MISSING) -> str:
        """String; ``null`` counts as missing."""
        value = self._get(name, default)
        if not isinstance(value, str):
            raise self.error(name, f"got {shorten(value)}, must be a string")
        return value

    def texts(self, name: str, default: tuple[str, ...] | object = MISSING) -> tuple[str, ...]:
        """List of strings; ``null`` counts as missing."""
        value = self._get(name, default)
        if not isinstance(value, (list, tuple)):
            raise self.error(name, f"got {shorten(value)}, must be a list of strings")
        texts = tuple(item for item in value if isinstance(item, str))
        if len(texts) != len(value):
            raise self.error(name, f"got {shorten(value)}, must be a list of strings")
        return texts

    def integers(self, name: str, default: tuple[int, ...] | object = MISSING) -> tuple[int, ...]:
        """List of integers that are not negative; ``null`` counts as missing."""
        value = self._get(name, default)
        if not isinstance(value, (list, tuple)):
            raise self.error(name, f"got {shorten(value)}, must be a list of integers")
        integers = tuple(i for i in value if isinstance(i, int) and not isinstance(i, bool) and i >= 0)
        if len(integers) != len(value):
            raise self.error(name, f"got {shorten(value)}, must be a list of integers that are not negative")
        return integers

    def lists(self, name: str) -> tuple[object, ...]:
        """List whose items nobody looks into."""
        value = self._get(name, MISSING)
        if not isinstance(value, (list, tuple)):
            raise self.error(name, f"got {shorten(value)}, must be a list")
        return tuple(value)

    def section(self, name: str) -> ConfigFields:
        """Nested object that must be there."""
        value = self._get(name, MISSING)
        if not isinstance(value, dict):
            raise self.error(name, f"got {shorten(value)}, must be an object")
        return ConfigFields(value, self.label, f"{self._prefix}{name}.")


def shorten(value: object) -> str:
    """Value as text that fits into a message."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
