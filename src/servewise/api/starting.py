"""Begin with a service: the kinds of use, and a first service file."""

from __future__ import annotations

import tempfile
from pathlib import Path

from servewise import catalog
from servewise.config import Answers, Service, effort_permits, load_service, service_text, uses
from servewise.errors import InputError
from servewise.store import write_text_atomic

__all__ = ["Answers", "check_gpu", "check_model", "effort_permits", "start_service", "uses"]


def check_model(name: str) -> str:
    """The catalog's name of a model, or the path of its ``config.json`` as it was given.

    Raises
    ------
    InputError
        When there is none, with the nearest names.
    """
    found = catalog.get_model(name).name
    return found if found in catalog.list_models() else name


def check_gpu(name: str) -> str:
    """The catalog's name of a GPU, or the path of the file that describes it as it was given.

    Raises
    ------
    InputError
        When there is none, with the nearest names.
    """
    return name if name.endswith(catalog.DEVICE_SUFFIX) else catalog.get_gpu(name).name


def start_service(answers: Answers, path: Path) -> Service:
    """Write a new service file.

    Parameters
    ----------
    answers : Answers
    path : Path

    Returns
    -------
    Service
        What the file says.

    Raises
    ------
    InputError
        When the file exists, cannot be written, or would not load; then nothing is left.
    """
    if path.exists():
        raise InputError(f"{path} exists already and is not overwritten; choose another name")
    if not path.parent.is_dir():
        raise InputError(f"{path.parent} is not a folder; choose another place")
    text = service_text(answers, path.parent)
    try:
        with tempfile.NamedTemporaryFile("w", suffix=".yaml", dir=path.parent, encoding="utf-8") as draft:
            draft.write(text)
            draft.flush()
            _check(Path(draft.name), path)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}; choose another place") from error
    write_text_atomic(path, text)
    return load_service(path)


def _check(draft: Path, path: Path) -> None:
    """Read a draft, so that nothing is written that cannot be read."""
    try:
        load_service(draft)
    except InputError as error:
        raise InputError(str(error).replace(str(draft), str(path))) from error
