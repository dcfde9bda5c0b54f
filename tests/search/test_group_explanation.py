"""What groups of prefill and decode instances, and replicas with a drafter, are told beside their figures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from servewise import perf
from servewise.engines import sglang, trtllm
from servewise.search import plan
from servewise.search.assurance import assure, draw
from servewise.search.explanation import explained
from servewise.search.families import families, search_family
from servewise.search.fleet import try_fleet
from servewise.search.limits import limited_by
from servewise.search.operation import autoscaling, failure
from servewise.search.results import Result
from servewise.search.shapes import enumerate_shapes
from servewise.types import (
    Breakdown,
    Budget,
    Deployment,
    LoadPoint,
    Promise,
    Search,
    Speculation,
    Workload,
    chain_acceptance,
)

from .conftest import Make
from .test_explanation import EASY, SPREAD_FRAC, faster, group, of, part

ENGINES = {
    "vllm": "0.33.0",
    "sglang": sglang.default_version(),
    "tensorrt-llm": trtllm.default_version(),
}
NGRAM = Speculation(method="ngram", num_speculative_tokens=3, acceptance=chain_acceptance(0.6, 3))
EAGLE = replace(NGRAM, method="eagle")


def first_kept(search: Search, wanted: str, *, num_replicas: int = 1) -> Result:
    """The first group, or replica with a drafter, that keeps the promise."""
    shapes = [shape for shape in enumerate_shapes(search) if getattr(shape.deployment, wanted) is not None]
    for family in families(search, shapes):
        for result in search_family(search, family, (), prune=False):
            if result.candidate.status == "kept" and result.candidate.deployment.num_replicas >= num_replicas:
                return result
    raise AssertionError("no such result")


def group_result(
    make_search: Make, engine: str = "vllm", num_replicas: int = 1, **asked: object
) -> tuple[Search, Result]:
    search = make_search(
        gpus=("H100-SXM-80GB",),
        engines=((engine, ENGINES[engine]),),
        max_effort="high",
        router="least_requests",
        **{"promise": EASY, **asked},  # type: ignore[arg-type]
    )
    return search, first_kept(search, "disaggregation", num_replicas=num_replicas)


def drafter_result(make_search: Make, drafter: Speculation, **asked: object) -> tuple[Search, Result]:
    search = make_search(gpus=("L40S-48GB",), speculations=(drafter,), **{"promise": EASY, **asked})  # type: ignore[arg-type]
    return search, first_kept(search, "speculation")


def check_parts(numbers: Sequence[Breakdown], result: Result) -> None:
    """Parts sum to what is shown, are not negative, and leave little unexplained."""
    summary = result.candidate.summary
    assert summary is not None
    for number in numbers:
        assert math.fsum(p.value for p in number.parts) == pytest.approx(number.value, rel=1e-9)
        if number.unit == "s":
            assert number.value == summary.means[number.number]
            assert abs(part(number, "spread")) <= SPREAD_FRAC * number.value
            assert all(p.value >= 0 for p in number.parts if p.name not in ("spread", "queue"))


@pytest.mark.parametrize("factor", [0.05, 1.0])
@pytest.mark.parametrize("engine", list(ENGINES))
def test_the_parts_of_a_groups_means_sum_to_them(make_search: Make, chat: Workload, engine: str, factor: float) -> None:
    search, result = group_result(make_search, engine, workload=faster(chat, factor))
    found = explained(search, result)
    assert [n.number for n in found.numbers] == ["ttft", "tpot", "memory", "prefill_memory", "cost"]
    check_parts(found.numbers, result)
    ttft, tpot = of(found, "ttft"), of(found, "tpot")
    crossing = tpot if engine == "tensorrt-llm" else ttft  # whose first token comes from the prefill instance
    other = ttft if crossing is tpot else tpot
    assert group(crossing, "KV transfer") > 0.0 == group(other, "KV transfer")
    link = result.candidate.deployment.disaggregation
    assert link is not None
    if engine != "tensorrt-llm":
        assert part(ttft, "handshake") == pytest.approx(link.link.latency_s)
    assert (part(ttft, "first_step") > 0) == (engine == "vllm")
    assert part(tpot, "prompts") == 0.0
    assert found.scheduler == "decode instance"
    assert any("compared with one set of public runs" in caveat.text for caveat in found.caveats)
    for number in found.numbers:
        for p in number.parts:
            decided = ("queue", "spread", "decode_room", "link_queue", "step_wait")
            assert bool(p.sources) == (p.name not in decided), (number.number, p.name)


def test_without_company_a_groups_prompt_waits_for_nothing(make_search: Make, chat: Workload) -> None:
    num = 100
    alone = replace(
        chat,
        arrival_s=60.0 * np.arange(num),
        input_tokens=chat.input_tokens[:num],
        output_tokens=np.maximum(chat.output_tokens[:num], 2),
        max_tokens=chat.max_tokens[:num],
    )
    search, result = group_result(make_search, workload=alone)
    ttft = of(explained(search, result), "ttft")
    for name in ("queue", "decode_room", "link_queue", "step_wait"):
        assert abs(part(ttft, name)) <= 0.01 * ttft.value, name
    deployment = result.candidate.deployment
    sent = perf.kv_transfer_bytes(deployment.pool("prefill"), alone.input_tokens).mean()
    assert deployment.disaggregation is not None
    assert part(ttft, "wire") == pytest.approx(sent / deployment.disaggregation.link.bytes_per_s)
    assert explained(search, result).num_rows == pytest.approx(1.0, rel=1e-9)


def test_a_slow_link_and_a_full_decode_pool_show_where_they_are(make_search: Make, chat: Workload) -> None:
    search, result = group_result(make_search, workload=faster(chat, 0.5))
    before = of(explained(search, result), "ttft")

    def with_link(bytes_frac: float) -> Breakdown:
        deployment = result.candidate.deployment
        pools = deployment.disaggregation
        assert pools is not None
        slow = replace(pools, link=replace(pools.link, bytes_per_s=bytes_frac * pools.link.bytes_per_s))
        shape = replace(result.shape, deployment=replace(result.shape.deployment, disaggregation=slow))
        candidate = replace(result.candidate, deployment=replace(deployment, disaggregation=slow))
        return of(explained(search, replace(result, shape=shape, candidate=candidate)), "ttft")

    slower = with_link(0.25)
    assert part(slower, "wire") == pytest.approx(4 * part(before, "wire"), rel=1e-6)
    assert part(slower, "link_queue") > part(before, "link_queue")
    memory = result.shape.memory
    assert memory is not None
    few = replace(memory, num_kv_blocks=memory.num_kv_blocks // 40)
    tight = replace(result, shape=replace(result.shape, memory=few))
    assert part(of(explained(search, tight), "ttft"), "decode_room") > part(before, "decode_room")


@pytest.mark.parametrize("drafter", [NGRAM, EAGLE], ids=lambda d: d.method)
@pytest.mark.parametrize("factor", [0.05, 0.4])
def test_the_parts_with_a_drafter_sum_to_the_means(
    make_search: Make, chat: Workload, drafter: Speculation, factor: float
) -> None:
    search, result = drafter_result(make_search, drafter, workload=faster(chat, factor))
    found = explained(search, result)
    check_parts(found.numbers, result)
    tpot = of(found, "tpot")
    assert (group(tpot, "drafter") > 0) == (drafter.method == "eagle")
    assert {"verification", "other prompts"} <= {p.group for p in tpot.parts}
    assert f"yields {drafter.mean_tokens_per_step:.2f} tokens" in tpot.note
    assert any("acceptance of proposals as it was given" in caveat.text for caveat in found.caveats)
    sources = {s.source for p in tpot.parts if p.group == "drafter" for s in p.sources}
    assert not sources or any("assumed" in s or "one pass over" in s for s in sources)


def test_means_of_groups_and_drafters_have_intervals(make_search: Make) -> None:
    for (search, result), name in (
        (group_result(make_search), "groups"),
        (drafter_result(make_search, NGRAM), "drafter"),
    ):
        found = assure(search, result, draw(result.candidate.deployment)).means
        summary = result.candidate.summary
        assert summary is not None
        assert set(found) == {"ttft", "tpot"}
        for metric, mean in found.items():
            assert mean.value == summary.means[metric]
            assert mean.low < mean.value < mean.high
            assert mean.error_class == name
        # an assumed width has no runs behind it
        assert (found["tpot"].num_runs == 0) == (name == "drafter")


BUSY = 12.0


def busy_groups(make_search: Make, chat: Workload) -> tuple[Search, Result]:
    """Two groups or more, which keep a promise that one less breaks."""
    promise = Promise(ttft_s=2.0, tpot_s=0.05, attainment=0.99)
    return group_result(
        make_search, num_replicas=2, workload=faster(chat, BUSY), promise=promise, budget=Budget(max_gpus=64)
    )


def test_a_group_fails_and_one_more_helps(make_search: Make, chat: Workload) -> None:
    search, result = busy_groups(make_search, chat)
    num = result.candidate.deployment.num_replicas
    found = failure(replace(search, start_up_s=5.0), result)
    assert found is not None
    assert (found.planned.num_replicas, found.one_more.num_replicas) == (num, num + 1)
    assert found.planned.num_retries > 0
    assert found.planned.attainment < found.one_more.attainment <= 1.0
    assert result.candidate.summary is not None
    assert found.planned.attainment < result.candidate.summary.attainment.value
    assert found.one_more.usd_per_h > found.planned.usd_per_h
    own = failure(search, result)
    assert own is not None
    memories = result.shape.memory, result.shape.prefill_memory
    assert own.start_up_s == max(perf.start_up_s(m, 1)[0] for m in memories if m is not None)
    # and it is said what one group less breaks
    assert result.shape.memory is not None
    trial = try_fleet(result.shape, result.shape.memory, result.load, num, stop=False)
    words = limited_by(result.shape, result.shape.memory, result.load, trial)
    assert "instances (busy" in words
    assert f"with {num - 1} replica" in words


def test_groups_follow_the_load(make_search: Make, chat: Workload) -> None:
    search, result = busy_groups(make_search, chat)
    num = result.candidate.deployment.num_replicas
    rate_rps = BUSY * chat.num_requests / chat.span_s
    shares = [0.2] * 9 + [0.4, 0.6, 0.8, 0.8, 0.6, 0.4]
    arrival_s = np.concatenate(
        [np.arange(900.0 * i, 900.0 * (i + 1), 1 / (share * rate_rps)) for i, share in enumerate(shares)]
    )
    drawn = np.random.default_rng(0).integers(0, chat.num_requests, len(arrival_s))
    day = replace(
        chat,
        arrival_s=arrival_s,
        input_tokens=chat.input_tokens[drawn],
        output_tokens=chat.output_tokens[drawn],
        max_tokens=chat.max_tokens[drawn],
    )
    point = LoadPoint(
        scale=1.0,
        offered_rps=rate_rps,
        attainment=1.0,
        promise_kept=True,
        goodput_tokens_per_s=1.0,
        throughput_tokens_per_s=1.0,
    )
    there = replace(
        result,
        load=replace(result.load, workload=day),
        candidate=replace(result.candidate, load_curve=(point,)),
    )
    found = autoscaling(search, there)
    assert found is not None
    assert found.fewest < found.most <= num + 1
    assert found.mean_replicas < num
    assert found.usd_per_month < found.fixed_usd_per_month


def test_a_plan_that_a_drafter_wins_says_everything(make_search: Make) -> None:
    known = replace(NGRAM, acceptance=chain_acceptance(0.9, 3))
    search = make_search(gpus=("L40S-48GB",), speculations=(known,), budget=Budget(max_gpus=16))
    found = plan(search)
    assert found.winner is not None
    winner = found.candidates[found.winner]
    deployment: Deployment = winner.deployment
    assert deployment.speculation == known
    assert found.explanation is not None
    assert found.failure is not None
    assert winner.assurance is not None
    assert set(winner.assurance.means) == {"ttft", "tpot"}
    assert "% of step time" in winner.limited_by or winner.limited_by.startswith("KV memory")
