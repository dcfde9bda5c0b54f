"""Pages: each is in a table of contents, its links and paths exist, its examples run."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import click
import pytest

from servewise.cli.app import cli

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", *DOCS.glob("*.md")])
FENCE = re.compile(r"^(```+)([^\n]*)\n(.*?)^\1\s*$", re.DOTALL | re.MULTILINE)


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def blocks(page: Path, language: str) -> list[str]:
    return [text for _, info, text in FENCE.findall(page.read_text(encoding="utf-8")) if info.strip() == language]


def prose(page: Path) -> str:
    """A page without its fenced blocks."""
    return FENCE.sub("", page.read_text(encoding="utf-8"))


def anchors(page: Path) -> set[str]:
    """Anchors of a page's headings, and those that stand before one, as ``(name)=``."""
    headings = re.findall(r"^#+ +(.*)$", prose(page), flags=re.MULTILINE)
    named = re.findall(r"^\(([\w-]+)\)=$", prose(page), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings} | {*named}


def test_every_page_is_in_one_table_of_contents() -> None:
    listed = [
        line.strip()
        for page in DOCS.glob("*.md")
        for toctree in blocks(page, "{toctree}")
        for line in toctree.splitlines()
        if line.strip() and not line.startswith(":")
    ]
    assert sorted(listed) == sorted(page.stem for page in DOCS.glob("*.md") if page.stem != "index")


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_relative_links_lead_somewhere(page: Path) -> None:
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if not file.exists() or (anchor and anchor not in anchors(file)):
            broken.append(target)
    assert broken == []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_paths_that_are_named_exist(page: Path) -> None:
    named = re.findall(r"`((?:src|tests|tools|examples|benchmarks|docs)/[\w./-]+)`", prose(page))
    assert [path for path in named if "NAME" not in path and not (ROOT / path).exists()] == []


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "python")], ids=name_of)
def test_python_examples_run_and_print_what_the_page_shows(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An example's output is in the next block, if that is text."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    fences = [(info.strip(), text) for _, info, text in FENCE.findall(page.read_text(encoding="utf-8"))]
    for (language, example), (following, shown) in pairwise([*fences, ("", "")]):
        if language == "python":
            exec(compile(example, name_of(page), "exec"), names)  # noqa: S102
            printed = capsys.readouterr().out
            assert following != "text" or printed == shown


def command_lines() -> Iterator[tuple[Path, str]]:
    for page in PAGES:
        for language in ("sh", "bash", "console"):
            for block in blocks(page, language):
                for line in block.splitlines():
                    if line.strip():
                        yield page, line.partition("#")[0].strip()


def parse(line: str) -> None:
    """Look a servewise command and its options up, as click would."""
    command: click.Command = cli
    context = click.Context(cli, **cli.context_settings)
    words = line.split()[1:]
    while isinstance(command, click.Group):
        found = command.get_command(context, words.pop(0))
        assert found is not None, f"no such command: {line}"
        command = found
    command.make_context("servewise", words, parent=context)


def test_commands_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z][\w-]*):", makefile, flags=re.MULTILINE))
    programs = set()
    for page, line in command_lines():
        program, *arguments = line.split()
        programs.add(program)
        if program == "make":
            assert set(arguments) <= targets, f"{name_of(page)}: {line}"
        elif program == "servewise":
            parse(line)
        else:
            pytest.fail(f"{name_of(page)}: {line}: a command that this test does not know")
    assert programs == {"make", "servewise"}


def test_a_command_that_does_not_exist_is_found() -> None:
    with pytest.raises(AssertionError, match="no such command"):
        parse("servewise plam examples/chatbot.yaml")
    with pytest.raises(click.UsageError):
        parse("servewise plan examples/chatbot.yaml --thread 2")
