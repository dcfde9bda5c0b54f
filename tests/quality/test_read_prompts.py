"""The file of prompts: what is read, and that what is wrong is named with its line."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servewise.errors import InputError, TraceFormatError
from servewise.quality.prompts import read_prompts


def written(folder: Path, name: str, text: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_plain_text_is_one_prompt_a_line(tmp_path: Path) -> None:
    prompts = read_prompts(written(tmp_path, "p.txt", '\ufeffHello\r\n\n  {"prompt": 1}  \n'))
    assert [(prompt.line, prompt.text) for prompt in prompts] == [(1, "Hello"), (3, '{"prompt": 1}')]
    assert prompts[0].messages == ({"role": "user", "content": "Hello"},)


def test_json_lines_hold_prompts_or_messages(tmp_path: Path) -> None:
    lines = (
        '{"prompt": "a\\nb", "id": 7}\n\n{"messages": [{"role": "system", "content": "s"}, '
        '{"role": "user", "content": "u", "name": "x"}]}'
    )
    first, second = read_prompts(written(tmp_path, "p.jsonl", lines))
    assert first.text == "a\nb"
    assert second.line == 3
    assert second.messages == ({"role": "system", "content": "s"}, {"role": "user", "content": "u"})


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "is not JSON"),
        ("[1]", "not exactly one of prompt and messages"),
        ("{}", "not exactly one of prompt and messages"),
        ('{"prompt": "a", "messages": []}', "not exactly one of prompt and messages"),
        ('{"prompt": 3}', "prompt is no text"),
        ('{"prompt": " "}', "or an empty one"),
        ('{"prompt": "\\ud800"}', "half of a surrogate pair"),
        ('{"messages": []}', "not a list with at least one"),
        ('{"messages": [{"role": "root", "content": "a"}]}', "none of the roles system, developer, user, assistant"),
        ('{"messages": [{"role": ["user"], "content": "a"}]}', "none of the roles"),
        ('{"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}', "content is no text"),
        (b"\xff", "is not UTF-8"),
        ("[" * 100_000, "is not JSON"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(tmp_path: Path, line: str | bytes, said: str) -> None:
    good = b'{"prompt": "good"}\n'
    path = written(tmp_path, "p.jsonl", good + (line if isinstance(line, bytes) else line.encode()))
    with pytest.raises(TraceFormatError, match=said) as caught:
        read_prompts(path)
    assert caught.value.line == 2


def test_files_that_hold_nothing_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no prompt"):
        read_prompts(written(tmp_path, "p.txt", "\n \n"))
    with pytest.raises(InputError, match="No such file"):
        read_prompts(tmp_path / "missing.txt")
    messages = '{"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]}'
    with pytest.raises(TraceFormatError, match="leave out --raw"):
        read_prompts(written(tmp_path, "p.jsonl", messages), raw=True)


def test_too_many_prompts_are_refused_before_anything_is_sent(tmp_path: Path) -> None:
    path = written(tmp_path, "p.txt", "a\n" * 10_001)
    for num_prompts in (None, 10_001):
        with pytest.raises(InputError, match="has 10,001 prompts; draw 10,000 or fewer with --num-prompts"):
            read_prompts(path, num_prompts=num_prompts)
    assert len(read_prompts(path, num_prompts=10_000)) == 10_000
    with pytest.raises(InputError, match="has more than 100,000 prompts; give fewer"):
        read_prompts(written(tmp_path, "p.txt", "a\n" * 100_001), num_prompts=10)
    assert len(read_prompts(written(tmp_path, "p.txt", "a\n" * 10_000))) == 10_000


def test_a_draw_keeps_the_order_and_is_repeated_by_its_seed(tmp_path: Path) -> None:
    path = written(tmp_path, "p.txt", "\n".join(f"prompt {i}" for i in range(100)))
    some = read_prompts(path, num_prompts=10, seed=3)
    assert len(some) == 10
    assert [prompt.line for prompt in some] == sorted({prompt.line for prompt in some})
    assert some == read_prompts(path, num_prompts=10, seed=3)
    assert some != read_prompts(path, num_prompts=10, seed=4)
    assert len(read_prompts(path, num_prompts=1000)) == 100


@given(st.binary(max_size=200))
def test_no_bytes_break_the_reader(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = written(tmp_path_factory.mktemp("prompts"), "p.jsonl", data)
    try:
        prompts = read_prompts(path)
    except InputError:
        return
    assert all(prompt.text.strip() for prompt in prompts)
