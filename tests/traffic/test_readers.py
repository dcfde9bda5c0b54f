"""Each format is recognised from its content and read as documented."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from servewise.traffic import read_trace
from servewise.traffic import tables as tables_module
from servewise.traffic.blocks import text_blocks
from traffic.workloads import check_invariants

AZURE_2023 = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
    "2023-11-16 18:15:46.6805900,374,44\r\n"
    "2023-11-16 18:15:50.9951690,396,109\r\n"
    "2023-11-16 18:15:51,879,55"
)
AZURE_2024 = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    "2024-05-10 00:00:00.009930+00:00,2162,5\n"
    "2024-05-10 00:00:00.017335+00:00,2399,6\n"
    "2024-05-10 00:00:01+00:00,76,15\n"
)
BURSTGPT = (
    "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    "5,a,1.5,ChatGPT,472,18,490,Conversation log\n"
    "45,b,1,ChatGPT,1087,0,1087,API log\n"
    "118,,2,GPT-4,417,276,693,API log\n"
    "117,a,3,ChatGPT,1360,647,2007,Conversation log\n"
)


def write(path: Path, text: str) -> Path:
    path.write_bytes(text.encode())
    return path


def test_azure_2023_keeps_seven_decimals(tmp_path: Path) -> None:
    workload = read_trace(write(tmp_path / "conv.csv", AZURE_2023))
    check_invariants(workload)
    assert workload.arrival_s == pytest.approx([0, 4.314579, 4.31941], abs=1e-12)
    assert workload.input_tokens.tolist() == [374, 396, 879]
    assert workload.output_tokens.tolist() == [44, 109, 55]
    assert workload.prefix is None
    assert workload.session is None
    assert workload.name == "conv"
    assert "azure" in workload.provenance.note


def test_azure_2024_has_a_zone(tmp_path: Path) -> None:
    workload = read_trace(write(tmp_path / "week.csv", AZURE_2024))
    assert workload.arrival_s == pytest.approx([0, 0.007405, 0.99007], abs=1e-12)


@pytest.mark.parametrize("suffix", ["", "Z", "+00:00", "+05:30", "-03:00"])
@pytest.mark.parametrize("separator", [" ", "T"])
def test_date_and_time_in_other_spellings(tmp_path: Path, suffix: str, separator: str) -> None:
    times = [f"2024-02-29{separator}23:59:59.5{suffix}", f"2024-03-01{separator}00:00:00{suffix}"]
    text = "when,i,o\n" + "".join(f"{time},1,1\n" for time in times)
    columns = {"arrival_time": "when", "input_tokens": "i", "output_tokens": "o"}
    assert read_trace(write(tmp_path / "t.csv", text), columns=columns).arrival_s.tolist() == [0.0, 0.5]


def test_burstgpt_drops_and_counts_failures_and_sorts(tmp_path: Path) -> None:
    workload = read_trace(write(tmp_path / "b.csv", BURSTGPT))
    check_invariants(workload)
    assert workload.arrival_s.tolist() == [0, 112, 113]
    assert workload.output_tokens.tolist() == [18, 647, 276]
    assert workload.session is not None
    # Two turns of conversation a; a request without a name is alone.
    assert workload.session[0] == workload.session[1] != workload.session[2]
    assert "1 failed requests" in workload.provenance.note
    assert "sorted by arrival" in workload.provenance.note


def test_burstgpt_without_sessions(tmp_path: Path) -> None:
    text = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,ChatGPT,472,18,490,API log\n"
    workload = read_trace(write(tmp_path / "b.csv", text))
    assert workload.session is None
    assert "burstgpt" in workload.provenance.note


def jsonl(*rows: dict[str, object]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def mooncake(time_ms: int, input_length: int, hash_ids: list[int]) -> dict[str, object]:
    return {"timestamp": time_ms, "input_length": input_length, "output_length": 5, "hash_ids": hash_ids}


def test_mooncake_leaves_out_partial_blocks(tmp_path: Path) -> None:
    rows = [mooncake(0, 1100, [7, 8, 9]), mooncake(3000, 1024, [7, 10]), mooncake(3000, 511, [7])]
    workload = read_trace(write(tmp_path / "m.jsonl", jsonl(*rows)))
    check_invariants(workload)
    assert workload.arrival_s.tolist() == [0, 3, 3]
    assert workload.prefix is not None
    assert workload.prefix.block_size_tokens == 512
    assert workload.prefix.offsets.tolist() == [0, 2, 4, 4]
    assert workload.prefix.ids.tolist() == [0, 1, 0, 2]
    assert workload.prefix.num_ids == 3


def bailian(chat: int, parent: int, time_s: float, hash_ids: list[int]) -> dict[str, object]:
    return {
        "chat_id": chat,
        "parent_chat_id": parent,
        "timestamp": time_s,
        "input_length": 40,
        "output_length": 132,
        "type": "text",
        "turn": 1,
        "hash_ids": hash_ids,
    }


def test_bailian_follows_parents_and_chains_blocks(tmp_path: Path) -> None:
    rows = [
        bailian(1, -1, 61.114, [1, 2, 3]),
        bailian(2, -1, 61.5, [4, 2, 3]),
        bailian(3, 1, 62, [1, 2, 9]),
        bailian(4, 3, 63, [1, 2, 9]),
        bailian(5, 77, 64, []),
    ]
    workload = read_trace(write(tmp_path / "q.jsonl", jsonl(*rows)))
    check_invariants(workload)
    assert workload.arrival_s == pytest.approx([0, 0.386, 0.886, 1.886, 2.886])
    assert workload.session is not None
    assert workload.session.tolist() == [0, 1, 0, 0, 2]
    assert workload.prefix is not None
    assert workload.prefix.block_size_tokens == 16
    first, second, third, fourth = (workload.prefix.ids[k : k + 2].tolist() for k in range(0, 8, 2))
    assert first == third == fourth
    # Block 2 stands behind another beginning there, so it is another prefix.
    assert set(first).isdisjoint(second)


@pytest.mark.parametrize(
    ("field", "ticks"),
    [("arrival_s", 1), ("arrival_ms", 1000), ("arrival_us", 1_000_000), ("arrival_ns", 1_000_000_000)],
)
@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_column_mapping_in_every_container(tmp_path: Path, kind: str, field: str, ticks: int) -> None:
    frame = pl.DataFrame(
        {
            "t": [2 * ticks, 3 * ticks, 3 * ticks],
            "in": [5, 6, 7],
            "out": [1, 2, 3],
            "cap": [1, 8, 3],
            "who": ["x", "y", "x"],
            "text": ["a", 'b "c"\n\n', "d,e"],
        }
    )
    path = tmp_path / f"trace.{kind}"
    {"csv": frame.write_csv, "jsonl": frame.write_ndjson, "parquet": frame.write_parquet}[kind](path)
    columns = {
        field: "t",
        "input_tokens": "in",
        "output_tokens": "out",
        "max_tokens": "cap",
        "session": "who",
    }
    workload = read_trace(path, columns=columns)
    check_invariants(workload)
    assert workload.arrival_s.tolist() == [0, 1, 1]
    assert workload.input_tokens.tolist() == [5, 6, 7]
    assert workload.max_tokens.tolist() == [1, 8, 3]
    assert workload.max_tokens_kind == "declared"
    assert workload.session is not None
    assert workload.session.tolist() == [0, 1, 0]


def test_priorities(tmp_path: Path) -> None:
    path = write(tmp_path / "own.csv", "arrival_s,input_tokens,output_tokens,priority\n0,5,6,1\n2,7,8,-3\n4,1,1,0\n")
    workload = read_trace(path, num_requests=2)
    assert workload.priority is not None
    assert workload.priority.tolist() == [1, -3]
    unknown = write(tmp_path / "none.csv", "arrival_s,input_tokens,output_tokens\n0,5,6\n")
    assert read_trace(unknown).priority is None


def test_columns_with_our_own_names_need_no_mapping(tmp_path: Path) -> None:
    path = write(tmp_path / "own.csv", "arrival_ms,input_tokens,output_tokens\n0,5,6\n250,7,8\n")
    assert read_trace(path).arrival_s.tolist() == [0, 0.25]


def test_hash_ids_of_any_file(tmp_path: Path) -> None:
    path = tmp_path / "h.parquet"
    pl.DataFrame({"t": [0.0, 1.0], "i": [64, 40], "o": [1, 1], "h": [[5, 6], [5]]}).write_parquet(path)
    columns = {"arrival_s": "t", "input_tokens": "i", "output_tokens": "o", "hash_ids": "h"}
    prefix = read_trace(path, columns=columns, block_size_tokens=32).prefix
    assert prefix is not None
    assert prefix.ids.tolist() == [0, 1, 0]


def test_blank_lines_and_byte_order_mark(tmp_path: Path) -> None:
    text = AZURE_2024.replace("\n", "\n\n") + "\n\n"
    path = tmp_path / "blank.csv"
    path.write_bytes(b"\xef\xbb\xbf" + text.encode())
    assert read_trace(path).num_requests == 3


def test_limits_read_only_the_start(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", AZURE_2024 + "this is not a row\n")
    with pytest.raises(Exception, match="line 5"):
        read_trace(path)
    path = write(tmp_path / "t.csv", AZURE_2024)
    assert read_trace(path, num_requests=2).num_requests == 2
    assert read_trace(path, duration_s=0.5).num_requests == 2


def test_blocks_do_not_change_what_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any cut into blocks gives the same rows, quoted line ends included."""
    rows = [f'{time},"line one\n\n""two"",{time}",{time + 1},{time % 7 + 1}' for time in range(200)]
    path = write(tmp_path / "q.csv", "t,text,i,o\n" + "\n".join(rows))
    columns = {"arrival_s": "t", "input_tokens": "i", "output_tokens": "o"}
    whole = read_trace(path, columns=columns)
    for block_bytes in (7, 64, 1000):
        monkeypatch.setattr(
            tables_module,
            "text_blocks",
            lambda path, *, quoted, size=block_bytes: text_blocks(path, quoted=quoted, block_bytes=size),
        )
        cut = read_trace(path, columns=columns)
        assert np.array_equal(cut.arrival_s, whole.arrival_s)
        assert np.array_equal(cut.input_tokens, whole.input_tokens)
        assert np.array_equal(cut.output_tokens, whole.output_tokens)
    assert whole.num_requests == 200


def test_line_of_an_error_in_a_later_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [f'{time},"a\nb",1,1' for time in range(50)]
    rows[30] = '30,"a\nb",1,x'
    path = write(tmp_path / "q.csv", "t,text,i,o\n" + "\n".join(rows) + "\n")
    monkeypatch.setattr(
        tables_module,
        "text_blocks",
        lambda path, *, quoted: text_blocks(path, quoted=quoted, block_bytes=100),
    )
    columns = {"arrival_s": "t", "input_tokens": "i", "output_tokens": "o"}
    with pytest.raises(Exception, match=r"line 62: 'o' is 'x'"):
        read_trace(path, columns=columns)
