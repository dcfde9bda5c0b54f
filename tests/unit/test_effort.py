"""What a deployment asks of a team follows from the facts, and from nothing else."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from servewise import catalog, effort
from servewise.engines import ollama, sglang, tgi, trtllm, vllm
from servewise.errors import CatalogError
from servewise.types import (
    Deployment,
    Disaggregation,
    EffortFact,
    EngineName,
    InstancePool,
    KvLink,
    Parallelism,
    Precision,
    Provenance,
    Speculation,
)

MODEL = catalog.get_model("meta-llama/Llama-3.1-8B-Instruct")
GPU = catalog.get_gpu("H100-SXM-80GB")
ENGINES: dict[EngineName, object] = {
    "vllm": vllm,
    "sglang": sglang,
    "tensorrt-llm": trtllm,
    "tgi": tgi,
    "ollama": ollama,
}
ENTRY = """
[[fact]]
id = "a"
engine = "vllm"
aspect = "install"
demand = "low"
grade = "high"
text = "a text"
source = "https://example.org"
accessed = "2026-11-30"
"""


def deployment(engine: EngineName = "vllm", spread: Parallelism | None = None, **more: object) -> Deployment:
    spread = spread or Parallelism()
    module = ENGINES[engine]
    version = module.default_version()  # type: ignore[attr-defined]
    params = vllm.default_params(vllm.default_version(), GPU, MODEL)
    fields = {"precision": Precision(), **more}
    return Deployment(
        model=MODEL, gpu=GPU, engine=engine, engine_version=version, parallelism=spread, params=params, **fields
    )


def group() -> Deployment:
    one = deployment()
    pool = InstancePool(gpu=GPU, parallelism=one.parallelism, params=one.params, num_instances=1)
    link = KvLink(kind="node", bytes_per_s=1e11, latency_s=1e-5, provenance={})
    return replace(one, disaggregation=Disaggregation(prefill=pool, decode=pool, link=link))


def with_demand(name: str, demand: str) -> tuple[EffortFact, ...]:
    """A copy of the facts in which one asks for something else."""
    return tuple(replace(f, demand=demand) if f.id == name else f for f in effort.effort_facts())


@pytest.mark.parametrize("engine", ENGINES)
def test_one_gpu_is_low_effort_with_every_engine(engine: EngineName) -> None:
    report = effort.effort(deployment(engine))
    assert report.level == "low"
    assert report.facts
    assert effort.excess(deployment(engine), "low") == ""


@pytest.mark.parametrize(
    ("of", "level"),
    [
        (deployment(num_replicas=2), "medium"),
        (deployment(spread=Parallelism(tensor_parallel_size=8)), "low"),
        (deployment(spread=Parallelism(tensor_parallel_size=4, pipeline_parallel_size=2)), "low"),
        (deployment(spread=Parallelism(tensor_parallel_size=8, pipeline_parallel_size=2)), "medium"),
        (deployment(spread=Parallelism(data_parallel_size=8, expert_parallel_size=8)), "low"),
        (
            deployment(spread=Parallelism(data_parallel_size=8, expert_parallel_size=8, expert_all_to_all=True)),
            "medium",
        ),
        (deployment(precision=Precision(weights="int4")), "low"),
        (group(), "high"),
        (replace(group(), num_replicas=3), "high"),
    ],
)
def test_levels_of_topologies(of: Deployment, level: str) -> None:
    assert effort.effort(of).level == level


def test_the_level_is_the_highest_demand_of_the_facts_that_apply() -> None:
    for of in (deployment(), deployment("tgi", num_replicas=2), group()):
        report = effort.effort(of)
        demands = [fact.demand for fact in report.facts]
        assert max(demands, key=("low", "medium", "high").index) == report.level
        for fact in report.facts:
            assert fact.engine in (None, of.engine)
            assert fact.topology is None or fact.topology in effort.topology(of)


def test_changing_a_fact_changes_the_level() -> None:
    one, two = deployment(), deployment(num_replicas=2)
    assert effort.effort(one, with_demand("vllm-install", "high")).level == "high"
    assert effort.effort(deployment("sglang"), with_demand("vllm-install", "high")).level == "low"
    assert effort.effort(two, with_demand("several-replicas", "low")).level == "low"
    assert effort.effort(two, effort.effort_facts()) == effort.effort(two)
    without = tuple(f for f in effort.effort_facts() if f.engine != "vllm")
    assert effort.effort(one, without).facts == ()


def test_the_reason_names_the_fact() -> None:
    words = effort.excess(deployment(num_replicas=2), "low")
    assert words.startswith("asks for medium effort, more than max_effort low: several replicas need a router")
    assert effort.excess(deployment(num_replicas=2), "medium") == ""
    assert "KV cache" in effort.excess(group(), "medium")
    assert effort.fleet_excess(deployment(), "low") == words
    assert effort.fleet_excess(deployment(), "medium") == ""
    assert not effort.permits("vllm", {"disaggregated"}, "medium")
    assert effort.permits("vllm", {"disaggregated"}, "high")


def test_a_drafter_with_weights_and_another_checkpoint_are_said() -> None:
    eagle = Speculation(method="eagle", num_speculative_tokens=1, acceptance=(0.5,), head_name="a/head")
    assert "drafter_with_weights" in effort.topology(deployment(speculation=eagle))
    ngram = Speculation(method="ngram", num_speculative_tokens=1, acceptance=(0.5,))
    assert "drafter_with_weights" not in effort.topology(deployment(speculation=ngram))
    assert "other_checkpoint" in effort.topology(deployment(precision=Precision(weights="int4")))
    assert "other_checkpoint" not in effort.topology(deployment(precision=Precision(weights="fp8")))
    assert "other_checkpoint" in effort.topology(deployment("ollama"))


def test_only_tgi_is_warned_of() -> None:
    warned = {engine: effort.cautions(engine) for engine in ENGINES if effort.cautions(engine)}
    assert list(warned) == ["tgi"]
    (text,) = warned["tgi"]
    assert all(word in text for word in ("maintenance mode", "2025-12", "vLLM", "SGLang", "llama.cpp"))


@pytest.mark.parametrize("engine", ENGINES)
def test_every_column_has_its_reasons(engine: EngineName) -> None:
    of = effort.columns(engine)
    for report in (of.convenience, of.model_flexibility, of.hardware_dependence):
        assert report.facts
        assert all(fact.engine == engine and fact.grade is not None for fact in report.facts)


def test_a_column_is_the_middle_of_its_grades() -> None:
    def level(*grades: str) -> str:
        facts = [
            EffortFact(
                id=str(i),
                engine="vllm",
                topology=None,
                aspect="install",
                text="",
                demand="low",
                provenance=Provenance(kind="assumed", source="assumed: made up"),
                grade=grade,  # type: ignore[arg-type]
            )
            for i, grade in enumerate(grades)
        ]
        return effort.columns("vllm", facts).convenience.level

    assert level("low", "high", "high") == "high"
    assert level("low", "low", "high", "high") == "low"
    assert level("low", "medium", "high") == "medium"


def test_every_fact_has_a_source_and_a_date() -> None:
    for fact in effort.effort_facts():
        source = fact.provenance.source
        assert re.fullmatch(r"\d{4}-\d{2}-\d{2}", fact.provenance.accessed), fact.id
        assert source.startswith(("https://", "assumed:")) or re.match(r"[\w.-]+/[\w.-]+@[0-9a-f]{7} \S", source), (
            fact.id
        )
        assert not fact.text.endswith("."), fact.id


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('demand = "low"', 'demand = "hihg"', "demand is 'hihg', must be one of low, medium, high"),
        ('engine = "vllm"\n', "", "applies to nothing"),
        ('grade = "high"\n', "", "have a grade"),
        ('aspect = "install"', 'aspect = "parallelism"', "have a grade"),
        ('text = "a text"\n', "", "lacks ['text']"),
        ('text = "a text"', 'text = "a text"\nnote = "b"', "unknown ['note']"),
        ("https://example.org", "assumed: why", "kind assumed"),
        (ENTRY, ENTRY + ENTRY, "a stands twice"),
    ],
)
def test_a_wrong_fact_is_refused(old: str, new: str, words: str) -> None:
    assert len(effort.read_facts(ENTRY)) == 1
    with pytest.raises(CatalogError, match=re.escape(words)):
        effort.read_facts(ENTRY.replace(old, new, 1))
