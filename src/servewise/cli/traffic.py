"""``servewise traffic``: what a trace or a profile looks like."""

from __future__ import annotations

import dataclasses

import click

__all__ = ["traffic"]


@click.group()
def traffic() -> None:
    """Look at traffic: built-in profiles and your own traces."""


@traffic.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document and nothing else.")
def list_profiles(as_json: bool) -> None:
    """List the built-in profiles."""
    from servewise import api
    from servewise.cli.terminal import show_json

    names = api.list_profiles()
    if as_json:
        show_json(names)
        return
    for name in names:
        click.echo(name)


@traffic.command()
@click.argument("source", metavar="PROFILE|FILE")
@click.option("--format", "trace_format", help="Format of the file, when its content does not tell.")
@click.option(
    "--columns",
    multiple=True,
    metavar="FIELD=COLUMN",
    help="Column of the file that holds a field, e.g. input_tokens=prompt_len; repeat it for each field.",
)
@click.option("--rate-rps", type=click.FloatRange(min=0, min_open=True), help="Rescale to this rate first.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document and nothing else.")
def show(
    source: str, trace_format: str | None, columns: tuple[str, ...], rate_rps: float | None, as_json: bool
) -> None:
    """Print the statistics that matter of PROFILE or FILE: rate, burstiness, lengths, shared prefixes."""
    from servewise import api
    from servewise.cli.terminal import show_json, show_rows

    mapping = dict(_column(text) for text in columns)
    statistics = api.traffic_statistics(source, format=trace_format, columns=mapping or None, rate_rps=rate_rps)
    if as_json:
        show_json(dataclasses.asdict(statistics))
    else:
        show_rows([{"what": name, "value": value} for name, value in api.describe_traffic(statistics)])


def _column(text: str) -> tuple[str, str]:
    field, equals, column = text.partition("=")
    if not (field and equals and column):
        raise click.BadParameter(f"{text!r} is not FIELD=COLUMN, e.g. input_tokens=prompt_len", param_hint="--columns")
    return field, column
