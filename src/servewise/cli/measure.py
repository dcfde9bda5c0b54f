"""``servewise measure``: a load generator whose numbers can be trusted."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from servewise.api import LoadSpec, MeasureResult, SweepResult, Target
    from servewise.traffic import LengthDistribution
    from servewise.types import Promise, Workload

__all__ = ["confirm", "measure"]

DEFAULT_DURATION_S = 60.0
WARM_UP_FRAC = 0.1
APIS = ("openai-chat", "openai-completions", "ollama-chat", "ollama-generate", "tgi-generate")
_positive = click.FloatRange(min=0, min_open=True)


@click.command()
@click.argument("url")
@click.option("--concurrency", type=click.IntRange(1, 100_000), help="Closed loop: this many requests in flight.")
@click.option("--rate", type=_positive, help="Open loop: requests per second; a replay is rescaled to it.")
@click.option("--ramp-to", type=_positive, help="Change the rate to this one over the duration.")
@click.option(
    "--burstiness",
    type=click.FloatRange(0, 100),
    default=1.0,
    show_default=True,
    help="Coefficient of variation of the gaps between arrivals: 0 constant, 1 Poisson, more is burstier.",
)
@click.option("--replay", metavar="SOURCE", help="Traffic to replay: a SERVICE.yaml, a trace file or a profile.")
@click.option("--sweep", metavar="KIND=A,B,...", help="Measure several, e.g. concurrency=1,2,4,8 or rate=2,4,8.")
@click.option(
    "--find-max",
    type=click.Choice(["concurrency", "rate"]),
    help="Search the highest concurrency or rate that keeps the promise; --concurrency or --rate is where it starts.",
)
@click.option(
    "--promise",
    "promise_text",
    metavar="LIMITS",
    help="Limits to judge by, e.g. ttft_s=1,tpot_s=0.05,attainment=0.99 or ttft_p99_s=2."
    "  [default: that of a replayed SERVICE.yaml]",
)
@click.option("--input-tokens", default="512", show_default=True, metavar="N|LOW:HIGH", help="Length of the prompts.")
@click.option("--output-tokens", default="128", show_default=True, metavar="N|LOW:HIGH", help="Length of the answers.")
@click.option("--duration", type=_positive, help="Seconds of sending.  [default: 60, without --requests or --replay]")
@click.option("--requests", type=click.IntRange(1, 1_000_000), help="Send at most this many.")
@click.option(
    "--warm-up",
    type=click.FloatRange(min=0),
    help="Seconds at the start whose requests do not count.  [default: a tenth of --duration; 0 when replaying]",
)
@click.option("--ramp-up", type=click.FloatRange(min=0), default=0.0, help="Seconds to start a closed loop over.")
@click.option("--timeout", type=_positive, default=600.0, show_default=True, help="Seconds until a request has failed.")
@click.option("--skip-longer", is_flag=True, help="Leave out requests that are longer than the server's context.")
@click.option("--model", help="The model, when the server has several.")
@click.option("--api", "api_name", type=click.Choice(APIS), help="How to ask.  [default: what the server is known for]")
@click.option("--no-stream", is_flag=True, help="Ask for answers in one piece: only E2E is measured.")
@click.option(
    "--temperature",
    type=click.FloatRange(0, 10),
    help="Temperature of sampling to ask for; 0 is greedy.  [default: the server's own]",
)
@click.option("--workers", type=click.IntRange(1, 256), default=1, show_default=True, help="Processes to send from.")
@click.option("--ray", metavar="ADDRESS", help="Send from the machines of a Ray cluster (needs servewise[ray]).")
@click.option("--seed", type=click.IntRange(0, 2**31 - 1), help="Of arrivals, lengths and words.  [default: a new one]")
@click.option("--key-env", metavar="NAME", help="Environment variable that holds the server's key.")
@click.option("--yes", is_flag=True, help="Do not ask before sending a load to another machine.")
@click.option("--name", help="Name of the run folder.")
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("runs"),
    show_default=True,
    help="Folder in which a new run folder is made.",
)
@click.option(
    "--resume",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    help="Run folder of an interrupted --sweep or --find-max to go on with; ask the same again.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document and nothing else.")
@click.pass_context
def measure(ctx: click.Context, /, url: str, **asked: Any) -> None:
    """Send a load to a running server and measure its answers.

    URL is the server's address, e.g. http://localhost:8000. Its API, model and engine are found out. The first thing
    shown is whether the numbers can be trusted: when the client was the bottleneck, too many requests failed or others
    used the server, they are marked so, and the exit code is 4.
    """
    from servewise import api
    from servewise.cli.terminal import live
    from servewise.errors import InputError

    target = api.Target(
        url=url,
        model=asked["model"],
        api=asked["api_name"],
        key_env=asked["key_env"],
        stream=not asked["no_stream"],
        temperature=asked["temperature"],
        workers=asked["workers"],
        ray_address=asked["ray"],
    )
    kind, loads = _sweep(asked)
    workload, promise = _traffic_and_promise(asked)
    load = _load(asked, kind, loads, workload)
    if asked["resume"] is not None and kind is None:
        raise InputError("--resume goes on with a --sweep or --find-max; ask for the same one again")
    confirm(target, yes=asked["yes"])
    common: dict[str, Any] = {"promise": promise, "seed": asked["seed"]}
    if asked["name"] is not None:
        common["name"] = asked["name"]
    with live() as progress:
        common["progress"] = progress
        if kind is None:
            result = api.measure(target, load, out_dir=asked["out"], **common)
        else:
            common |= {"resume": asked["resume"], "out_dir": None if asked["resume"] else asked["out"]}
            if loads:
                swept = api.measure_loads(target, load, loads, **common)
            elif promise is None:
                raise InputError("--find-max needs a promise to keep; add e.g. --promise ttft_s=1,tpot_s=0.05")
            else:
                swept = api.find_max(target, load, **common)
    if kind is None:
        _show_one(ctx, result, as_json=asked["as_json"])
    else:
        _show_sweep(ctx, swept, as_json=asked["as_json"])


def _show_one(ctx: click.Context, result: MeasureResult, *, as_json: bool) -> None:
    from servewise.cli.app import EXIT_INTERRUPTED, EXIT_MEASUREMENT
    from servewise.cli.terminal import diagnose, show, show_json
    from servewise.report import measurement_terminal
    from servewise.store import measurement_document

    measured = result.measurement
    if as_json:
        show_json(measurement_document(measured, result.summary, result.promise))
    else:
        show(measurement_terminal(measured, result.summary, result.promise))
    diagnose("note", f"the measurement is in {result.run_dir}")
    if measured.interrupted:
        diagnose("error", "interrupted; what was measured until then is kept")
        ctx.exit(EXIT_INTERRUPTED)
    if not measured.trust.trustworthy:
        diagnose("error", "the numbers cannot be trusted")
        ctx.exit(EXIT_MEASUREMENT)


def _show_sweep(ctx: click.Context, swept: SweepResult, *, as_json: bool) -> None:
    from servewise.cli.app import EXIT_MEASUREMENT
    from servewise.cli.terminal import diagnose, show, show_json
    from servewise.report import sweep_document, sweep_terminal

    if as_json:
        show_json(sweep_document(swept.sweep))
    else:
        show(sweep_terminal(swept.sweep))
    diagnose("note", f"the runs are in {swept.run_dir}")
    if not swept.trustworthy:
        diagnose("error", "not all runs can be trusted" if swept.sweep.edge is None else "the search was not finished")
        ctx.exit(EXIT_MEASUREMENT)


def _sweep(asked: dict[str, Any]) -> tuple[str | None, list[float]]:
    """What is swept, concurrency or rate, and its values; none when the highest is searched, or nothing is swept."""
    from servewise.errors import InputError

    text, find_max = asked["sweep"], asked["find_max"]
    if text is None:
        return find_max, []
    if find_max is not None:
        raise InputError("--sweep measures the loads given, --find-max searches one; give one of them")
    kind, _, values = text.partition("=")
    try:
        loads = [float(value) for value in values.split(",")]
    except ValueError:
        loads = []
    whole = all(load.is_integer() for load in loads)
    if kind not in ("concurrency", "rate") or not loads or min(loads) <= 0 or (kind == "concurrency" and not whole):
        raise InputError(
            f"--sweep {text!r} is not KIND=A,B,... of positive numbers, e.g. concurrency=1,2,4 or rate=2,4"
        )
    return kind, loads


def _load(asked: dict[str, Any], kind: str | None, loads: list[float], workload: Workload | None) -> LoadSpec:
    """The load, or the first one of a sweep or search."""
    from servewise import api
    from servewise.errors import InputError

    concurrency, rate = asked["concurrency"], asked["rate"]
    if kind == "concurrency":
        concurrency, rate = round(loads[0]) if loads else concurrency or 1, None
    elif kind == "rate":
        concurrency, rate = None, loads[0] if loads else rate or 1.0
    elif concurrency is None and rate is None and workload is None:
        raise InputError("what load? Give --concurrency, --rate or --replay, or search with --find-max")
    duration_s, replays = asked["duration"], workload is not None
    if duration_s is None and asked["requests"] is None and (not replays or concurrency is not None):
        duration_s = DEFAULT_DURATION_S
    warm_up_s = asked["warm_up"]
    if warm_up_s is None:
        warm_up_s = 0.0 if duration_s is None or replays else WARM_UP_FRAC * duration_s
    return api.LoadSpec(
        concurrency=concurrency,
        rate_rps=rate,
        last_rate_rps=asked["ramp_to"],
        burstiness=asked["burstiness"],
        workload=workload,
        input_tokens=_lengths("--input-tokens", asked["input_tokens"]),
        output_tokens=_lengths("--output-tokens", asked["output_tokens"]),
        num_requests=asked["requests"],
        duration_s=duration_s,
        warm_up_s=warm_up_s,
        ramp_up_s=asked["ramp_up"],
        timeout_s=asked["timeout"],
        skip_longer=asked["skip_longer"],
    )


def _lengths(option: str, text: str) -> LengthDistribution:
    from servewise.errors import InputError
    from servewise.traffic import FixedLength, UniformLength

    try:
        numbers = [int(part) for part in text.split(":")]
    except ValueError:
        numbers = []
    if len(numbers) not in (1, 2) or min(numbers) < 1 or numbers[0] > numbers[-1]:
        raise InputError(f"{option} {text!r} is neither a number of tokens nor LOW:HIGH, e.g. 512 or 200:800")
    return FixedLength(tokens=numbers[0]) if len(numbers) == 1 else UniformLength(low=numbers[0], high=numbers[1])


def _traffic_and_promise(asked: dict[str, Any]) -> tuple[Workload | None, Promise | None]:
    from servewise import api
    from servewise.config import parse_promise

    workload, promise = (None, None) if asked["replay"] is None else api.replay(asked["replay"])
    if asked["promise_text"] is not None:
        promise = parse_promise(asked["promise_text"])
    return workload, promise


def confirm(target: Target, *, yes: bool) -> None:
    """Ask before another machine gets a load, or a key travels in the clear."""
    import sys

    from servewise.errors import InputError
    from servewise.report import visible

    if target.is_local or yes:
        return
    clear = "; the key would travel unencrypted" if target.shows_key else ""
    question = f"{visible(target.base_url)} is another machine{clear}: send it a load?"
    if not sys.stdin.isatty():
        raise InputError(f"{target.base_url} is another machine{clear}; add --yes to send it a load")
    click.confirm(question, abort=True, err=True)
