"""Measurements on disk: what is written is read again, and nothing is overwritten or believed."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tests.store.measurements import measurement

from servewise.errors import InputError
from servewise.metrics import summarize
from servewise.store import MEASUREMENT_SCHEMA, read_measurement, write_measurement
from servewise.types import Promise


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = measurement()
    promise = Promise(e2e_s=1.0)
    write_measurement(tmp_path, made, summary=summarize(made.log, promise), promise=promise)
    return tmp_path


def test_what_was_written_is_read(folder: Path) -> None:
    made, read = measurement(), read_measurement(folder)
    assert read.endpoint == made.endpoint
    assert (read.name, read.load_words, read.started) == (made.name, made.load_words, made.started)
    assert (read.counted_s, read.interrupted) == (made.counted_s, True)
    assert read.trust.reasons == made.trust.reasons
    for part in ("log", "details", "chunks"):
        for name in getattr(type(getattr(made, part)), "__slots__", ()):
            if name not in ("itl", "timeline"):
                np.testing.assert_array_equal(getattr(getattr(read, part), name), getattr(getattr(made, part), name))
    assert read.log.itl is not None
    np.testing.assert_array_equal(read.server_metrics["running"], made.server_metrics["running"])


def test_the_document_has_its_schema_and_null_for_the_undefined(folder: Path) -> None:
    document = json.loads((folder / "measurement.json").read_text())
    assert document["schema"] == MEASUREMENT_SCHEMA
    assert document["trust"]["trustworthy"] is False
    assert document["trust"]["facts"]["tokens_per_chunk"] is None
    assert document["counted_s"] == [1.0, None]
    assert document["summary"]["num_requests"] == 3


def test_nothing_is_overwritten(folder: Path) -> None:
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(InputError, match="not overwritten"):
        write_measurement(folder, measurement())
    assert before == {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": "servewise.measurement/9"}, "schema is 'servewise.measurement/9'"),
        ({"endpoint": {"base_url": "x", "api": "telnet", "model": "m"}}, "endpoint.api"),
        ({"trust": None}, "trust"),
    ],
)
def test_a_wrong_document_is_refused_with_the_place(folder: Path, change: dict[str, object], message: str) -> None:
    path = folder / "measurement.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(InputError, match=message):
        read_measurement(folder)


def test_a_folder_without_a_measurement_says_so(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="give the folder of a measurement"):
        read_measurement(tmp_path)
