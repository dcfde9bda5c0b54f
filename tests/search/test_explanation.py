"""The parts of a number sum to it, mean what they say, and name their sources."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from servewise import perf, traffic
from servewise.search import plan
from servewise.search.explanation import caveats, explained
from servewise.search.operating_point import observe
from servewise.search.plan import NUM_IN_FULL
from servewise.search.results import Result
from servewise.types import (
    Breakdown,
    Explanation,
    Promise,
    RequestLog,
    RequestStatus,
    Search,
    StepModel,
    StepTable,
    Workload,
)

from .conftest import Make
from .drawn import RUNS, kept_result, use_draws, use_errors

SPREAD_FRAC = 0.05
"""At most this share of a mean may be left to how steps vary around the operating point."""
EASY = Promise(ttft_s=1e4, attainment=0.5)
"""Kept by any fleet, so that a single replica is explained under whatever load."""


@pytest.fixture(autouse=True)
def errors(monkeypatch: pytest.MonkeyPatch) -> None:
    use_errors(monkeypatch)


def faster(workload: Workload, factor: float) -> Workload:
    return replace(workload, arrival_s=workload.arrival_s / factor)


def result_of(search: Search) -> Result:
    return kept_result(search, num_replicas=1)


def of(explanation: Explanation, name: str) -> Breakdown:
    return next(number for number in explanation.numbers if number.number == name)


def part(number: Breakdown, name: str) -> float:
    return sum(p.value for p in number.parts if p.name == name)


def group(number: Breakdown, name: str) -> float:
    return sum(p.value for p in number.parts if p.group == name)


@pytest.mark.parametrize("gpu", ["L40S-48GB", "H100-SXM-80GB"])
@pytest.mark.parametrize("factor", [0.05, 0.4, 1.0])
def test_the_parts_sum_to_the_simulated_means(make_search: Make, chat: Workload, gpu: str, factor: float) -> None:
    search = make_search(workload=faster(chat, factor), gpus=(gpu,), promise=EASY)
    result = result_of(search)
    found = explained(search, result)
    summary, cost, memory = result.candidate.summary, result.candidate.cost, result.candidate.memory
    assert summary is not None
    assert cost is not None
    assert memory is not None
    shown = {
        "ttft": summary.means["ttft"],
        "tpot": summary.means["tpot"],
        "memory": memory.mem_bytes,
        "cost": cost.usd_per_mtok_output_at_load,
    }
    assert [number.number for number in found.numbers] == list(shown)
    for number in found.numbers:
        assert number.value == shown[number.number]
        assert math.fsum(p.value for p in number.parts) == pytest.approx(number.value, rel=1e-9)
    for name in ("ttft", "tpot"):
        number = of(found, name)
        assert abs(part(number, "spread")) <= SPREAD_FRAC * number.value
        assert all(p.value >= 0 for p in number.parts if p.name not in ("spread", "queue"))
    assert {p.group for p in of(found, "ttft").parts} == {"queue", "prefill", "network"}


def test_the_parts_sum_with_prefix_hits_and_long_prompts(make_search: Make) -> None:
    workload = traffic.load(traffic.TrafficSource(profile="mooncake-conversation", num_requests=600))
    search = make_search(workload=workload, gpus=("H100-SXM-80GB",), promise=EASY)
    found = explained(search, result_of(search))
    assert found.prompt_tokens < 0.95 * workload.input_tokens.mean()  # what is cached is not computed
    for name in ("ttft", "tpot"):
        number = of(found, name)
        assert math.fsum(p.value for p in number.parts) == pytest.approx(number.value, rel=1e-9)
        assert abs(part(number, "spread")) <= SPREAD_FRAC * number.value


def test_without_company_nothing_waits(make_search: Make, chat: Workload) -> None:
    num = 200
    alone = replace(
        chat,
        arrival_s=60.0 * np.arange(num),
        input_tokens=chat.input_tokens[:num],
        output_tokens=chat.output_tokens[:num],
        max_tokens=chat.max_tokens[:num],
    )
    search = make_search(workload=alone, gpus=("L40S-48GB",), promise=EASY)
    found = explained(search, result_of(search))
    ttft, tpot = of(found, "ttft"), of(found, "tpot")
    assert abs(part(ttft, "queue")) <= 0.01 * ttft.value
    assert group(ttft, "prefill") > 0.5 * ttft.value
    assert part(tpot, "prompts") == 0.0
    assert found.num_rows == pytest.approx(1.0, rel=1e-9)
    assert found.prompt_tokens == alone.input_tokens.mean()
    assert found.context_tokens == pytest.approx((alone.input_tokens + alone.output_tokens / 2).mean(), rel=0.05)


def test_more_load_waits_longer_and_prompts_of_others_take_more(make_search: Make, chat: Workload) -> None:
    found = []
    for factor in (0.1, 0.3, 0.6):
        search = make_search(workload=faster(chat, factor), gpus=("L40S-48GB",), promise=EASY)
        found.append(explained(search, result_of(search)))
    for less, more in pairwise(found):
        assert part(of(less, "ttft"), "queue") < part(of(more, "ttft"), "queue")
        assert part(of(less, "tpot"), "prompts") < part(of(more, "tpot"), "prompts")
        assert less.num_rows < more.num_rows


def test_network_and_tokenizer_are_the_time_outside_the_engine(make_search: Make) -> None:
    search = make_search(gpus=("L40S-48GB",), promise=EASY)
    result = result_of(search)
    table, ttft = result.load.step_model.table, of(explained(search, result), "ttft")
    assert part(ttft, "network") == table.request_fixed_s
    mean = search.workload.input_tokens.mean()
    assert part(ttft, "tokenizer") == pytest.approx(table.request_s_per_input_token * mean, rel=1e-12)


def test_every_part_names_its_sources_but_what_the_simulation_decides(make_search: Make) -> None:
    search = make_search(gpus=("H100-SXM-80GB",), promise=EASY)
    found = explained(search, result_of(search))
    for number in found.numbers:
        for p in number.parts:
            assert bool(p.sources) == (p.name not in ("queue", "spread")), (number.number, p.name)
    known = set(perf.step_model(result_of(search).shape.deployment).provenance.values())
    for name in ("ttft", "tpot"):
        assert {s for p in of(found, name).parts for s in p.sources} <= known


def test_the_memory_is_that_of_the_report(make_search: Make) -> None:
    search = make_search(gpus=("L40S-48GB",), promise=EASY)
    result = result_of(search)
    memory, number = result.candidate.memory, of(explained(search, result), "memory")
    assert memory is not None
    assert (part(number, "weights"), part(number, "kv")) == (memory.weights_bytes, memory.kv_bytes)
    assert part(number, "unused") == memory.mem_bytes - memory.budget_bytes
    assert f"{memory.kv_capacity_tokens:,} tokens" in number.note


def test_the_cost_tells_what_is_paid_and_not_used(make_search: Make) -> None:
    search = make_search(gpus=("L40S-48GB",), promise=EASY)
    result = result_of(search)
    cost = result.candidate.cost
    assert cost is not None
    at_load, gpus = cost.usd_per_mtok_output_at_load, result.candidate.deployment.num_gpus
    wasteful = replace(cost, usd_per_mtok_output_at_capacity=at_load / 4, num_gpus_rented=2 * gpus)
    number = of(explained(search, replace(result, candidate=replace(result.candidate, cost=wasteful))), "cost")
    assert part(number, "idle_gpus") == pytest.approx(at_load / 2)
    assert part(number, "serving") == pytest.approx(at_load / 8)
    assert part(number, "spare_capacity") == pytest.approx(at_load * 3 / 8)


def test_caveats_are_told_by_their_words() -> None:
    texts = (
        "transferred from h100_sxm by the ratio of peak rates: X was not measured",
        "unvalidated: no public run under load with pipeline parallelism was available to compare with",
        "contexts above 131072 tokens extrapolate attention (longest request 200000)",
        "all-reduce was measured on one machine",
    )
    found = caveats(texts)
    assert [caveat.kind for caveat in found] == ["transferred", "unvalidated", "extrapolated", "note"]
    assert [caveat.text for caveat in found] == list(texts)


def test_what_a_deployment_borrows_is_a_caveat(make_search: Make) -> None:
    search = make_search(gpus=("A100-SXM-40GB",), promise=EASY)
    result = result_of(search)
    model = replace(result.load.step_model, warnings=("transferred from a100_sxm by the ratio of peak rates",))
    found = explained(search, replace(result, load=replace(result.load, step_model=model)))
    assert [caveat.kind for caveat in found.caveats] == ["transferred"]
    assert found.nearest == (RUNS,) * 3


def test_an_engine_without_public_runs_is_unvalidated(monkeypatch: pytest.MonkeyPatch, make_search: Make) -> None:
    search = make_search(gpus=("L40S-48GB",), promise=EASY)
    result = result_of(search)
    assert not any("public run of" in caveat.text for caveat in explained(search, result).caveats)
    other = replace(RUNS, engine="sglang", differs=("engine", "gpu"))
    monkeypatch.setattr(perf, "nearest_runs", lambda _deployment, limit: (other,) * limit)
    (caveat,) = (c for c in explained(search, result).caveats if "public run of" in c.text)
    assert (caveat.kind, caveat.text) == (
        "unvalidated",
        "unvalidated: no public run of vllm was available to compare with",
    )


def test_the_winner_of_a_plan_is_explained(monkeypatch: pytest.MonkeyPatch, make_search: Make) -> None:
    use_draws(monkeypatch, (1.0,) * 32)
    found = plan(make_search(gpus=("L40S-48GB",)))
    winner = found.candidates[found.winner]
    assert found.explanation is not None
    assert of(found.explanation, "ttft").value == winner.summary.means["ttft"]
    assert of(found.explanation, "cost").value == winner.cost.usd_per_mtok_output_at_load
    assert part(of(found.explanation, "cost"), "serving") == pytest.approx(
        winner.cost.usd_per_mtok_output_at_capacity * winner.deployment.num_gpus / winner.cost.num_gpus_rented
    )
    assert NUM_IN_FULL >= sum(c.assurance is not None for c in found.candidates) >= 1


def test_requests_of_one_token_have_no_tpot_to_explain(make_search: Make, chat: Workload) -> None:
    short = replace(chat, output_tokens=np.ones_like(chat.output_tokens))
    search = make_search(workload=short, gpus=("L40S-48GB",), promise=EASY)
    found = explained(search, result_of(search))
    assert [number.number for number in found.numbers] == ["ttft", "memory", "cost"]
    assert (found.num_rows, found.context_tokens) == (0.0, 0.0)


def flat(model: StepModel, step_s: float, token_s: float) -> StepTable:
    """A table in which a step takes a fixed time and a prompt token a fixed time more."""
    table = model.table
    return replace(
        table,
        attention_base_s=np.zeros_like(table.attention_base_s),
        attention_slope_s=np.zeros_like(table.attention_slope_s),
        decode_fixed_s=np.where(np.arange(table.max_rows + 1) > 0, step_s, 0.0),
        mixed_tokens_s=np.full(table.max_batched_tokens + 1, step_s),
        sample_s=np.zeros(table.max_rows + 1),
        prefill_fixed_s=0.0,
        prefill_s_per_token=token_s,
        prefill_s_per_pair=0.0,
        mixed_row_attention_fixed_s=0.0,
        mixed_row_attention_s_per_token=0.0,
        request_fixed_s=0.5,
        request_s_per_input_token=0.0,
    )


def test_three_requests_worked_by_hand(make_search: Make) -> None:
    # A and B decode together from 1 s to 11 s; the prompt of C, 100 tokens, is computed in between and alone takes
    # 1.1 s: a step of 0.1 s and 0.01 s a token. D is alone on the other replica.
    result = result_of(make_search(gpus=("L40S-48GB",), promise=EASY))
    log = RequestLog(
        intended_s=np.zeros(4),
        sent_s=np.zeros(4),
        first_token_s=np.array([1.0, 1.0, 6.0, 2.0]) + 0.5,
        last_token_s=np.array([11.0, 11.0, 6.0, 4.0]) + 0.5,
        input_tokens=np.array([50, 30, 100, 10]),
        output_tokens=np.array([91, 91, 1, 21]),
        cached_tokens=np.full(4, -1),
        num_preemptions=np.zeros(4, np.int64),
        replica=np.array([0, 0, 0, 1]),
        status=np.full(4, RequestStatus.OK, np.int8),
        itl=None,
        timeline=None,
    )
    run = observe(log, flat(result.load.step_model, 0.1, 0.01), result.candidate.deployment)
    np.testing.assert_array_equal(run.prompts.rows, [0, 0, 2, 0])
    np.testing.assert_allclose(run.prompts.alone_s, [0.6, 0.4, 1.1, 0.2])
    np.testing.assert_allclose(run.prompts.context_tokens, [0, 0, 51 + 31 + 2 * 45, 0])
    np.testing.assert_allclose(run.prompts.pairs, [50 * 51 / 2, 30 * 31 / 2, 100 * 101 / 2, 10 * 11 / 2])
    np.testing.assert_allclose(run.decoding.rows, [2, 2, 1])
    np.testing.assert_allclose(run.decoding.context_tokens, [51 + 31 + 90, 51 + 31 + 90, 11 + 10])
    np.testing.assert_allclose(run.decoding.stall_s, [1.0 / 90, 1.0 / 90, 0.0])
