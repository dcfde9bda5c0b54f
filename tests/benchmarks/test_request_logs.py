"""The request-log benchmark: reading of runs, errors of known size, and refusals."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.request_logs import Predicted, at_ticks, inside_engine, main, predict, score
from benchmarks.request_logs_read import LoggedRun, gpu_named, read_run
from servewise import perf
from servewise.errors import InputError, UnknownNameError
from servewise.sim import run as simulate_run
from servewise.types import Parallelism

WALL_S, CORE_S = 1_777_144_890.25, 27_536.5
"""The API process's wall clock and the engine core's clock at the first arrival [s]."""
RECORDER_LEAD_S = 0.25
DENSE, EXPERTS = "meta-llama/Llama-3.1-8B", "Qwen/Qwen3-30B-A3B-Instruct-2507"
ERRORS = (
    "tpot_mean_err_pct",
    "ttft_mean_err_pct",
    "makespan_err_pct",
    "running_err_pct",
    "tpot_request_median_pct",
    "ttft_request_median_pct",
)


def meta_of(model: str, device: str = "NVIDIA H100 80GB HBM3", **kwargs: object) -> dict[str, Any]:
    """A run's ``meta.json``."""
    return {
        "model": model,
        "vllm_version": "0.19.0",
        "engine_kwargs": {"max_num_seqs": 64, "max_num_batched_tokens": 2048, "max_model_len": 16384, **kwargs},
        "started_at": datetime.fromtimestamp(WALL_S - RECORDER_LEAD_S, UTC).isoformat(),
        "hardware": {"device_name": device},
    }


class Recorded:
    """A folder of one run: 60 requests in 10 seconds, whose times can be set."""

    def __init__(self, folder: Path, meta: dict[str, Any]) -> None:
        rng = np.random.default_rng(3)
        self.folder = folder
        self.arrival_s = np.concatenate(([0.0], np.sort(rng.uniform(0.0, 10.0, 59))))
        self.inputs, self.outputs = rng.integers(20, 3000, 60), rng.integers(2, 400, 60)
        # the core reads the first request at once, the others a little later
        self.read_s = self.arrival_s + np.concatenate(([0.0], rng.uniform(0.0, 0.002, 59)))
        (folder / "vllm").mkdir(parents=True)
        self.write_meta(meta)
        self.write_times(self.arrival_s + 1.0, self.arrival_s + 2.0)
        self.write_ticks(np.ones(3), np.zeros(3))

    def write_meta(self, meta: object) -> None:
        """Set ``meta.json``."""
        (self.folder / "vllm" / "meta.json").write_text(json.dumps(meta), encoding="utf-8")

    def write_times(self, first_s: np.ndarray, last_s: np.ndarray) -> None:
        """Set when each request got its tokens [s after the first arrival]."""
        lines = [
            json.dumps(
                {
                    "request_id": f"bench-{i}",
                    "input_toks": int(self.inputs[i]),
                    "output_toks": int(self.outputs[i]),
                    "arrival_time": WALL_S + self.arrival_s[i],
                    "queued_ts": CORE_S + self.read_s[i],
                    "scheduled_ts": CORE_S + self.read_s[i],
                    "first_token_ts": CORE_S + first_s[i],
                    "last_token_ts": CORE_S + last_s[i],
                }
            )
            for i in range(60)
        ]
        (self.folder / "vllm" / "requests.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")

    def write_ticks(self, running: np.ndarray, waiting: np.ndarray) -> None:
        """Set the scheduler's state, once a second."""
        rows = [f"{i + 1}.0,0.0,0.0,{running[i]},{waiting[i]},0.0" for i in range(len(running))]
        text = "\n".join(["t,prompt_throughput,gen_throughput,running,waiting,kv_cache_pct", *rows])
        (self.folder / "vllm" / "timeseries.csv").write_text(text + "\n", encoding="utf-8")

    def record(self, predicted: Predicted, slower: float = 1.0) -> LoggedRun:
        """Make the run what was predicted, with all times ``slower``."""
        self.write_times(predicted.first_s * slower, predicted.last_s * slower)
        self.write_ticks(np.ones(math.ceil(predicted.last_s.max())), np.zeros(math.ceil(predicted.last_s.max())))
        run = read_run(self.folder)
        self.write_ticks(at_ticks(run, predicted, predicted.running), at_ticks(run, predicted, predicted.waiting))
        return read_run(self.folder)


# ------------------------------------------------------------------ errors


@pytest.mark.parametrize(
    "meta",
    [
        meta_of(DENSE),
        meta_of(DENSE, data_parallel_size=2),
        meta_of(EXPERTS, data_parallel_size=2, enable_expert_parallel=True),
    ],
)
def test_what_the_simulator_made_has_no_error(tmp_path: Path, meta: dict[str, Any]) -> None:
    recorded = Recorded(tmp_path / "run", meta)
    predicted = predict(read_run(recorded.folder))
    run = recorded.record(predicted)
    assert run.running.max() > 2
    errors = score(run, predict(run))
    assert set(errors) == set(ERRORS)
    assert all(abs(value) <= 0.01 for value in errors.values()), errors


def test_the_error_of_a_slower_run_is_known(tmp_path: Path) -> None:
    recorded = Recorded(tmp_path / "run", meta_of(DENSE))
    run = recorded.record(predict(read_run(recorded.folder)), slower=1.25)
    errors = score(run, predict(run))
    assert errors["tpot_mean_err_pct"] == pytest.approx(-20.0, abs=0.01)
    assert errors["tpot_request_median_pct"] == pytest.approx(20.0, abs=0.01)
    assert errors["makespan_err_pct"] == pytest.approx(-20.0, abs=0.01)


def test_requests_arrive_when_they_reached_the_api(tmp_path: Path) -> None:
    recorded = Recorded(tmp_path / "run", meta_of(DENSE))
    run = read_run(recorded.folder)
    np.testing.assert_allclose(run.workload.arrival_s, recorded.arrival_s, atol=1e-6)
    np.testing.assert_allclose(run.first_s, recorded.arrival_s + 1.0, atol=1e-6)
    np.testing.assert_allclose(run.tick_s, np.array([1.0, 2.0, 3.0]) - RECORDER_LEAD_S, atol=1e-6)


def test_no_network_is_added_to_times_inside_the_engine(tmp_path: Path) -> None:
    run = read_run(Recorded(tmp_path / "run", meta_of(DENSE)).folder)
    model = perf.step_model(run.deployment)
    assert model.table.request_fixed_s > 0
    table = inside_engine(model).table
    assert (table.request_fixed_s, table.request_s_per_input_token) == (0.0, 0.0)


# ------------------------------------------------------------------ what served


def test_settings_are_the_given_then_the_resolved_then_the_version_s(tmp_path: Path) -> None:
    meta = meta_of(DENSE)
    meta["resolved_config"] = {
        "scheduler_config": {"max_num_seqs": 7, "async_scheduling": False},
        "cache_config": {"gpu_memory_utilization": 0.5},
    }
    params = read_run(Recorded(tmp_path / "run", meta).folder).deployment.vllm_params
    assert (params.max_num_seqs, params.async_scheduling, params.gpu_memory_utilization) == (64, False, 0.5)
    assert params.enable_prefix_caching


def test_a_kv_cache_set_by_hand_is_used_and_a_logged_one_is_not(tmp_path: Path) -> None:
    meta = meta_of(DENSE)
    meta["kv_cache"] = {"num_kv_tokens": 32_000, "num_gpu_blocks": 2000, "block_size": 16}
    recorded = Recorded(tmp_path / "run", meta)
    run = read_run(recorded.folder)
    assert run.logged_kv_tokens == 32_000
    computed = predict(run).memory
    assert computed == perf.memory(run.deployment)
    assert computed.kv_capacity_tokens > 300_000
    meta["engine_kwargs"]["kv_cache_memory_bytes"] = 4 << 30
    recorded.write_meta(meta)
    by_hand = predict(read_run(recorded.folder)).memory
    # 128 KiB a token: 32 layers, 8 heads of 128, keys and values, two bytes each; one block is withheld
    assert by_hand.kv_capacity_tokens == (4 << 30) // (128 << 10) - 16


def test_requests_that_the_computed_cache_cannot_hold_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    meta = meta_of(DENSE)
    recorded = Recorded(tmp_path / "run", meta)
    memory = perf.memory(read_run(recorded.folder).deployment)
    room = memory.budget_bytes - memory.kv_bytes + 1500 * memory.kv_bytes_per_token  # prompts reach 3,000 tokens
    meta["hardware"]["device_total_memory_bytes"] = int(room * memory.mem_bytes / memory.budget_bytes)
    recorded.write_meta(meta)
    assert main(["--data", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert json.loads(lines[-1]) == {"runs": [], "coverage_frac": 0.0}
    assert "requests that were served are longer than the computed KV cache" in lines[0]


def test_experts_are_spread_over_all_ranks(tmp_path: Path) -> None:
    meta = meta_of(EXPERTS, tensor_parallel_size=2, data_parallel_size=2, enable_expert_parallel=True)
    deployment = read_run(Recorded(tmp_path / "run", meta).folder).deployment
    assert deployment.parallelism == Parallelism(tensor_parallel_size=2, data_parallel_size=2, expert_parallel_size=4)
    assert deployment.num_replicas == 1


@pytest.mark.parametrize(
    ("name", "bytes_per_s", "expected"),
    [
        ("NVIDIA H100 80GB HBM3", None, "H100-SXM-80GB"),
        ("NVIDIA H100 PCIe", None, "H100-PCIe-80GB"),
        ("NVIDIA GeForce RTX 4090", None, "RTX-4090-24GB"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", None, "RTX-PRO-6000-96GB"),
        ("RTXPRO6000", 1597e9, "RTX-PRO-6000-96GB"),
        ("H100", 3352e9, "H100-SXM-80GB"),
        ("H100", 2000e9, "H100-PCIe-80GB"),
    ],
)
def test_gpus_by_their_driver_s_name(name: str, bytes_per_s: float | None, expected: str) -> None:
    assert gpu_named(name, bytes_per_s).name == expected


def test_an_ambiguous_gpu_without_a_bandwidth_is_refused() -> None:
    with pytest.raises(InputError, match="ambiguous"):
        gpu_named("H100", None)


def test_memory_is_what_the_driver_reported(tmp_path: Path) -> None:
    meta = meta_of(DENSE)
    meta["hardware"]["device_total_memory_bytes"] = 60 << 30
    assert read_run(Recorded(tmp_path / "run", meta).folder).deployment.gpu.mem_bytes == 60 << 30


# ------------------------------------------------------------------ refusals


def without(meta: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in meta.items() if name != key}


@pytest.mark.parametrize(
    ("meta", "reason"),
    [
        ([], "must hold an object"),
        (without(meta_of(DENSE), "model"), "lacks model"),
        (without(meta_of(DENSE), "vllm_version"), "lacks vllm_version"),
        (without(meta_of(DENSE), "engine_kwargs"), "lacks engine_kwargs"),
        (without(meta_of(DENSE), "started_at"), "lacks started_at"),
        (without(meta_of(DENSE), "hardware"), "names the GPU"),
        ({**meta_of(DENSE), "started_at": "yesterday"}, "not an ISO time stamp"),
        ({**meta_of(DENSE), "vllm_version": "newest"}, "newest"),
        (meta_of(DENSE, max_num_seqs="many"), "max_num_seqs is 'many'"),
        (meta_of(DENSE, tensor_parallel_size=[2]), "tensor_parallel_size"),
        (meta_of(DENSE, enforce_eager=True), "eager mode"),
        (meta_of(DENSE, speculative_config={"method": "eagle"}), "speculative decoding"),
        (meta_of(DENSE, device="NVIDIA GeForce GTX 970"), "not in the catalog"),
        ({**meta_of(DENSE), "resolved_config": {"compilation_config": {"cudagraph_mode": 0}}}, "cudagraph_mode 0"),
    ],
)
def test_a_run_that_cannot_be_placed_says_why(tmp_path: Path, meta: object, reason: str) -> None:
    recorded = Recorded(tmp_path / "run", meta_of(DENSE))
    recorded.write_meta(meta)
    with pytest.raises(InputError, match=reason):
        read_run(recorded.folder)


def test_an_unknown_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="nobody/Nothing-1B"):
        read_run(Recorded(tmp_path / "run", meta_of("nobody/Nothing-1B")).folder)


@pytest.mark.parametrize(
    ("file", "text", "reason"),
    [
        ("requests.jsonl", "", "holds no request with two output tokens"),
        ("requests.jsonl", "{}\n", "line 1: KeyError"),
        ("requests.jsonl", "not json\n", "line 1: JSONDecodeError"),
        ("timeseries.csv", "t,running\n1.0,2\n", "columns t, running, waiting"),
        ("timeseries.csv", "t,running,waiting\n1.0,2,many\n", "many"),
        ("timeseries.csv", "t,running,waiting\n1.0,0,0\n", "no running request"),
        ("meta.json", "{", "not JSON"),
    ],
)
def test_a_broken_file_says_why(tmp_path: Path, file: str, text: str, reason: str) -> None:
    recorded = Recorded(tmp_path / "run", meta_of(DENSE))
    (recorded.folder / "vllm" / file).write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=reason):
        read_run(recorded.folder)


def test_times_out_of_order_name_their_line(tmp_path: Path) -> None:
    recorded = Recorded(tmp_path / "run", meta_of(DENSE))
    recorded.write_times(recorded.arrival_s + 2.0, recorded.arrival_s + 1.0)
    with pytest.raises(InputError, match="line 1: tokens below 1 or times out of order"):
        read_run(recorded.folder)


# ------------------------------------------------------------------ command


def test_the_last_line_is_one_json_document(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recorded = Recorded(tmp_path / "a", meta_of(EXPERTS, data_parallel_size=2, enable_expert_parallel=True))
    recorded.record(predict(read_run(recorded.folder)))
    Recorded(tmp_path / "b", meta_of("nobody/Nothing-1B"))
    (tmp_path / "c").mkdir()
    assert main(["--data", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    document = json.loads(lines[-1])
    assert document["coverage_frac"] == pytest.approx(1 / 3)
    (entry,) = document["runs"]
    assert set(entry) == {"name", *ERRORS}
    assert entry["name"] == "a"
    assert any(line.startswith("b: not placed: ") and "Nothing-1B" in line for line in lines)
    assert any(line.startswith("c: not placed: meta.json is missing") for line in lines)


def test_a_folder_without_runs_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--data", str(tmp_path)]) == 2
    assert "holds no run" in capsys.readouterr().err


# ------------------------------------------------------------------ ranks


def test_ranks_wait_for_each_other(tmp_path: Path) -> None:
    """Two ranks in lock step are never faster than the same two, each with half of the requests, on their own."""
    meta = meta_of(EXPERTS, data_parallel_size=2, enable_expert_parallel=True, enable_prefix_caching=False)
    run = read_run(Recorded(tmp_path / "run", meta).folder)
    together = predict(run)
    assert run.deployment.num_replicas == 1
    model = inside_engine(perf.step_model(run.deployment))
    # with the experts of equal ranks, as a rank on its own has them
    alone = replace(run.deployment, parallelism=Parallelism(), num_replicas=2)
    log = simulate_run(run.workload, alone, model, perf.memory(run.deployment))
    tpot = (together.last_s - together.first_s).mean() / (log.last_token_s - log.first_token_s).mean()
    assert 1.02 < tpot < 1.5


# ------------------------------------------------------------------ real runs


@pytest.mark.shared
def test_the_real_runs_are_placed(shared_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--data", str(shared_dir / "data" / "measured" / "vllm_request_logs")]) == 0
    document = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert document["coverage_frac"] == 1.0
    assert len(document["runs"]) == 2
    for entry in document["runs"]:
        assert abs(entry["tpot_mean_err_pct"]) <= 30
        assert abs(entry["makespan_err_pct"]) <= 20
