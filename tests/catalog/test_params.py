"""Parameter counts agree with published totals, which are stored apart from the configs."""

from __future__ import annotations

import dataclasses

import pytest

from servewise.catalog import get_model, list_models, param_counts, read_facts
from servewise.catalog.config_json import spec_from_config
from servewise.types import Provenance

from .configs import PUBLISHED, Config

TOTALS = read_facts("catalog/model_totals.csv")


def test_at_least_sixteen_models() -> None:
    assert len(list_models()) >= 16


def test_every_model_has_a_published_total() -> None:
    missing = [name for name in list_models() if "total_params" not in TOTALS.get(name, {})]
    assert missing == []
    assert set(TOTALS) == set(list_models())


@pytest.mark.parametrize("name", list_models())
def test_total_within_one_percent_of_published(name: str) -> None:
    published = float(TOTALS[name]["total_params"].value)
    assert param_counts(get_model(name)).total == pytest.approx(published, rel=0.01)


@pytest.mark.parametrize("name", list_models())
def test_totals_do_not_come_from_the_config(name: str) -> None:
    config_source = get_model(name).provenance.source
    assert TOTALS[name]["total_params"].provenance.source != config_source


@pytest.mark.parametrize("name", list_models())
def test_parts_sum_to_the_total(name: str) -> None:
    counts = param_counts(get_model(name))
    parts = {f.name for f in dataclasses.fields(counts)} - {"total", "active"}
    assert sum(getattr(counts, part) for part in parts) == counts.total
    assert all(getattr(counts, part) >= 0 for part in parts)
    assert counts.active <= counts.total


@pytest.mark.parametrize("name", [n for n in list_models() if "active_params" in TOTALS[n]])
def test_active_with_embedding(name: str) -> None:
    counts = param_counts(get_model(name))
    published = float(TOTALS[name]["active_params"].value)
    assert counts.active + counts.embedding == pytest.approx(published, rel=0.03)


@pytest.mark.parametrize("name", [n for n in list_models() if "active_without_embedding_params" in TOTALS[n]])
def test_active_without_embedding(name: str) -> None:
    published = float(TOTALS[name]["active_without_embedding_params"].value)
    assert param_counts(get_model(name)).active == pytest.approx(published, rel=0.01)


def test_deepseek_v3_without_and_with_mtp() -> None:
    spec = get_model("DeepSeek-V3")
    total = param_counts(spec).total
    assert total == 671_026_419_200
    with_mtp = float(TOTALS[spec.name]["total_with_mtp_params"].value)
    num_scales = 41_555_600
    assert total + spec.mtp_num_params == pytest.approx(with_mtp - num_scales, rel=1e-6)


@pytest.mark.parametrize("name", [n for n in list_models() if "vision_params" in TOTALS[n]])
def test_vision_tower(name: str) -> None:
    spec = get_model(name)
    published = float(TOTALS[name]["vision_params"].value)
    assert spec.vision_num_params == pytest.approx(published, rel=0.02)
    assert param_counts(spec).other == spec.vision_num_params


@pytest.mark.parametrize(("config", "published"), PUBLISHED.values(), ids=PUBLISHED.keys())
def test_any_config_within_one_percent(config: Config, published: int) -> None:
    spec = spec_from_config(config, "test", Provenance(kind="spec", source="test"))
    assert param_counts(spec).total == pytest.approx(published, rel=0.01)


def test_hand_counted_model() -> None:
    config = {
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "intermediate_size": 768,
        "vocab_size": 1000,
        "max_position_embeddings": 2048,
        "attention_bias": True,
        "mlp_bias": True,
    }
    counts = param_counts(spec_from_config(config, "test", Provenance(kind="spec", source="test")))
    assert counts.embedding == counts.lm_head == 256_000
    assert counts.attention == 2 * (256 * 256 * 2 + 256 * 128 * 2 + 256 + 128 + 128 + 256)
    assert counts.dense_mlp == 2 * (3 * 256 * 768 + 2 * 768 + 256)
    assert counts.norms == 5 * 256
    assert counts.active == counts.total - counts.embedding
