"""Nodes and dollars against hand-worked fleets and against trying every combination."""

from __future__ import annotations

import dataclasses
import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from servewise.cost import cost, fleet_nodes
from servewise.errors import InputError
from servewise.metrics import summarize
from servewise.types import GpuOffer, Promise, Provenance, RequestLog, Summary


def offer(num_gpus: int, usd: float, provider: str = "cloud", date: str = "2026-01-01", **changes: str) -> GpuOffer:
    return GpuOffer(
        **{
            "gpu": "H100-SXM-80GB",
            "num_gpus": num_gpus,
            "usd_per_gpu_h": usd,
            "kind": "on_demand",
            "provider": provider,
            "date": date,
            "provenance": Provenance(kind="assumed", source=f"assumed: test price of {provider}"),
        }
        | changes
    )


ALL_SIZES = [offer(n, 2.0) for n in (1, 2, 4, 8)]


@pytest.mark.parametrize(
    ("num_replicas", "gpus", "offers", "nodes", "usd"),
    [
        (1, 1, ALL_SIZES, ((1, 1),), 2.0),
        (3, 2, ALL_SIZES, ((4, 1), (2, 1)), 12.0),  # 6 GPUs in the fewest nodes
        (5, 4, ALL_SIZES, ((8, 2), (4, 1)), 40.0),
        (3, 2, [offer(8, 2.0)], ((8, 1),), 16.0),  # rented as a whole: two GPUs idle
        (2, 3, [offer(8, 2.0), offer(4, 2.0)], ((8, 1),), 16.0),  # two threes in an eight
        (3, 3, [offer(8, 2.0), offer(4, 2.0)], ((8, 1), (4, 1)), 24.0),
        (5, 1, [offer(8, 1.0), offer(1, 2.0)], ((8, 1),), 8.0),  # five singles cost 10
        (3, 1, [offer(8, 1.0), offer(1, 2.0)], ((1, 3),), 6.0),
        (2, 16, ALL_SIZES, ((8, 4),), 64.0),  # larger than any node
        (1, 12, ALL_SIZES, ((8, 2),), 32.0),
    ],
)
def test_hand_worked_fleets(num_replicas: int, gpus: int, offers: list[GpuOffer], nodes: tuple, usd: float) -> None:
    assert fleet_nodes(num_replicas, gpus, offers) == (nodes, usd)


def test_a_fleet_stays_with_one_provider() -> None:
    offers = [offer(1, 1.0, "small"), offer(8, 1.5, "big"), offer(1, 3.0, "big")]
    # Mixed, 9 replicas would cost 8 x 1.5 + 1 = 13; small alone 9, big alone 15.
    assert fleet_nodes(9, 1, offers) == (((1, 9),), 9.0)
    offers = [offer(8, 1.0, "big"), offer(1, 0.5, "small")]
    # Eight GPUs of one replica must share a node as long as anyone rents such nodes.
    assert fleet_nodes(1, 8, offers) == (((8, 1),), 8.0)
    assert fleet_nodes(1, 16, offers) == (((8, 2),), 16.0)


def test_the_newest_price_of_a_provider_counts() -> None:
    offers = [
        offer(1, 1.0, date="2025-01-01"),
        offer(1, 2.0, date="2026-01-01"),
        offer(1, 2.5, date="2026-01-01"),
    ]
    for order in itertools.permutations(offers):
        assert fleet_nodes(2, 1, order) == (((1, 2),), 4.0)


sizes = st.sets(st.sampled_from([1, 2, 3, 4, 8]), min_size=1, max_size=3)


@given(sizes=sizes, data=st.data(), num_replicas=st.integers(1, 7), gpus=st.sampled_from([1, 2, 3, 4, 8]))
@settings(max_examples=150, deadline=None)
def test_no_combination_is_cheaper(sizes: set[int], data: st.DataObject, num_replicas: int, gpus: int) -> None:
    gpus = min(gpus, max(sizes))
    prices = {size: data.draw(st.sampled_from([0.1, 0.25, 1.0, 1.1, 2.49, 3.0])) for size in sorted(sizes)}
    nodes, usd_per_h = fleet_nodes(num_replicas, gpus, [offer(size, price) for size, price in prices.items()])
    assert usd_per_h == pytest.approx(sum(size * count * prices[size] for size, count in nodes))
    assert sum(count * (size // gpus) for size, count in nodes) >= num_replicas
    ordered = sorted(sizes)
    cheapest = min(
        sum(size * count * prices[size] for size, count in zip(ordered, counts, strict=True))
        for counts in itertools.product(range(num_replicas + 1), repeat=len(ordered))
        if sum(count * (size // gpus) for size, count in zip(ordered, counts, strict=True)) >= num_replicas
    )
    assert usd_per_h == pytest.approx(cheapest)


@given(num_replicas=st.integers(1, 40), gpus=st.sampled_from([1, 2, 4, 8]))
@settings(max_examples=50, deadline=None)
def test_more_replicas_never_cost_less(num_replicas: int, gpus: int) -> None:
    offers = [offer(1, 3.0), offer(4, 2.4), offer(8, 2.3)]
    assert fleet_nodes(num_replicas, gpus, offers)[1] <= fleet_nodes(num_replicas + 1, gpus, offers)[1]


def run(*, num_good: int) -> Summary:
    """Ten requests of 90 input and 10 output tokens within 20 s, ``num_good`` of them good."""
    first = np.arange(10) + np.where(np.arange(10) < num_good, 0.5, 5.0)
    last = first + 1.0
    last[-1] = 20.0
    same = np.full(10, 1, dtype=np.int64)
    log = RequestLog(
        intended_s=np.arange(10, dtype=np.float64),
        sent_s=np.arange(10, dtype=np.float64),
        first_token_s=first,
        last_token_s=last,
        input_tokens=same * 90,
        output_tokens=same * 10,
        cached_tokens=same * 0,
        num_preemptions=same * 0,
        replica=same * 0,
        status=np.zeros(10, dtype=np.int8),
    )
    return summarize(log, Promise(ttft_s=1.0), with_intervals=False)


def test_hand_worked_cost() -> None:
    # 8 good requests x 10 tokens / 20 s = 4 output tokens/s and 40 tokens/s in all.
    found = cost(run(num_good=8), 3, 2, [offer(8, 2.0)], capacity=run(num_good=10))
    assert found.usd_per_h == 16.0
    assert found.usd_per_month == 16.0 * 730
    assert found.nodes == ((8, 1),)
    assert found.num_gpus_rented == 8
    assert found.usd_per_mtok_output_at_load == pytest.approx(16.0 / (4 * 3600) * 1e6)
    assert found.usd_per_mtok_total_at_load == pytest.approx(16.0 / (40 * 3600) * 1e6)
    assert found.usd_per_mtok_output_at_capacity == pytest.approx(16.0 / (5 * 3600) * 1e6)
    assert found.usd_per_mtok_total_at_capacity == pytest.approx(16.0 / (50 * 3600) * 1e6)
    assert found.price_date == "2026-01-01"
    assert found.price_source == "cloud: assumed: test price of cloud"


def test_goodput_zero_costs_infinitely_much_and_capacity_is_unknown_until_searched() -> None:
    found = cost(run(num_good=0), 1, 1, ALL_SIZES)
    assert found.usd_per_mtok_output_at_load == found.usd_per_mtok_total_at_load == math.inf
    assert math.isnan(found.usd_per_mtok_output_at_capacity)
    assert math.isnan(found.usd_per_mtok_total_at_capacity)
    assert cost(run(num_good=5), 1, 1, ALL_SIZES, run(num_good=0)).usd_per_mtok_output_at_capacity == math.inf


@pytest.mark.parametrize(
    ("offers", "message"),
    [
        ([], "no rental price is known.*prices: FILE"),
        ([offer(1, 0.0)], "at 0 \\$/h; a price must be above 0"),
        ([offer(1, math.nan)], "at nan \\$/h"),
        ([offer(1, -1.0)], "above 0"),
        ([offer(0, 1.0)], "node of 0"),
        (
            [offer(1, 1.0), offer(1, 1.0, gpu="A100-SXM-80GB")],
            "A100-SXM-80GB on_demand, H100-SXM-80GB on_demand",
        ),
        ([offer(1, 1.0), offer(1, 0.5, kind="spot")], "one price kind"),
    ],
)
def test_bad_offers_are_refused(offers: list[GpuOffer], message: str) -> None:
    with pytest.raises(InputError, match=message):
        fleet_nodes(1, 1, offers)


@pytest.mark.parametrize(("num_replicas", "gpus"), [(0, 1), (1, 0), (-1, 1)])
def test_empty_fleets_are_refused(num_replicas: int, gpus: int) -> None:
    with pytest.raises(InputError, match="1 or more"):
        fleet_nodes(num_replicas, gpus, ALL_SIZES)


def test_price_dates_of_several_node_sizes_are_all_named() -> None:
    offers = [offer(2, 1.0, date="2026-01-01"), dataclasses.replace(offer(1, 1.0), date="2026-02-02")]
    assert cost(run(num_good=8), 3, 1, offers).price_date == "2026-01-01, 2026-02-02"
