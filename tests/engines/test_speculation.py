"""What a drafter may be, and how vLLM is told of it."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from servewise.catalog import get_gpu, get_model
from servewise.engines import vllm
from servewise.errors import InputError
from servewise.types import Deployment, Parallelism, Precision, Speculation, SpeculationMethod, chain_acceptance

MODEL = get_model("meta-llama/Llama-3.1-70B-Instruct")
SMALL = get_model("meta-llama/Llama-3.2-1B-Instruct")
H100 = get_gpu("H100-SXM-80GB")
VERSION = vllm.default_version()


def speculation(method: SpeculationMethod = "ngram", **fields: object) -> Speculation:
    """Two proposals."""
    values: dict[str, object] = {"num_speculative_tokens": 2, "acceptance": (0.8, 0.5), **fields}
    return Speculation(method=method, **values)  # type: ignore[arg-type]


def launched(known: Speculation | None) -> list[str]:
    """Arguments of ``vllm serve``."""
    deployment = Deployment(
        model=MODEL,
        gpu=H100,
        engine="vllm",
        engine_version=VERSION,
        precision=Precision(),
        parallelism=Parallelism(tensor_parallel_size=4),
        params=vllm.default_params(VERSION, H100, MODEL),
        speculation=known,
    )
    return vllm.launch(deployment).args


@pytest.mark.parametrize(
    ("known", "config"),
    [
        (speculation(), {"method": "ngram", "num_speculative_tokens": 2}),
        (speculation("mtp"), {"method": "mtp", "num_speculative_tokens": 2}),
        (
            speculation("draft_model", draft_model=SMALL),
            {"method": "draft_model", "model": SMALL.name, "num_speculative_tokens": 2},
        ),
        (
            speculation("eagle", head_name="yuhuili/EAGLE-LLaMA3.1-Instruct-8B"),
            {"method": "eagle", "model": "yuhuili/EAGLE-LLaMA3.1-Instruct-8B", "num_speculative_tokens": 2},
        ),
        (
            speculation("eagle", head_name="yuhuili/EAGLE3-LLaMA3.1-Instruct-8B"),
            {"method": "eagle3", "model": "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B", "num_speculative_tokens": 2},
        ),
    ],
)
def test_launch(known: Speculation, config: dict[str, object]) -> None:
    args = launched(known)
    assert json.loads(args[args.index("--speculative-config") + 1]) == config
    rest = [arg for arg in args if arg != "--speculative-config" and not arg.startswith("{")]
    assert rest == launched(None)


def test_names_that_cannot_be_launched() -> None:
    with pytest.raises(InputError, match="set head_name"):
        launched(speculation("eagle"))
    with pytest.raises(InputError, match="cannot be passed"):
        launched(speculation("draft_model", draft_model=replace(SMALL, name="--port")))


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({"method": "magic"}, "method is 'magic'"),
        ({"num_speculative_tokens": 0, "acceptance": ()}, "at least 1"),
        ({"acceptance": (0.5,)}, "1 rates for 2"),
        ({"acceptance": (1.5, 0.5)}, r"in \[0, 1\]"),
        ({"acceptance": (float("nan"), 0.5)}, r"in \[0, 1\]"),
        ({"acceptance": (0.4, 0.5)}, "must not increase"),
        ({"method": "draft_model"}, "draft_model must be given"),
        ({"draft_model": SMALL}, "draft_model must be given"),
        ({"head_name": "a/b"}, "head_name names the head of method 'eagle'"),
    ],
)
def test_what_no_engine_could_do_is_refused(fields: dict[str, object], match: str) -> None:
    with pytest.raises(InputError, match=match):
        speculation(**{"method": "ngram", **fields})  # type: ignore[arg-type]


def test_a_chain_of_equal_rates() -> None:
    """E = (1 - a^(k + 1)) / (1 - a)."""
    rates = chain_acceptance(0.7, 3)
    assert rates == pytest.approx((0.7, 0.49, 0.343))
    known = speculation(num_speculative_tokens=3, acceptance=rates)
    assert known.mean_tokens_per_step == pytest.approx((1 - 0.7**4) / (1 - 0.7))
    assert (known.queries_per_row, known.lookahead_tokens, known.budget_tokens_per_request) == (4, 0, 0)
    assert speculation("mtp").lookahead_tokens == 2
    assert speculation("draft_model", draft_model=SMALL).budget_tokens_per_request == 1
    with pytest.raises(InputError, match=r"in \[0, 1\]"):
        chain_acceptance(1.1, 2)
