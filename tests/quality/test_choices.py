"""Which precisions a quality floor lets through."""

from __future__ import annotations

from dataclasses import replace

import pytest

from servewise.catalog import get_gpu, get_model, read_facts, supported_precisions
from servewise.errors import InputError
from servewise.quality import Floor, expected_recovery, precision_choices, recovery, size_class
from servewise.types import ModelSpec, Precision, PrecisionChoice

H100 = supported_precisions(get_gpu("H100-SXM-80GB"))
B200 = supported_precisions(get_gpu("B200"))


def names(choices: tuple[PrecisionChoice, ...]) -> set[str]:
    return {f"{c.precision.weights}/{c.precision.kv}" for c in choices}


def choose(model: str, floor: float, precisions: tuple[Precision, ...] = H100) -> tuple[PrecisionChoice, ...]:
    return precision_choices(get_model(model), precisions, Floor(min_recovery_pct=floor))


@pytest.mark.parametrize("model", ["llama-3.1-70b", "DeepSeek-V3", "gpt-oss-20b"])
def test_the_published_checkpoint_is_always_a_choice(model: str) -> None:
    spec = get_model(model)
    native = Precision(weights=spec.native_precision)
    found = [c for c in precision_choices(spec, H100, Floor(min_recovery_pct=100.0)) if c.precision == native]
    assert [(c.recovery_pct, c.at_risk) for c in found] == [((100.0, 100.0, 100.0), False)]


def test_floor_of_the_example() -> None:
    found = choose("llama-3.1-70b", 99.0)
    assert {"bf16/bf16", "fp8/bf16", "fp8/fp8", "int8/bf16", "int4/bf16"} <= names(found)
    assert "nvfp4/bf16" not in names(choose("llama-3.1-70b", 99.0, B200))
    assert {f"{c.precision.weights}/{c.precision.kv}" for c in found if not c.at_risk} == {"bf16/bf16"}
    assert not next(c for c in choose("llama-3.1-70b", 98.5) if c.precision == Precision(weights="fp8")).at_risk


def test_a_named_task_drops_what_falls_below_in_it_alone() -> None:
    assert {"int4/bf16"} <= names(choose("llama-3.1-70b", 99.0))
    found = precision_choices(get_model("llama-3.1-70b"), H100, Floor(min_recovery_pct=99.0, tasks=("math", "code")))
    assert "int4/bf16" not in names(found)
    assert "int4/bf16" in names(
        precision_choices(get_model("llama-3.1-70b"), H100, Floor(min_recovery_pct=99.0, tasks=("math",)))
    )
    for choice in precision_choices(
        get_model("llama-3.1-70b"), H100, Floor(min_recovery_pct=90.0, tasks=("math", "code"))
    ):
        alone = [expected_recovery(get_model("llama-3.1-70b"), choice.precision, task) for task in ("math", "code")]
        assert choice.recovery_pct == min(r.pct for r in alone if r is not None)


def test_a_choice_says_what_it_rests_on() -> None:
    (choice,) = precision_choices(
        get_model("llama-3.1-70b"), (Precision(weights="int4"),), Floor(min_recovery_pct=90.0, tasks=("code",))
    )
    facts = read_facts("quality/recovery.csv")["int4/code/any"]
    models = facts["num_models"].value
    assert choice.basis == f"code: {facts['num_results'].value} results of {models} models of all sizes"
    assert choice.recovery_pct == tuple(float(facts[f].value) for f in ("low", "typical", "high"))


@pytest.mark.parametrize(
    ("missing", "cell"),
    [
        ((), "int4/math/large"),
        (("int4/math/large",), "int4/math/any"),
        (("int4/math/large", "int4/math/any"), "int4/any/large"),
        (("int4/math/large", "int4/math/any", "int4/any/large"), "int4/any/any"),
    ],
)
def test_the_finest_cell_with_enough_results_is_taken(
    monkeypatch: pytest.MonkeyPatch, missing: tuple[str, ...], cell: str
) -> None:
    table = {name: facts for name, facts in read_facts("quality/recovery.csv").items() if name not in missing}
    monkeypatch.setattr(recovery, "read_facts", lambda _name: table)
    found = recovery.published("int4", "math", "large")
    assert found is not None
    assert found.pct[1] == float(table[cell]["typical"].value)
    assert found.is_estimate == ("/math/" not in cell)
    assert ("too few of math" in found.basis) == ("/math/" not in cell)


def test_one_model_is_not_enough_to_be_sure() -> None:
    (choice,) = precision_choices(
        get_model("llama-3.1-70b"), (Precision(weights="fp8"),), Floor(min_recovery_pct=90.0, tasks=("long-context",))
    )
    assert "1 large model" in choice.basis
    assert choice.at_risk


def test_small_models_lose_more() -> None:
    assert "int4/bf16" in names(choose("llama-3.1-70b", 99.0))
    assert "int4/bf16" not in names(choose("llama-3.1-8b", 99.0))
    assert "int4/bf16" not in names(choose("llama-3.2-1b", 96.0))
    assert [size_class(get_model(m)) for m in ("llama-3.2-1b", "llama-3.1-8b", "qwen3-32b")] == [
        "small",
        "medium",
        "large",
    ]


@pytest.mark.parametrize("floor", [0.0, 50.0, 95.0, 97.5, 99.0, 99.75, 100.0])
def test_a_higher_floor_never_adds(floor: float) -> None:
    lower, higher = choose("llama-3.1-70b", floor), choose("llama-3.1-70b", min(100.0, floor + 0.5))
    assert names(higher) <= names(lower)
    for choice in lower:
        assert choice.recovery_pct is not None
        low, typical, high = choice.recovery_pct
        assert low <= typical <= high <= 100.0
        assert typical >= floor
        assert choice.at_risk or low >= floor


def test_nothing_is_widened_or_requantized_to_the_same_width() -> None:
    assert names(choose("gpt-oss-120b", 0.0)) == {"mxfp4/bf16", "mxfp4/fp8"}
    deepseek = {c.precision.weights for c in choose("DeepSeek-V3", 0.0, B200)}
    assert deepseek == {"fp8_block", "int4", "nvfp4"}
    llama = {c.precision.weights for c in choose("llama-3.1-8b", 0.0, B200)}
    assert not {"fp8_block", "mxfp4"} & llama


def test_only_what_the_gpu_runs_without_repeats() -> None:
    a100 = supported_precisions(get_gpu("A100-SXM-80GB"))
    found = choose("llama-3.1-70b", 0.0, a100 + a100)
    assert len(names(found)) == len(found)
    assert all(c.precision in a100 for c in found)


def test_a_combination_that_was_not_measured_is_a_product_at_risk() -> None:
    spec = get_model("llama-3.1-70b")
    weights = expected_recovery(spec, Precision(weights="int4"))
    kv = expected_recovery(spec, Precision(kv="fp8"))
    both = expected_recovery(spec, Precision(weights="int4", kv="fp8"))
    assert weights is not None
    assert kv is not None
    assert both is not None
    assert both.pct[1] == pytest.approx(weights.pct[1] * kv.pct[1] / 100)
    choice = next(c for c in choose("llama-3.1-70b", 0.0) if c.precision == Precision(weights="int4", kv="fp8"))
    assert choice.at_risk
    assert choice.source.startswith("not measured")


def test_a_measured_combination_is_taken_as_measured() -> None:
    found = expected_recovery(get_model("llama-3.1-70b"), Precision(weights="fp8", kv="fp8"))
    assert found is not None
    assert not found.is_estimate
    assert found.num_results >= 5


def test_unknown_scheme_has_no_number_and_is_at_risk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery, "published", lambda _scheme, _task, _size: None)
    choices = choose("llama-3.1-8b", 99.0, (Precision(weights="fp8"), Precision(kv="fp8")))
    assert [(c.recovery_pct, c.at_risk) for c in choices] == [(None, True), (None, True)]
    assert all("no published result" in c.source for c in choices)


@pytest.mark.parametrize("floor", [-1.0, 100.1, float("nan"), float("inf")])
def test_floor_must_be_a_percentage(floor: float) -> None:
    with pytest.raises(InputError, match="must be from 0 to 100"):
        choose("llama-3.1-8b", floor)


def test_fp8_native_models_are_not_bf16_ones() -> None:
    spec: ModelSpec = replace(get_model("llama-3.1-8b"), native_precision="fp8")
    assert "bf16/bf16" not in names(precision_choices(spec, H100, Floor(min_recovery_pct=0.0)))
