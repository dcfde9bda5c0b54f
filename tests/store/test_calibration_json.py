"""Calibrations on disk."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.calibrate.made import made
from tests.calibrate.sweeps import deployed

from servewise.errors import InputError
from servewise.store import calibration_from_json, calibration_to_json, read_calibration, write_calibration
from servewise.types import Calibration, StepCorrection


@pytest.fixture(scope="module")
def calibration() -> Calibration:
    return made(deployed(), StepCorrection(products_scale=1.1))


def test_a_calibration_survives_the_round_trip(calibration: Calibration, tmp_path: Path) -> None:
    write_calibration(tmp_path / "cal.json", calibration)
    found = read_calibration(tmp_path / "cal.json")
    np.testing.assert_array_equal(found.draws, calibration.draws)
    assert replace(found, draws=calibration.draws) == calibration
    with pytest.raises(InputError, match="not overwritten"):
        write_calibration(tmp_path / "cal.json", calibration)


def test_an_error_that_nothing_bounds_is_null(calibration: Calibration) -> None:
    document = calibration_to_json(replace(calibration, ttft_error_frac=math.inf))
    assert document["ttft_error_frac"] is None
    assert math.isinf(calibration_from_json(json.loads(json.dumps(document))).ttft_error_frac)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"schema": "servewise.calibration/9"}, "this version reads"),
        ({"engine": "apache"}, "damaged at engine"),
        ({"correction": {"products_scale": -1.0}}, r"correction\.products_scale"),
        ({"correction": {"step_s": None}}, "damaged at correction"),
        ({"draws": [[1.0, 2.0]]}, "damaged at draws"),
        ({"draws": [[math.nan] * 10]}, "damaged at draws"),
        ({"tpot_error_frac": -0.1}, "damaged at tpot_error_frac"),
        ({"points": 3}, "damaged at points"),
    ],
)
def test_a_damaged_calibration_is_refused_by_its_key(
    calibration: Calibration, change: dict[str, Any], match: str
) -> None:
    document = json.loads(json.dumps(calibration_to_json(calibration))) | change
    with pytest.raises(InputError, match=match):
        calibration_from_json(document)


def test_other_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file"):
        read_calibration(tmp_path / "none.json")
    (tmp_path / "text.json").write_text("hello")
    with pytest.raises(InputError, match="not JSON"):
        read_calibration(tmp_path / "text.json")
    (tmp_path / "list.json").write_text("[]")
    with pytest.raises(InputError, match="schema is None"):
        read_calibration(tmp_path / "list.json")
