"""The page on service files knows every key, and its examples load."""

from __future__ import annotations

import re
import typing
from collections.abc import Iterator
from pathlib import Path

import pytest

from servewise.config import load_service, read_prices
from servewise.config.check import Section
from servewise.config.schema import ServiceSection

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "service-file.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```yaml\n(.*?)```", PAGE, flags=re.DOTALL)


def keys(section: type[Section]) -> Iterator[str]:
    for name, field in section.model_fields.items():
        yield name
        for inner in (field.annotation, *typing.get_args(field.annotation)):
            if isinstance(inner, type) and issubclass(inner, Section):
                yield from keys(inner)


@pytest.mark.parametrize("key", sorted(set(keys(ServiceSection))))
def test_every_key_is_documented(key: str) -> None:
    assert re.search(rf"`[^`\n]*\b{key}\b[^`\n]*`", PAGE)


def test_the_keys_are_found_at_every_depth() -> None:
    assert {"model", "ttft_s", "profile", "cv", "zipf_exponent", "sigma", "turn_gap_s"} <= set(keys(ServiceSection))


def test_the_examples_load(tmp_path: Path) -> None:
    service, _, speculation, prices, hosted = BLOCKS
    (tmp_path / "service.yaml").write_text(service + speculation + hosted)
    (tmp_path / "prices.yaml").write_text(prices)
    loaded = load_service(tmp_path / "service.yaml")
    assert loaded.promise.attainment == 0.99
    assert [drafter.method for drafter in loaded.speculations] == ["ngram", "draft_model"]
    assert [offer.provider for offer in loaded.hosted_prices] == ["example"]
    assert [offer.num_gpus for offer in read_prices(tmp_path / "prices.yaml")] == [8, 1]


def test_the_example_of_scores_loads(tmp_path: Path) -> None:
    service, quality = BLOCKS[:2]
    rest = re.sub(r"^(model|quality|prices):.*\n", "", service, flags=re.MULTILINE)
    (tmp_path / "service.yaml").write_text(quality + rest)
    loaded = load_service(tmp_path / "service.yaml")
    assert loaded.scores == {"meta-llama/Llama-3.1-8B-Instruct": {"our-tickets": 71, "MMLU-Pro": 49.1}}
    assert loaded.min_scores == {"MMLU-Pro": 60}
