"""Launch commands: exact, and the same whatever a model is called."""

from __future__ import annotations

import dataclasses
import shlex
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from servewise.deploy import command, notes, render_shell
from servewise.errors import InputError
from servewise.types import Deployment, Parallelism, Precision
from store.plans import MODEL, deployment

HOSTILE = [
    "a b",
    "it's",
    'say "hi"',
    "$(touch pwned)",
    "`touch pwned`",
    "x; touch pwned",
    "x && touch pwned",
    "x | tee pwned",
    "> pwned",
    "*",
    "~root",
    "!!",
    "\\",
    "a\\'b",
    "#comment",
    "{a,b}",
    "größe/模型",
]


def named(name: str) -> Deployment:
    return deployment(model=dataclasses.replace(MODEL, name=name))


def flag(args: list[str], name: str) -> str:
    return args[args.index(name) + 1]


def test_the_command_states_what_was_planned() -> None:
    args = command(deployment())
    assert args[:3] == ["vllm", "serve", "example/dense-8b"]
    assert flag(args, "--tensor-parallel-size") == "2"
    assert flag(args, "--max-num-seqs") == "256"
    assert flag(args, "--max-num-batched-tokens") == "8192"
    assert flag(args, "--max-model-len") == "131072"
    assert flag(args, "--gpu-memory-utilization") == "0.92"
    assert flag(args, "--kv-cache-dtype") == "fp8"
    assert flag(args, "--quantization") == "fp8"
    assert not any("CUDA_VISIBLE_DEVICES" in arg for arg in args)


def test_pipeline_stages_are_named() -> None:
    staged = deployment(parallelism=Parallelism(tensor_parallel_size=2, pipeline_parallel_size=4))
    assert flag(command(staged), "--pipeline-parallel-size") == "4"


@pytest.mark.parametrize("name", ["--trust-remote-code", "-x", "-", "", "a\0b", "a\nb", "\x1b[31mred"])
def test_names_that_no_command_can_carry_are_refused(name: str) -> None:
    with pytest.raises(InputError, match="model name"):
        command(named(name))


def test_an_engine_without_a_command_is_refused() -> None:
    with pytest.raises(InputError, match="no launch command for the engine 'other'; known: vllm"):
        command(deployment(engine="other"))


@given(name=st.text(min_size=1, max_size=40) | st.sampled_from(HOSTILE))
@settings(max_examples=200, deadline=None)
def test_a_name_never_changes_the_command(name: str) -> None:
    plain = command(named("plain"))
    try:
        args = command(named(name))
    except InputError:
        assert name.startswith("-") or not name.isprintable()
        return
    assert args[2] == name
    assert args[:2] + args[3:] == plain[:2] + plain[3:]
    assert shlex.split(render_shell(args)) == args


@pytest.mark.parametrize("name", HOSTILE)
def test_a_real_shell_runs_exactly_the_arguments(name: str, tmp_path: object) -> None:
    args = command(named(name))
    script = f"printf '%s\\0' {render_shell(args)}"
    done = subprocess.run(["/bin/sh", "-c", script], capture_output=True, check=True, cwd=str(tmp_path))
    assert done.stdout.decode().split("\0")[:-1] == args
    assert list(tmp_path.iterdir()) == []  # type: ignore[attr-defined]


@given(args=st.lists(st.text(alphabet=st.characters(exclude_characters="\0"), max_size=20), min_size=1, max_size=5))
@settings(max_examples=100, deadline=None)
def test_quoting_is_undone_by_splitting(args: list[str]) -> None:
    assert shlex.split(render_shell(args)) == args


def test_notes_say_what_the_command_cannot() -> None:
    plain = deployment(num_replicas=1, precision=Precision(), parallelism=Parallelism())
    assert notes(plain) == ()
    (note,) = notes(dataclasses.replace(plain, precision=Precision(weights="int4")))
    assert note == "replace example/dense-8b by a checkpoint of it in int4: vllm does not make one at start"
    (note,) = notes(dataclasses.replace(plain, num_replicas=2))
    assert note == "start each of the 2 replicas on a GPU of its own, behind a prefix_aware router"
    assert "2 GPUs of its own" in notes(deployment())[0]
    stages = Parallelism(tensor_parallel_size=8, pipeline_parallel_size=2)
    (note,) = notes(dataclasses.replace(plain, parallelism=stages))
    assert note == "a replica takes 2 nodes: servewise deploy writes the command of each"
    staged = Parallelism(data_parallel_size=8, pipeline_parallel_size=2, expert_parallel_size=8)
    both = dataclasses.replace(plain, parallelism=staged)
    assert "--pipeline-parallel-size 2 --data-parallel-size 8 --enable-expert-parallel" in render_shell(command(both))
    assert (
        notes(dataclasses.replace(plain, parallelism=Parallelism(tensor_parallel_size=4, pipeline_parallel_size=2)))
        == ()
    )
