"""New run folders and atomic writes: nothing that exists is overwritten, nothing is left half written."""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import unicodedata
from datetime import UTC, datetime
from pathlib import Path

from servewise.errors import InputError

__all__ = ["check_run_parent", "digest", "new_run_dir", "write_bytes_atomic", "write_json", "write_text_atomic"]

MAX_SLUG_CHARS = 60
MAX_RUNS_A_SECOND = 1000


def check_run_parent(parent: Path) -> None:
    """Find out before long work whether run folders can be made in a place, without making anything.

    Raises
    ------
    InputError
        When ``parent``, or the nearest folder above it that exists, is no folder or may not be written to.
    """
    nearest = next(path for path in (parent, *parent.absolute().parents) if path.exists())
    if not nearest.is_dir():
        raise InputError(f"{nearest} is not a folder; choose another place for the results")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise InputError(f"{nearest} may not be written to; choose another place for the results")


def new_run_dir(parent: Path, name: str) -> Path:
    """Create a new folder for the results of a run, e.g. ``20261129T142741Z-support-chatbot``.

    Parameters
    ----------
    parent : Path
        Created when missing.
    name : str
        Any text: it is reduced to letters, digits, dots, dashes and underscores, so it cannot lead elsewhere.

    Returns
    -------
    Path
        A folder that did not exist before.

    Raises
    ------
    InputError
        When the folder cannot be created.
    """
    stem = f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{_slug(name)}"
    for attempt in range(1, MAX_RUNS_A_SECOND + 1):
        path = parent / (stem if attempt == 1 else f"{stem}-{attempt}")
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            if not parent.is_dir():
                raise InputError(f"{parent} is not a folder; choose another place for the results") from None
        except OSError as error:
            raise InputError(
                f"cannot create the run folder {path}: {error.strerror}; choose another place for the results"
            ) from error
        else:
            return path
    raise InputError(f"{parent} already holds {MAX_RUNS_A_SECOND} runs named {stem}; choose another name or place")


def _slug(name: str) -> str:
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode("ascii")
    slug = re.sub(r"[^A-Za-z0-9._]+", "-", plain)
    # Dots at the ends would make hidden or relative names.
    return re.sub(r"\.{2,}", ".", slug)[:MAX_SLUG_CHARS].strip(".-_") or "run"


def digest(path: Path) -> str:
    """``sha256:...`` of a file."""
    with path.open("rb") as file:
        return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"


def write_text_atomic(path: Path, text: str) -> None:
    """Write a new file that appears whole or not at all (UTF-8; what cannot be encoded is escaped).

    Raises
    ------
    InputError
        When the file exists already or cannot be written.
    """
    write_bytes_atomic(path, text.encode("utf-8", errors="backslashreplace"))


def write_bytes_atomic(path: Path, data: bytes) -> None:
    """Write a new file that appears whole or not at all.

    Raises
    ------
    InputError
        When the file exists already or cannot be written.
    """
    temporary = path.with_name(f".{secrets.token_hex(8)}.tmp")
    try:
        with temporary.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        _publish(temporary, path)
    except FileExistsError:
        raise InputError(f"{path} exists already and is not overwritten; choose another name") from None
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}; choose another place") from error
    finally:
        temporary.unlink(missing_ok=True)


def _publish(temporary: Path, path: Path) -> None:
    """Give a finished file its name, unless that is taken."""
    try:
        path.hardlink_to(temporary)  # fails when the name is taken, unlike a rename
    except FileExistsError:
        raise
    except OSError:
        # A file system without hard links: the check and the rename are two steps there.
        if path.exists():
            raise FileExistsError(path) from None
        temporary.rename(path)


def write_json(path: Path, document: object) -> None:
    """Write a JSON document atomically; infinite and undefined numbers must have been replaced by null.

    Raises
    ------
    InputError
        When the file exists already or cannot be written.
    ValueError
        When the document holds NaN or infinity, which JSON lacks.
    """
    write_text_atomic(path, json.dumps(document, allow_nan=False, separators=(",", ":")) + "\n")
