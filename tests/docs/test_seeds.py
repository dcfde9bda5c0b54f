"""The claims of docs/seeds.toml: complete, computed, and the page says what the experiments give."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tools.seed_experiments import EXPERIMENTS
from tools.write_seeds import PAGE, VERDICTS, Claim, claims, page

from servewise import formulas

CLAIMS = claims()
NUMBER = re.compile(r"\d+(?:\.\d+)?")


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda c: c.id)
def test_a_claim_lists_the_numbers_of_its_words(claim: Claim) -> None:
    assert NUMBER.findall(" ".join(claim.quote)) == list(claim.numbers)


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda c: c.id)
def test_a_claim_has_a_verdict_with_something_behind_it(claim: Claim) -> None:
    assert claim.verdict in VERDICTS
    assert len(claim.because) > 20
    if claim.experiment:
        assert claim.experiment in EXPERIMENTS
    elif claim.verdict != "outside serving":
        assert "docs/" in claim.because


@pytest.mark.parametrize(
    ("call", "given", "gives"),
    [(f["call"], f["with"], f["gives"]) for claim in CLAIMS for f in claim.formula],
    ids=str,
)
def test_a_formula_gives_what_is_stated(call: str, given: list[float], gives: float) -> None:
    assert getattr(formulas, call)(*given) == pytest.approx(gives, rel=5e-4)


def test_every_experiment_is_used() -> None:
    assert {c.experiment for c in CLAIMS if c.experiment} == set(EXPERIMENTS)


@pytest.mark.shared
@pytest.mark.parametrize("number", [1, 2])
def test_no_number_of_an_article_is_unlisted(number: int, shared_dir: Path) -> None:
    rest = sorted(shared_dir.joinpath("seeds").glob("*.txt"))[number - 1].read_text(encoding="utf-8")
    for claim in CLAIMS:
        if claim.article == number:
            for words in claim.quote:
                assert words in rest, f"{claim.id}: not in the article: {words}"
                rest = rest.replace(words, "", 1)
    left = [line for line in rest.splitlines() if NUMBER.search(line)]
    assert left == []


def test_the_page_says_what_the_experiments_give() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(CLAIMS), "run python -m tools.write_seeds"
