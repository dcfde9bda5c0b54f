"""The front of the public verbs: all are there, and measuring does without the simulator."""

from __future__ import annotations

import subprocess
import sys

import pytest

from servewise import api


@pytest.mark.parametrize("name", api.__all__)
def test_every_verb_is_there(name: str) -> None:
    assert callable(getattr(api, name))


def test_an_unknown_verb_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'meassure'"):
        _ = api.meassure


def test_measuring_does_not_import_the_simulator() -> None:
    script = "import sys; from servewise import api; api.measure; print('numba' in sys.modules, 'scipy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "False False\n"
