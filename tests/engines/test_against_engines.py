"""The tool that holds the simulator against real engines: what it measures, and what it expects of each engine."""

from __future__ import annotations

import argparse
import importlib
import random
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

TOOLS = Path(__file__).resolve().parents[2] / "tools"


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(TOOLS)
    return importlib.import_module("compare_with_engines")


def seeded() -> random.Random:
    return random.Random(0)  # noqa: S311 (not a secret)


def served(requests: list, counters: dict[str, float]) -> object:
    """A burst as a server might have answered it: a request every 20 ms, a token every 10 ms."""
    real = importlib.import_module("real_engines")
    answers = tuple(
        real.Answer(
            sent_s=0.02 * i,
            output_tokens=request.output_tokens,
            chunk_s=[0.02 * i + 0.1 + 0.01 * k for k in range(request.output_tokens)],
        )
        for i, request in enumerate(requests)
    )
    return real.Observed(answers=answers, counters=counters)


def settings(engine: str) -> argparse.Namespace:
    return argparse.Namespace(
        engine=engine, scheduling_policy="fcfs", watermark=0.0, long_prefill_token_threshold=0, stop_at_eos=False
    )


def test_vllm_preempts_where_sglang_queues(tool: ModuleType) -> None:
    """The difference between the real ones under the same burst."""
    requests = tool.equal_burst(seeded())
    vllm = tool.compare(settings("vllm"), "equal", requests, served(requests, {}))
    sglang = tool.compare(settings("sglang"), "equal", requests, served(requests, {}))
    assert (vllm.simulated.max_at_once, vllm.simulated.late_first_tokens) == (8, 0)
    assert vllm.simulated.preemptions == 5  # as of the real one
    assert (sglang.simulated.max_at_once, sglang.simulated.late_first_tokens) == (4, 4)
    assert sglang.simulated.preemptions == 0
    assert vllm.real.max_at_once == 8


def test_an_answer_of_another_length_is_refused(tool: ModuleType) -> None:
    requests = tool.equal_burst(seeded())
    with pytest.raises(RuntimeError, match="not what was asked for"):
        tool.compare(settings("vllm"), "equal", requests, served(tool.mixed_burst(seeded())[:8], {}))


def test_how_far_one_order_follows_another(tool: ModuleType) -> None:
    simulated = np.array([1.0, 2.0, 2.0, 3.0])
    same = tool.follows(simulated, np.array([0.1, 0.4, 0.3, 0.5]), 0.01)  # those of one step may come in any order
    assert (same.tau, same.prefix) == (1.0, 4)
    # of 5 pairs told apart one is swapped: the last request came before the second
    swapped = tool.follows(simulated, np.array([0.1, 0.5, 0.3, 0.4]), 0.01)
    assert swapped.tau == pytest.approx(3 / 5)
    assert swapped.prefix == 2
    assert tool.follows(simulated, -simulated, 0.01).tau == -1.0


def test_prompts_share_no_block(tool: ModuleType) -> None:
    real = importlib.import_module("real_engines")
    requests = [*tool.mixed_burst(seeded()), *tool.equal_burst(seeded())]
    starts = set()
    for burst in range(6):
        for number, request in enumerate(requests):
            body = real._body(number, burst, request, True)
            starts.add(body[body.index(b"[") : body.index(b"[") + 60])
    assert len(starts) == 6 * len(requests)


def test_tokens_of_one_real_step_may_leave_in_any_order(tool: ModuleType) -> None:
    simulated = np.array([1.0, 1.1, 1.2, 1.3])
    same_step = tool.follows(simulated, np.array([1.0, 1.102, 1.101, 1.3]), 0.1)
    assert (same_step.tau, same_step.prefix) == (1.0, 4)
    other_step = tool.follows(simulated, np.array([1.0, 1.2, 1.1, 1.3]), 0.1)
    assert (other_step.tau, other_step.prefix) == (pytest.approx(4 / 6), 1)
