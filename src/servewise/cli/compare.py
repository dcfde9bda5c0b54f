"""``servewise compare``: what scheduling and memory strategies do with the same traffic."""

from __future__ import annotations

from pathlib import Path

import click

__all__ = ["compare"]


@click.command()
@click.argument("service", type=click.Path(path_type=Path), metavar="SERVICE.yaml")
@click.option("--gpu", help="GPU to compare on.  [default: the first of the service's hardware]")
@click.option(
    "--tp",
    type=click.IntRange(1, 64),
    help="GPUs that share each layer of the replica.  [default: the fewest on which the model fits]",
)
@click.option(
    "--rate-rps",
    type=click.FloatRange(min=0, min_open=True),
    help="Rescale the traffic to this rate.  [default: as the service says]",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document and nothing else.")
def compare(service: Path, gpu: str | None, tp: int | None, rate_rps: float | None, as_json: bool) -> None:
    """Compare strategies on one replica: static batching, Orca, Sarathi, vLLM, SGLang, TensorRT-LLM.

    The traffic, the promise and the first model of SERVICE.yaml, on one replica, with each strategy's defaults:
    throughput and goodput, latencies, how many requests ran at once, how much of the KV cache was set aside and
    empty, and what the prefix cache saved. The longest request of the traffic is the context of all of them.
    """
    from servewise import api
    from servewise.cli.terminal import diagnose, progress, show, show_json
    from servewise.config import load_service
    from servewise.report import comparison_json, comparison_terminal

    asked = load_service(service)
    if len(asked.models) > 1:
        diagnose("note", f"compared with the first model only: {asked.models[0]}")
    with progress() as report_progress:
        found = api.compare(asked, gpu=gpu, tensor_parallel_size=tp, rate_rps=rate_rps, progress=report_progress)
    if as_json:
        show_json(comparison_json(found))
    else:
        show(comparison_terminal(found))
