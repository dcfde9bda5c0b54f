"""The user's own prices: a YAML file with one list, ``prices``."""

from __future__ import annotations

from pathlib import Path

from servewise.catalog import offers_from_rows
from servewise.config.document import read_document
from servewise.errors import InputError
from servewise.types import GpuOffer

__all__ = ["read_prices"]


def read_prices(path: Path | str) -> tuple[GpuOffer, ...]:
    """Read a file of prices [$/h per GPU].

    Parameters
    ----------
    path : Path or str
        YAML with the key ``prices``: a list of rows, each with ``gpu`` and ``usd_per_gpu_h`` and optionally
        ``num_gpus``, ``kind``, ``provider``, ``date``, ``source`` and ``note`` (``docs/service-file.md``).

    Returns
    -------
    tuple of GpuOffer

    Raises
    ------
    InputError
        Naming the file and the row.
    """
    document = read_document(Path(path))
    for key in document.values:
        if key != "prices":
            raise document.error((key,), "unknown key; a price file has one key, prices")
    rows = document.values.get("prices")
    if not isinstance(rows, list):
        raise document.error(("prices",), "must be a list of prices, each '- {gpu: ..., usd_per_gpu_h: ...}'")
    try:
        return offers_from_rows(rows)
    except InputError as error:
        raise InputError(f"{document.path}: {error}") from error
