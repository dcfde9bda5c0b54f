"""What real engines decide when there is too little room, held against the simulator under the same settings.

Times are not compared, only what the engines' rules decide; see docs/against-real-engines.md.
"""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from benchmarks.engines import EngineServer

LEAST_TAU = 0.95
"""Of the orders of first and last tokens; a request that the front end handed over late may move by a place."""


def run_bursts(compare: ModuleType, server: EngineServer, model: Path) -> list[Any]:
    """The bursts of the tool, served and simulated."""
    options = compare.parse(["--engine", server.engine, "--model", str(model)])
    found: list[Any] = compare.compare_bursts(options, server.port, 0)
    for one in found:
        print(compare.describe(one))
    assert [one.burst for one in found] == ["equal", "mixed"]
    return found


@pytest.mark.engines
@pytest.mark.shared
def test_vllm_preempts_as_simulated(vllm_server: EngineServer, compare_with_engines: ModuleType, models: Path) -> None:
    for one in run_bursts(compare_with_engines, vllm_server, models / "tiny"):
        assert one.real.preemptions > 0
        assert abs(one.real.preemptions - one.simulated.preemptions) <= 1
        assert abs(one.real.max_at_once - one.simulated.max_at_once) <= 1
        assert min(one.first_tokens.tau, one.last_tokens.tau) >= LEAST_TAU


@pytest.mark.sglang
@pytest.mark.shared
def test_sglang_queues_as_simulated(
    sglang_server: EngineServer, compare_with_engines: ModuleType, models: Path
) -> None:
    for one in run_bursts(compare_with_engines, sglang_server, models / "tiny"):
        assert one.real.preemptions == one.simulated.preemptions == 0
        assert one.real.late_first_tokens > 0
        assert abs(one.real.late_first_tokens - one.simulated.late_first_tokens) <= 1
        assert abs(one.real.max_at_once - one.simulated.max_at_once) <= 1
        assert min(one.first_tokens.tau, one.last_tokens.tau) >= LEAST_TAU


@pytest.mark.engines
@pytest.mark.shared
@pytest.mark.parametrize(
    "name",
    [
        "four slots, unified",
        "four slots, split, shared prefixes",
        "four slots, unified, prompt cache of 1 MiB, one by one",
        "four slots, split, prompt cache of 1 MiB, one by one",
    ],
)
def test_llamacpp_computes_the_simulated_passes(name: str, compare_with_llamacpp: ModuleType, models: Path) -> None:
    scenario = next(one for one in compare_with_llamacpp.scenarios() if one.name == name)
    for seed in range(3):  # on a busy machine a request may overtake another on its way in: then the next burst counts
        found = compare_with_llamacpp.compare(scenario, models / "tiny.gguf", seed, differences=True)
        print(found)
        assert found["failed"] == 0
        if found["passes_equal"]:
            break
    assert found["passes_equal"]
    assert found["cached_equal"]
    assert min(found["first_order"], found["last_order"]) >= LEAST_TAU  # the client's clock also sees its own threads
