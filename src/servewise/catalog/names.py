"""Names as people write them, resolved to the one canonical name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from servewise.errors import InputError, UnknownNameError

__all__ = ["AliasTable"]


def fold(name: str) -> str:
    """Fold case and the separators people mix up."""
    return name.strip().lower().replace("_", "-").replace(" ", "-")


class AliasTable:
    """Maps aliases to canonical names; an alias may stand for several, then the user is asked.

    Parameters
    ----------
    kind : str
        What the names are, for messages: ``GPU``, ``model``.
    aliases : mapping of canonical name to aliases
    """

    def __init__(self, kind: str, aliases: Mapping[str, Iterable[str]]) -> None:
        self._kind = kind
        self._canonical = {fold(name): name for name in aliases}
        self._meanings: dict[str, list[str]] = {}
        for name, others in aliases.items():
            for alias in others:
                self._meanings.setdefault(fold(alias), []).append(name)

    def resolve(self, name: str, hint: str = "") -> str:
        """Return the canonical name.

        Raises
        ------
        InputError
            When the name stands for several, listing them.
        UnknownNameError
            When nothing has that name, with the nearest that are known.
        """
        key = fold(name)
        if key in self._canonical:
            return self._canonical[key]
        meanings = self._meanings.get(key, [])
        if len(meanings) == 1:
            return meanings[0]
        if meanings:
            raise InputError(
                f"{self._kind} {name!r} is ambiguous: it may mean {', '.join(meanings)}; write one of these"
            )
        raise UnknownNameError(self._kind, name, self._canonical.values(), hint)
