"""Nodes of two kinds for fleets of prefill and decode instances."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from test_cost import offer

from servewise import catalog
from servewise.cost import cost_of_groups, fleet_nodes
from servewise.engines import vllm
from servewise.errors import InputError
from servewise.metrics import summarize
from servewise.perf import kv_link
from servewise.types import (
    Deployment,
    Disaggregation,
    GpuOffer,
    InstancePool,
    Parallelism,
    Precision,
    Promise,
    RequestLog,
    Summary,
)

MODEL = catalog.get_model("meta-llama/Llama-3.1-8B-Instruct")
H100, L40S = "H100-SXM-80GB", "L40S-48GB"


def group(prefill: str, decode: str, x: int, y: int, tp: tuple[int, int] = (1, 1), groups: int = 1) -> Deployment:
    """A fleet of groups of vLLM."""
    pools = []
    for name, number, size in ((prefill, x, tp[0]), (decode, y, tp[1])):
        gpu = catalog.get_gpu(name)
        params = dataclasses.replace(vllm.default_params("0.33.0", gpu, MODEL), max_model_len=8192)
        spread = Parallelism(tensor_parallel_size=size)
        pools.append(InstancePool(gpu=gpu, parallelism=spread, params=params, num_instances=number))

    def alone(pool: InstancePool) -> Deployment:
        return Deployment(
            model=MODEL,
            gpu=pool.gpu,
            engine="vllm",
            engine_version="0.33.0",
            precision=Precision(),
            parallelism=pool.parallelism,
            params=pool.params,
            num_replicas=groups,
        )

    link = kv_link(alone(pools[0]), alone(pools[1]), x, y)
    found = Disaggregation(prefill=pools[0], decode=pools[1], link=link)
    return dataclasses.replace(alone(pools[1]), disaggregation=found)


def summary() -> Summary:
    """One request of 10 tokens in, 11 out, over 2 s."""
    one = np.array([0.0])
    log = RequestLog(
        intended_s=one,
        sent_s=one,
        first_token_s=one + 1.0,
        last_token_s=one + 2.0,
        input_tokens=np.array([10]),
        output_tokens=np.array([11]),
        cached_tokens=np.array([-1]),
        num_preemptions=np.array([0]),
        replica=np.array([0]),
        status=np.array([0], np.int8),
        itl=None,
        timeline=None,
    )
    return summarize(log, Promise(ttft_s=5.0))


def offers(*found: GpuOffer) -> dict[str, list[GpuOffer]]:
    """By GPU."""
    names = {one.gpu for one in found}
    return {name: [one for one in found if one.gpu == name] for name in names}


def test_a_group_costs_what_its_pools_cost() -> None:
    # 3 groups of 1 x 2 H100 and 2 x 1 L40S: 6 H100 in nodes of 2 at 3 $, 6 L40S in one node of 8 at 1 $.
    deployment = group(H100, L40S, 1, 2, tp=(2, 1), groups=3)
    found = cost_of_groups(
        summary(), deployment, offers(offer(2, 3.0), offer(8, 1.0, gpu=L40S), offer(1, 2.0, gpu=L40S))
    )
    assert deployment.num_gpus == 12
    assert found.nodes == ((2, 3), (8, 1))
    assert found.num_gpus_rented == 14
    assert found.usd_per_h == 6 * 3.0 + 8 * 1.0
    assert found.usd_per_mtok_output_at_load == pytest.approx(found.usd_per_h / (11 / 2 * 3600) * 1e6)


def test_two_pools_come_from_one_provider() -> None:
    deployment = group(H100, L40S, 1, 1)
    cheap = [offer(1, 1.0, "a"), offer(1, 5.0, "b"), offer(1, 2.0, "b", gpu=L40S), offer(1, 9.0, "a", gpu=L40S)]
    found = cost_of_groups(summary(), deployment, offers(*cheap))
    assert found.usd_per_h == 7.0
    assert found.price_source.startswith("b: ")
    with pytest.raises(InputError, match=f"no provider rents both {H100} and {L40S}"):
        cost_of_groups(summary(), deployment, offers(offer(1, 1.0, "a"), offer(1, 2.0, "b", gpu=L40S)))
    with pytest.raises(InputError, match="no rental price is known"):
        cost_of_groups(summary(), deployment, offers(offer(1, 1.0, "a")))
    mixed = offers(offer(1, 1.0), offer(1, 2.0, gpu=L40S, kind="spot"))
    with pytest.raises(InputError, match="one fleet was offered on_demand, spot"):
        cost_of_groups(summary(), deployment, mixed)


def test_a_group_with_a_nodes_own_link_is_rented_in_one_node() -> None:
    deployment = group(H100, H100, 1, 3, tp=(2, 2), groups=2)
    assert deployment.disaggregation is not None
    assert deployment.disaggregation.link.kind == "nvlink"
    sizes = [offer(n, 2.0) for n in (1, 2, 4, 8)]
    found = cost_of_groups(summary(), deployment, offers(*sizes))
    assert (found.nodes, found.usd_per_h) == fleet_nodes(2, 8, sizes) == (((8, 2),), 32.0)
    with pytest.raises(InputError, match="no node on offer holds the 8 H100-SXM-80GB of a group"):
        cost_of_groups(summary(), deployment, offers(offer(4, 2.0)))


def test_a_plain_deployment_is_priced_elsewhere() -> None:
    deployment = group(H100, H100, 1, 1)
    with pytest.raises(InputError, match="use cost"):
        cost_of_groups(summary(), deployment.pool("decode"), offers(offer(8, 2.0)))
