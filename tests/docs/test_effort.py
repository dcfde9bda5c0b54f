"""The page on effort says what the facts say."""

from __future__ import annotations

from tools.write_effort import PAGE, page

from servewise.effort import effort_facts


def test_the_page_is_what_the_facts_say() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run: python -m tools.write_effort"


def test_every_fact_is_on_the_page_with_its_source() -> None:
    shown = PAGE.read_text(encoding="utf-8")
    for fact in effort_facts():
        assert any(fact.text in line and fact.provenance.source in line for line in shown.splitlines()), fact.id
