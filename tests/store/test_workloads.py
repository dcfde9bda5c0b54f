"""Workloads on disk."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from tests.calibrate.sweeps import traffic

from servewise.errors import InputError
from servewise.store import read_workload, write_workload
from servewise.types import PrefixBlocks, Workload


def same(a: object, b: object) -> None:
    for field in fields(a):  # type: ignore[arg-type]
        one, other = getattr(a, field.name), getattr(b, field.name)
        if isinstance(one, PrefixBlocks):
            same(one, other)
        elif isinstance(one, np.ndarray):
            np.testing.assert_array_equal(one, other)
        else:
            assert one == other


def workloads() -> list[Workload]:
    plain = traffic(20, 0, inputs=(10, 50), outputs=(2, 9))
    counts = np.arange(20) % 3
    prefix = PrefixBlocks(
        offsets=np.concatenate(([0], np.cumsum(counts))),
        ids=np.arange(int(counts.sum())) % 7,
        num_ids=7,
        block_size_tokens=16,
    )
    empty = PrefixBlocks(offsets=np.zeros(21, np.int64), ids=np.zeros(0, np.int64), num_ids=0, block_size_tokens=16)
    return [
        plain,
        replace(plain, prefix=prefix, session=np.arange(20) // 4, priority=np.arange(20) % 2),
        replace(plain, prefix=empty),
    ]


@pytest.mark.parametrize("workload", workloads())
def test_a_workload_survives_the_round_trip(workload: Workload, tmp_path: Path) -> None:
    write_workload(tmp_path / "workload.json", workload)
    same(read_workload(tmp_path / "workload.json"), workload)


def test_impossible_requests_are_refused(tmp_path: Path) -> None:
    workload = workloads()[1]
    backwards = replace(workload, arrival_s=workload.arrival_s[::-1])
    write_workload(tmp_path / "a.json", backwards)
    with pytest.raises(InputError, match="ascending arrivals"):
        read_workload(tmp_path / "a.json")
    write_workload(tmp_path / "b.json", replace(workload, max_tokens=np.ones(20, np.int64)))
    with pytest.raises(InputError, match="max_tokens is below"):
        read_workload(tmp_path / "b.json")
    assert workload.prefix is not None
    write_workload(tmp_path / "c.json", replace(workload, prefix=replace(workload.prefix, num_ids=2)))
    with pytest.raises(InputError, match="rows and ids"):
        read_workload(tmp_path / "c.json")


def test_other_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="beside plan"):
        read_workload(tmp_path / "none.json")
    write_workload(tmp_path / "w.json", workloads()[0])
    document = json.loads((tmp_path / "w.json").read_text())
    (tmp_path / "w.json").write_text(json.dumps(document | {"prefix": 3}))
    with pytest.raises(InputError, match="prefix"):
        read_workload(tmp_path / "w.json")
    (tmp_path / "w.json").write_text(json.dumps(document))
    pl.DataFrame({"x": [1]}).write_parquet(tmp_path / "w.parquet")
    with pytest.raises(InputError, match="schema is 'none'"):
        read_workload(tmp_path / "w.json")
