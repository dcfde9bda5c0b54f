"""What starts SGLang and TensorRT-LLM: what was planned, with options that exist."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from servewise.catalog import get_gpu, get_model
from servewise.deploy import launch, launches, notes, render_launch
from servewise.engines import ollama, sglang, tgi, trtllm, vllm
from servewise.errors import InputError
from servewise.types import Deployment, Disaggregation, InstancePool, KvLink, Parallelism, Precision

MODEL = get_model("Qwen/Qwen3-235B-A22B")
H100 = get_gpu("H100-SXM-80GB")
SPREAD = Parallelism(tensor_parallel_size=2, pipeline_parallel_size=2, data_parallel_size=4, expert_parallel_size=8)
TRTLLM_OPTIONS = {
    "--backend", "--tp_size", "--pp_size", "--ep_size", "--max_batch_size", "--max_num_tokens", "--max_seq_len",
    "--kv_cache_free_gpu_memory_fraction", "--extra_llm_api_options",
}  # fmt: skip
"""Of trtllm-serve (tensorrt_llm/commands/serve.py@00209af1)."""


def sglang_deployment() -> Deployment:
    """SGLang over sixteen GPUs."""
    params = sglang.default_params("0.5.23", H100, MODEL, SPREAD)
    return Deployment(
        model=MODEL,
        gpu=H100,
        engine="sglang",
        engine_version="0.5.23",
        precision=Precision(weights="fp8", kv="fp8"),
        parallelism=SPREAD,
        params=replace(params, context_length=8192),
    )


def trtllm_deployment() -> Deployment:
    """TensorRT-LLM over sixteen GPUs."""
    params = trtllm.default_params("1.2.1", H100, MODEL)
    tuned = replace(params, cuda_graph_padding=True, cuda_graph_max_batch_size=512, enable_chunked_prefill=True)
    spread = Parallelism(pipeline_parallel_size=2, data_parallel_size=8, expert_parallel_size=8)
    return replace(sglang_deployment(), engine="tensorrt-llm", engine_version="1.2.1", params=tuned, parallelism=spread)


def flag(args: list[str], name: str) -> str:
    """Value of an option."""
    return args[args.index(name) + 1]


def test_sglang_is_told_the_whole_replica_s_limits() -> None:
    deployment = sglang_deployment()
    args = launch(deployment).args
    assert args[:5] == ["python", "-m", "sglang.launch_server", "--model-path", MODEL.name]
    assert flag(args, "--tp-size") == "8"  # SGLang counts attention data parallel ranks as part of it
    assert flag(args, "--dp-size") == "4"
    assert flag(args, "--ep-size") == "8"
    assert flag(args, "--load-balance-method") == "round_robin"
    # of one rank in the parameters, of all ranks on the command line
    assert int(flag(args, "--chunked-prefill-size")) == 4 * deployment.params.chunked_prefill_size  # type: ignore[union-attr]
    assert flag(args, "--quantization") == "fp8"
    assert flag(args, "--kv-cache-dtype") == "fp8_e4m3"


@pytest.mark.shared
def test_every_option_exists_in_sglang(shared_dir: Path) -> None:
    text = (shared_dir / "engines" / "help" / "sglang-0.5.23-launch_server.txt").read_text()
    known = set(re.findall(r"--[a-z0-9][a-z0-9-]*", text))
    used = {arg for arg in launch(sglang_deployment()).args if arg.startswith("--")}
    assert len(used) == 16
    assert used <= known


def test_tensorrt_llm_gets_a_file_for_what_has_no_option() -> None:
    start = launch(trtllm_deployment())
    assert start.args[:2] == ["trtllm-serve", MODEL.name]
    assert {arg for arg in start.args if arg.startswith("--")} == TRTLLM_OPTIONS
    assert flag(start.args, "--tp_size") == "8"
    ((name, text),) = start.files.items()
    assert flag(start.args, "--extra_llm_api_options") == name
    assert YAML(typ="safe").load(text) == {
        "cuda_graph_config": {"enable_padding": True, "max_batch_size": 512},
        "enable_chunked_prefill": True,
        "kv_cache_config": {
            "enable_block_reuse": True,
            "tokens_per_block": 32,
            "free_gpu_memory_fraction": 0.9,
            "dtype": "fp8",
        },
        "scheduler_config": {"capacity_scheduler_policy": "GUARANTEED_NO_EVICT"},
        "enable_attention_dp": True,
    }


def test_tensorrt_llm_s_ranks_are_single_gpus() -> None:
    with pytest.raises(InputError, match="makes every GPU a rank of its own"):
        launch(replace(trtllm_deployment(), parallelism=SPREAD))


def test_the_shell_writes_the_file_and_runs_the_command(tmp_path: Path) -> None:
    start = launch(trtllm_deployment())
    lines = render_launch(replace(start, args=["echo", "$HOME", "it's"], env={"A": "b c"}))
    done = subprocess.run(["bash", "-c", lines], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == "$HOME it's\n"
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == start.files
    assert shlex.split(lines.splitlines()[-1])[:2] == ["env", "A=b c"]


def test_only_what_an_engine_can_make_at_start_needs_no_checkpoint() -> None:
    assert not sglang.needs_quantized_checkpoint(MODEL, "fp8")
    assert sglang.needs_quantized_checkpoint(MODEL, "int4")
    assert trtllm.needs_quantized_checkpoint(MODEL, "fp8")
    assert not trtllm.needs_quantized_checkpoint(MODEL, MODEL.native_precision)


@pytest.mark.parametrize("make", [sglang_deployment, trtllm_deployment])
def test_names_that_could_act_as_options_are_refused(make: object) -> None:
    deployment = make()  # type: ignore[operator]
    with pytest.raises(InputError, match="model name"):
        launch(replace(deployment, model=replace(MODEL, name="--trust-remote-code")))


def grouped(deployment: Deployment) -> Deployment:
    """Two prefill instances and one decode instance of TP2."""
    alone = replace(deployment, parallelism=Parallelism(tensor_parallel_size=2))
    pools = [
        InstancePool(gpu=H100, parallelism=alone.parallelism, params=alone.params, num_instances=number)
        for number in (2, 1)
    ]
    link = KvLink(kind="nvlink", bytes_per_s=1e11, latency_s=1e-3, provenance={})
    return replace(alone, disaggregation=Disaggregation(prefill=pools[0], decode=pools[1], link=link))


def test_instances_of_a_group_know_their_role() -> None:
    (prefill, first), (decode, second) = launches(grouped(sglang_deployment()))
    assert (prefill, decode) == ("prefill", "decode")
    assert flag(first.args, "--disaggregation-mode") == "prefill"
    assert flag(second.args, "--disaggregation-mode") == "decode"
    assert flag(first.args, "--tp-size") == "2"
    (_, context), (_, generation) = launches(grouped(trtllm_deployment()))
    for start in (context, generation):
        (text,) = start.files.values()
        assert YAML(typ="safe").load(text)["cache_transceiver_config"] == {"backend": "DEFAULT"}
    (text,) = context.files.values()
    assert YAML(typ="safe").load(text)["disable_overlap_scheduler"] is True
    plain = launches(sglang_deployment())
    assert [(role, start.args) for role, start in plain] == [("replica", launch(sglang_deployment()).args)]


def test_vllm_instances_share_a_connector() -> None:
    params = replace(vllm.default_params("0.33.0", H100, MODEL), max_model_len=8192)
    deployment = replace(sglang_deployment(), engine="vllm", engine_version="0.33.0", params=params)
    for _, start in launches(grouped(deployment)):
        assert json.loads(flag(start.args, "--kv-transfer-config")) == {
            "kv_connector": "NixlConnector",
            "kv_role": "kv_both",
        }
    assert "2 prefill and 1 decode instances" in notes(grouped(deployment))[0]


def test_ollama_gets_a_modelfile_and_its_environment() -> None:
    model = get_model("meta-llama/Llama-3.1-8B-Instruct")
    params = replace(ollama.default_params("0.33.0", H100, model), num_parallel=4, keep_alive_s=None)
    deployment = Deployment(
        model=model,
        gpu=H100,
        engine="ollama",
        engine_version="0.33.0",
        precision=Precision(weights="q4_k_m"),
        parallelism=Parallelism(),
        params=params,
        num_replicas=2,
    )
    start = launch(deployment)
    assert start.args == ["ollama", "serve"]
    assert (start.env["OLLAMA_NUM_PARALLEL"], start.env["OLLAMA_KEEP_ALIVE"]) == ("4", "-1")
    assert start.files["Modelfile"].splitlines()[0] == f"FROM {model.name}"
    assert "ollama create" in notes(deployment)[0]


@pytest.mark.shared
def test_every_option_exists_in_tgi(shared_dir: Path) -> None:
    model = get_model("meta-llama/Llama-3.1-8B-Instruct")
    params = replace(tgi.default_params("3.3.5", H100, model), max_total_tokens=8192)
    deployment = Deployment(
        model=model,
        gpu=H100,
        engine="tgi",
        engine_version="3.3.5",
        precision=Precision(weights="fp8", kv="fp8"),
        parallelism=Parallelism(tensor_parallel_size=2),
        params=params,
    )
    start = launch(deployment)
    known = set(re.findall(r"--[a-z0-9][a-z0-9-]*", (shared_dir / "engines" / "help" / "tgi-launcher.md").read_text()))
    used = {arg for arg in start.args if arg.startswith("--")}
    assert len(used) == 10
    assert used <= known
    assert flag(start.args, "--max-total-tokens") == "8192"
    assert start.env["ATTENTION"] == "flashinfer"
