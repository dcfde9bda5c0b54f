"""Collectives across nodes, sends between pipeline stages, and what experts on many GPUs exchange."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from perf_deployments import deploy

from servewise.catalog import get_gpu
from servewise.errors import InputError
from servewise.perf import StepFormula
from servewise.perf.operator_links import NIC_FRAC
from servewise.perf.operators import Operators
from servewise.perf.overheads import assumed
from servewise.types import Deployment, Parallelism

H100 = get_gpu("H100-SXM-80GB")
QWEN = "Qwen/Qwen3-235B-A22B"


def spread(model: str = "meta-llama/Llama-3.1-70B-Instruct", gpu: str = "H100-SXM-80GB", **sizes: int) -> Deployment:
    return replace(deploy(model, gpu), parallelism=Parallelism(**sizes))


def step_s(deployment: Deployment, tokens: float = 64.0) -> float:
    return float(StepFormula(deployment).decode_step_s(np.array([tokens]), np.array([1000.0 * tokens]))[0])


# ------------------------------------------------------------------ collectives across nodes


def test_an_all_reduce_of_two_nodes_reduces_shards_over_the_network() -> None:
    """16 H100 and 16 MB: scatter 16 MB among the 8 GPUs of a node, exchange shards of 2 MB (half there, half back, at
    0.94 of 50 GB/s, two starts of 10 us), gather."""
    operators, size = Operators(H100), np.array([16e6])
    network_s = 2 * 10e-6 + 2 * 0.5 * 2e6 / (0.94 * 50e9)
    near_s = operators.collective_s("reduce_scatter", size, 8) + operators.collective_s("all_gather", size, 8)
    assert operators.all_reduce_s(size, 16) == pytest.approx(near_s + network_s)
    assert "across 2 nodes" in operators.provenance("all_reduce").note


def test_more_nodes_take_more_starts_and_hardly_more_bytes() -> None:
    operators, small, large = Operators(H100), np.array([1e3]), np.array([1e9])
    two, four, eight = (operators.all_reduce_s(small, 8 * nodes)[0] for nodes in (2, 4, 8))
    assert four - two == pytest.approx(2 * H100.nic_latency_s, rel=0.01)
    assert eight - four == pytest.approx(2 * H100.nic_latency_s, rel=0.01)
    assert operators.all_reduce_s(large, 64)[0] < 1.6 * operators.all_reduce_s(large, 16)[0]


def test_a_single_gpu_node_sends_everything_over_the_network() -> None:
    card = get_gpu("GB10-128GB")
    time_s = Operators(card).all_reduce_s(np.array([1e9]), 2)
    expected_s = 2 * card.nic_latency_s + 1e9 / (NIC_FRAC * card.nic_bytes_per_s)
    assert time_s[0] == pytest.approx(expected_s)
    # NCCL between two of them, 8 KiB: 30 us (github.com/NVIDIA/dgx-spark-playbooks/pull/103)
    assert Operators(card).all_reduce_s(np.array([8192.0]), 2)[0] == pytest.approx(30e-6, rel=0.05)


def test_a_rack_is_one_node_for_collectives() -> None:
    rack, boxes, size = Operators(get_gpu("GB200-186GB")), Operators(get_gpu("B200-SXM-180GB")), np.array([1e8])
    assert rack.all_reduce_s(size, 32)[0] < 0.5 * boxes.all_reduce_s(size, 32)[0]
    assert "across" not in rack.provenance("all_reduce").note
    assert rack.all_reduce_s(size, 144)[0] > rack.all_reduce_s(size, 72)[0] + get_gpu("GB200-186GB").nic_latency_s


@pytest.mark.parametrize(
    ("num_gpus", "dispatch_us", "combine_us"), [(16, 118, 195), (32, 155, 273), (64, 173, 314), (128, 192, 369)]
)
def test_all_to_all_between_nodes_is_near_what_deepep_publishes(
    num_gpus: int, dispatch_us: float, combine_us: float
) -> None:
    """128 tokens of 7,168 values to 8 experts, out in fp8, back in bf16, H800 with ports of 400 Gbit/s
    (github.com/deepseek-ai/DeepEP, low-latency kernels, news of 2025-06-05): 8 to 25% slower, as kernels that pack
    tokens are not modelled."""
    operators, values = Operators(H100), 128 * 8 * 7168
    for value_bytes, measured_us in ((1 + 4 / 128, dispatch_us), (2.0, combine_us)):
        time_us = 1e6 * operators.collective_s("all_to_all", np.array([value_bytes * values]), num_gpus)[0]
        assert 0.72 < time_us / measured_us < 0.97


# ------------------------------------------------------------------ stages


def test_a_pass_through_stages_is_a_pass_and_its_sends() -> None:
    """Two stages of 8 GPUs: the batch goes through the same layers, is sent once, and two hosts spend their time."""
    one, two = (StepFormula(spread(tensor_parallel_size=8, pipeline_parallel_size=p)) for p in (1, 2))
    tokens = np.array([1.0, 64.0, 4096.0])
    state = 2 * 2.0 * tokens * 8192  # hidden state and residual
    send_s = two.operators.send_s(state / 8, between=True) + two.operators.collective_s("all_gather", state, 8)
    scale = one.overheads.collective_scale
    difference = two.token_parts(tokens).all_reduce - one.token_parts(tokens).all_reduce
    assert difference == pytest.approx(scale * send_s, rel=1e-9)
    assert two.step_overhead_s() == 2 * one.step_overhead_s()
    rows, context = np.array([64.0]), np.array([64000.0])
    assert two.decode_attention_s(rows, context) == one.decode_attention_s(rows, context)
    assert two.prefill_attention_s() == one.prefill_attention_s()


def test_stages_within_a_node_send_over_its_links() -> None:
    operators, state = Operators(H100), np.array([1e8])
    assert operators.send_s(state, between=False)[0] < 0.25 * operators.send_s(state, between=True)[0]
    inside = step_s(spread(tensor_parallel_size=4, pipeline_parallel_size=2), 4096.0)
    apart = step_s(
        replace(spread(tensor_parallel_size=4, pipeline_parallel_size=2), gpu=replace(H100, link_gpus=4)), 4096
    )
    assert apart > inside


def test_ranks_with_stages_share_experts_across_nodes() -> None:
    """Eight ranks of two stages on two nodes: vLLM keeps a rank's stages together, so that a layer is shared by four
    GPUs of each node, and a rank's state stays within its node."""
    tokens = np.array([1024.0])
    formula = StepFormula(spread(QWEN, data_parallel_size=8, pipeline_parallel_size=2, expert_parallel_size=8))
    model, operators = formula.deployment.model, formula.operators
    message = 2.0 * tokens * model.hidden_size
    layer_s = sum(operators.collective_s(kind, 8 * message, 8, 2) for kind in ("all_gather", "reduce_scatter"))
    near_s = sum(operators.collective_s(kind, 8 * message, 8) for kind in ("all_gather", "reduce_scatter"))
    send_s = operators.send_s(2.0 * message, between=False)
    expected_s = formula.overheads.collective_scale * (model.num_layers * layer_s + send_s)
    assert formula.token_parts(tokens).all_reduce == pytest.approx(expected_s, rel=1e-9)
    assert layer_s[0] > 1.5 * near_s[0]


# ------------------------------------------------------------------ groups across nodes


def test_tensor_parallel_groups_may_span_whole_nodes() -> None:
    assert step_s(spread(tensor_parallel_size=16)) > 0
    with pytest.raises(InputError, match=r"tensor_parallel_size 12 is neither within one node .* multiples of 8"):
        StepFormula(spread(tensor_parallel_size=12))
    with pytest.raises(InputError, match="up to the 64 heads"):
        StepFormula(spread(tensor_parallel_size=72))


def test_sending_tokens_to_their_experts_beats_gathering_all_on_many_gpus() -> None:
    """What gathering takes grows with the ranks, what sending takes with the experts of a token (8 here)."""
    for ranks, tokens, pays in ((8, 256.0, False), (16, 4096.0, False), (16, 16.0, True), (64, 256.0, True)):
        sizes = {"data_parallel_size": ranks, "expert_parallel_size": ranks}
        gather, send = (spread(QWEN, expert_all_to_all=way, **sizes) for way in (False, True))
        parts = [StepFormula(d).token_parts(np.array([tokens])).all_reduce[0] for d in (gather, send)]
        assert (parts[1] < parts[0]) == pays


@pytest.mark.parametrize("sizes", [{}, {"data_parallel_size": 4}, {"data_parallel_size": 4, "expert_parallel_size": 2}])
def test_all_to_all_needs_ranks_with_experts_of_their_own(sizes: dict[str, int]) -> None:
    with pytest.raises(InputError, match="expert_all_to_all needs data parallel ranks"):
        StepFormula(spread(QWEN, expert_all_to_all=True, **sizes))


def test_the_default_imbalance_is_that_of_the_measured_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """The factor is 1, and multiplies the experts of several groups alone."""
    assert assumed().expert_imbalance_scale == 1.0
    tokens = np.array([512.0])
    for experts, factor in ((8, 1.5), (1, 1.0)):
        deployment = spread(QWEN, tensor_parallel_size=8, expert_parallel_size=experts)
        before, experts_s = StepFormula(deployment).token_parts(tokens), StepFormula(deployment).experts_s(tokens)
        skewed = replace(assumed(), expert_imbalance_scale=1.5)
        monkeypatch.setattr("servewise.perf.formula.assumed", lambda: skewed)  # noqa: B023
        after = StepFormula(deployment).token_parts(tokens)
        monkeypatch.undo()
        assert after.total - before.total == pytest.approx((factor - 1) * experts_s)
