"""The example in docs/catalog.md runs and gives what its comments say."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "catalog.md"


def test_example() -> None:
    block = re.search(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert block is not None
    names: dict[str, Any] = {}
    compared = 0
    for line in block.group(1).splitlines():
        code, _, comment = line.partition("#")
        expected = re.match(r"\s*(\d+(?:\.\d+)?)\b", comment)
        if expected is None:
            exec(code, names)  # noqa: S102
        else:
            assert eval(code, names) == pytest.approx(float(expected.group(1)))  # noqa: S307
            compared += 1
    assert compared == 3
