"""``servewise catalog``: the models and GPUs that need no further description."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import click

__all__ = ["catalog"]


@click.group()
def catalog() -> None:
    """List the built-in models and GPUs."""


@catalog.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document and nothing else.")
def models(as_json: bool) -> None:
    """List the models: parameters, layers, attention, native precision, longest context."""
    from servewise import api

    _show(api.list_models(), as_json)


@catalog.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document and nothing else.")
def gpus(as_json: bool) -> None:
    """List the GPUs: memory, bandwidth, peak compute, and today's built-in price."""
    from servewise import api

    _show(api.list_gpus(), as_json)


def _show(rows: Sequence[Mapping[str, str | int | float | None]], as_json: bool) -> None:
    from servewise.cli.terminal import show_json, show_rows

    if as_json:
        show_json([dict(row) for row in rows])
    else:
        show_rows([{name: _cell(value) for name, value in row.items()} for row in rows])


def _cell(value: str | int | float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.4g}" if isinstance(value, float) else str(value)
