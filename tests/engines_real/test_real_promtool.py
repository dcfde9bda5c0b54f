"""Prometheus' own tool takes every scrape that ``servewise deploy`` writes.

It has to be installed (``apt-get install prometheus`` in Debian).
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from deploy.fleets import CASES
from deploy.reading import documents
from servewise.deploy import render
from servewise.errors import InputError

pytestmark = [
    pytest.mark.engines,
    pytest.mark.skipif(
        shutil.which("promtool") is None, reason="promtool is not installed: apt-get install prometheus"
    ),
]


def scrapes() -> list[str]:
    """Those of commands and of Compose files, each once."""
    found = []
    for deployment in CASES.values():
        files = render(deployment, "command", name="chat").files
        found += [file.text for file in files if file.name == "prometheus.yml"]
        try:
            (compose,) = documents(render(deployment, "compose", name="chat"))
        except InputError:
            continue
        found.append(compose["configs"]["prometheus"]["content"])
    return list(dict.fromkeys(found))


def test_promtool_takes_every_scrape(tmp_path: Path) -> None:
    paths = [tmp_path / f"{number}.yml" for number, _ in enumerate(scrapes())]
    for path, text in zip(paths, scrapes(), strict=True):
        path.write_text(text)
    done = subprocess.run(["promtool", "check", "config", *paths], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("SUCCESS") == len(paths) > len(CASES) / 2
