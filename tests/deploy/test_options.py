"""The lists of options that ship, and what they say of commands."""

from __future__ import annotations

import shlex

import pytest

from servewise.deploy import command
from servewise.deploy.options import check_command, check_settings, option_lists
from servewise.engines import llamacpp, ollama, sglang, vllm
from servewise.types import Deployment
from store.plans import deployment

VLLM = "0.33.0"


def verdicts(line: str, version: str = VLLM, **variables: str) -> dict[str, str]:
    return {found.flag: found.verdict for found in check_command(shlex.split(line), version, variables)}


def test_every_list_says_where_and_when_it_was_read() -> None:
    lists = option_lists()
    assert {" ".join(known.command) for known in lists} >= {
        "vllm serve",
        "python -m sglang.launch_server",
        "trtllm-serve",
        "trtllm-serve disaggregated",
        "text-generation-launcher",
        "ollama serve",
        "llama-server",
        "vllm-router",
        "python -m sglang_router.launch_router",
        "python -m dynamo.frontend",
        "python -m dynamo.vllm",
    }
    for known in lists:
        assert known.source
        assert known.accessed == "2026-11-30"
        assert known.recorded in ("parser", "documentation")
        assert known.options or known.variables, known.title


def test_there_are_lists_of_the_versions_that_are_planned() -> None:
    recorded = {(known.command, known.version) for known in option_lists() if known.recorded == "parser"}
    assert (("vllm", "serve"), vllm.default_version()) in recorded
    assert (("python", "-m", "sglang.launch_server"), sglang.default_version()) in recorded


def test_the_launch_command_of_vllm_is_accepted_in_whole() -> None:
    planned = deployment()
    found = check_command(command(planned), planned.engine_version)
    assert len(found) >= 5
    assert {each.verdict for each in found} == {"accepted"}, found


@pytest.mark.parametrize(
    ("line", "flag", "reason"),
    [
        ("vllm serve m --max-num-seq 3", "--max-num-seq", "no such option"),  # no abbreviations
        ("vllm serve m --max-num-seqs many", "--max-num-seqs", "'many' is no int"),
        ("vllm serve m --gpu-memory-utilization high", "--gpu-memory-utilization", "no float"),
        ("vllm serve m --kv-cache-dtype fp7", "--kv-cache-dtype", "none of"),
        ("vllm serve m --quantization fp8_block", "--quantization", "none of"),
        ("vllm serve m --max-model-len 12q", "--max-model-len", "no size"),
        ("vllm serve m --enforce-eager=yes", "--enforce-eager", "takes no value"),
        ("vllm serve m --max-num-seqs", "--max-num-seqs", "missing"),
        ("vllm serve m --max-num-seqs --enforce-eager", "--max-num-seqs", "missing"),
        ("""vllm serve m --kv-transfer-config '{"role": 1}'""", "--kv-transfer-config", "keys role"),
        ("vllm serve m --kv-transfer-config {", "--kv-transfer-config", "no json"),
        ("vllm serve m --kv-transfer-config 7", "--kv-transfer-config", "no JSON object"),
        ("vllm serve m more", "more", "belongs to no option"),
        ("vllm serve m --enforce-eager true", "true", "belongs to no option"),
        ("python -m sglang.launch_server --model-path m --kv-cache-dtype fp8", "--kv-cache-dtype", "none of"),
        ("trtllm-serve m --tp 2", "--tp", "no such option"),
        ("text-generation-launcher --model-id m --quantize int8", "--quantize", "none of"),
        ("env OLLAMA_PARALLEL=2 ollama serve", "OLLAMA_PARALLEL", "does not read it"),
        ("env LLAMA_ARG_CACHE=2 ollama serve", "LLAMA_ARG_CACHE", "does not read it"),
        ("env VLLM_PORTS=2 vllm serve m", "VLLM_PORTS", "does not read it"),
    ],
)
def test_what_the_program_would_refuse_is_rejected_with_the_reason(line: str, flag: str, reason: str) -> None:
    rejected = [found for found in check_command(shlex.split(line), VLLM) if found.verdict == "rejected"]
    assert [found.flag for found in rejected] == [flag]
    assert reason in rejected[0].reason


@pytest.mark.parametrize(
    "line",
    [
        "vllm serve m --max-model-len 32k",
        "vllm serve m --max-model-len auto",
        "vllm serve m --max-num-seqs=256 -tp 2",
        "vllm serve m --no-enable-prefix-caching --async-scheduling",
        "/usr/local/bin/vllm serve m --api-key a b --port 80",
        """vllm serve m --speculative-config '{"method": "ngram", "num_speculative_tokens": 3}'""",
    ],
)
def test_what_the_program_takes_is_accepted(line: str) -> None:
    assert {found.verdict for found in check_command(shlex.split(line), VLLM)} == {"accepted"}


def test_what_was_only_read_or_is_of_another_version_is_unverified() -> None:
    (found,) = check_command(["vllm", "serve", "m", "--max-num-seqs", "3"], "0.20.0")
    assert found.verdict == "unverified"
    assert found.reason == "known to vllm serve 0.33.0, not tried with 0.20.0"
    assert verdicts("trtllm-serve m --tp_size 2", "1.2.1") == {"--tp_size": "unverified"}
    assert verdicts("haproxy -db -f haproxy.cfg", "3.2") == {"-db": "unverified", "-f": "unverified"}
    assert verdicts("vllm serve m", HF_HOME="x") == {"HF_HOME": "unverified"}
    assert verdicts("vllm serve m", VLLM_LOGGING_LEVEL="DEBUG") == {"VLLM_LOGGING_LEVEL": "accepted"}


def test_options_of_the_engine_within_dynamo_are_looked_up_in_the_engine() -> None:
    line = "python3 -m dynamo.vllm --endpoint dyn://a.b.c --max-num-seqs 3 --max-num-seks 4"
    found = {each.flag: each for each in check_command(shlex.split(line), "1.6.1")}
    assert found["--endpoint"].verdict == "accepted"
    assert found["--max-num-seqs"].verdict == "accepted"
    assert found["--max-num-seqs"].reason == "parser of vllm serve 0.31.0"
    assert found["--max-num-seks"].verdict == "rejected"


def test_the_variables_of_ollama_and_the_options_of_its_server_are_known() -> None:
    planned: Deployment = deployment()
    params = ollama.default_params("0.33.0", planned.gpu, planned.model)
    found = {each.flag: each for each in check_command(["ollama", "serve"], "0.33.0", ollama.environment(params))}
    assert found["OLLAMA_NUM_PARALLEL"].verdict == "unverified"
    assert found["LLAMA_ARG_CACHE_RAM"].reason == "parser of llama-server b10434, which b10488 shares"
    assert not any(each.verdict == "rejected" for each in found.values())
    settings = check_settings(("ollama", "Modelfile"), ollama.model_parameters(params), "0.33.0")
    assert {each.verdict for each in settings} == {"unverified"}
    server = llamacpp.default_params("b10488", planned.gpu, planned.model)
    options = check_command(["llama-server", *llamacpp.launch_args(server)], "b10488")
    assert {each.verdict for each in options} == {"accepted"}, options


def test_the_keys_of_a_file_are_looked_up_with_dots() -> None:
    settings = {"cuda_graph_config": {"enable_padding": True, "max_batch_size": "many"}, "enable_attention_db": True}
    found = check_settings(("trtllm-serve", "YAML"), settings, "1.2.1")
    assert [(each.flag, each.verdict) for each in found] == [
        ("cuda_graph_config.enable_padding", "unverified"),
        ("cuda_graph_config.max_batch_size", "rejected"),
        ("enable_attention_db", "rejected"),
    ]
