"""Bad traces are refused with the line, the value, what is allowed and the next step."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from servewise.errors import InputError, TraceFormatError, UnknownNameError
from servewise.traffic import read_trace

HEAD = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
ROW = "2023-11-16 18:15:46.6805900,374,44\n"
NEXT = "2023-11-16 18:15:47.6805900,375,45\n"
MOON = '{"timestamp": 0, "input_length": 1100, "output_length": 5, "hash_ids": [7, 8, 9]}\n'
ABC = {"arrival_ms": "a", "input_tokens": "b", "output_tokens": "c"}

CSV_CASES = [
    ("", None, "the trace is empty"),
    ("\n \n", None, "the trace is empty"),
    (HEAD, None, "no requests"),
    (HEAD + NEXT + ROW, 3, "sort the file by 'TIMESTAMP'"),
    (HEAD + ROW + NEXT.replace("375", "0"), 3, "'ContextTokens' is '0'; it must be a whole number"),
    (HEAD + ROW + NEXT.replace("45\n", "0\n"), 3, "'GeneratedTokens' is '0'"),
    (HEAD + ROW + NEXT.replace("375", "NaN"), 3, "'ContextTokens' is 'NaN'"),
    (HEAD + ROW + NEXT.replace("375", "-3"), 3, "'ContextTokens' is '-3'"),
    (HEAD + ROW + NEXT.replace("375", "3.5"), 3, "'ContextTokens' is '3.5'"),
    (HEAD + ROW + NEXT.replace("375", "1e30"), 3, "'ContextTokens' is '1e30'"),
    (HEAD + ROW + NEXT.replace("375", ""), 3, "'ContextTokens' is missing"),
    (HEAD + ROW + "\n\n" + NEXT.replace("375", "many"), 5, "'ContextTokens' is 'many'"),
    (HEAD + ROW + NEXT.replace("375", "\x1b[31m"), 3, r"'ContextTokens' is '\x1b[31m'"),
    (HEAD + ROW + NEXT.replace("2023", "20x3"), 3, "it must be a date and time such as"),
    (HEAD + ROW + NEXT.replace("47.6805900", "471"), 3, "it must be a date and time such as"),
    (HEAD + ROW + NEXT.replace("45\n", "45,6\n"), 3, "4 fields where the header has 3"),
    (HEAD + ROW + "2023-11-16 18:15:47.6805900\n" + NEXT, 3, "1 fields where the header has 3"),
    (HEAD + ROW + "2023-11-16 18:15:47.68", 3, "the last line is cut off"),
    (HEAD + ROW + "2023-11-16 18:15:47.6805900,37", 3, "the last line is cut off"),
    (HEAD + ROW + '2023-11-16 18:15:47.6805900,"375,44\n', 3, "not a CSV record"),
    ("TIMESTAMP,TIMESTAMP,GeneratedTokens\n", 1, "'TIMESTAMP' appears twice"),
    ("a,b,c\n1,2,3\n", None, "match no known format"),
    ('[{"timestamp": 0}]', 1, "write one JSON object a line"),
    ('{"timestamp": ', 1, "not valid JSON"),
    (MOON + MOON[:40], 2, "the last line is cut off"),
    (MOON + MOON.replace("1100", '"x"'), 2, "'input_length' is \"x\"; it must be a number"),
    (MOON + MOON.replace("1100", "true"), 2, "'input_length' is true; it must be a number"),
    (MOON + MOON.replace("1100", "NaN"), 2, "'input_length' is NaN; it must be a number"),
    (MOON + MOON.replace('"input_length": 1100, ', ""), 2, "'input_length' is missing"),
    (MOON + MOON.replace(": 0,", ": -1,"), 2, "'timestamp' is -1; it must be a time of 0 or later"),
    (MOON + MOON.replace("[7, 8, 9]", "null"), 2, "'hash_ids' is missing"),
    (MOON + MOON.replace("[7, 8, 9]", "[7, null]"), 2, "it must be a list of whole numbers"),
    (MOON + MOON.replace("[7, 8, 9]", "[7, 1.5]"), 2, "it must be a list of whole numbers"),
    (MOON + MOON.replace("[7, 8, 9]", "[1, 2, 3, 4, 5]"), 2, "for each 512 tokens of the prompt at most"),
    (MOON + "[1]\n", 2, "not a JSON object"),
]


@pytest.mark.parametrize(("text", "line", "message"), CSV_CASES)
def test_refused_with_its_line(tmp_path: Path, text: str, line: int | None, message: str) -> None:
    path = tmp_path / "trace"
    path.write_text(text, encoding="utf-8", newline="")
    with pytest.raises(TraceFormatError) as caught:
        read_trace(path)
    assert message in str(caught.value)
    assert caught.value.line == line
    assert caught.value.path == str(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b,c\n-1,2,3\n", "line 2: 'a' is '-1'; it must be a time of 0 or later"),
        ("a,b,c\n1,2,3\ninf,2,3\n", "line 3: 'a' is 'inf'"),
        ("a,b,c\n1,2,3\n,2,3\n", "line 3: 'a' is missing"),
        ("a,b,c\n2,2,3\n1,2,3\n", "line 3: 'a' is '1', before the row above"),
    ],
)
def test_bad_times_of_a_mapped_file(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "t.csv"
    path.write_text(text)
    with pytest.raises(TraceFormatError) as caught:
        read_trace(path, columns=ABC)
    assert message in str(caught.value)


def test_more_output_than_declared(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("arrival_s,input_tokens,output_tokens,max_tokens\n1,2,3,4\n2,3,3,2\n")
    with pytest.raises(TraceFormatError, match="line 3: 'max_tokens' is '2' but 'output_tokens' is '3'"):
        read_trace(path)


@pytest.mark.parametrize("value", ["", "high", "0.5", "nan", "3000000000"])
def test_a_priority_that_is_no_whole_number(tmp_path: Path, value: str) -> None:
    path = tmp_path / "own.csv"
    path.write_text(f"arrival_s,input_tokens,output_tokens,priority\n1,2,3,0\n2,3,3,{value}\n")
    with pytest.raises(TraceFormatError, match=r"line 3: 'priority' is .*; it must be a whole number from -"):
        read_trace(path)


def test_not_utf8_names_the_line(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes((HEAD + ROW).encode() + b"\xff\xfe,1,2\n")
    with pytest.raises(TraceFormatError, match="line 3: not UTF-8 text"):
        read_trace(path)


@pytest.mark.parametrize("content", [b"PAR1 and then nothing", b"\x00\x01\x02"])
def test_damaged_binary(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "t"
    path.write_bytes(content)
    with pytest.raises(TraceFormatError, match="Parquet"):
        read_trace(path)


def test_parquet_names_the_row(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    pl.DataFrame({"a": [0.0, 1.0], "b": [1, None], "c": [1, 1]}).write_parquet(path)
    with pytest.raises(TraceFormatError) as caught:
        read_trace(path, columns={**ABC})
    assert caught.value.line == 2
    assert "'b' is missing" in str(caught.value)


def test_requests_that_continue_each_other(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("arrival_s,input_tokens,output_tokens,request_id,parent_id\n0,1,1,a,b\n1,1,1,b,a\n")
    with pytest.raises(TraceFormatError, match="circle"):
        read_trace(path)


@pytest.mark.parametrize(
    ("columns", "error", "message"),
    [
        ({**ABC, "output_tokens": "cc"}, UnknownNameError, "unknown column 'cc'; did you mean c?"),
        ({"arival_s": "a"}, UnknownNameError, "unknown field 'arival_s'; did you mean arrival_s"),
        ({"input_tokens": "b", "output_tokens": "c"}, InputError, "map exactly one of arrival_s"),
        ({**ABC, "arrival_s": "a"}, InputError, "map exactly one of arrival_s"),
        ({"arrival_s": "a", "input_tokens": "b"}, InputError, "columns lack output_tokens"),
        ({**ABC, "output_tokens": "b"}, InputError, "'b' is mapped to two fields"),
        ({**ABC, "request_id": "d"}, InputError, "map both or neither"),
        ({**ABC, "hash_ids": "d"}, InputError, "use JSONL or Parquet"),
    ],
)
def test_wrong_mapping(tmp_path: Path, columns: dict[str, str], error: type[InputError], message: str) -> None:
    path = tmp_path / "t.csv"
    path.write_text("a,b,c,d\n1,2,3,4\n")
    with pytest.raises(error) as caught:
        read_trace(path, columns=columns)
    assert message in str(caught.value)


def test_wrong_format_name(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(HEAD + ROW)
    with pytest.raises(UnknownNameError, match="did you mean azure"):
        read_trace(path, format="azur")
    with pytest.raises(TraceFormatError, match="'mooncake' is jsonl, but the file's content is csv"):
        read_trace(path, format="mooncake")
    with pytest.raises(UnknownNameError, match="did you mean TIMESTAMP"):
        read_trace(path, format="burstgpt")


def test_missing_file_and_folder(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"cannot read the trace .*: No such file"):
        read_trace(tmp_path / "none.csv")
    with pytest.raises(InputError, match="cannot read the trace"):
        read_trace(tmp_path)


@pytest.mark.parametrize("limits", [{"num_requests": 0}, {"duration_s": -1.0}, {"duration_s": float("nan")}])
def test_limits_that_leave_nothing(tmp_path: Path, limits: dict[str, float]) -> None:
    path = tmp_path / "t.csv"
    path.write_text(HEAD + ROW)
    with pytest.raises(InputError, match="must be"):
        read_trace(path, **limits)
