"""Constants and formatting. SI seconds and bytes inside; ms and GiB only for display."""

from __future__ import annotations

__all__ = ["GB", "GIB", "HOURS_PER_MONTH", "MIB", "SECONDS_PER_HOUR", "format_bytes", "format_duration", "format_usd"]

GB = 10**9
"""Bytes in a gigabyte, used for bandwidth [bytes]."""
GIB = 2**30
"""Bytes in a gibibyte, used for memory [bytes]."""
MIB = 2**20
"""Bytes in a mebibyte [bytes]."""
SECONDS_PER_HOUR = 3600.0
"""Seconds in an hour [s]."""
HOURS_PER_MONTH = 730.0
"""Hours in the month that monthly costs assume [h]."""


def format_bytes(num_bytes: float) -> str:
    """Format memory as GiB or MiB, e.g. ``131.4 GiB``."""
    if abs(num_bytes) >= GIB:
        return f"{num_bytes / GIB:.1f} GiB"
    return f"{num_bytes / MIB:.0f} MiB"


def format_duration(seconds: float) -> str:
    """Format a time with the unit that reads best, e.g. ``38 ms``, ``1.25 s``, ``58.6 min``."""
    if seconds != seconds:
        return "-"
    magnitude = abs(seconds)
    if magnitude < 0.01:
        return f"{seconds * 1e3:.2f} ms"
    if magnitude < 1.0:
        return f"{seconds * 1e3:.0f} ms"
    if magnitude < 120.0:
        return f"{seconds:.2f} s"
    if magnitude < 7200.0:
        return f"{seconds / 60:.1f} min"
    return f"{seconds / 3600:.1f} h"


def format_usd(usd: float) -> str:
    """Format dollars with as many digits as the size deserves, e.g. ``$0.482``, ``$12.30``, ``$8,614``."""
    if usd != usd:
        return "-"
    magnitude = abs(usd)
    if magnitude < 10:
        return f"${usd:.3f}"
    if magnitude < 1000:
        return f"${usd:.2f}"
    return f"${usd:,.0f}"
