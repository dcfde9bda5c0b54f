"""A stand-in for the verbs, so that the command line is tested alone."""

from __future__ import annotations

import json
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import servewise
from servewise.traffic import LengthStatistics, TrafficStatistics

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "report"))

import fake_plan

from servewise.report import PlanReport
from servewise.types import Plan


@dataclass
class FakeResult:
    plan: Plan
    report: PlanReport
    run_dir: Path | None
    json_text: str


@dataclass
class FakeApi:
    """Answers what it is told to, and remembers what it was asked."""

    plan_found: Plan = field(default_factory=fake_plan.plan)
    raises: BaseException | None = None
    calls: list[dict[str, Any]] = field(default_factory=list)

    def plan(self, service: Any, *, out_dir: Path, progress: Callable[[str, int, int], None], **options: Any) -> Any:
        self.calls.append({"service": service, "out_dir": out_dir, **options})
        progress("simulate", 1, 2)
        progress("simulate", 2, 2)
        if self.raises is not None:
            raise self.raises
        report = fake_plan.report(self.plan_found)
        text = json.dumps({"schema": "servewise.plan/1", "winner": self.plan_found.winner})
        return FakeResult(self.plan_found, report, out_dir / "run-1", text)

    def traffic_statistics(self, source: str, **options: Any) -> TrafficStatistics:
        self.calls.append({"source": source, **options})
        lengths = LengthStatistics(mean=10.0, p50=9.0, p90=20.0, p99=30.0, max=40)
        return TrafficStatistics(
            name=source,
            num_requests=19366,
            duration_s=3600.0,
            mean_rate_rps=5.4,
            peak_rate_rps=None,
            peak_to_mean=None,
            dispersion_60s=12.5,
            cv_interarrival=1.1,
            zero_gap_frac=0.0,
            input=lengths,
            output=lengths,
            length_correlation=None,
            output_frac=0.5,
            block_size_tokens=None,
            prefix_hit_frac=None,
            prefix_hit_frac_by_cache=None,
            num_sessions=None,
            max_tokens_kind="assumed",
            max_tokens_p50=30.0,
        )

    def describe_traffic(self, statistics: TrafficStatistics) -> list[tuple[str, str]]:
        return [("requests", f"{statistics.num_requests:,}"), ("name", statistics.name)]

    def list_profiles(self) -> list[str]:
        return ["azure-code-2023", "azure-conversation-2023"]

    def list_models(self) -> list[dict[str, Any]]:
        return [
            {"model": "org/m-8B", "params_b": 8.03, "layers": 32},
            {"model": "x", "params_b": None, "layers": 1},
        ]

    def list_gpus(self) -> list[dict[str, Any]]:
        return [{"gpu": "H100-SXM-80GB", "memory_gib": 79.6}]


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> FakeApi:
    """The fake in place of ``servewise.api``."""
    fake = FakeApi()
    module = types.ModuleType("servewise.api")
    for name in (
        "plan",
        "traffic_statistics",
        "describe_traffic",
        "list_profiles",
        "list_models",
        "list_gpus",
    ):
        setattr(module, name, getattr(fake, name))
    monkeypatch.setitem(sys.modules, "servewise.api", module)
    monkeypatch.setattr(servewise, "api", module, raising=False)
    return fake


@dataclass
class Ended:
    code: int
    out: str
    err: str


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., Ended]:
    """Run a command line and return its exit code and output."""

    def call(*args: str) -> Ended:
        from servewise.cli import main

        with pytest.raises(SystemExit) as ending:
            main(args)
        captured = capsys.readouterr()
        return Ended(ending.value.code, captured.out, captured.err)  # type: ignore[arg-type]

    return call


@pytest.fixture
def service_file(tmp_path: Path) -> Path:
    """A small good service file."""
    path = tmp_path / "service.yaml"
    path.write_text(
        "model: openai/gpt-oss-20b\ntraffic: {profile: azure-code-2023}\npromise: {ttft_s: 1}\n"
        "hardware: [H100-SXM-80GB]\nengines: [vllm, tgi]\n"
    )
    return path
