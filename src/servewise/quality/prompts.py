"""The user's prompts: a file with one a line, read with care. What is wrong in it is named with its line."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from servewise.errors import InputError, TraceFormatError

__all__ = ["Prompt", "read_prompts"]

MAX_FILE_BYTES: Final = 256 << 20
MAX_READ: Final = 100_000
MAX_PROMPTS: Final = 10_000
"""More would say little more, and the resamples of so many take 0.3 GB."""
ROLES: Final = ("system", "developer", "user", "assistant")
JSON_SUFFIXES: Final = (".jsonl", ".ndjson", ".json")


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """One prompt.

    Parameters
    ----------
    line : int
        Where it stands, from 1.
    messages : tuple of mappings
        ``role`` and ``content``; a plain prompt is one message of the user.
    """

    line: int
    messages: tuple[Mapping[str, str], ...]

    @property
    def text(self) -> str:
        """What all messages say."""
        return "\n".join(message["content"] for message in self.messages)


def read_prompts(path: Path, *, raw: bool = False, num_prompts: int | None = None, seed: int = 0) -> list[Prompt]:
    """Read a file of prompts.

    Parameters
    ----------
    path : Path
        ``.jsonl``: each line ``{"prompt": "..."}`` or ``{"messages": [{"role": ..., "content": ...}]}``; other fields
        are left alone. Any other file: plain text, each line that is not empty a prompt.
    raw : bool
        Prompts are not put into a chat template, so that each must be a single text.
    num_prompts : int, optional
        Draw so many at random when there are more; they stay in the file's order.
    seed : int
        Of the draw.

    Raises
    ------
    InputError
        When the file cannot be read, has no prompt or too many, or a line is wrong.
    """
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise InputError(f"{path} is larger than {MAX_FILE_BYTES >> 20} MiB; give fewer prompts")
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}; give a file with one prompt a line") from error
    is_json = path.suffix.lower() in JSON_SUFFIXES
    prompts = []
    for number, line in enumerate(data.removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        try:
            text = line.decode("utf-8").strip()
        except UnicodeDecodeError as error:
            raise TraceFormatError(f"is not UTF-8 ({error.reason})", path=str(path), line=number) from None
        if text:
            try:
                messages = _messages(text) if is_json else ({"role": "user", "content": text},)
            except ValueError as error:
                raise TraceFormatError(str(error), path=str(path), line=number) from None
            if raw and len(messages) > 1:
                problem = f"has {len(messages)} messages, which need a chat template; leave out --raw"
                raise TraceFormatError(problem, path=str(path), line=number)
            prompts.append(Prompt(line=number, messages=messages))
        if len(prompts) > MAX_READ:
            raise InputError(f"{path} has more than {MAX_READ:,} prompts; give fewer")
    if not prompts:
        raise InputError(f"{path} holds no prompt; give a file with one a line")
    if min(len(prompts), num_prompts or len(prompts)) > MAX_PROMPTS:
        raise InputError(f"{path} has {len(prompts):,} prompts; draw {MAX_PROMPTS:,} or fewer with --num-prompts")
    if num_prompts is not None and num_prompts < len(prompts):
        chosen = np.random.default_rng(seed).choice(len(prompts), size=num_prompts, replace=False)
        return [prompts[i] for i in sorted(chosen.tolist())]
    return prompts


def _messages(line: str) -> tuple[Mapping[str, str], ...]:
    """The messages of a JSON line; ValueError says what is wrong."""
    wanted = 'write {"prompt": "..."} or {"messages": [{"role": "user", "content": "..."}]}'
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"is not JSON ({error}); {wanted}") from None
    if not isinstance(row, dict) or ("prompt" in row) == ("messages" in row):
        raise ValueError(f"has not exactly one of prompt and messages; {wanted}")
    if "prompt" in row:
        return ({"role": "user", "content": _text(row["prompt"], "prompt", wanted)},)
    messages = row["messages"]
    if not isinstance(messages, list) or not messages:
        raise ValueError(f"messages is not a list with at least one; {wanted}")
    found = []
    for message in messages:
        if not isinstance(message, dict) or message.get("role") not in ROLES:
            raise ValueError(f"a message has none of the roles {', '.join(ROLES)}; {wanted}")
        found.append({"role": message["role"], "content": _text(message.get("content"), "content", wanted)})
    return tuple(found)


def _text(value: Any, name: str, wanted: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{name} is no text, or an empty one; {wanted}")
    if not value.isprintable() and any("\ud800" <= character <= "\udfff" for character in value):
        raise ValueError(f"{name} holds half of a surrogate pair, which no text does; {wanted}")
    return value
