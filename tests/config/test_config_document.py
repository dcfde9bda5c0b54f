"""Untrusted YAML: limits, and one sentence for each way in which a file can be wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from servewise.config.document import MAX_FILE_BYTES, MAX_VALUES, read_document
from servewise.errors import InputError


def write(folder: Path, text: str | bytes) -> Path:
    path = folder / "file.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_scalars_follow_the_core_schema(tmp_path: Path) -> None:
    text = "a: 1\nb: 1.5\nc: 1e3\nd: true\ne: yes\nf: ~\ng: '1'\nh: 2026-11-29\ni: -.5\nj: 0x10\nk: .inf\n"
    values = read_document(write(tmp_path, text)).values
    assert values == {
        "a": 1,
        "b": 1.5,
        "c": 1000.0,
        "d": True,
        "e": "yes",
        "f": None,
        "g": "1",
        "h": "2026-11-29",
        "i": -0.5,
        "j": "0x10",
        "k": float("inf"),
    }
    assert isinstance(values["a"], int)
    assert isinstance(values["c"], float)


def test_every_value_remembers_its_line(tmp_path: Path) -> None:
    document = read_document(write(tmp_path, "# head\na:\n  b: 1\n  c: [2,\n    3]\n"))
    assert document.line_of(("a",)) == 2
    assert document.line_of(("a", "b")) == 3
    assert document.line_of(("a", "c", 1)) == 5
    assert document.line_of(("a", "not there")) == 2
    assert str(document.error(("a", "b"), "is wrong")) == f"{document.path}, line 3: a.b: is wrong"


def test_aliases_are_expanded(tmp_path: Path) -> None:
    values = read_document(write(tmp_path, "a: &x {b: [1, 2]}\nc: *x\nd: &y 5\ne: *y\n")).values
    assert values == {"a": {"b": [1, 2]}, "c": {"b": [1, 2]}, "d": 5, "e": 5}


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("", None, "the file is empty"),
        ("# only a comment\n", None, "the file is empty"),
        ("---\n", None, "the file is empty"),
        ("- a\n- b\n", 1, "the top level is a list"),
        ("\njust words\n", 2, "the top level is a single value"),
        ("a: 1\nb:\n\tc: 1\n", 3, "indented with a tab"),
        ("a: 1\na: 2\n", 2, "key 'a' is given twice, first on line 1"),
        ("x: {a: 1, a: 2}\n", 1, "key 'a' is given twice"),
        ("a: [1\n", 2, "not YAML"),
        ("a: 'open\n", 2, "not YAML"),
        ("a: 1: 2\n", 1, "not YAML"),
        ("a: 1\n---\nb: 2\n", 2, "a second document starts"),
        ("a: 1\nb: *nothing\n", 2, "alias *nothing refers to no finished value"),
        ("a: &a [*a]\n", 1, "alias *a refers to no finished value"),
        ("a: &k k\n*k : 2\n", 2, "a key must be a word"),
        ("? [a]\n: 1\n", 1, "a key must be a word"),
        ("a: &m {b: 1}\nc:\n  <<: *m\n", 3, "merge keys (<<) are not allowed"),
        (
            "a: !!python/object/apply:os.system [x]\n",
            1,
            "tag tag:yaml.org,2002:python/object/apply:os.system is not",
        ),
        ("a: !secret x\n", 1, "tag !secret is not allowed"),
        ("a: " + "[" * 50 + "\n", 1, "nested deeper than 16 levels"),
        ("a: " + "x" * 5000 + "\n", 1, "a value of 5000 characters"),
        (b"a: 1\nb: \xff\n", 2, "not UTF-8 text"),
        ("a: \x00\n", None, "not YAML"),
    ],
)
def test_wrong_files_are_one_sentence(tmp_path: Path, text: str | bytes, line: int | None, message: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(InputError) as caught:
        read_document(path)
    where = f"{path}: " if line is None else f"{path}, line {line}: "
    assert str(caught.value).startswith(where + message)
    assert "\n" not in str(caught.value)


def test_an_alias_bomb_is_refused(tmp_path: Path) -> None:
    rows = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    rows += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 30)]
    with pytest.raises(InputError, match=f"more than {MAX_VALUES} values once aliases are expanded"):
        read_document(write(tmp_path, "\n".join(rows)))


def test_a_huge_file_is_refused_before_it_is_parsed(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="larger than the 256 KiB"):
        read_document(write(tmp_path, "a: 1\n" * MAX_FILE_BYTES))


def test_a_missing_file_and_a_folder_are_input_errors(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        read_document(tmp_path / "missing.yaml")
    with pytest.raises(InputError, match="cannot be read: Is a directory"):
        read_document(tmp_path)


@settings(deadline=None)
@given(st.binary(max_size=200) | st.text("ab:-[]{},&*!|>'\"#%@?<\n\t 1.~", max_size=60).map(str.encode))
def test_any_bytes_end_in_a_mapping_or_an_input_error(tmp_path_factory: pytest.TempPathFactory, raw: bytes) -> None:
    path = tmp_path_factory.mktemp("any") / "file.yaml"
    path.write_bytes(raw)
    try:
        values = read_document(path).values
    except InputError as error:
        assert str(error).startswith(str(path))  # noqa: PT017 - both endings are right
    else:
        assert isinstance(values, dict)
