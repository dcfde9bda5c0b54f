"""The laws of ``docs/invariants.md`` are numbered once each and name tests that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LAW = re.compile(r"^\| ([A-Z]\d+) \| (.+) \| (.+) \|$", re.MULTILINE)
TEST = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")


def defined_in(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def test_laws_are_held_by_tests_that_exist() -> None:
    laws = LAW.findall((ROOT / "docs" / "invariants.md").read_text(encoding="utf-8"))
    numbers = [number for number, _, _ in laws]
    assert len(numbers) > 30
    assert len(set(numbers)) == len(numbers)
    missing = []
    for number, _, holders in laws:
        named = TEST.findall(holders)
        assert named, f"{number} names no test"
        assert TEST.sub("", holders).strip(" ,") == "", f"{number} names something that is not a test"
        missing += [
            f"{number}: {file}::{name}"
            for file, name in named
            if not (ROOT / file).is_file() or name not in defined_in(ROOT / file)
        ]
    assert missing == []
