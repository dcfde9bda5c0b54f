"""``servewise traffic`` and ``servewise catalog`` on the real catalog, profiles and files."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from servewise import api

Command = Callable[..., Any]


def fits(text: str) -> bool:
    return max(map(len, text.splitlines())) <= 100


@pytest.mark.parametrize(("what", "key"), [("models", "model"), ("gpus", "GPU")])
def test_catalog_lists_fit_and_name_everything_on_a_line_of_its_own(run: Command, what: str, key: str) -> None:
    ended = run("catalog", what)
    assert ended.code == 0
    assert fits(ended.out)
    rows = json.loads(run("catalog", what, "--json").out)
    names = [row[key] for row in rows]
    shown = [line.split()[0] for line in ended.out.split("─\n")[-1].splitlines()]
    assert shown == names
    assert len(names) >= 8


def test_catalog_figures_are_shown_beside_their_names(run: Command) -> None:
    row = next(line for line in run("catalog", "models").out.splitlines() if line.startswith("openai/gpt-oss-20b"))
    assert row.split()[1:] == ["20.91", "3.608", "24", "gqa", "mxfp4", "131072"]
    gpus = run("catalog", "gpus").out.splitlines()
    row = next(line for line in gpus if line.startswith("GB200-186GB"))
    assert row.split()[-2:] == ["-", "-"]  # no price is known for it
    row = next(line for line in gpus if line.startswith("H100-SXM-80GB"))
    assert row.split()[1:] == ["79.19", "3,350", "989", "1,979", "3.29", "2026-11-29"]


def test_profiles_are_listed_and_shown(run: Command) -> None:
    names = run("traffic", "list").out.splitlines()
    assert names == json.loads(run("traffic", "list", "--json").out) == api.list_profiles()
    assert "azure-conversation-2023" in names
    shown = run("traffic", "show", "azure-conversation-2023")
    assert shown.code == 0
    assert fits(shown.out)
    for part in ("19,366", "requests/s", "P50", "P99", "index of dispersion", "shared prefixes"):
        assert part in shown.out
    document = json.loads(run("traffic", "show", "azure-conversation-2023", "--json").out)
    assert document["num_requests"] == 19366
    assert document["input"]["p50"] < document["input"]["p99"]


def test_a_trace_is_shown_as_it_is_and_rescaled(run: Command, tmp_path: Path) -> None:
    trace = tmp_path / "mine.csv"
    rows = [f"{i},{100 + i},{10 + i % 7}" for i in range(200)]
    trace.write_text("\n".join(["t,prompt,answer", *rows]) + "\n")
    columns = ["--columns", "arrival_s=t", "--columns", "input_tokens=prompt", "--columns", "output_tokens=answer"]
    shown = run("traffic", "show", trace, *columns)
    assert shown.code == 0
    assert fits(shown.out)
    document = json.loads(run("traffic", "show", trace, *columns, "--json").out)
    assert (document["num_requests"], document["duration_s"]) == (200, 199.0)
    assert document["input"]["max"] == 299
    faster = json.loads(run("traffic", "show", trace, *columns, "--rate-rps", "0.5", "--json").out)
    assert math.isclose(faster["mean_rate_rps"], 0.5, rel_tol=0.25)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["azure-conv"], "unknown traffic profile 'azure-conv'; did you mean azure-co"),
        (["no.csv"], "no.csv"),
        (["azure-code-2023", "--format", "csv"], "is a built-in profile; --format and --columns are for trace files"),
        (["azure-code-2023", "--rate-rps", "nan"], "nan"),
    ],
)
def test_what_cannot_be_shown_is_a_sentence(run: Command, args: list[str], message: str) -> None:
    ended = run("traffic", "show", *args)
    assert (ended.code, ended.out) == (2, "")
    assert message in ended.error
