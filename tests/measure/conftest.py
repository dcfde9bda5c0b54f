"""A machine that is never late, so that verdicts depend on the scripts alone."""

from __future__ import annotations

import math

import pytest

from servewise.measure import trust


@pytest.fixture
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forgive the client any lateness: the machine that runs the tests may be busy."""
    for name in ("MAX_LAG_KERNEL_S", "MAX_LAG_USER_S", "MAX_STALL_S", "MAX_SEND_LAG_S"):
        monkeypatch.setattr(trust, name, math.inf)
    for name in ("MIN_RATE_FRAC", "MIN_HELD_FRAC"):
        monkeypatch.setattr(trust, name, 0.0)
