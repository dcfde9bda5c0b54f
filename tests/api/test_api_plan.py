"""The main job end to end: from a service file to the answer, the run folder and the exit code."""

from __future__ import annotations

import copy
import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from schema_check import problems

from servewise import api
from servewise.store import plan_from_json

DOCS = Path(__file__).resolve().parents[2] / "docs"
Command = Callable[..., Any]


def test_a_plan_is_printed_and_written_to_a_new_folder(plan: Command) -> None:
    first = plan()
    assert first.code == 0
    assert first.out.startswith("small: ")
    assert max(map(len, first.out.splitlines())) <= 100
    assert first.err.splitlines() == [f"note: plan.json and plan.html are in {first.folders[0]}"]
    written = {path.name: path.read_bytes() for path in first.folders[0].iterdir()}
    assert set(written) == {"plan.json", "plan.html", "workload.json", "workload.parquet"}
    assert first.document["complete"] is True
    second = plan()
    assert second.code == 0
    assert second.folders[0] != first.folders[0]
    assert {path.name: path.read_bytes() for path in first.folders[0].iterdir()} == written


def test_the_answer_is_the_cheapest_that_keeps_the_promise(plan: Command) -> None:
    ended = plan()
    document = ended.document
    by_index = {candidate["index"]: candidate for candidate in document["candidates"]}
    winner = by_index[document["winner"]]
    assert winner["status"] == "kept"
    assert winner["summary"]["attainment"]["value"] >= document["promise"]["attainment"]
    dollars = [by_index[i]["cost"]["usd_per_mtok_output_at_load"] for i in document["ranking"]]
    assert dollars == sorted(dollars)
    assert f"${dollars[0]:.3f} per Mtok output at load" in ended.out
    kept = [c["index"] for c in document["candidates"] if c["status"] == "kept"]
    assert sorted(document["ranking"]) == kept
    assert f"Keep the promise: {len(kept)} of {len(by_index)} candidates" in ended.out
    assert "vllm serve meta-llama/Llama-3.1-8B-Instruct" in ended.out
    assert winner["cost"]["usd_per_mtok_output_at_capacity"] <= dollars[0]
    assert any(point["scale"] == 1 for point in winner["load_curve"])


def test_the_document_fits_its_published_schema_and_reads_back(plan: Command) -> None:
    ended = plan()
    schema = json.loads((DOCS / "plan.schema.json").read_text(encoding="utf-8"))
    assert problems(ended.document, schema, schema) == []
    damaged = copy.deepcopy(ended.document)
    damaged["winner"] = "first"
    del damaged["wall_s"]
    assert len(problems(damaged, schema, schema)) == 2
    found, meta = plan_from_json(ended.document)
    assert found.winner == ended.document["winner"]
    assert meta.name == "small"


def read_all(terminal: int, parts: list[bytes]) -> None:
    while True:
        try:
            part = os.read(terminal, 65536)
        except OSError:  # what Linux answers once the other end is closed
            return
        if not part:
            return
        parts.append(part)


def test_json_is_all_that_stdout_gets_and_progress_goes_to_stderr(write_service: Command, tmp_path: Path) -> None:
    terminal, stderr = os.openpty()
    runs = tmp_path / "runs"
    command = [
        sys.executable,
        "-c",
        "from servewise.cli import main; main()",
        "plan",
        str(write_service()),
        "--json",
        "--out",
        str(runs),
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, env={**os.environ, "TERM": "xterm"})
    os.close(stderr)
    parts: list[bytes] = []
    reader = threading.Thread(target=read_all, args=(terminal, parts))  # a terminal that nobody reads stops who writes
    reader.start()
    out, _ = process.communicate(timeout=120)
    reader.join()
    shown = b"".join(parts)
    os.close(terminal)
    assert process.returncode == 0
    (folder,) = runs.iterdir()
    assert json.loads(out) == json.loads((folder / "plan.json").read_bytes())
    assert b"fleets" in shown
    assert b"plan.json and plan.html are in" in shown
    assert b"\x1b" not in out


def test_the_verdict_is_printed_and_stored(plan: Command) -> None:
    ended = plan()
    winner = ended.document["candidates"][ended.document["winner"]]
    assurance = winner["assurance"]
    assert assurance["num_draws"] >= 32
    kept = round(assurance["kept_frac"] * assurance["num_draws"])
    assert f"{assurance['verdict']} ({kept} of {assurance['num_draws']} draws of the step times)" in ended.out
    drawn, sampled = assurance["percentiles"]["ttft"]["p90"], winner["summary"]["percentiles"]["ttft"]["p90"]
    assert drawn["low"] < drawn["high"]
    assert sampled["low"] < sampled["high"]
    assert drawn != {name: sampled[name] for name in drawn}
    page = (ended.folders[0] / "plan.html").read_text(encoding="utf-8")
    assert "How sure" in page
    assert "What the numbers consist of" in page


def test_explain_shows_what_is_stored(plan: Command) -> None:
    plain, ended = plan(), plan("--explain")
    document = ended.document
    assert plain.document["explanation"] == document["explanation"]
    assert "What the numbers consist of" not in plain.out
    assert max(map(len, ended.out.splitlines())) <= 100
    winner = document["candidates"][document["winner"]]
    numbers = {number["number"]: number for number in document["explanation"]["numbers"]}
    assert numbers["ttft"]["value"] == winner["summary"]["means"]["ttft"]
    for number in numbers.values():
        assert sum(part["value"] for part in number["parts"]) == pytest.approx(number["value"], rel=1e-9)
    text = " ".join(ended.out.split())
    assert "mean TTFT" in text
    runs = document["explanation"]["nearest"][0]
    assert f"{runs['engine']} {runs['engine_version']}" in text
    assert document["provenance"][numbers["tpot"]["parts"][0]["sources"][0]]["source"] in text


def test_the_number_of_threads_does_not_change_the_plan(plan: Command) -> None:
    changes = {"hardware": ["L40S-48GB", "H100-SXM-80GB"], "quality": {"min_recovery_pct": 99}}
    documents = [plan("--threads", threads, **changes).document for threads in ("1", "3")]
    for document in documents:
        del document["created"], document["wall_s"]
    assert documents[0] == documents[1]


def test_prices_of_the_user_are_used_and_their_file_is_recorded(plan: Command, tmp_path: Path) -> None:
    prices = tmp_path / "prices.yaml"
    row = "  - {gpu: L40S-48GB, num_gpus: %d, usd_per_gpu_h: 0.5, date: 2026-01-02, source: contract}\n"
    prices.write_text("prices:\n" + row % 1 + row % 2)
    ended = plan(prices="prices.yaml")
    assert ended.code == 0
    document = ended.document
    winner = document["candidates"][document["winner"]]
    assert winner["cost"]["usd_per_h"] == pytest.approx(0.5 * winner["cost"]["num_gpus_rented"])
    assert winner["cost"]["price_date"] == "2026-01-02"
    assert document["price_dates"] == ["2026-01-02"]
    assert document["input_hashes"]["prices.yaml"] == "sha256:" + hashlib.sha256(prices.read_bytes()).hexdigest()
    assert set(document["input_hashes"]) == {"service.yaml", "prices.yaml"}


def test_several_models_are_compared(plan: Command) -> None:
    models = ["meta-llama/Llama-3.1-8B-Instruct", "Qwen/Qwen3-8B"]
    ended = plan(model=models)
    assert ended.code == 0
    assert set(ended.document["models"]) == set(models)
    table = ended.out.split("Best settings of each model, GPU, engine and precision")[1].split("Frontier")[0]
    assert "Qwen3-8B" in table
    assert "Llama-3.1-8B-Instruct" in table
    assert max(map(len, ended.out.splitlines())) <= 100


@pytest.mark.parametrize("written", ["models/mine/config.json", "models/mine"])
def test_a_model_may_be_a_config_json(plan: Command, tmp_path: Path, written: str) -> None:
    file = tmp_path / "models" / "mine" / "config.json"
    file.parent.mkdir(parents=True)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
        "max_position_embeddings": 131072,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    }
    file.write_text(json.dumps(config))
    ended = plan(model=written)
    assert ended.code == 0
    (model,) = ended.document["models"].values()
    assert (model["num_layers"], model["num_kv_heads"]) == (32, 8)
    assert "models/mine/config.json" in ended.document["input_hashes"]
    reference = plan().document  # the catalog's model has this very architecture
    ours = ended.document
    assert ours["winner"] == reference["winner"]
    assert ours["candidates"][ours["winner"]]["summary"] == reference["candidates"][reference["winner"]]["summary"]


def test_a_gpu_without_a_price_is_said_per_candidate(plan: Command) -> None:
    ended = plan(hardware=["GB200-186GB", "L40S-48GB"])
    assert ended.code == 0
    reasons = {c["reason"] for c in ended.document["candidates"] if c["deployment"]["gpu"] == "GB200-186GB"}
    assert len(reasons) == 1
    assert "no on_demand price is known for GB200-186GB; give one in a prices file" in reasons.pop()
    assert "no on_demand price is known for GB200-186GB" in " ".join(ended.out.split())


def test_only_gpus_without_a_price_exit_with_3_and_say_so(plan: Command) -> None:
    ended = plan(hardware=["GB200-186GB"])
    assert ended.code == 3
    assert "no on_demand price is known for GB200-186GB; give one in a prices file" in ended.error


def test_a_model_larger_than_every_gpu_exits_with_3_and_says_by_how_much(plan: Command) -> None:
    ended = plan(model="meta-llama/Llama-3.1-405B-Instruct")
    assert ended.code == 3
    assert {c["status"] for c in ended.document["candidates"]} == {"infeasible"}
    for text in (ended.error, " ".join(ended.out.split())):
        assert "GiB usable on L40S-48GB at TP" in text
    assert ended.document["winner"] is None


def test_too_small_a_budget_exits_with_3_and_names_the_nearest(plan: Command) -> None:
    ended = plan(budget={"max_gpus": 1})
    assert ended.code == 3
    nearest = ended.document["candidates"][ended.document["nearest"]]
    attainment = nearest["summary"]["attainment"]["value"]
    assert attainment < 0.95
    assert ended.error.startswith("no deployment keeps the promise; nearest: 1 x L40S-48GB: 1 replica, TP1,")
    assert f"attainment {attainment:.3f} < 0.95" in ended.error
    assert "nearest  1 x L40S-48GB" in ended.out
    assert f"attainment {attainment:.3f} < 0.95" in ended.out
    as_json = plan("--json", budget={"max_gpus": 1})
    assert as_json.code == 3
    assert json.loads(as_json.out)["nearest"] == ended.document["nearest"]


def test_a_promise_that_physics_breaks_names_the_nearest(plan: Command) -> None:
    ended = plan(promise={"ttft_s": 1e-4})
    assert ended.code == 3
    assert ended.document["nearest"] is not None
    assert "nearest: " in ended.error
    assert "attainment 0.000 < 0.99 (TTFT p99 " in ended.error


def test_without_a_folder_nothing_is_written(
    write_service: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_service()
    monkeypatch.chdir(tmp_path)
    stages: list[str] = []
    result = api.plan(api.load_service(path), progress=lambda stage, _done, _total: stages.append(stage))
    assert result.run_dir is None
    assert result.plan.winner is not None
    assert json.loads(result.json_text)["winner"] == result.plan.winner
    assert list(dict.fromkeys(stages)) == ["step tables", "fleets", "capacity", "assurance", "operation", "what if"]
    assert {p.name for p in tmp_path.iterdir()} == {"service.yaml"}


def test_every_status_is_documented() -> None:
    schema = json.loads((DOCS / "plan.schema.json").read_text(encoding="utf-8"))
    text = (DOCS / "plan-json.md").read_text(encoding="utf-8")
    statuses = schema["$defs"]["CandidateDocument"]["properties"]["status"]["enum"]
    assert "not_searched" in statuses
    assert [s for s in statuses if f"| `{s}` |" not in text] == []
