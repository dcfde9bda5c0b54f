"""Memory and step times of the textbook baselines: vLLM's, with what a strategy adds or leaves out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from servewise import catalog, perf
from servewise.engines import baselines, vllm
from servewise.engines.baselines import BaselineName
from servewise.errors import InputError
from servewise.types import BaselineParams, Deployment, Parallelism, Precision

MODEL = catalog.get_model("meta-llama/Llama-3.1-8B-Instruct")
GPU = catalog.get_gpu("H100-SXM-80GB")


def deployment(engine: BaselineName, **changes: object) -> Deployment:
    params = replace(baselines.default_params(engine, GPU, MODEL), max_seq_len=8192)
    return Deployment(
        model=MODEL,
        gpu=GPU,
        engine=engine,
        engine_version=baselines.VERSION,
        precision=Precision(),
        parallelism=Parallelism(),
        params=replace(params, **changes),  # type: ignore[arg-type]
    )


@pytest.mark.parametrize(("engine", "tokens"), [("static", 8192), ("orca", 8192), ("sarathi", 512)])
def test_memory_is_vllms_with_the_activations_of_the_longest_piece(engine: BaselineName, tokens: int) -> None:
    report = perf.memory(deployment(engine))
    usual = vllm.default_params(vllm.default_version(), GPU, MODEL)
    same = replace(
        deployment(engine),
        engine="vllm",
        engine_version=vllm.default_version(),
        params=replace(usual, max_num_seqs=128, max_num_batched_tokens=tokens, max_model_len=8192),
    )
    expected = perf.memory(same)
    assert report.fits
    assert report.kv_bytes == expected.kv_bytes
    assert report.num_kv_blocks == expected.num_kv_blocks + 1  # no block is withheld
    assert report.provenance["budget"].kind == "assumed"


def test_steps_cost_what_vllms_cost_without_lag() -> None:
    usual = vllm.default_params(vllm.default_version(), GPU, MODEL)
    synchronous = replace(
        deployment("sarathi"),
        engine="vllm",
        engine_version=vllm.default_version(),
        params=replace(usual, async_scheduling=False, max_num_seqs=128, max_num_batched_tokens=512, max_model_len=8192),
    )
    ours, theirs = perf.step_model(deployment("sarathi")), perf.step_model(synchronous)
    np.testing.assert_array_equal(ours.table.decode_fixed_s, theirs.table.decode_fixed_s)
    np.testing.assert_array_equal(ours.table.mixed_tokens_s, theirs.table.mixed_tokens_s)
    assert any("nobody runs the textbook baselines" in warning for warning in ours.warnings)
    assert not any("textbook" in warning for warning in theirs.warnings)


def test_a_step_of_whole_prompts_is_covered_as_far_as_there_are_slots() -> None:
    for engine in ("static", "orca"):
        asked = deployment(engine)
        assert isinstance(asked.params, BaselineParams)
        slots = baselines.num_slots(asked.params, perf.memory(asked).num_kv_blocks)
        assert 40 < slots < 128
        assert perf.step_model(asked).table.max_batched_tokens == slots * 8192
        few = deployment(engine, max_batch_size=3)
        assert perf.step_model(few).table.max_batched_tokens == 3 * 8192


def test_what_does_not_fit_says_so() -> None:
    report = perf.memory(replace(deployment("sarathi", max_seq_len=131072), gpu=catalog.get_gpu("RTX-4090-24GB")))
    assert not report.fits
    assert "one request of max_seq_len 131072 tokens" in report.reason
    small = replace(deployment("static"), gpu=catalog.get_gpu("RTX-4090-24GB"))
    assert perf.largest_model_len(small) > 0


@pytest.mark.parametrize(
    ("engine", "changes", "message"),
    [
        ("orca", {"max_batch_size": 0}, "max_batch_size is 0; it must be at least 1"),
        ("orca", {"max_seq_len": 200_000}, "max_seq_len 200000 exceeds the 131072 tokens"),
        ("static", {"memory_utilization": 1.2}, r"memory_utilization is 1\.2"),
        ("static", {"max_wait_s": -1.0}, r"max_wait_s is -1\.0"),
        ("static", {"chunk_size": 512}, "chunk_size is 512 for 'static'"),
        ("sarathi", {"chunk_size": 0}, "chunk_size is 0 for 'sarathi'"),
    ],
)
def test_parameters_that_make_no_sense(engine: BaselineName, changes: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        perf.memory(deployment(engine, **changes))
