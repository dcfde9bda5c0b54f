"""A server's metrics page, read by a process of its own beside a run, so that the client is not disturbed.

Started by :mod:`servewise.measure.scrape`. Standard input brings one JSON line, and then ``start`` and ``stop`` for
each run; standard output says in JSON that the first sample is taken, and in the end holds all of them.
"""

from __future__ import annotations

import json
import math
import os
import select
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Final

from prometheus_client.parser import text_string_to_metric_families

from servewise.errors import MeasurementError
from servewise.net.plain import PlainClient

__all__ = ["NAMES", "main", "read_page"]

Alternatives = Sequence[Sequence[str]]
"""Names of which the first set that is there counts; the names of a set are added up."""

NAMES: Final[Mapping[str, Mapping[str, Alternatives]]] = {
    "vllm": {
        "running": (("vllm:num_requests_running",),),
        "waiting": (("vllm:num_requests_waiting",),),
        # gpu_ names: vLLM before 0.10
        "kv_used_frac": (("vllm:kv_cache_usage_perc",), ("vllm:gpu_cache_usage_perc",)),
        "preemptions_total": (("vllm:num_preemptions_total",),),
        "input_tokens_total": (("vllm:prompt_tokens_total",),),
        "output_tokens_total": (("vllm:generation_tokens_total",),),
        "prefix_queries_total": (("vllm:prefix_cache_queries_total",), ("vllm:gpu_prefix_cache_queries_total",)),
        "prefix_hits_total": (("vllm:prefix_cache_hits_total",), ("vllm:gpu_prefix_cache_hits_total",)),
    },
    "sglang": {
        "running": (("sglang:num_running_reqs",),),
        "waiting": (("sglang:num_queue_reqs",),),
        "kv_used_frac": (("sglang:token_usage",),),
        "preemptions_total": (("sglang:num_retracted_requests_total",),),
        "input_tokens_total": (("sglang:prompt_tokens_total",),),
        "output_tokens_total": (("sglang:generation_tokens_total",),),
        "prefix_queries_total": (("sglang:prompt_tokens_total",),),
        "prefix_hits_total": (("sglang:cached_tokens_total",),),
    },
    "llama.cpp": {
        "running": (("llamacpp:requests_processing",),),
        "waiting": (("llamacpp:requests_deferred",),),
        "kv_used_frac": (("llamacpp:kv_cache_usage_ratio",),),
        # prompt_tokens_total leaves out the cached ones
        "input_tokens_total": (("llamacpp:prompt_tokens_total", "llamacpp:prompt_tokens_cached_total"),),
        "output_tokens_total": (("llamacpp:tokens_predicted_total",),),
        "prefix_queries_total": (("llamacpp:prompt_tokens_total", "llamacpp:prompt_tokens_cached_total"),),
        "prefix_hits_total": (("llamacpp:prompt_tokens_cached_total",),),
    },
    "tgi": {
        "running": (("tgi_batch_current_size",),),
        "waiting": (("tgi_queue_size",),),
        "input_tokens_total": (("tgi_request_input_length_sum",),),
        "output_tokens_total": (("tgi_request_generated_tokens_sum",),),
    },
}
"""What each engine's page calls things. Seen at vLLM 0.32, SGLang 0.5.23, llama.cpp b11549; TGI from its documents."""

TIMEOUT_S: Final = 5.0


def read_page(engine: str, page: str) -> dict[str, float]:
    """The figures of a metrics page that have a name here; those that it lacks are absent.

    Counts are summed over the engines of a server, shares are averaged; of a tensor or pipeline parallel group only
    the first rank counts.
    """
    wanted = {name for sets in NAMES[engine].values() for names in sets for name in names}
    lines = [line for line in page.splitlines() if line.startswith(tuple(wanted))]
    series: dict[str, list[float]] = {}
    for family in text_string_to_metric_families("\n".join(lines) + "\n"):
        for sample in family.samples:
            ranks = [sample.labels.get(label, "0") for label in ("tp_rank", "pp_rank")]
            if sample.name in wanted and ranks == ["0", "0"] and math.isfinite(sample.value):
                series.setdefault(sample.name, []).append(sample.value)
    found = {}
    for name, sets in NAMES[engine].items():
        for names in sets:
            if all(part in series for part in names):
                total = sum(sum(series[part]) for part in names)
                found[name] = total / len(series[names[0]]) if name.endswith("_frac") else total
                break
    return found


def main() -> None:
    """Sample between ``start`` and ``stop`` on standard input, as often as asked, until that is closed."""
    asked = json.loads(sys.stdin.readline())
    os.nice(5)
    with PlainClient(asked["base_url"], api_key=asked["api_key"], timeout_s=TIMEOUT_S) as client:
        while sys.stdin.readline() == "start\n":
            samples = [_sample(client, asked["engine"])]
            _answer("started")
            # a server without such a page is not asked again
            interval_s = asked["interval_s"] if samples[0] else None
            while not select.select([sys.stdin], [], [], interval_s)[0]:
                samples.append(_sample(client, asked["engine"]))
            if sys.stdin.readline() != "stop\n":
                return
            if samples[0]:
                samples.append(_sample(client, asked["engine"]))
            _answer([sample for sample in samples if sample])


def _answer(value: object) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


def _sample(client: PlainClient, engine: str) -> dict[str, float]:
    before_s = time.monotonic()
    try:
        answer = client.get("/metrics")
    except MeasurementError:
        return {}
    at_s = 0.5 * (before_s + time.monotonic())
    try:
        found = read_page(engine, answer.body.decode("utf-8", errors="replace")) if answer.status == 200 else {}
    except ValueError:  # what the parser says of anything else than a metrics page
        return {}
    return {"at_s": at_s, **found} if found else {}


if __name__ == "__main__":
    main()
