"""The step table: true to the formula, monotone, sane, and honest about its origin."""

from __future__ import annotations

import csv
import dataclasses
import time
from importlib import resources
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from perf_deployments import deploy

from servewise import perf
from servewise.catalog import get_gpu
from servewise.errors import OutOfRangeError
from servewise.perf.operators import Operators
from servewise.perf.table import TABLE_ROWS, TABLE_TOKENS
from servewise.types import Deployment, Parallelism, StepTable, WeightPrecision

Array = NDArray[np.float64]

DEPLOYMENTS = {
    "dense": deploy("meta-llama/Llama-3.1-8B-Instruct"),
    "tensor parallel fp8": deploy(tp=4, weights="fp8", kv="fp8"),
    "int4 on A100": deploy(gpu="A100-SXM-80GB", tp=2, weights="int4", max_num_seqs=1024),
    "PCIe": deploy(gpu="L40S-48GB", tp=4, weights="fp8", max_num_seqs=1024),
    "window of 1024": deploy("google/gemma-3-27b-it", tp=2),
    "window of 128, experts": deploy("openai/gpt-oss-120b", tp=2, weights="mxfp4"),
    "latent attention": deploy("deepseek-ai/DeepSeek-V3", "H200-SXM-141GB", tp=8, weights="fp8_block"),
    "transferred": deploy("Qwen/Qwen3-30B-A3B", "MI300X-192GB", max_num_batched_tokens=8192),
    "small model": deploy("meta-llama/Llama-3.2-1B-Instruct", "B200-SXM-180GB", weights="nvfp4"),
}


@pytest.fixture(scope="module", params=DEPLOYMENTS, ids=lambda name: name.replace(" ", "-"))
def case(request: pytest.FixtureRequest) -> tuple[Deployment, StepTable, perf.StepFormula]:
    wanted = DEPLOYMENTS[request.param]
    return wanted, perf.step_model(wanted).table, perf.StepFormula(wanted)


def attention_s(table: StepTable, n: Array, context: Array) -> Array:
    """Attention as the type's documentation defines it."""
    rows = n.astype(np.int64)
    piece = np.searchsorted(table.context_knots, context / np.maximum(n, 1), side="right") - 1
    return table.attention_base_s[rows, piece] + table.attention_slope_s[rows, piece] * context


def mixed_attention_s(table: StepTable, n: Array, context: Array) -> Array:
    """Attention of decode rows beside prompts, as the type's documentation defines it."""
    beside_prompts = table.mixed_row_attention_fixed_s * n + table.mixed_row_attention_s_per_token * context
    return np.maximum(attention_s(table, n, context), beside_prompts)


def random_rows(rng: np.random.Generator, table: StepTable, window: int) -> tuple[Array, Array]:
    n = np.exp(rng.uniform(0, np.log(table.max_rows + 1), 3000)).astype(np.int64)
    n[:6] = (1, 2, 512, 513, table.max_rows - 1, table.max_rows)
    average = np.exp(rng.uniform(0, np.log(150_000), n.size))
    if window:
        average[:300] = window * rng.uniform(0.9, 1.1, 300)
    return n.astype(np.float64), np.maximum(np.rint(n * average), n)


def test_table_is_within_half_a_percent_of_the_formula(
    case: tuple[Deployment, StepTable, perf.StepFormula],
) -> None:
    wanted, table, formula = case
    rng = np.random.default_rng(7)
    n, context = random_rows(rng, table, wanted.model.sliding_window_tokens)
    assert table.max_rows == 1024
    decode = table.decode_fixed_s[n.astype(np.int64)] + attention_s(table, n, context)
    exact = formula.decode_step_s(n, context)
    assert np.max(np.abs(decode / exact - 1)) < perf.TABLE_TOLERANCE_FRAC
    room = table.max_batched_tokens - n
    p = np.maximum(1, np.floor(np.exp(rng.uniform(0, np.log(np.maximum(room, 2))))))
    keep = p <= room
    n, context, p = n[keep], context[keep], p[keep]
    pairs, sampled = p * rng.uniform(1, 5000, p.size), np.minimum(n + 1, table.max_rows)
    mixed = table.mixed_tokens_s[(n + p).astype(np.int64)] + mixed_attention_s(table, n, context)
    mixed += table.sample_s[sampled.astype(np.int64)] + table.prefill_fixed_s
    mixed += table.prefill_s_per_token * p + table.prefill_s_per_pair * pairs
    exact = formula.mixed_step_s(n, context, p, pairs, sampled)
    assert np.max(np.abs(mixed / exact - 1)) < perf.TABLE_TOLERANCE_FRAC


@pytest.mark.parametrize(
    ("wanted", "unpacked"),
    [
        (deploy(gpu="A100-SXM-80GB", tp=4), True),
        (deploy(gpu="RTX-PRO-6000-96GB", tp=4), True),
        (deploy(gpu="A100-SXM-80GB", tp=8), True),  # one key head and eight query heads
        (deploy(gpu="H100-SXM-80GB", tp=4), False),  # FlashAttention 3
        (deploy(gpu="B200-SXM-180GB", tp=4), False),  # FlashInfer
        (deploy(gpu="L40S-48GB", tp=4, weights="fp8", kv="fp8"), False),  # FlashAttention 2 reads no fp8 cache
        (deploy("openai/gpt-oss-120b", gpu="A100-SXM-80GB", tp=2, weights="mxfp4"), False),  # nor attention sinks
        (deploy("deepseek-ai/DeepSeek-V2-Lite", gpu="A100-SXM-80GB"), False),  # latent attention
        (deploy("meta-llama/Llama-2-7b-chat-hf", gpu="A100-SXM-80GB"), False),  # nothing to pack
    ],
    ids=lambda value: f"{value.model.name} on {value.gpu.name}" if isinstance(value, Deployment) else str(value),
)
def test_prompts_unpack_decode_rows_under_flash_attention_2(wanted: Deployment, unpacked: bool) -> None:
    formula, table = perf.StepFormula(wanted), perf.step_model(wanted).table
    n, context, prompt = np.array([64.0]), np.array([64 * 3000.0]), np.array([100.0])
    alone, beside = formula.decode_attention_s(n, context)[0], formula.mixed_attention_s(n, context)[0]
    assert table.mixed_row_attention_s_per_token == formula.mixed_row_attention_s()[1]
    assert table.mixed_row_attention_fixed_s == formula.mixed_row_attention_s()[0]
    if not unpacked:
        assert (table.mixed_row_attention_fixed_s, table.mixed_row_attention_s_per_token) == (0.0, 0.0)
        assert beside == alone
        return
    # each row as a prompt of 64 tokens over its context, filled up to tiles of 128 keys
    pairs = 64 * 64 * (3000.0 + 64.0)
    assert beside == pytest.approx(max(alone, formula.prefill_attention_s()[2] * pairs))
    assert beside > alone
    packed = formula.mixed_step_s(n, context, prompt, prompt, n) - beside + alone
    formula.unpacked_rows = False
    assert formula.mixed_step_s(n, context, prompt, prompt, n)[0] == pytest.approx(packed[0])


def test_windowed_layers_are_not_packed_in_the_first_place() -> None:
    wanted = deploy("google/gemma-3-27b-it", gpu="A100-SXM-80GB", tp=2)
    formula = perf.StepFormula(wanted)
    model = wanted.model
    full_only = formula.prefill_attention_s()[2] * 64
    assert formula.mixed_row_attention_s()[1] == pytest.approx(full_only)
    assert 0 < model.num_layers - model.num_sliding_layers < model.num_layers
    (full,) = (group for group in formula.layers if not group.window_tokens)
    dims = model.head_dim + model.v_head_dim
    per_layer = 2.0 * formula.num_heads * (dims + 2.0 * full.prefill.exp_dims) / full.prefill.flops_per_s
    scale = formula.overheads.attention_scale
    assert full_only == pytest.approx(64 * scale * full.num_layers * per_layer)


def test_data_parallel_ranks_gather_and_scatter() -> None:
    spread = Parallelism(data_parallel_size=2, expert_parallel_size=2)
    wanted = dataclasses.replace(deploy("Qwen/Qwen3-30B-A3B", gpu="RTX-PRO-6000-96GB"), parallelism=spread)
    formula = perf.StepFormula(wanted)
    m = np.array([128.0])
    message = 2 * 2.0 * m * wanted.model.hidden_size
    both = formula.operators.collective_s("all_gather", message, 2)
    both = both + formula.operators.collective_s("reduce_scatter", message, 2)
    # over PCIe collectives are taken as measured
    expected = wanted.model.num_layers * both
    assert formula.token_parts(m).all_reduce[0] == pytest.approx(expected[0])
    assert both[0] > formula.operators.all_reduce_s(message, 2)[0]


def test_shape_of_the_table(case: tuple[Deployment, StepTable, perf.StepFormula]) -> None:
    wanted, table, _ = case
    assert table.context_knots[0] == 0
    assert np.all(np.diff(table.context_knots) > 0)
    assert table.attention_base_s.shape == (1025, len(table.context_knots))
    assert not table.attention_base_s[0].any()
    assert not table.attention_slope_s[0].any()
    assert table.sample_s[0] == 0
    assert table.max_batched_tokens == max(wanted.params.max_num_batched_tokens, TABLE_TOKENS)
    assert np.all(table.context_knots == np.floor(table.context_knots))
    window = wanted.model.sliding_window_tokens
    assert not window or window in table.context_knots
    for array in (table.decode_fixed_s, table.mixed_tokens_s, table.attention_base_s):
        assert np.all(np.isfinite(array))
        assert np.all(array >= 0)


def test_pieces_meet_at_the_knots(case: tuple[Deployment, StepTable, perf.StepFormula]) -> None:
    _, table, _ = case
    n = np.arange(1, table.max_rows + 1)[:, None]
    at = n * table.context_knots[1:]
    left = table.attention_base_s[1:, :-1] + table.attention_slope_s[1:, :-1] * at
    right = table.attention_base_s[1:, 1:] + table.attention_slope_s[1:, 1:] * at
    np.testing.assert_allclose(left, right, rtol=1e-9)


def test_time_never_falls_with_more_work(case: tuple[Deployment, StepTable, perf.StepFormula]) -> None:
    _, table, _ = case
    assert np.all(np.diff(table.decode_fixed_s) >= 0)
    assert np.all(np.diff(table.mixed_tokens_s) >= 0)
    assert np.all(np.diff(table.sample_s) >= 0)
    assert np.all(table.attention_slope_s >= 0)
    assert min(table.prefill_s_per_token, table.prefill_s_per_pair, table.prefill_fixed_s) >= 0
    for total in (1024, 5000, 20_000, 100_000, 1_000_000, 10_000_000):
        n = np.arange(1.0, table.max_rows + 1)
        time_s = table.decode_fixed_s[1:] + attention_s(table, n, np.full_like(n, total))
        assert np.all(np.diff(time_s) >= 0), total


@settings(deadline=None, max_examples=60)
@given(
    name=st.sampled_from(sorted(DEPLOYMENTS)),
    n=st.integers(1, 1024),
    average=st.floats(1, 100_000),
    more=st.integers(1, 100_000),
    prefill=st.integers(1, 7000),
)
def test_formula_is_monotone(name: str, n: int, average: float, more: int, prefill: int) -> None:
    formula = perf.StepFormula(DEPLOYMENTS[name])
    rows, context = np.array([float(n)]), np.array([n * average])
    base = formula.decode_step_s(rows, context)
    assert formula.decode_step_s(rows, context + more) >= base
    assert formula.decode_step_s(rows + 1, context) >= base
    tokens = np.array([float(prefill)])
    mixed = formula.mixed_step_s(rows, context, tokens, tokens * 100, rows)
    assert formula.mixed_step_s(rows, context, tokens + 1, tokens * 100, rows) >= mixed
    assert formula.mixed_step_s(rows, context, tokens, tokens * 101, rows) >= mixed


@pytest.mark.parametrize("gpu", ["A100-SXM-80GB", "H100-SXM-80GB", "L40S-48GB", "MI300X-192GB"])
def test_weight_only_precisions_speed_up_reading_but_not_computing(gpu: str) -> None:
    operators = Operators(get_gpu(gpu))
    one, many = np.array([1.0]), np.array([8192.0])
    assert operators.gemm_s(one, 8192, 8192, "int4") < 0.6 * operators.gemm_s(one, 8192, 8192, "bf16")
    assert operators.gemm_s(many, 8192, 8192, "int4") >= operators.gemm_s(many, 8192, 8192, "bf16")


def test_fp8_on_a_gpu_without_fp8_is_weight_only() -> None:
    a100, h100 = (Operators(get_gpu(g)) for g in ("A100-SXM-80GB", "H100-SXM-80GB"))
    many = np.array([8192.0])
    assert a100.gemm_s(many, 8192, 8192, "fp8") >= a100.gemm_s(many, 8192, 8192, "bf16")
    assert h100.gemm_s(many, 8192, 8192, "fp8") < 0.75 * h100.gemm_s(many, 8192, 8192, "bf16")
    assert "unpacking" in a100.notes["gemm_fp8"]
    assert not h100.notes


def test_gemms_never_beat_the_memory_or_the_arithmetic_of_the_gpu() -> None:
    for gpu in ("A100-SXM-80GB", "H100-SXM-80GB", "L40S-48GB", "B200-SXM-180GB"):
        card = get_gpu(gpu)
        operators = Operators(card)
        for m in (1.0, 64.0, 4096.0):
            time_s = operators.gemm_s(np.array([m]), 8192, 8192, "bf16")[0]
            assert time_s > 2 * 8192 * 8192 / card.mem_bw_bytes_per_s
            assert time_s > 2 * m * 8192 * 8192 / card.peak_flops_per_s["bf16"]


def test_all_reduce_grows_with_bytes_and_gpus() -> None:
    for gpu in ("H100-SXM-80GB", "H100-PCIe-80GB", "GB200-186GB", "MI300X-192GB"):
        operators = Operators(get_gpu(gpu))
        sizes = np.geomspace(1e3, 1e9, 50)
        two, eight = operators.all_reduce_s(sizes, 2), operators.all_reduce_s(sizes, 8)
        assert np.all(np.diff(two) >= 0)
        assert eight[-1] > two[-1]
        assert not operators.all_reduce_s(sizes, 1).any()


def test_measured_deployments_say_so_and_transferred_ones_warn() -> None:
    measured = perf.step_model(deploy(tp=4))
    assert measured.warnings == ()
    assert measured.provenance["gemm"].kind == "measured"
    assert "aiconfigurator-core 0.12.0" in measured.provenance["gemm"].source
    assert measured.provenance["attention"].kind == "derived"
    assert set(measured.provenance) >= {"gemm", "attention", "all_reduce", "overhead", "request"}
    transferred = perf.step_model(deploy(gpu="H100-PCIe-80GB", tp=4))
    assert any("transferred from h100_sxm" in w for w in transferred.warnings)
    assert transferred.provenance["gemm"].kind == "derived"
    assert "transferred from h100_sxm" in transferred.provenance["gemm"].note
    unmeasured = perf.step_model(deploy(gpu="L40S-48GB", tp=2, weights="int4"))
    assert any("int4" in w for w in unmeasured.warnings)
    long = perf.step_model(deploy("meta-llama/Llama-3.1-8B-Instruct", max_num_batched_tokens=32768))
    assert any("16384" in w for w in long.warnings)


def test_transfer_scales_with_the_hardware() -> None:
    slow, fast = (perf.StepFormula(deploy(gpu=g, tp=4)) for g in ("H100-PCIe-80GB", "H100-SXM-80GB"))
    one, context = np.array([1.0]), np.array([1000.0])
    ratio = slow.decode_step_s(one, context) / fast.decode_step_s(one, context)
    assert 1.2 < ratio[0] < 3.35 / 2.0 + 0.5


@pytest.mark.parametrize(
    ("n", "context", "prefill"),
    [(1, 1000, 0), (256, 262144, 0), (32, 32000, 2048), (0, 0, 8192), (600, 6e5, 0)],
)
def test_explained_parts_sum_to_the_table(n: int, context: float, prefill: int) -> None:
    wanted = deploy(tp=4, weights="fp8")
    table, parts = perf.step_model(wanted).table, perf.explain(wanted, n, context, prefill)
    rows, total = np.array([float(n)]), np.array([float(context)])
    expected = float((mixed_attention_s if prefill else attention_s)(table, rows, total)[0])
    if prefill:
        pairs = prefill * (prefill + 1) / 2
        expected += table.mixed_tokens_s[n + prefill] + table.sample_s[n + 1] + table.prefill_fixed_s
        expected += table.prefill_s_per_token * prefill + table.prefill_s_per_pair * pairs
    else:
        expected += table.decode_fixed_s[n]
    assert sum(parts.values()) == pytest.approx(expected, rel=perf.TABLE_TOLERANCE_FRAC)
    assert all(v >= 0 for v in parts.values())


def test_what_limits_a_step() -> None:
    wanted = deploy(tp=4)
    decode, prefill = perf.explain(wanted, 1, 1000), perf.explain(wanted, 0, 0, 8192)
    assert max(decode, key=decode.__getitem__) == "weights"
    assert max(prefill, key=prefill.__getitem__) == "compute"
    many = perf.explain(wanted, 512, 512 * 8000)
    assert max(many, key=many.__getitem__) == "kv"


@pytest.mark.parametrize(("n", "context", "prefill"), [(0, 0, 0), (-1, 0, 5), (4, 3, 0)])
def test_steps_that_do_not_exist(n: int, context: float, prefill: int) -> None:
    with pytest.raises(OutOfRangeError, match="does not exist"):
        perf.explain(deploy(tp=4), n, context, prefill)


def test_knots_are_added_where_a_chord_is_not_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = DEPLOYMENTS["int4 on A100"]
    coarse = perf.step_model(wanted).table
    monkeypatch.setattr("servewise.perf.table.KNOT_TOLERANCE_FRAC", 2e-5)
    fine, formula = perf.step_model(wanted).table, perf.StepFormula(wanted)
    assert len(fine.context_knots) > len(coarse.context_knots) + 3
    n = np.full(500, 1000.0)
    context = n * np.geomspace(1, 131072, 500)
    exact, whole = formula.decode_attention_s(n, context), formula.decode_step_s(n, context)
    fine_error, coarse_error = (np.max(np.abs(attention_s(t, n, context) - exact) / whole) for t in (fine, coarse))
    assert fine_error < 5e-5
    assert fine_error < 0.3 * coarse_error


def test_deployments_that_differ_in_settings_share_one_table() -> None:
    base = perf.step_model(deploy(tp=4, max_num_seqs=256, max_num_batched_tokens=8192)).table
    other = perf.step_model(deploy(tp=4, max_num_seqs=1024, max_num_batched_tokens=2048)).table
    assert base.max_rows == TABLE_ROWS
    for name in StepTable.__slots__:
        np.testing.assert_array_equal(getattr(base, name), getattr(other, name))


def test_decode_pads_to_captured_sizes_and_leaves_graphs_above_512() -> None:
    wanted = deploy("meta-llama/Llama-3.1-8B-Instruct")
    formula = perf.StepFormula(wanted)
    np.testing.assert_array_equal(
        formula.padded(np.array([1.0, 3.0, 9.0, 250.0, 512.0, 513.0])), [1, 4, 16, 256, 512, 513]
    )
    few = perf.StepFormula(deploy("meta-llama/Llama-3.2-1B-Instruct", "B200-SXM-180GB", 2, max_num_seqs=8))
    assert few.token_parts(np.array([16.0])).floor[0] == 0
    eager = few.token_parts(np.array([17.0]))
    assert eager.floor[0] > 0
    assert eager.total[0] == pytest.approx(16e-6 * few.overheads.eager_layer_us)


def test_a_table_takes_milliseconds() -> None:
    wanted = deploy(tp=4)
    perf.step_model(wanted)
    runs = []
    for _ in range(7):
        start = time.process_time()
        perf.step_model(wanted)
        runs.append(time.process_time() - start)
    assert min(runs) < 0.015


def test_shipped_data_is_small() -> None:
    folder = resources.files("servewise.data").joinpath("perf")
    assert sum(len(f.read_bytes()) for f in folder.iterdir()) < 500_000


@pytest.mark.shared
def test_low_concurrency_tpot_of_real_servers(shared_dir: Path) -> None:
    """One decode step against mean TPOT of vLLM at concurrency 8 or less: a sanity check without queueing."""
    gpus = {"h100_sxm": "H100-SXM-80GB", "h200_sxm": "H200-SXM-141GB", "b200_sxm": "B200-SXM-180GB"}
    errors = []
    with (shared_dir / "data" / "measured" / "silicon_serving.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            known = row["engine"] == "vllm" and row["model"] == "meta-llama/Llama-3.1-70B" and row["gpu_system"] in gpus
            num = int(float(row["concurrency_from_source"] or row["batch_size_field"]))
            if not known or num > 8:
                continue
            weights: WeightPrecision = "nvfp4" if row["gemm_quant_mode"] == "nvfp4" else "fp8"
            kv = "fp8" if row["gpu_system"] == "b200_sxm" else "bf16"
            wanted = deploy(gpu=gpus[row["gpu_system"]], tp=int(row["tp_size"]), weights=weights, kv=kv)
            average = 0.9 * (float(row["isl"]) + 0.5 * float(row["osl"]))
            step_s = sum(perf.explain(wanted, num, num * average).values())
            errors.append(step_s * 1e3 / float(row["tpot_mean_ms"]) - 1)
    assert len(errors) > 50
    assert np.median(np.abs(errors)) < 0.10
    assert abs(np.median(errors)) < 0.08
