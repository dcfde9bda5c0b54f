"""Batch sizes that engines capture as CUDA graphs, for any engine."""

from __future__ import annotations

from servewise.engines import baselines, sglang, tgi, trtllm, vllm
from servewise.types import (
    BaselineParams,
    Deployment,
    LlamacppParams,
    OllamaParams,
    SglangParams,
    TgiParams,
    TrtllmParams,
    VllmParams,
)

__all__ = ["capture_sizes", "pads_to_captured_sizes", "replays_graphs_with_prompts"]


def capture_sizes(deployment: Deployment) -> tuple[int, ...]:
    """Batch sizes [tokens of a decode step of a rank] captured as CUDA graphs, ascending; empty without graphs.

    Larger batches run eagerly.
    """
    match deployment.params:
        case VllmParams() as params:
            return vllm.capture_sizes(params, deployment.gpu, deployment.queries_per_row)
        case SglangParams() as params:
            return sglang.capture_sizes(params)
        case TrtllmParams() as params:
            return trtllm.capture_sizes(params)
        case BaselineParams():
            return capture_sizes(baselines.as_vllm(deployment, 1))
        case TgiParams() as params:
            return tgi.capture_sizes(params)
        case LlamacppParams() | OllamaParams():
            return ()


def pads_to_captured_sizes(deployment: Deployment) -> bool:
    """Whether a batch is padded to the next captured size; if not, only the exact sizes use a graph."""
    match deployment.params:
        case VllmParams() | SglangParams() | TgiParams() | BaselineParams():
            return True
        case TrtllmParams(cuda_graph_padding=padding):
            return padding
        case LlamacppParams() | OllamaParams():
            return False


def replays_graphs_with_prompts(deployment: Deployment) -> bool:
    """Whether steps with prompt tokens replay (piecewise) CUDA graphs too, up to the largest captured size.

    vLLM does unless ``cudagraph_mode`` leaves the pieces out. TensorRT-LLM captures decode steps only
    (``torch_compile_config`` with piecewise graphs is off by default), SGLang, TGI and llama.cpp likewise.
    """
    match deployment.params:
        case VllmParams(cudagraph_mode=mode):
            return mode in ("FULL_AND_PIECEWISE", "PIECEWISE")
        case BaselineParams():
            return True
        case _:
            return False
