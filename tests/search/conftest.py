"""Small searches that the tests share."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from servewise import catalog, quality, traffic
from servewise.types import Budget, Promise, Search, Workload

MODEL = "meta-llama/Llama-3.1-8B-Instruct"
PROMISE = Promise(ttft_s=1.0, tpot_s=0.05, attainment=0.99)
BUDGET = Budget(max_gpus=32)
Make = Callable[..., Search]


@pytest.fixture(scope="session")
def chat() -> Workload:
    """Some minutes of conversation traffic."""
    return traffic.load(traffic.TrafficSource(profile="azure-conversation-2023", num_requests=2000))


@pytest.fixture(scope="session")
def make_search(chat: Workload) -> Make:
    """A search for Llama-3.1-8B with everything but what is given at its default."""

    def make(
        *,
        model_name: str = MODEL,
        engines: tuple[tuple[str, str], ...] = (("vllm", "0.33.0"),),
        workload: Workload = chat,
        gpus: tuple[str, ...] = ("L40S-48GB", "H100-SXM-80GB"),
        promise: Promise = PROMISE,
        budget: Budget = BUDGET,
        **more: object,
    ) -> Search:
        model = catalog.get_model(model_name)
        specs = tuple(catalog.get_gpu(name) for name in gpus)
        runnable = tuple(dict.fromkeys(p for gpu in specs for p in catalog.supported_precisions(gpu)))
        return Search(
            workload=workload,
            models=(model,),
            precisions={model.name: quality.precision_choices(model, runnable, quality.Floor(min_recovery_pct=99.0))},
            gpus=specs,
            offers={gpu.name: catalog.offers(gpu) for gpu in specs},
            engines=engines,  # type: ignore[arg-type]
            promise=promise,
            budget=budget,
            **more,
        )

    return make
