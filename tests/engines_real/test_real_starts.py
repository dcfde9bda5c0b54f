"""The command that a plan ends in starts the real engine, and it serves what was planned.

Changed is nothing but the program's path, the model's name (``--model`` of ``servewise deploy``: the plan knows a
``config.json``) and variables for a machine without a GPU, see ``started_as_written``.
"""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from benchmarks.artefacts import Start, starts
from benchmarks.engines import free_port, started_as_written
from servewise import api

pytestmark = pytest.mark.engines

SERVICE = """
name: tiny
model: {model}
traffic:
  synthesis:
    num_requests: 40
    arrivals: {{rate_rps: 4.0}}
    input_tokens: {{fixed: 200}}
    output_tokens: {{fixed: 50}}
promise: {{ttft_s: 1.0, attainment: 0.9}}
quality: {{min_recovery_pct: {recovery}}}
operations: {{max_effort: low}}
hardware: [L4-24GB]
engines: [{engine}]
budget: {{max_gpus: 1}}
"""


def planned(folder: Path, model: Path, *, engine: str, recovery: int, served: Path) -> Start:
    """The one command of the plan's winner, for the model that is served."""
    service = folder / "service.yaml"
    service.write_text(SERVICE.format(model=model, engine=engine, recovery=recovery))
    result = api.plan(api.load_service(service), out_dir=folder)
    assert result.run_dir is not None
    rendered = api.deploy(
        result.run_dir / "plan.json",
        "command",
        model=str(served),
        llama_server=engine == "ollama",
        port=free_port(),
    ).rendered
    (start,) = starts(rendered)
    return start


def asked(url: str, document: dict[str, Any] | None = None) -> Any:
    data = None if document is None else json.dumps(document).encode()
    request = urllib.request.Request(url, data=data, headers={"Content-Type": "application/json"})  # noqa: S310
    with urllib.request.urlopen(request, timeout=120) as answer:  # noqa: S310 (the server that was started here)
        return json.load(answer)


def option(start: Start, name: str) -> int:
    return int(start.args[start.args.index(name) + 1])


def test_vllm_serves_by_the_command_of_a_plan(models: Path, tmp_path: Path) -> None:
    model = models / "tiny"
    start = planned(
        tmp_path, model / "config.json", engine="vllm", recovery=100, served=model
    )  # an fp8 cache needs a GPU
    with started_as_written(start.args, start.env) as server:
        (served,) = asked(f"{server.url}/v1/models")["data"]
        assert served["max_model_len"] == option(start, "--max-model-len")
        body = {"model": served["id"], "prompt": "a b c", "max_tokens": 8, "ignore_eos": True}
        assert asked(f"{server.url}/v1/completions", body)["usage"]["completion_tokens"] == 8


def test_llama_server_serves_by_the_command_of_a_plan_for_ollama(models: Path, tmp_path: Path) -> None:
    model = models / "tiny" / "config.json"
    start = planned(tmp_path, model, engine="ollama", recovery=0, served=models / "tiny.gguf")
    with started_as_written(start.args, start.env) as server:
        assert asked(f"{server.url}/props")["total_slots"] == option(start, "--parallel")
        body = {"prompt": "a b c", "max_tokens": 8, "ignore_eos": True}
        assert asked(f"{server.url}/v1/completions", body)["usage"]["completion_tokens"] == 8
