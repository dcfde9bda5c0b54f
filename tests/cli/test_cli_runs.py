"""``servewise runs``: from another tool's file to a verdict, with what is printed where."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from servewise.cli.app import cli

FILES = Path(__file__).resolve().parents[1] / "measure" / "files"


def ask(*args: object) -> Result:
    return CliRunner().invoke(cli, ["runs", *map(str, args)], catch_exceptions=False)


def test_a_file_is_imported_with_what_its_figures_mean(tmp_path: Path) -> None:
    ended = ask("import", FILES / "vllm-role-first.json", "--out", tmp_path)
    assert ended.exit_code == 0
    for words in ("What its figures mean", "may hold a role and no token", "6 answered", "more chunks than tokens"):
        assert words in " ".join(ended.stdout.split())
    assert max(map(len, ended.stdout.splitlines())) <= 100
    (folder,) = tmp_path.iterdir()
    assert (folder / "imported.json").is_file()


def test_import_prints_one_json_document(tmp_path: Path) -> None:
    ended = ask("import", FILES / "guidellm-flaky.json", "--tool", "guidellm", "--out", tmp_path, "--json")
    (run,) = json.loads(ended.stdout)
    assert (run["tool"], run["tool_version"], run["num_requests"]) == ("guidellm", "0.8.1", 6)
    assert Path(run["run_dir"]).parent == tmp_path


def test_an_imported_run_is_exported_and_read_again(tmp_path: Path) -> None:
    ask("import", FILES / "aiperf-clean.jsonl", "--out", tmp_path / "runs")
    (folder,) = (tmp_path / "runs").iterdir()
    out = tmp_path / "vllm.json"
    ended = ask("export", folder, "--format", "vllm", "--out", out)
    assert (ended.exit_code, ended.stdout) == (0, "")
    assert "written to" in ended.stderr
    assert json.loads(out.read_text())["completed"] == 6


def test_short_runs_cannot_be_told_apart_and_the_reasons_are_given() -> None:
    a, b = FILES / "vllm-clean.json", FILES / "inference-perf-clean.json"
    ended = ask("compare", a, b, "--promise", "ttft_s=1,tpot_s=0.05")
    assert ended.exit_code == 0
    text = " ".join(ended.stdout.split())
    for words in (
        "cannot be told",
        "Why it cannot be told",
        "one run a side",
        "different tools (inference-perf, vllm)",
    ):
        assert words in text
    document = json.loads(ask("compare", a, b, "--json").stdout)
    assert document["schema"] == "servewise.difference/1"
    assert {figure["verdict"] for figure in document["figures"]} == {"unknown"}


def test_long_runs_are_judged_and_repeats_are_taken(tmp_path: Path) -> None:
    """Two files of 500 requests, alike but for gaps that are a fifth longer."""
    paths = [written(tmp_path / f"{i}.json", factor, i) for i, factor in enumerate((1.0, 1.2, 1.0, 1.2))]
    ended = ask("compare", paths[0], paths[1])
    (row,) = [line for line in ended.stdout.splitlines() if line.startswith("TPOT p50")]
    assert "slower by" in row
    (row,) = [line for line in ended.stdout.splitlines() if line.startswith("TTFT p50")]
    assert "no difference beyond noise (could miss up to" in row
    repeated = ask("compare", paths[0], paths[1], "--more-a", paths[2], "--more-b", paths[3], "--json")
    assert json.loads(repeated.stdout)["a"]["num_runs"] == 2


def written(path: Path, factor: float, seed: int) -> Path:
    """A file as vLLM writes it."""
    import numpy as np

    rng = np.random.default_rng(2 + seed)
    num = 500
    run = {
        "backend": "openai-chat",
        "model_id": "\x1b[31mred",
        "ttfts": rng.uniform(0.1, 0.2, num).tolist(),
        "itls": (factor * rng.uniform(0.018, 0.022, (num, 9))).tolist(),
        "input_lens": [8] * num,
        "output_lens": [10] * num,
        "errors": [""] * num,
        "start_times": np.cumsum(rng.exponential(0.5, num)).tolist(),
    }
    path.write_text(json.dumps(run))
    return path


def test_escapes_in_names_are_shown_not_obeyed(tmp_path: Path) -> None:
    ended = ask("import", written(tmp_path / "run.json", 1.0, 0), "--out", tmp_path / "runs")
    assert "\x1b" not in ended.stdout
    assert "\\x1b[31mred" in ended.stdout


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("import", "nothing.json"), "nothing.json: No such file"),
        (("import", FILES / "vllm-clean.json", "--tool", "curl"), "unknown load generator 'curl'"),
        (("export", FILES / "sglang-clean.jsonl", "--format", "aiperf", "--out", "x"), "when requests were sent"),
        (("compare", FILES / "vllm-clean.json", FILES, "--promise", "ttft=1"), "unknown limit 'ttft'"),
        (("compare", FILES / "vllm-clean.json", FILES), "neither measurement.json nor imported.json"),
    ],
)
def test_bad_input_is_an_error_with_words(args: tuple[object, ...], words: str) -> None:
    from servewise.errors import InputError

    with pytest.raises(InputError, match=words.replace(".", r"\.")):
        ask(*args)
