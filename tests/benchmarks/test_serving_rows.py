"""Serving rows: how they are read, and which rules set them aside."""

from __future__ import annotations

import csv
from collections import Counter
from pathlib import Path

import pytest
from serving_table import COLUMNS, cells, placed_row, read, serving_row, table

from benchmarks.places import find_model
from benchmarks.serving_rows import (
    EXCLUSIONS,
    Rule,
    duplicates,
    excluded_figures,
    exclusions,
    facts_of,
    parallelism_of,
    place,
    read_rows,
)
from servewise.errors import InputError

COMPUTED = {"num_gpus", "moe_width", "duplicate", "concurrency_per_rank"}


def rules(path: Path, rule: str, figures: str = "both") -> tuple[Rule, ...]:
    path.write_text(f"rule,figures,reason\n{rule},{figures},because\n", encoding="utf-8")
    return exclusions(path)


# ------------------------------------------------------------------------------------------------------------ reading


def test_rows_are_read_with_their_line_numbers(tmp_path: Path) -> None:
    path = table(tmp_path / "runs.csv", cells(), cells(ttft_mean_ms="70", tpot_mean_ms=" 9.5 "))
    # blank lines are no rows, but they count as lines
    text = path.read_text(encoding="utf-8").splitlines()
    path.write_text("\n".join([text[0], text[1], "", text[2]]) + "\n", encoding="utf-8")
    first, second = read_rows(path)
    assert (first.number, first.ttft_ms, first.tpot_ms) == (2, 60.5, 8.25)
    assert (second.number, second.ttft_ms, second.tpot_ms) == (4, 70.0, 9.5)
    assert first.group == "meta-llama/Llama-3.1-8B-Instruct vllm h100_sxm unstated"


def test_whole_numbers_of_cells() -> None:
    row = serving_row(tp_size="4.0", attention_dp_size="", moe_ep_size="0")
    assert row.integer("tp_size") == 4
    assert row.integer("attention_dp_size") == row.integer("moe_ep_size") == row.integer("nothing") == 1
    assert row.integer("attention_dp_size", 0) == 0


@pytest.mark.parametrize("column", ["model", "engine", "precision", "osl", "tpot_mean_ms"])
def test_a_missing_column_is_named(tmp_path: Path, column: str) -> None:
    path = table(tmp_path / "runs.csv", cells(), without=(column,))
    with pytest.raises(InputError, match=f"runs.csv: no column {column}$"):
        read_rows(path)


def test_columns_that_may_be_left_out(tmp_path: Path) -> None:
    optional = ("engine_version", "gemm_quant_mode", "moe_quant_mode", "tp_size", "pp_size", "date", "moe_ep_size")
    (row,) = read_rows(table(tmp_path / "runs.csv", cells(), without=optional))
    placed, unplaced = place([row])
    assert not unplaced
    assert placed[0].deployment.engine_version == "0.11.0"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ttft_mean_ms": "fast"}, "ttft_mean_ms 'fast' is not a number"),
        ({"tpot_mean_ms": ""}, "tpot_mean_ms '' is not a number"),
        ({"tpot_mean_ms": "nan"}, "positive milliseconds"),
        ({"ttft_mean_ms": "inf"}, "positive milliseconds"),
        ({"tpot_mean_ms": "0"}, "positive milliseconds"),
        ({"isl": "long"}, "isl 'long' is not a number"),
        ({"tp_size": "1.5"}, "tp_size '1.5' is not a whole number"),
        ({"batch_size_field": "-8"}, "batch_size_field '-8' is not a whole number"),
        ({"concurrency_from_source": "nan"}, "concurrency_from_source 'nan' is not a whole number"),
    ],
)
def test_a_bad_figure_names_its_line(tmp_path: Path, changes: dict[str, str], message: str) -> None:
    with pytest.raises(InputError, match=f"runs.csv, line 3: .*{message}"):
        read(tmp_path / "runs.csv", cells(), cells(**changes))


@pytest.mark.parametrize("line", ["meta-llama/Llama-3.1-8B,h100_sxm,vllm", "x," * 30])
def test_a_line_of_another_length_is_named(tmp_path: Path, line: str) -> None:
    path = table(tmp_path / "runs.csv", cells())
    path.write_text(path.read_text(encoding="utf-8") + line + "\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"line 3: not as many cells"):
        read_rows(path)


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no rows"):
        read_rows(table(tmp_path / "runs.csv"))


# -------------------------------------------------------------------------------------------------------------- rules


def test_every_shipped_rule_has_a_reason_and_asks_for_what_exists() -> None:
    shipped = exclusions()
    with EXCLUSIONS.open(encoding="utf-8") as file:
        assert len(shipped) == len(list(csv.DictReader(file))) > 0
    for rule in shipped:
        assert rule.figures <= {"ttft", "tpot"}
        assert len(rule.reason) > 20
        for column, _, wanted in rule.comparisons:
            assert column in COMPUTED | set(COLUMNS)
            # no rule may look at what was measured
            assert not {"ttft_mean_ms", "tpot_mean_ms"} & {column, wanted}


@pytest.mark.parametrize(
    "rule", ["num_gpus < 8", "num_gpus>8", "num_gpus > 8 or tp_size = 2", "", "model =", "a = b and"]
)
def test_a_malformed_rule_is_refused(tmp_path: Path, rule: str) -> None:
    with pytest.raises(InputError, match="is not 'column = value"):
        rules(tmp_path / "rules.csv", rule)


def test_unknown_figures_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="figures 'tpots' of a rule; allowed: ttft, tpot, both"):
        rules(tmp_path / "rules.csv", "num_gpus > 8", "tpots")


@pytest.mark.parametrize(
    ("rule", "facts", "holds"),
    [
        ("num_gpus > 8", {"num_gpus": "16"}, True),
        ("num_gpus > 8", {"num_gpus": "8"}, False),
        ("num_gpus >= 8", {"num_gpus": "8"}, True),
        ("num_gpus >= 10", {"num_gpus": "9"}, False),  # as numbers, not as text
        ("a = x", {"a": "x"}, True),
        ("a = x", {"a": "y"}, False),
        ("a != x", {"a": "y"}, True),
        ("a != x", {"a": "x"}, False),
        # other columns as the right side
        ("a != b", {"a": "8", "b": "8"}, False),
        ("a != b", {"a": "8", "b": "4"}, True),
        ("a >= b", {"a": "16", "b": "8"}, True),
        # empty cells make no rule hold, but those that ask for them
        ("a != b", {"a": "8", "b": ""}, False),
        ("a != x", {"a": ""}, False),
        ("a > 8", {}, False),
        ("a = empty", {"a": ""}, True),
        ("a = empty", {}, True),
        ("a = empty", {"a": "8"}, False),
        ("a != empty", {"a": "8"}, True),
        # all parts have to hold
        ("a = x and b > 1", {"a": "x", "b": "2"}, True),
        ("a = x and b > 1", {"a": "x", "b": "1"}, False),
    ],
)
def test_comparisons(tmp_path: Path, rule: str, facts: dict[str, str], holds: bool) -> None:
    found = excluded_figures(facts, rules(tmp_path / "rules.csv", rule, "ttft"))
    assert found == ({"ttft"} if holds else set())


def test_figures_of_several_rules_add_up(tmp_path: Path) -> None:
    both = rules(tmp_path / "a.csv", "a = x", "ttft") + rules(tmp_path / "b.csv", "b = y", "tpot")
    assert excluded_figures({"a": "x", "b": "y"}, both) == {"ttft", "tpot"}
    assert excluded_figures({"a": "x", "b": "n"}, both) == {"ttft"}


def test_facts_that_rules_may_ask_for() -> None:
    row = serving_row(batch_size_field="16.0", concurrency_from_source="70", moe_tp_size="2", moe_ep_size="4")
    facts = facts_of(row, ranks=4, gpus=8, has_experts=True, duplicate="copy")
    assert (facts["num_gpus"], facts["moe_width"], facts["duplicate"]) == ("8", "8", "copy")
    assert (facts["batch_size_field"], facts["concurrency_per_rank"]) == ("16", "17")
    assert facts["model"] == "meta-llama/Llama-3.1-8B-Instruct"
    few = facts_of(serving_row(concurrency_from_source="2"), ranks=4, gpus=8, has_experts=False, duplicate="")
    assert few["concurrency_per_rank"] == "1"
    assert "moe_width" not in few
    unstated = facts_of(
        serving_row(batch_size_field="", concurrency_from_source="", moe_ep_size=""), 1, 8, True, duplicate=""
    )
    assert not {"moe_width", "concurrency_per_rank"} & set(unstated)
    assert unstated["batch_size_field"] == ""


def test_copies_and_conflicts() -> None:
    rows = [
        serving_row(2, ttft_mean_ms="10", tpot_mean_ms="1"),
        serving_row(3, ttft_mean_ms="10", tpot_mean_ms="1.00001"),  # a copy of line 2
        serving_row(4, ttft_mean_ms="10", tpot_mean_ms="2"),
        serving_row(5, ttft_mean_ms="10", tpot_mean_ms="2", tp_size="2"),  # the same figures as line 4, at TP2
        serving_row(6, ttft_mean_ms="11", tpot_mean_ms="1"),
    ]
    assert duplicates(rows) == {3: "copy", 4: "conflict", 5: "conflict"}
    same_sizes = [serving_row(2, attention_dp_size="", moe_tp_size="0"), serving_row(3)]
    assert duplicates(same_sizes) == {3: "copy"}


@pytest.mark.parametrize(
    ("changes", "figures"),
    [
        ({}, set()),
        ({"concurrency_from_source": ""}, {"ttft", "tpot"}),
        ({"concurrency_from_source": "16"}, {"ttft", "tpot"}),
        ({"batch_size_field": ""}, set()),
        ({"batch_size_field": "512", "concurrency_from_source": "512"}, {"ttft", "tpot"}),
        ({"engine": "trtllm", "engine_version": "1.0.0rc3"}, {"ttft"}),
        ({"engine": "sglang", "engine_version": "0.5.1", "gpu_system": "gb200"}, {"ttft", "tpot"}),
        ({"model": "nvidia/Llama-3.1-8B-Instruct-FP8"}, {"ttft", "tpot"}),
    ],
)
def test_shipped_rules_on_rows(changes: dict[str, str], figures: set[str]) -> None:
    assert placed_row(**changes).excluded == figures


def test_rules_do_not_look_at_what_was_measured() -> None:
    for times in ({"ttft_mean_ms": "1"}, {"tpot_mean_ms": "9999"}):
        assert placed_row(**times).excluded == set()


def test_a_copy_is_set_aside_and_its_first_row_stays() -> None:
    placed, _ = place([serving_row(2), serving_row(3), serving_row(4, tpot_mean_ms="9")])
    assert [row.excluded for row in placed] == [set(), {"ttft", "tpot"}, set()]


# -------------------------------------------------------------------------------------------------------- the real file


@pytest.mark.shared
def test_the_public_rows(shared_dir: Path) -> None:
    rows = read_rows(shared_dir / "data/measured/silicon_serving.csv")
    placed, unplaced = place(rows)
    assert len(placed) + len(unplaced) == len(rows) == 1140
    assert sorted([r.row.number for r in (*placed, *unplaced)]) == list(range(2, 1142))
    assert len(placed) >= 0.9 * len(rows)
    assert all(row.reason for row in unplaced)
    kept = Counter(figure for row in placed for figure in {"ttft", "tpot"} - row.excluded)
    assert kept["tpot"] > 0.9 * len(placed)
    assert kept["ttft"] > 0.8 * len(placed)


@pytest.mark.shared
def test_every_shipped_rule_is_needed(shared_dir: Path) -> None:
    """A rule that holds for no row, by a slip in a name, would look as if it had been obeyed."""
    rows = read_rows(shared_dir / "data/measured/silicon_serving.csv")
    copies = duplicates(rows)
    facts = []
    for row in rows:
        spread, model = parallelism_of(row), find_model(row.cells["model"])
        facts.append(
            facts_of(row, spread.data_parallel_size, spread.num_gpus, model.moe is not None, copies.get(row.number, ""))
        )
    for rule in exclusions():
        assert any(excluded_figures(known, [rule]) for known in facts), rule.comparisons
