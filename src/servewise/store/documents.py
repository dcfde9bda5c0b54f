"""JSON documents of users read with care: bounded, of a known schema, with errors that name what is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from servewise.errors import InputError

__all__ = ["read_document", "read_head"]

MAX_DOCUMENT_BYTES = 256 << 20
"""A plan of ten thousand candidates has some 10 MB."""

Head = TypeVar("Head", bound=BaseModel)


def read_document(path: Path, next_step: str) -> Any:
    """Read a JSON file.

    Parameters
    ----------
    path : Path
    next_step : str
        What to do when it cannot be read.

    Raises
    ------
    InputError
        When it cannot be read, is too large or no JSON.
    """
    try:
        if path.stat().st_size > MAX_DOCUMENT_BYTES:
            raise InputError(f"{path} is larger than {MAX_DOCUMENT_BYTES >> 20} MiB; {next_step}")
        return json.loads(path.read_bytes())
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}; {next_step}") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not JSON: {error}; {next_step}") from error


def read_head(path: Path, schema: str, model: type[Head], next_step: str) -> Head:
    """Read a JSON file of a schema.

    Raises
    ------
    InputError
        As in :func:`read_document`, and when it has another schema or a wrong value.
    """
    document = read_document(path, next_step)
    found = document.get("schema") if isinstance(document, dict) else None
    if found != schema:
        raise InputError(f"{path}: schema is {found!r}, this version reads {schema!r}; {next_step}")
    try:
        return model.model_validate(document)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise InputError(f"{path}: {where}: {first['msg']}; {next_step}") from error
