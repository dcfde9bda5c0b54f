"""Service files that ``servewise init`` writes: whatever is answered, the file says it."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from servewise import api
from servewise.catalog import get_model, list_gpus, list_models
from servewise.config import Answers, effort_permits, load_service, service_text, uses
from servewise.errors import InputError, UnknownNameError
from servewise.traffic import profile_names
from servewise.types import EFFORTS, Effort

LIMITS = ("ttft_s", "tpot_s", "e2e_s")
NAMES = st.text(min_size=1, max_size=60)
POSITIVE = st.floats(min_value=1e-6, max_value=1e6)


@pytest.mark.parametrize("use", uses())
def test_what_is_proposed_loads_and_is_what_the_use_says(tmp_path: Path, use: str) -> None:
    facts = uses()[use]
    service = api.start_service(
        Answers(use=use, name=use, models=[facts.model], gpus=["L40S-48GB"]), tmp_path / "service.yaml"
    )
    promise = {key: limit.value for key, limit in facts.promise.items()}
    assert {key: getattr(service.promise, key) for key in promise} == promise
    assert service.models == (get_model(facts.model).name,)
    assert service.quality_tasks == facts.tasks
    assert service.traffic.profile == (facts.profile or None)
    assert service.min_recovery_pct == 99
    text = (tmp_path / "service.yaml").read_text(encoding="utf-8")
    assert all(len(line) <= 100 for line in text.splitlines() if line.lstrip().startswith("#"))
    for limit in facts.promise.values():
        assert " ".join(limit.provenance.source.split()) in " ".join(text.replace("#", "").split())


def test_every_use_has_a_title_a_model_traffic_and_sources() -> None:
    assert tuple(uses()) == ("chat", "agent", "rag", "code", "summarisation", "offline")
    for use in uses().values():
        assert use.title
        assert use.model in list_models()
        assert bool(use.profile) != bool(use.synthesis)
        assert not use.profile or use.profile in profile_names()
        for limit in use.promise.values():
            assert limit.value > 0
            assert limit.why
            assert limit.provenance.accessed
            assert limit.provenance.source.startswith("assumed") == (limit.provenance.kind == "assumed")
    assert tuple(effort_permits()) == EFFORTS


@given(
    use=st.sampled_from([*uses()]),
    name=NAMES,
    models=st.lists(st.sampled_from(list_models()), min_size=1, max_size=3, unique=True),
    gpus=st.lists(st.sampled_from(list_gpus()), min_size=1, max_size=3, unique=True),
    rate_rps=POSITIVE,
    limits=st.dictionaries(st.sampled_from(LIMITS), POSITIVE),
    min_recovery_pct=st.one_of(st.just(0.0), st.floats(min_value=1.0001, max_value=100)),
    max_effort=st.sampled_from(EFFORTS),
    max_gpus=st.one_of(st.none(), st.integers(1, 100_000)),
    usd_per_h=st.one_of(st.none(), POSITIVE),
)
@example(
    use="chat",
    name="a \"b\": {c} # d, [e] \\ 'f' - !g &h *i %j | > ~ null",
    models=[list_models()[0]],
    gpus=[list_gpus()[0]],
    rate_rps=1e-5,
    limits={},
    min_recovery_pct=99.0,
    max_effort="low",
    max_gpus=None,
    usd_per_h=None,
)
def test_the_file_says_what_was_answered(
    use: str,
    name: str,
    models: list[str],
    gpus: list[str],
    rate_rps: float,
    limits: dict[str, float],
    min_recovery_pct: float,
    max_effort: Effort,
    max_gpus: int | None,
    usd_per_h: float | None,
) -> None:
    if "deadline_s" in uses()[use].promise:
        limits = {}  # offline work promises no latency
    answers = Answers(
        use=use,
        name=name,
        models=models,
        gpus=gpus,
        rate_rps=rate_rps,
        promise=limits,
        min_recovery_pct=min_recovery_pct,
        max_effort=max_effort,
        max_gpus=max_gpus,
        usd_per_h=usd_per_h,
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "service.yaml"
        if not name.isprintable():
            with pytest.raises(InputError, match="do not print"):
                api.start_service(answers, path)
            assert list(Path(folder).iterdir()) == []
            return
        service = api.start_service(answers, path)
        assert [found.name for found in Path(folder).iterdir()] == ["service.yaml"]
    assert service.name == name
    assert service.models == tuple(models)
    assert service.hardware == tuple(gpus)
    assert {key: getattr(service.promise, key) for key in limits} == limits
    assert service.min_recovery_pct == min_recovery_pct
    assert service.max_effort == max_effort
    assert (service.budget.max_gpus, service.budget.usd_per_h) == (max_gpus, usd_per_h)
    if service.traffic.profile is not None:
        assert service.traffic.rate_rps == rate_rps
    elif not uses()[use].at_once:
        assert service.traffic.synthesis is not None
        assert service.traffic.synthesis.arrivals.rate_rps == rate_rps


@given(name=st.text(alphabet="ab .:#'\"[]{},&*!|>%@`\\-?é漢😀~=", min_size=1, max_size=30))
@example(name="- a: b # c")
@example(name="null")
@example(name="1e5")
def test_names_of_files_survive(name: str) -> None:
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent) / "service"
        folder.mkdir()
        trace = Path(parent) / f"{name}.csv"
        trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n", encoding="utf-8")
        answers = Answers(use="chat", name="x", models=["llama-3.1-8b"], gpus=["L40S-48GB"], trace=trace)
        service = api.start_service(answers, folder / "service.yaml")
        assert service.traffic.trace is not None
        assert service.traffic.trace.samefile(trace)
        assert service.traffic.rate_rps is None


def test_nothing_is_overwritten_and_nothing_half_written(tmp_path: Path) -> None:
    path = tmp_path / "service.yaml"
    path.write_text("mine")
    answers = Answers(use="chat", name="x", models=["llama-3.1-8b"], gpus=["L40S-48GB"])
    with pytest.raises(InputError, match="exists already"):
        api.start_service(answers, path)
    assert path.read_text() == "mine"
    with pytest.raises(InputError, match="not a folder"):
        api.start_service(answers, tmp_path / "nowhere" / "service.yaml")
    wrong = Answers(use="offline", name="x", models=["llama-3.1-8b"], gpus=["L40S-48GB"], promise={"attainment": 2.0})
    with pytest.raises(InputError, match=r"other.yaml, line \d+: promise.attainment: "):
        api.start_service(wrong, tmp_path / "other.yaml")
    assert [found.name for found in tmp_path.iterdir()] == ["service.yaml"]


def test_the_page_says_what_is_proposed() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "service-file.md").read_text(encoding="utf-8")
    words = {"ttft_s": "TTFT {:g} s", "tpot_s": "TPOT {:g} s", "e2e_s": "E2E {:g} s", "attainment": "{:.0%}"}
    for name, use in uses().items():
        row = next(line for line in page.splitlines() if line.startswith(f"| `{name}` |"))
        promised = [words[key].format(limit.value) for key, limit in use.promise.items() if key in words]
        assert ", ".join(promised) in row


def test_an_unknown_use_names_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="chat"):
        service_text(Answers(use="chatt", name="x", models=["m"], gpus=["g"]), tmp_path)


def test_a_number_of_requests_makes_the_job(tmp_path: Path) -> None:
    answers = Answers(use="offline", name="x", models=["llama-3.1-8b"], gpus=["L40S-48GB"], num_requests=123)
    service = load_service(_written(answers, tmp_path))
    assert service.traffic.synthesis is not None
    assert service.traffic.synthesis.num_requests == 123
    assert service.traffic.synthesis.arrivals.rate_rps == 123


def _written(answers: Answers, folder: Path) -> Path:
    path = folder / "service.yaml"
    api.start_service(answers, path)
    return path
