"""The numba drivers: arrays in, arrays out, a status returned; ``sim`` packs and reads them.

Compiled code is cached for each state of this folder's sources: numba itself only looks at the file of the
function that is called, and would go on using what other files have since changed.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path

import numba

__all__ = ["is_compiled"]


def _cache_folder() -> Path:
    """A folder for this state of the sources: the user's own, or a fresh private one where none can be made.

    Never a fixed place that others can write to: numba unpickles what it finds there.
    """
    digest = hashlib.sha256()
    for source in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(source.read_bytes())
    root = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    folder = Path(root) / "servewise" / "kernel" / digest.hexdigest()[:16]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return Path(tempfile.mkdtemp(prefix="servewise-kernel-"))
    return folder if os.access(folder, os.W_OK) else Path(tempfile.mkdtemp(prefix="servewise-kernel-"))


if not os.environ.get("NUMBA_CACHE_DIR"):
    numba.config.CACHE_DIR = str(_cache_folder())  # type: ignore[attr-defined]


def is_compiled(driver: str) -> bool:
    """Whether a driver of these sources (a module of this folder) is compiled, or never will be.

    Its code is stored last: it is there when what it calls is.
    """
    if numba.config.DISABLE_JIT:  # type: ignore[attr-defined]
        return True
    folder = Path(numba.config.CACHE_DIR)  # type: ignore[attr-defined]
    return any(folder.rglob(f"{driver}.advance-*.nbi"))
