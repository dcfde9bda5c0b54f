"""Profiles reproduce the traces they were derived from."""

from __future__ import annotations

import importlib.util
import json
import sys
from importlib import resources
from pathlib import Path

import numpy as np
import pytest

from servewise.errors import UnknownNameError
from servewise.traffic import TrafficStatistics, load_profile, profile_names, read_trace, statistics
from servewise.traffic.profile_arrivals import draw_arrivals, fit_concentrations
from servewise.traffic.profiles import read_profile, to_json
from servewise.traffic.statistics import window_counts
from traffic.workloads import bytes_of, check_invariants

NAMES = ("azure-code-2023", "azure-conversation-2023", "mooncake-conversation")
FILES = {
    "azure-code-2023": "AzureLLMInferenceTrace_code_2023.csv",
    "azure-conversation-2023": "AzureLLMInferenceTrace_conv_2023.csv",
    "mooncake-conversation": "conversation_trace.jsonl",
}
SEEDS = range(5)


def assert_close(drawn: TrafficStatistics, original: TrafficStatistics) -> None:
    assert drawn.num_requests == original.num_requests
    assert drawn.duration_s == pytest.approx(original.duration_s, rel=1e-6)
    assert drawn.mean_rate_rps == pytest.approx(original.mean_rate_rps, rel=0.1)
    assert drawn.dispersion_60s == pytest.approx(original.dispersion_60s, rel=0.1)
    for ours, theirs in ((drawn.input, original.input), (drawn.output, original.output)):
        for name in ("mean", "p50", "p90", "p99"):
            assert getattr(ours, name) == pytest.approx(getattr(theirs, name), rel=0.1), name
    assert drawn.length_correlation == pytest.approx(original.length_correlation, abs=0.03)
    if original.prefix_hit_frac is None or original.prefix_hit_frac_by_cache is None:
        assert drawn.prefix_hit_frac is None
        return
    assert drawn.prefix_hit_frac == pytest.approx(original.prefix_hit_frac, rel=0.1)
    assert drawn.prefix_hit_frac_by_cache is not None
    for (size, ours), (their_size, theirs) in zip(
        drawn.prefix_hit_frac_by_cache, original.prefix_hit_frac_by_cache, strict=True
    ):
        assert size == their_size
        assert ours == pytest.approx(theirs, rel=0.1), size


def test_names() -> None:
    assert tuple(profile_names()) == NAMES


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("seed", SEEDS)
def test_draws_match_the_stored_statistics(name: str, seed: int) -> None:
    workload = load_profile(name, seed=seed)
    check_invariants(workload)
    assert workload.arrival_s[0] == 0
    assert workload.max_tokens_kind == "assumed"
    assert workload.provenance.kind == "derived"
    assert_close(statistics(workload), read_profile(name).statistics)


@pytest.mark.shared
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("seed", SEEDS)
def test_draws_match_the_original(shared_dir: Path, name: str, seed: int) -> None:
    original = read_trace(shared_dir / "data" / "traces" / FILES[name])
    assert_close(statistics(load_profile(name, seed=seed)), statistics(original))


@pytest.mark.shared
@pytest.mark.parametrize(("name", "window_s"), [(NAMES[0], 1), (NAMES[0], 10), (NAMES[1], 1), (NAMES[1], 10)])
def test_bursts_match_at_shorter_scales(shared_dir: Path, name: str, window_s: float) -> None:
    def dispersion(arrival_s: np.ndarray) -> float:
        counts = window_counts(arrival_s, window_s)
        return float(counts.var() / counts.mean())

    original = dispersion(read_trace(shared_dir / "data" / "traces" / FILES[name]).arrival_s)
    drawn = [dispersion(load_profile(name, seed=seed).arrival_s) for seed in SEEDS]
    assert np.mean(drawn) == pytest.approx(original, rel=0.15)


@pytest.mark.shared
def test_output_lengths_drift_like_the_original(shared_dir: Path) -> None:
    """Azure's conversations have 40% shorter answers in the busy half hour: it must stay visible."""
    name = NAMES[1]
    original = read_trace(shared_dir / "data" / "traces" / FILES[name])
    drawn = load_profile(name, seed=1)
    for start_s in range(0, 3300, 600):
        means = []
        for workload in (original, drawn):
            is_inside = (workload.arrival_s >= start_s) & (workload.arrival_s < start_s + 600)
            means.append(workload.output_tokens[is_inside].mean())
        assert means[1] == pytest.approx(means[0], rel=0.1)


def test_seed_decides_everything() -> None:
    for name in NAMES:
        assert bytes_of(load_profile(name, seed=3)) == bytes_of(load_profile(name, seed=3))
        assert bytes_of(load_profile(name, seed=3)) != bytes_of(load_profile(name, seed=4))


def test_unknown_profile_offers_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="did you mean azure-conversation-2023") as caught:
        load_profile("azure-conversation")
    assert caught.value.near[0] == "azure-conversation-2023"


def test_names_are_not_paths() -> None:
    for name in ("../traffic/azure-code-2023", "azure-code-2023.json", ""):
        with pytest.raises(UnknownNameError):
            load_profile(name)


def test_files_are_small_and_hold_no_trace() -> None:
    folder = resources.files("servewise.data") / "traffic"
    sizes = {name: len((folder / f"{name}.json").read_bytes()) for name in NAMES}
    assert sum(sizes.values()) < 60_000
    for name in NAMES:
        profile = read_profile(name)
        assert len(profile.window_requests) <= 240
        assert sum(profile.window_requests) == profile.num_requests
        assert "github.com" in profile.provenance.source
        assert "licence" in profile.provenance.note


def assert_same(derived: object, stored: object) -> None:
    """Equal but for the last digits, in which machines differ."""
    if isinstance(stored, dict):
        assert isinstance(derived, dict)
        assert derived.keys() == stored.keys()
        for name, value in stored.items():
            assert_same(derived[name], value)
    elif isinstance(stored, list):
        assert isinstance(derived, list)
        assert len(derived) == len(stored)
        for one, other in zip(derived, stored, strict=True):
            assert_same(one, other)
    elif isinstance(stored, float):
        assert derived == pytest.approx(stored, rel=1e-6, abs=2e-3)
    else:
        assert derived == stored


@pytest.mark.shared
@pytest.mark.parametrize("name", NAMES)
def test_files_are_what_the_tool_derives(shared_dir: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = Path(__file__).resolve().parents[2] / "tools" / "derive_profiles.py"
    spec = importlib.util.spec_from_file_location("derive_profiles", path)
    assert spec is not None
    assert spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "derive_profiles", tool)  # dataclasses look their module up
    spec.loader.exec_module(tool)
    derived = json.loads(to_json(tool.derive(name, shared_dir / "data" / "traces" / FILES[name])))
    stored = json.loads((resources.files("servewise.data") / "traffic" / f"{name}.json").read_text())
    assert_same(derived, stored)


def test_split_recovers_its_concentrations() -> None:
    """Fit what was drawn with known burstiness: bursty at the coarse scale, Poisson below."""
    rng = np.random.default_rng(0)
    counts = np.full(400, 200)
    arrival_s = draw_arrivals(counts, 60.0, 400 * 60.0, [2.0, 10.0, None], rng)
    fitted = fit_concentrations(arrival_s, 60.0, 3)
    assert fitted[0] == pytest.approx(2.0, rel=0.2)
    assert fitted[1] == pytest.approx(10.0, rel=0.2)
    assert fitted[2] is None or fitted[2] > 500
