"""The examples of the documentation run."""

from __future__ import annotations

import re
from pathlib import Path

from servewise.traffic import FORMATS, profile_names

PAGE = Path(__file__).resolve().parents[2] / "docs" / "traffic.md"


def test_examples_run() -> None:
    examples = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert len(examples) == 2
    for example in examples:
        exec(compile(example, str(PAGE), "exec"), {})  # noqa: S102


def test_every_format_and_profile_is_named() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for name in (*FORMATS, *profile_names()):
        assert f"`{name}`" in text
