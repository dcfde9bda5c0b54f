"""A recording stands for its base: the same figures come out when the server is gone."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.measure.server import serve
from tests.quality import toy
from tests.quality.toy import Pages, Toy

from servewise import api
from servewise.errors import InputError, MeasurementError
from servewise.quality.recording import RecordedClient
from servewise.types import QualityComparison

EXACT = toy.table(1)
ASKED = api.Asked(max_tokens=12, top=9, positions=4, concurrency=2)


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.txt"
    path.write_text("\n".join(f"tell me of {chr(65 + i)}" for i in range(8)))
    return path


def candidate() -> Pages:
    return toy.vllm(Toy(toy.blurred(EXACT, 0.7, 2)))


class Noisy(Toy):
    """Another answer each time."""

    def logprobs(self, last: int) -> dict[int, float]:
        self.asked += 1
        return Toy(toy.blurred(EXACT, 0.5, self.asked % 89)).logprobs(last)


def recorded(base: Pages, prompts: Path, path: Path, **more: Any) -> QualityComparison:
    with serve(base) as script, serve(candidate()) as other:
        target = api.Target(url=script.url, **more)
        return api.quality(target, api.Target(url=other.url), prompts, ASKED, record=path).comparison


def replayed(path: Path, prompts: Path, asked: api.Asked = ASKED) -> QualityComparison:
    with serve(candidate()) as other:
        return api.quality(path, api.Target(url=other.url), prompts, asked).comparison


@pytest.mark.parametrize("engine", [toy.vllm, toy.sglang, toy.llamacpp, toy.plain])
@pytest.mark.parametrize("model", [Toy, Noisy])
def test_a_recording_gives_what_the_server_gave(
    engine: Callable[[Toy], Pages], model: type[Toy], prompts: Path, tmp_path: Path
) -> None:
    path = tmp_path / "base.gz"
    first = recorded(engine(model(EXACT)), prompts, path)
    again = replayed(path, prompts)
    assert again.prompts == first.prompts
    assert again.figures == first.figures
    assert again.base == first.base
    assert again.notes[0] == "the base is the recording base.gz"


@pytest.mark.parametrize("engine", [toy.vllm, toy.llamacpp])
def test_a_recording_holds_no_key_and_is_not_overwritten(
    engine: Callable[[Toy], Pages], prompts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BASE_KEY", "a-secret")
    path = tmp_path / "base.gz"
    recorded(engine(Toy(EXACT)), prompts, path, key_env="BASE_KEY")
    text = gzip.decompress(path.read_bytes()).decode()
    assert "a-secret" not in text
    # llama.cpp gives prompts back in its chat template: a recording is as private as they are
    assert ("tell me of" in text) == (engine is toy.llamacpp)
    with pytest.raises(InputError, match="exists already"):
        recorded(engine(Toy(EXACT)), prompts, path)


def test_a_place_for_a_recording_is_looked_at_first(prompts: Path, tmp_path: Path) -> None:
    target = api.Target(url="http://localhost:1")
    for path, wrong in ((tmp_path / "none" / "base.gz", "no folder"), (prompts / "base.gz", "no folder")):
        with pytest.raises(InputError, match=wrong):
            api.quality(target, target, prompts, ASKED, record=path)


def test_a_recording_that_cannot_be_written_does_not_lose_the_comparison(prompts: Path, tmp_path: Path) -> None:
    path, runs = tmp_path / "base.gz", tmp_path / "runs"

    def taken(_stage: str, done: int, _total: int) -> None:
        if done == 8:
            path.write_text("another's")

    with serve(toy.vllm(Toy(EXACT))) as base:
        target = api.Target(url=base.url)
        result = api.quality(target, target, prompts, ASKED, record=path, out_dir=runs, progress=taken)
    assert "exists already" in result.not_recorded
    assert path.read_text() == "another's"
    assert result.run_dir is not None
    assert len(json.loads((result.run_dir / "quality.json").read_text())["prompts"]) == 8


def test_an_interrupted_run_is_not_recorded(prompts: Path, tmp_path: Path) -> None:
    def stop(_stage: str, done: int, _total: int) -> None:
        if done >= 3:
            raise KeyboardInterrupt

    path = tmp_path / "base.gz"
    with serve(toy.vllm(Toy(EXACT))) as base:
        target = api.Target(url=base.url)
        result = api.quality(target, target, prompts, ASKED, record=path, progress=stop)
    assert result.not_recorded == "the run was interrupted"
    assert not path.exists()


def test_a_recording_by_tokens_does_not_serve_another_tokenizer(prompts: Path, tmp_path: Path) -> None:
    path = tmp_path / "base.gz"
    recorded(toy.vllm(Toy(EXACT)), prompts, path)
    with serve(toy.vllm(Toy(EXACT, shift=1))) as other, pytest.raises(MeasurementError) as error:
        api.quality(path, api.Target(url=other.url), prompts, ASKED)
    assert "made with token ids, it serves none that is compared by texts alone" in str(error.value)
    assert "the tokenizers of base and candidate differ" in str(error.value)


def test_other_settings_than_those_of_the_recording_are_refused(prompts: Path, tmp_path: Path) -> None:
    path = tmp_path / "base.gz"
    recorded(toy.vllm(Toy(EXACT)), prompts, path)
    with pytest.raises(MeasurementError, match=r"does not hold this question .* ask with the prompts, --max-tokens"):
        replayed(path, prompts, api.Asked(max_tokens=13, top=9, positions=4))


def test_tasks_and_recordings_of_recordings_are_refused(prompts: Path, tmp_path: Path) -> None:
    path, target = tmp_path / "base.gz", api.Target(url="http://localhost:1")
    with pytest.raises(InputError, match="is a recording already"):
        api.quality(path, target, prompts, ASKED, record=tmp_path / "other.gz")
    with pytest.raises(InputError, match="standard tasks ask both servers"):
        api.quality(path, target, prompts, ASKED, tasks=api.TaskRun(names=("t",)))


@given(st.binary(max_size=300) | st.recursive(st.none() | st.text(), st.lists).map(lambda x: json.dumps(x).encode()))
def test_files_that_are_no_recording_are_refused(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.mktemp("recording") / "base.gz"
    for written in (data, gzip.compress(data)):
        path.write_bytes(written)
        with pytest.raises(InputError, match="is no recording"):
            RecordedClient(path)
