"""Fixtures shared by all tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

SHARED = Path(__file__).resolve().parents[2] / "shared"


@pytest.fixture(scope="session")
def shared_dir() -> Path:
    """The development data beside the checkout; tests that need it skip without it, and fail in CI."""
    if not SHARED.is_dir():
        reason = "needs the development data in ../shared, which a user's machine does not have"
        if os.environ.get("CI"):
            pytest.fail(reason + "; CI must have it")
        pytest.skip(reason)
    return SHARED
