"""The rules of the house: layers, public names, sizes, and no trace of any one machine."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "servewise"
MODULES = sorted(SOURCE.rglob("*.py"))
MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def tracked_files() -> Iterator[Path]:
    """Files that belong to the project, without what tools leave behind."""
    folders = ("src", "tests", "docs", "examples", "benchmarks", "tools", ".ci")
    found = [path for folder in folders for path in (ROOT / folder).rglob("*") if path.is_file()]
    found += [path for path in ROOT.iterdir() if path.is_file()]
    for path in found:
        parts = path.relative_to(ROOT).parts
        if "__pycache__" not in parts and "_build" not in parts and path.suffix != ".pyc":
            yield path


def test_imports_go_down_the_layers() -> None:
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stdout + ended.stderr


def exported(tree: ast.Module) -> list[str] | None:
    for node in tree.body:
        if isinstance(node, ast.Assign) and [ast.unparse(t) for t in node.targets] == ["__all__"]:
            names = ast.literal_eval(node.value)
            assert isinstance(names, list)
            return names
    return None


def bound(body: list[ast.stmt]) -> set[str]:
    """Names that a module's statements bind, conditional ones included."""
    names: set[str] = set()
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names |= {(a.asname or a.name).partition(".")[0] for a in node.names}
        elif isinstance(node, ast.Assign):
            names |= {n.id for t in node.targets for n in ast.walk(t) if isinstance(n, ast.Name)}
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
        elif isinstance(node, ast.If):
            names |= bound(node.body) | bound(node.orelse)
    return names


def own_imports(tree: ast.Module) -> set[str]:
    """Names that a module imports from the project."""
    fronts = [n for n in tree.body if isinstance(n, ast.ImportFrom) and (n.module or "").startswith("servewise")]
    return {alias.asname or alias.name for node in fronts for alias in node.names}


def rank(name: str) -> tuple[int, str]:
    """Constants, then classes, then the rest, each by name."""
    kind = 0 if name.isupper() and len(name) > 1 else 1 if name.lstrip("_")[:1].isupper() else 2
    return kind, name


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_public_names_exist_once_and_in_order(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    names = exported(tree)
    if names is None:
        assert path.name != "__init__.py" or not own_imports(tree), "a room's front has an __all__"
        return
    assert len(set(names)) == len(names)
    assert names == sorted(names, key=rank)
    assert set(names) <= bound(tree.body)


@pytest.mark.parametrize("path", [p for p in MODULES if p.name == "__init__.py"], ids=name_of)
def test_a_room_exports_all_that_its_front_imports(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert {n for n in own_imports(tree) if not n.startswith("_")} <= set(exported(tree) or [])


def test_every_module_says_what_it_is_for() -> None:
    silent = [name_of(p) for p in MODULES if not ast.get_docstring(ast.parse(p.read_text(encoding="utf-8")))]
    assert silent == []


def test_files_and_functions_stay_small() -> None:
    large = []
    for path in MODULES:
        if "kernel" in path.parts:  # a driver's loop is one piece
            continue
        text = path.read_text(encoding="utf-8")
        if text.count("\n") > MAX_FILE_LINES:
            large.append(f"{name_of(path)}: {text.count(chr(10))} lines")
        functions = [n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
        large += [
            f"{name_of(path)}: {function.name} has {code_lines(function)} lines"
            for function in functions
            if code_lines(function) > MAX_FUNCTION_LINES
        ]
    assert large == []


def code_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of a function without its docstring."""
    first = node.body[0]
    documented = ast.get_docstring(node) is not None
    doc = (first.end_lineno or first.lineno) - first.lineno + 1 if documented else 0
    return (node.end_lineno or node.lineno) - node.lineno + 1 - doc


def test_no_path_of_any_one_machine() -> None:
    folders = "|".join(("work", "root", "tmp", "home"))
    pattern = re.compile(rf"(?<![\w.:/~-])/(?:{folders})/[\w.-]+")
    found = []
    for path in tracked_files():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        found += [f"{name_of(path)}: {match[0]}" for match in pattern.finditer(text)]
    assert found == []


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_make_refuses_an_old_python_before_it_installs_anything(tmp_path: Path) -> None:
    shutil.copy(ROOT / "Makefile", tmp_path)
    (tmp_path / "pyproject.toml").write_text("")
    old = tmp_path / "old-python"
    old.write_text("#!/bin/sh\nexit 1\n")
    old.chmod(0o755)
    for target in ("plan", "test"):
        ended = subprocess.run(
            ["make", target, f"PYTHON={old}"],
            cwd=tmp_path,
            env={k: v for k, v in os.environ.items() if not k.startswith("MAKE")},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert ended.returncode != 0
        assert "error: servewise needs python3 >= 3.11" in ended.stderr
        assert not (tmp_path / ".venv").exists()
