"""Deployments by name and settings."""

from __future__ import annotations

import pytest

from servewise.config import named_deployment
from servewise.config.deployment import ENGINES_OF_DEPLOYMENTS
from servewise.errors import InputError
from servewise.types import LlamacppParams, OllamaParams, TgiParams

MODEL = "meta-llama/Llama-3.1-8B-Instruct"
GPU = "H100-SXM-80GB"


@pytest.mark.parametrize("engine", ENGINES_OF_DEPLOYMENTS)
def test_every_engine_starts_with_its_defaults(engine: str) -> None:
    found = named_deployment(engine=engine, model=MODEL, gpu=GPU)
    default_version, default_params = ENGINES_OF_DEPLOYMENTS[found.engine]
    assert found.engine_version == default_version()
    assert found.params == default_params(found.engine_version, found.gpu, found.model, found.parallelism)
    assert found.num_replicas == 1


def test_settings_are_read_by_their_kind() -> None:
    settings = {"max_num_seqs": "64", "enable_prefix_caching": "False", "gpu_memory_utilization": "0.5"}
    found = named_deployment(engine="vllm", model=MODEL, gpu=GPU, settings=settings).vllm_params
    assert (found.max_num_seqs, found.enable_prefix_caching, found.gpu_memory_utilization) == (64, False, 0.5)
    llama = named_deployment(engine="llama.cpp", model=MODEL, gpu=GPU, settings={"cache_type_k": "q8_0"}).params
    assert isinstance(llama, LlamacppParams)
    assert llama.cache_type_k == "q8_0"
    tgi = named_deployment(engine="tgi", model=MODEL, gpu=GPU, settings={"cuda_graphs": "1,2,4"}).params
    assert isinstance(tgi, TgiParams)
    assert tgi.cuda_graphs == (1, 2, 4)
    ollama = named_deployment(engine="ollama", model=MODEL, gpu=GPU, settings={"keep_alive_s": "none"}).params
    assert isinstance(ollama, OllamaParams)
    assert ollama.keep_alive_s is None


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"engine": "vlm"}, "unknown engine 'vlm'; did you mean vllm"),
        ({"model": "llama-9000"}, "unknown model"),
        ({"gpu": "H9000"}, "unknown GPU"),
        ({"weights": "int3"}, "does not run 'int3' weights"),
        ({"settings": {"max_seqs": "3"}}, "unknown setting 'max_seqs'"),
        ({"settings": {"max_num_seqs": "many"}}, "setting max_num_seqs is 'many'; it must be a whole number"),
        ({"settings": {"enable_prefix_caching": "yes"}}, "it must be true or false"),
        ({"settings": {"scheduling_policy": "best"}}, "it must be fcfs or priority"),
    ],
)
def test_a_wrong_name_is_refused_in_words(changes: dict[str, object], match: str) -> None:
    with pytest.raises(InputError, match=match):
        named_deployment(**({"engine": "vllm", "model": MODEL, "gpu": GPU} | changes))  # type: ignore[arg-type]
