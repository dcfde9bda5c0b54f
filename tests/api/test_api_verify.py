"""Calibrating and verifying through the command line, against an endpoint that the simulator plays."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from servewise import api
from servewise.measure.discover import Discovery
from servewise.measure.job import Target
from servewise.measure.spec import LoadSpec
from servewise.perf import memory, step_model
from servewise.perf.calibrated import corrected
from servewise.sim import simulate, simulate_closed_loop, to_log
from servewise.store import new_run_dir, read_calibration, write_measurement
from servewise.traffic import UniformLength
from servewise.types import (
    UNCORRECTED,
    Chunks,
    Deployment,
    Endpoint,
    Measurement,
    RequestDetails,
    RequestLog,
    StepCorrection,
    Trust,
)

Command = Callable[..., Any]
SLOWER = StepCorrection(products_scale=1.3, attention_scale=1.3)


SAME = Endpoint(
    base_url="http://localhost:8000",
    api="openai-chat",
    model="Llama-3.1-8B-Instruct",
    engine="vllm",
    engine_version="0.33.0",
)


@dataclass
class Played:
    """An endpoint that answers as a deployment with corrected step times would."""

    deployment: Deployment
    correction: StepCorrection = UNCORRECTED
    endpoint: Endpoint = SAME
    distrust: tuple[str, ...] = ()
    interrupted: bool = False

    @property
    def discovery(self) -> Discovery:
        return Discovery(endpoint=self.endpoint, max_context_tokens=self.deployment.max_request_tokens)

    def run(self, spec: LoadSpec, *, name: str, seed: int, progress: object = None) -> Measurement:  # noqa: ARG002
        workload = spec.make_workload(seed)
        model = step_model(self.deployment)
        model = replace(model, table=corrected(model.table, self.correction))
        facts = {}
        if spec.concurrency is None:
            outcome = simulate(workload, self.deployment, model, memory(self.deployment))
        else:
            facts = {"requested_concurrency": float(spec.concurrency)}
            outcome = simulate_closed_loop(
                workload, self.deployment, model, memory(self.deployment), concurrency=spec.concurrency
            )
        return measurement(name, to_log(workload, outcome), self, spec.words(), facts)


def measurement(name: str, log: RequestLog, played: Played, words: str, facts: dict[str, float]) -> Measurement:
    num = log.num_requests
    none = np.zeros(num, np.int64)
    return Measurement(
        name=name,
        endpoint=played.endpoint,
        load_words=words,
        started="2026-11-30T00:00:00Z",
        log=replace(log, cached_tokens=np.full(num, -1)),
        details=RequestDetails(
            request=np.arange(num),
            intended_input_tokens=log.input_tokens,
            first_answer_s=log.first_token_s,
            end_s=log.last_token_s,
            http_status=none,
            retries=none,
            finish_reason=[""] * num,
            failure=[""] * num,
        ),
        chunks=Chunks(offsets=np.zeros(num + 1, np.int64), time_s=np.zeros(0)),
        trust=Trust(reasons=played.distrust, notes=(), facts=facts),
        server_metrics={},
        interrupted=played.interrupted,
    )


@pytest.fixture
def planned(plan: Command) -> Path:
    """The run folder of a plan of the small service."""
    folder: Path = plan().folders[0]
    return folder


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch, planned: Path) -> Callable[..., Played]:
    """Let an endpoint answer as the plan's winner would, or differently."""

    def start(**changes: Any) -> Played:
        winner = api.planned_deployment(planned / "plan.json")
        document = json.loads((planned / "plan.json").read_text())
        num_replicas = document["candidates"][document["winner"]]["deployment"]["num_replicas"]
        played = Played(deployment=replace(winner, num_replicas=num_replicas), **changes)

        @contextmanager
        def opened(_: Target) -> Iterator[Played]:
            yield played

        monkeypatch.setattr(Target, "open", opened)
        return played

    return start


def verified(run: Command, planned: Path, *options: str) -> Any:
    return run(
        "verify", planned / "plan.json", "http://localhost:8000", "--duration-s", "100000", *options, out=planned
    )


def test_an_endpoint_that_is_what_the_plan_says_keeps_it(run: Command, planned: Path, play: Command) -> None:
    play()
    ended = verified(run, planned)
    assert ended.code == 0, ended.err + ended.out
    assert ended.out.startswith("small: the promise is kept")
    assert "can be trusted" in ended.out
    document = json.loads((ended.folders[0] / "verification.json").read_text())
    rows = {row["figure"]: row for row in document["compared"]}
    assert rows["TTFT p99"]["predicted"] == pytest.approx(rows["TTFT p99"]["measured"]["value"])
    assert all(row["inside"] for row in rows.values() if row["stated"] is not None)
    assert not [w for w in document["warnings"] if "endpoint" in w and "version" not in w]
    assert (ended.folders[0] / "requests.parquet").exists()


def test_a_slower_endpoint_breaks_it(run: Command, planned: Path, play: Command) -> None:
    play(correction=StepCorrection(products_scale=4.0, attention_scale=4.0))
    ended = verified(run, planned, "--json")
    assert ended.code == 3
    document = json.loads(ended.out)
    assert document["verdict"] == "broken"
    assert {row["figure"]: row["inside"] for row in document["compared"]}["TPOT p50"] is False


def test_a_measurement_that_cannot_be_trusted_says_nothing(run: Command, planned: Path, play: Command) -> None:
    play(distrust=("the client was late",))
    ended = verified(run, planned)
    assert ended.code == 4
    assert ended.out.startswith("small: the measurement cannot be trusted")
    assert "the client was late" in ended.out


def test_a_short_run_does_not_tell(run: Command, planned: Path, play: Command) -> None:
    play()
    ended = verified(run, planned, "--num-requests", "30", "--json")
    assert ended.code == 4
    document = json.loads(ended.out)
    assert document["verdict"] == "too short to tell"
    # all good: 0.975 ** (1 / n) must reach the promised share
    assert document["more_requests"] == math.ceil(1.1 * math.log(0.025) / math.log(0.95))


def test_another_server_is_noticed(run: Command, planned: Path, play: Command) -> None:
    other = Endpoint(
        base_url="http://localhost:8000", api="openai-chat", model="mistral", engine="sglang", engine_version="0.5"
    )
    play(endpoint=other)
    ended = verified(run, planned)
    shown = " ".join(ended.out.split())
    assert "the endpoint runs sglang, the plan's engine is vllm" in shown
    assert "the endpoint's model is called mistral" in shown


def test_a_share_of_the_replicas_gets_its_share_of_the_traffic(run: Command, planned: Path, play: Command) -> None:
    path = planned / "plan.json"
    document = json.loads(path.read_text())
    winner = document["candidates"][document["winner"]]
    winner["deployment"]["num_replicas"] = 2
    path.write_text(json.dumps(document))
    play()
    ended = verified(run, planned, "--replicas", "1", "--json")
    found = json.loads(ended.out)
    (output,) = [row for row in found["compared"] if row["figure"] == "output"]
    assert output["predicted"] == pytest.approx(winner["summary"]["throughput_tokens_per_s"] / 2)
    assert "the endpoint got 0.5 of the plan's traffic, as its share of the replicas" in found["warnings"]
    refused = verified(run, planned, "--replicas", "99")
    assert refused.code == 2
    assert "replicas, not 99" in refused.error


def test_ctrl_c_keeps_the_run_and_gives_no_verdict(run: Command, planned: Path, play: Command) -> None:
    play(interrupted=True)
    ended = verified(run, planned)
    assert (ended.code, ended.out) == (130, "")
    (folder,) = [path for path in planned.iterdir() if (path / "verification.json").exists()]
    assert str(folder) in ended.err


def test_a_plan_without_its_traffic_cannot_be_verified(run: Command, planned: Path, play: Command) -> None:
    play()
    (planned / "workload.json").unlink()
    assert "workload.json" in verified(run, planned).error


def measured_sweep(played: Played, folder: Path, concurrencies: tuple[int, ...] = (1, 8, 32)) -> list[Path]:
    runs = []
    for concurrency in concurrencies:
        spec = LoadSpec(
            concurrency=concurrency,
            num_requests=max(60, 2 * concurrency),
            input_tokens=UniformLength(low=100, high=4000),
            output_tokens=UniformLength(low=20, high=300),
        )
        found = played.run(spec, name=f"c{concurrency}", seed=concurrency)
        runs.append(new_run_dir(folder, found.name))
        write_measurement(runs[-1], found)
    return runs


def test_a_plan_uses_what_was_calibrated(
    run: Command, plan: Command, planned: Path, play: Command, tmp_path: Path
) -> None:
    played = play(correction=SLOWER)
    single = replace(played, deployment=replace(played.deployment, num_replicas=1))
    runs = measured_sweep(single, tmp_path)
    ended = run("calibrate", *runs, "--plan", planned / "plan.json", "--out", tmp_path / "cal.json")
    assert ended.code == 0, ended.err
    assert "products_scale" in ended.out
    found = read_calibration(tmp_path / "cal.json")
    assert found.correction.products_scale == pytest.approx(1.3, rel=0.1)
    before = json.loads((planned / "plan.json").read_text())
    after = plan(calibration="cal.json").document
    assert "cal.json" in after["input_hashes"]
    old, new = (document["candidates"][document["winner"]] for document in (before, after))
    assert new["summary"]["means"]["tpot"] > 1.1 * old["summary"]["means"]["tpot"]
    widths = [mean["high"] / mean["low"] for mean in (c["assurance"]["means"]["tpot"] for c in (old, new))]
    assert new["assurance"]["means"]["tpot"]["error_class"].startswith("calibrated")
    if new["assurance"]["means"]["tpot"]["error_class"] == "calibrated":
        assert widths[1] < widths[0]


def test_a_described_device_needs_a_calibration(run: Command, plan: Command, tmp_path: Path) -> None:
    device = {"name": '"my card"', "memory_gib": 80, "bandwidth_gb_per_s": 2000, "bf16_tflops": 500, "usd_per_h": 2.0}
    (tmp_path / "card.toml").write_text("\n".join(f"{key} = {value}" for key, value in device.items()))
    refused = plan(hardware=["card.toml"])
    assert refused.code == 3
    reasons = {candidate["reason"] for candidate in refused.document["candidates"]}
    assert any("how fast my card is" in reason for reason in reasons)
    deployment = api.named_deployment(
        engine="vllm", model="meta-llama/Llama-3.1-8B-Instruct", gpu=str(tmp_path / "card.toml")
    )
    runs = measured_sweep(Played(deployment=deployment), tmp_path)
    named = ("--engine", "vllm", "--model", deployment.model.name, "--gpu", tmp_path / "card.toml")
    ended = run("calibrate", *runs, *named, "--out", tmp_path / "cal.json")
    assert ended.code == 0, ended.err
    traffic = {"profile": "azure-conversation-2023", "num_requests": 300, "rate_rps": 1.0}
    answered = plan(hardware=["card.toml"], calibration=["cal.json"], traffic=traffic)
    assert answered.code == 0, answered.err
    document = answered.document
    assert document["candidates"][document["winner"]]["deployment"]["gpu"] == "my card"


def test_bad_calls_are_refused_in_words(run: Command, planned: Path, play: Command, tmp_path: Path) -> None:
    runs = measured_sweep(replace(play(), deployment=api.planned_deployment(planned / "plan.json")), tmp_path, (1, 8))
    out = ("--out", tmp_path / "cal.json")
    assert "at least 3" in run("calibrate", *runs, "--plan", planned / "plan.json", *out).error
    assert "--engine is missing" in run("calibrate", *runs, *out).error
    both = run("calibrate", *runs, "--plan", planned / "plan.json", "--engine", "vllm", *out)
    assert "contradicts --plan" in both.error
    assert "no calibration" not in both.error
    named = ("--engine", "vllm", "--model", "meta-llama/Llama-3.1-8B-Instruct", "--gpu", "L40S-48GB")
    assert "unknown setting" in run("calibrate", *runs, *named, "--set", "max_seqs=3", *out).error
    assert "a whole number" in run("calibrate", *runs, *named, "--set", "max_num_seqs=many", *out).error
    assert "SETTING=VALUE" in run("calibrate", *runs, *named, "--set", "x", *out).error
