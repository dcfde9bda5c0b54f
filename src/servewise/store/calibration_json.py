"""Calibrations to and from JSON, schema ``servewise.calibration/1`` (``docs/calibration.md``)."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from servewise import __version__
from servewise.errors import InputError
from servewise.store.documents import read_document
from servewise.store.files import write_text_atomic
from servewise.types import (
    PARAMETERS,
    Calibration,
    CalibrationForm,
    EngineName,
    FittedParameter,
    MeasuredRange,
    Parallelism,
    PointFit,
    Precision,
    StepCorrection,
)

__all__ = [
    "CALIBRATION_SCHEMA",
    "calibration_from_json",
    "calibration_to_json",
    "read_calibration",
    "write_calibration",
]

CALIBRATION_SCHEMA = "servewise.calibration/1"
MAX_DRAWS = 10_000

Unbounded = Annotated[float, BeforeValidator(lambda value: math.inf if value is None else value), Field(ge=0)]


class _Document(BaseModel):
    """What a calibration file holds; keys that this version does not know are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True, allow_inf_nan=True)

    schema_: Literal["servewise.calibration/1"] = Field(default="servewise.calibration/1", alias="schema")
    servewise_version: str
    created: str
    input_hashes: dict[str, str]
    form: CalibrationForm
    engine: EngineName
    engine_version: str
    gpu: str
    model: str
    precision: Precision
    parallelism: Parallelism
    correction: StepCorrection
    parameters: tuple[FittedParameter, ...]
    draws: tuple[tuple[Annotated[float, Field(ge=0, allow_inf_nan=False)], ...], ...] = Field(max_length=MAX_DRAWS)
    points: tuple[PointFit, ...]
    tpot_error_frac: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    ttft_error_frac: Unbounded
    measured_range: MeasuredRange
    notes: tuple[str, ...]


def calibration_to_json(calibration: Calibration) -> dict[str, Any]:
    """Turn a calibration into a JSON document; an unbounded error is null."""
    document = {"schema": CALIBRATION_SCHEMA, "servewise_version": __version__} | asdict(calibration)
    document["draws"] = calibration.draws.tolist()
    if math.isinf(calibration.ttft_error_frac):
        document["ttft_error_frac"] = None
    return document


def calibration_from_json(document: object, where: str = "the calibration") -> Calibration:
    """Read a JSON document that :func:`calibration_to_json` made.

    Raises
    ------
    InputError
        When it is no such document, naming the key that is wrong.
    """
    found = document.get("schema") if isinstance(document, dict) else None
    if found != CALIBRATION_SCHEMA:
        raise InputError(f"{where}: schema is {found!r}, this version reads {CALIBRATION_SCHEMA!r}; calibrate again")
    try:
        parsed = _Document.model_validate(document)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(str(part) for part in first["loc"])
        raise InputError(f"{where}: damaged at {key}: {first['msg']}; calibrate again") from error
    values = asdict(parsed.correction)
    wrong = [name for name, value in values.items() if not (math.isfinite(value) and value >= 0)]
    wrong += [p.name for p in parsed.parameters if p.name not in PARAMETERS]
    if wrong:
        raise InputError(f"{where}: damaged at correction.{wrong[0]}: must be a known name, finite and not below 0")
    draws = np.array(parsed.draws, np.float64)
    if draws.ndim != 2 or draws.shape[1] != len(PARAMETERS):
        raise InputError(f"{where}: damaged at draws: {draws.shape} is not (draws, {len(PARAMETERS)}); calibrate again")
    fields = {name: getattr(parsed, name) for name in Calibration.__slots__ if name != "draws"}
    return Calibration(**fields, draws=draws)


def write_calibration(path: Path, calibration: Calibration) -> None:
    """Write a calibration to a new file.

    Raises
    ------
    InputError
        When the file exists already or cannot be written.
    """
    write_text_atomic(path, json.dumps(calibration_to_json(calibration), indent=1, allow_nan=False) + "\n")


def read_calibration(path: Path) -> Calibration:
    """Read a file that :func:`write_calibration` wrote.

    Raises
    ------
    InputError
        When it cannot be read or is no calibration.
    """
    document = read_document(path, "give a file that 'servewise calibrate' wrote")
    return calibration_from_json(document, str(path))
