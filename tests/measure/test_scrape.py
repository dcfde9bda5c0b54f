"""The server's metrics: each engine's names, and disagreement with the client."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest
from tests.measure.server import serve
from tests.store.measurements import measurement

from servewise.measure.scrape import Scraper, compare_views
from servewise.net.metrics_page import read_page

PAGE = """# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0"} 3.0
vllm:num_requests_running{engine="1"} 4.0
vllm:num_requests_waiting{engine="0"} 1.0
vllm:num_requests_waiting_by_reason{reason="capacity"} 99.0
vllm:kv_cache_usage_perc{engine="0"} 0.5
vllm:kv_cache_usage_perc{engine="1"} 0.7
vllm:generation_tokens_total{engine="0"} 12.0
"""


@pytest.mark.shared
@pytest.mark.parametrize(
    ("capture", "engine", "expected"),
    [
        ("vllm-preempt.prom", "vllm", {"preemptions_total": 17.0, "prefix_queries_total": 2058.0, "running": 0.0}),
        ("vllm.prom", "vllm", {"input_tokens_total": 5268.0, "output_tokens_total": 2776.0, "kv_used_frac": 0.0}),
        ("sglang.prom", "sglang", {"input_tokens_total": 5242.0, "output_tokens_total": 2776.0, "waiting": 0.0}),
        ("sglang.prom", "sglang", {"prefix_hits_total": 2.0, "kv_used_frac": 0.0, "running": 0.0}),
        ("llamacpp-xllamacpp.prom", "llama.cpp", {"input_tokens_total": 5236.0, "prefix_hits_total": 3.0}),
        ("llamacpp-xllamacpp.prom", "llama.cpp", {"output_tokens_total": 2768.0, "running": 0.0, "waiting": 0.0}),
    ],
)
def test_recorded_pages_are_read(shared_dir: Path, capture: str, engine: str, expected: dict[str, float]) -> None:
    found = read_page(engine, (shared_dir / "captures" / capture).read_text())
    assert {name: found[name] for name in expected} == expected


def test_engines_are_summed_and_shares_averaged() -> None:
    assert read_page("vllm", PAGE) == {
        "running": 7.0,
        "waiting": 1.0,
        "kv_used_frac": pytest.approx(0.6),
        "output_tokens_total": 12.0,
    }


def test_older_names_and_ranks_of_one_group() -> None:
    assert read_page("vllm", "vllm:gpu_cache_usage_perc 0.25\n") == {"kv_used_frac": 0.25}
    page = 'sglang:num_running_reqs{tp_rank="0"} 2\nsglang:num_running_reqs{tp_rank="1"} 2\n'
    assert read_page("sglang", page) == {"running": 2.0}


def test_the_page_is_sampled_before_and_after_without_the_client() -> None:
    asked = iter(range(1, 100))

    def page(_: object) -> str:
        return f"vllm:num_requests_running 1\nvllm:generation_tokens_total {next(asked)}\n"

    with serve({"/metrics": page}) as script, Scraper(script.url, "vllm", api_key="sk-1") as scraper:
        scraper.start()
        found = scraper.stop(time.monotonic())
        scraper.start()
        again = scraper.stop(time.monotonic())
        assert script.asked[0][2]["authorization"] == "Bearer sk-1"
    assert found["output_tokens_total"][0] == 1.0
    assert found["output_tokens_total"][-1] >= 2.0
    assert found["time_s"][0] <= 0.0
    assert (found["running"] == 1.0).all()
    assert again["output_tokens_total"][0] > found["output_tokens_total"][-1]


@pytest.mark.parametrize("page", ["<html>", 'vllm:num_requests_running{engine="', ""])
def test_what_is_no_metrics_page_gives_nothing(page: str) -> None:
    with serve({"/metrics": page}) as script, Scraper(script.url, "vllm") as scraper:
        scraper.start()
        assert scraper.stop(0.0) == {}


def test_servers_without_a_page_and_unknown_engines_give_nothing() -> None:
    with serve({}) as script:
        for engine in ("llama.cpp", "unknown"):
            with Scraper(script.url, engine) as scraper:
                scraper.start()
                assert scraper.stop(0.0) == {}


def test_a_run_goes_on_when_the_reading_process_dies() -> None:
    with serve({"/metrics": PAGE}) as script, Scraper(script.url, "vllm") as scraper:
        scraper.start()
        assert scraper._child is not None
        scraper._child.kill()
        scraper._child.wait()
        assert scraper.stop(0.0) == {}


def _metrics(tokens: float, **more: float) -> dict[str, np.ndarray]:
    columns = {"time_s": [-1.0, 0.1, 0.5, 1.5, 9.0], "output_tokens_total": [5.0, 6.0, 7.0, 8.0, 5.0 + tokens]}
    columns |= {name: [0.0, value, value, value, 0.0] for name, value in more.items()}
    return {name: np.array(values) for name, values in columns.items()}


def test_tokens_that_nobody_asked_for_are_a_reason() -> None:
    made = measurement()
    log = made.log
    log.output_tokens[2] = 5
    assert compare_views(_metrics(10.0), log, made.details).reasons == ()
    view = compare_views(_metrics(40.0), log, made.details)
    assert view.facts["server_output_tokens"] == 40.0
    assert "it served others too" in view.reasons[0]
    assert compare_views(_metrics(2.0), log, made.details).notes != ()


def test_requests_in_flight_and_preemptions_are_compared() -> None:
    made = measurement()
    view = compare_views(_metrics(10.0, running=4.0, waiting=1.0, preemptions_total=2.0), made.log, made.details)
    assert view.facts["server_in_flight_mean"] == 5.0
    assert any("counted 5.0 requests in flight, the client 1.0" in note for note in view.notes)
    assert view.facts["server_preemptions"] == 0.0  # by the last sample
    same = compare_views(_metrics(10.0, running=1.0), made.log, made.details)
    assert not any("in flight" in note for note in same.notes)


def test_prefix_hits_are_a_share_of_what_was_looked_up() -> None:
    made = measurement()
    metrics = _metrics(10.0) | {"prefix_queries_total": np.array([0.0, 1, 2, 3, 100]), "time_s": np.arange(5.0)}
    metrics["prefix_hits_total"] = np.array([0.0, 0, 0, 0, 25])
    assert compare_views(metrics, made.log, made.details).facts["server_prefix_hit_frac"] == 0.25
