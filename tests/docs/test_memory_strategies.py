"""The page on memory strategies shows what its commands print."""

from __future__ import annotations

from tools.write_memory_strategies import COMMANDS, PAGE, page


def test_the_page_is_what_the_commands_print() -> None:
    shown = PAGE.read_text(encoding="utf-8")
    assert shown == page(), "run: python -m tools.write_memory_strategies"


def test_the_tables_hold_every_strategy() -> None:
    shown = PAGE.read_text(encoding="utf-8")
    assert all(command in shown for command in COMMANDS.values())
    for strategy in ("static ", "orca ", "sarathi ", "vllm without cache ", "vllm ", "sglang ", "tensorrt-llm "):
        lines = [line for line in shown.splitlines() if line.startswith(strategy)]
        assert len(lines) >= len(COMMANDS), strategy
    assert "Could not run" not in shown
