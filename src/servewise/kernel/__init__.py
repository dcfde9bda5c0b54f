"""The numba drivers: arrays in, arrays out, a status returned; ``sim`` packs and reads them.

Compiled code is cached for each state of this folder's sources: numba itself only looks at the file of the
function that is called, and would go on using what other files have since changed.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import numba

__all__: list[str] = []


def _cache_folder() -> Path:
    digest = hashlib.sha256()
    for source in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(source.read_bytes())
    root = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(root) / "servewise" / "kernel" / digest.hexdigest()[:16]


if not os.environ.get("NUMBA_CACHE_DIR"):
    numba.config.CACHE_DIR = str(_cache_folder())  # type: ignore[attr-defined]
