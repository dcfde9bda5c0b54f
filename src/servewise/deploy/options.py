"""Whether a program knows the options of a command, by the lists of ``servewise/data/engines/options``.

Most lists were recorded from the programs' own parsers by ``tools/record_options.py``; the rest was read in
documentation, and what it knows stays unverified. Nothing is run here.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any, Literal

from servewise.errors import CatalogError

__all__ = ["FlagVerdict", "Option", "OptionList", "Verdict", "check_command", "check_settings", "option_lists"]

Verdict = Literal["accepted", "unverified", "rejected"]
Kind = Literal["switch", "int", "size", "float", "json", "text", "other"]
Chain = Sequence[tuple["OptionList", str]]
"""A program's list and version, and those of the program that gets the rest."""
FOLDER = "engines/options"
SIZE = re.compile(r"-?\d+(?:\.\d+)?[kKmMgGtT]?i?")
"""A number of tokens as vLLM and SGLang read it: ``32768``, ``32k``, ``32Ki``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One option: all its names, what its value may be, and the variable that stands for it.

    Parameters
    ----------
    value : str
        Kind of the value; ``switch`` has none, ``text`` and ``other`` are not looked at.
    words : tuple of str
        Values of a number that are none.
    choices : tuple of str
        All values, where they are known.
    keys : tuple of str
        Keys of a JSON object, where they are known.
    many : bool
        Whether several values follow.
    """

    name: str
    also: tuple[str, ...] = ()
    value: Kind
    words: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    many: bool = False
    variable: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionList:
    """The options of one version of a program.

    Parameters
    ----------
    command : tuple of str
        How the program is called.
    holds_for : tuple of str
        Other versions whose parser is known to be the same; ``source`` says how.
    recorded : str
        From the program's own ``parser``, or from ``documentation``.
    positionals : int
        Arguments without a name that it takes at most.
    passes_to, passes_version : tuple of str, str
        The program that gets the options and variables which are not its own, and its version; empty when none.
    prefix : str
        What all its variables begin with, where they do.
    variables : tuple of str
        Environment variables without an option.
    """

    command: tuple[str, ...]
    version: str
    holds_for: tuple[str, ...] = ()
    recorded: Literal["parser", "documentation"]
    source: str
    accessed: str
    positionals: int
    passes_to: tuple[str, ...] = ()
    passes_version: str = ""
    prefix: str = ""
    variables: tuple[str, ...] = ()
    options: tuple[Option, ...] = field(repr=False)

    @property
    def title(self) -> str:
        """Program and version in words."""
        return f"{' '.join(self.command)} {self.version}"

    def covers(self, version: str) -> bool:
        """Whether it is the list of this version."""
        return version == self.version or version in self.holds_for

    def named(self, name: str) -> Option | None:
        """The option with this name."""
        return next((option for option in self.options if name == option.name or name in option.also), None)

    def of_variable(self, name: str) -> Option | None:
        """The option that a variable stands for, or the variable alone; None when the program does not read it."""
        if name in self.variables:
            return Option(name=name, value="other")
        return next((option for option in self.options if name == option.variable), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class FlagVerdict:
    """What is known of one option, variable or setting: its name as written, the verdict and the reason."""

    flag: str
    verdict: Verdict
    reason: str


@cache
def option_lists() -> tuple[OptionList, ...]:
    """All lists that ship with the project.

    Raises
    ------
    CatalogError
        When a file is not such a list.
    """
    folder = resources.files("servewise.data").joinpath(FOLDER)
    files = sorted((file for file in folder.iterdir() if file.name.endswith(".json")), key=lambda file: file.name)
    return tuple(_read(json.loads(file.read_text(encoding="utf-8")), file.name) for file in files)


def _read(document: Mapping[str, Any], name: str) -> OptionList:
    try:
        options = tuple(Option(**_tuples(option)) for option in document["options"])
        found = OptionList(**_tuples(document) | {"options": options})
    except (KeyError, TypeError) as error:
        raise CatalogError(f"{FOLDER}/{name}: {error}") from None
    names = Counter(each for option in options for each in (option.name, *option.also))
    if twice := sorted(each for each, number in names.items() if number > 1):
        raise CatalogError(f"{FOLDER}/{name}: {', '.join(twice)} is there twice")
    return found


def _tuples(document: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in document.items()}


def check_command(args: Sequence[str], version: str, env: Mapping[str, str] | None = None) -> tuple[FlagVerdict, ...]:
    """What is known of each option of a command, and of each environment variable.

    Parameters
    ----------
    args : sequence of str
        Program and arguments; a leading ``env NAME=VALUE ...`` counts as ``env``.
    version : str
        Of the program.
    env : mapping of str to str, optional

    Returns
    -------
    tuple of FlagVerdict
        ``accepted``: the program's own parser knows the option and takes such a value. ``unverified``: the list is
        from documentation or of another version, or there is none. ``rejected``: there is no such option, or it does
        not take the value. One verdict an option, in the command's order; arguments without a name only when there
        are too many.
    """
    variables, words = _without_env(list(args), dict(env or {}))
    known = _list_of(tuple(words), version)
    if known is None:
        reason = f"no list of the options of {words[0] if words else 'nothing'} was recorded"
        flags = [word.split("=", 1)[0] for word in words[1:] if _is_flag(word)]
        return tuple(FlagVerdict(flag=flag, verdict="unverified", reason=reason) for flag in [*flags, *variables])
    chain = [(known, version)]
    other = _list_of(known.passes_to, known.passes_version) if known.passes_to else None
    if other is not None:
        chain.append((other, known.passes_version))
    found = list(_arguments(words[len(known.command) :], chain))
    found += [_variable(name, value, chain) for name, value in variables.items()]
    return tuple(found)


def check_settings(command: Sequence[str], settings: Mapping[str, object], version: str) -> tuple[FlagVerdict, ...]:
    """As :func:`check_command`, for the keys and values of a file.

    Parameters
    ----------
    command : sequence of str
        ``("trtllm-serve", "YAML")`` or ``("ollama", "Modelfile")``.
    settings : mapping of str to object
        Nested mappings stand for keys with dots.
    """
    known = _list_of(tuple(command), version)
    if known is None:
        raise CatalogError(f"no list of the settings of {' '.join(command)} was recorded")
    found = []
    for name, value in _flat(settings):
        option = known.named(name)
        words = [str(value).lower() if isinstance(value, bool) else str(value)]
        found.append(_unknown(name, known) if option is None else _judged(name, option, words, known, version))
    return tuple(found)


def _flat(settings: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def _without_env(words: list[str], env: dict[str, str]) -> tuple[dict[str, str], list[str]]:
    """Variables and command of a list that may begin with ``env NAME=VALUE ...``."""
    if words[:1] == ["env"]:
        words = words[1:]
        while words and re.match(r"[A-Za-z_]\w*=", words[0]):
            name, value = words.pop(0).split("=", 1)
            env[name] = value
    return env, words


def _list_of(words: tuple[str, ...], version: str) -> OptionList | None:
    """The list of a command's program: of its version if there is one, else the last; the longest name wins."""
    first = words[0].rsplit("/", 1)[-1] if words else ""
    words = ("python" if re.fullmatch(r"python[\d.]*", first) else first, *words[1:])
    known = [each for each in option_lists() if words[: len(each.command)] == each.command]
    return max(known, key=lambda each: (len(each.command), each.covers(version), _numbers(each.version)), default=None)


def _numbers(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version)]


def _is_flag(word: str) -> bool:
    return word.startswith("-") and not re.fullmatch(r"-[\d.]+", word) and word not in ("-", "--")


def _arguments(words: Sequence[str], chain: Chain) -> Iterator[FlagVerdict]:
    """Verdicts of a command's arguments as argparse and click read them, abbreviations not allowed."""
    left, num_free = list(words), chain[0][0].positionals
    while left:
        word = left.pop(0)
        if not _is_flag(word):
            num_free -= 1
            if num_free < 0:
                yield FlagVerdict(flag=word, verdict="rejected", reason="it belongs to no option")
            continue
        name, given, value = word.partition("=")
        known, version = next((each for each in chain if each[0].named(name)), chain[-1])
        option = known.named(name)
        values = [value] if given else []
        if not given and (option is None or option.value != "switch"):
            while left and not _is_flag(left[0]) and (not values or (option is not None and option.many)):
                values.append(left.pop(0))
        yield _unknown(name, known) if option is None else _judged(name, option, values, known, version)


def _variable(name: str, value: str, chain: Chain) -> FlagVerdict:
    """Verdict of an environment variable; one whose name no list could have is not the program's."""
    for known, version in chain:
        option = known.of_variable(name)
        if option is not None:
            return _judged(name, option, [] if option.value == "switch" else [value], known, version)
        if known.prefix and name.startswith(known.prefix):
            return FlagVerdict(flag=name, verdict="rejected", reason=f"{known.title} does not read it")
    return FlagVerdict(flag=name, verdict="unverified", reason="no list of such variables was recorded")


def _unknown(name: str, known: OptionList) -> FlagVerdict:
    return FlagVerdict(flag=name, verdict="rejected", reason=f"{known.title} has no such option ({known.source})")


def _judged(name: str, option: Option, values: Sequence[str], known: OptionList, version: str) -> FlagVerdict:
    """Verdict of an option that the list has."""
    fault = _fault(option, values)
    if fault:
        return FlagVerdict(flag=name, verdict="rejected", reason=f"{fault} ({known.title})")
    if known.recorded == "documentation":
        return FlagVerdict(flag=name, verdict="unverified", reason=f"only read, in {known.source}")
    if not known.covers(version):
        return FlagVerdict(flag=name, verdict="unverified", reason=f"known to {known.title}, not tried with {version}")
    shared = "" if version == known.version else f", which {version} shares"
    return FlagVerdict(flag=name, verdict="accepted", reason=f"{known.recorded} of {known.title}{shared}")


def _fault(option: Option, values: Sequence[str]) -> str:
    """What is wrong with an option's values; empty when nothing."""
    if option.value == "switch":
        return "it takes no value" if values else ""
    if not values:
        return "its value is missing"
    for value in values:
        if option.choices and value not in option.choices:
            return f"{value!r} is none of {', '.join(option.choices)}"
        if not _reads(option, value):
            return f"{value!r} is no {option.value}"
        if option.keys and (fault := _key_fault(option, json.loads(value))):
            return fault
    return ""


def _key_fault(option: Option, value: object) -> str:
    if not isinstance(value, dict):
        return f"{value!r} is no JSON object"
    unknown = sorted(value.keys() - set(option.keys))
    return f"its keys {', '.join(unknown)} are unknown" if unknown else ""


def _reads(option: Option, value: str) -> bool:
    """Whether a value is of the option's kind."""
    if value in option.words:
        return True
    try:
        match option.value:
            case "int":
                int(value)
            case "float":
                float(value)
            case "json":
                json.loads(value)
            case "size":
                return SIZE.fullmatch(value) is not None
    except ValueError:
        return False
    return True
