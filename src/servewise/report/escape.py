"""Make untrusted text safe to show: control characters become visible, markup stays text."""

from __future__ import annotations

import html
import json
import math
import unicodedata
from typing import Any

__all__ = ["finite", "html_text", "json_in_html", "visible"]


def visible(text: str, *, keep: str = "") -> str:
    r"""Replace control and direction-changing characters with escapes, e.g. ESC with ``\x1b``.

    Parameters
    ----------
    text : str
    keep : str
        Control characters to leave as they are, e.g. a newline.
    """
    return "".join(c if c in keep or not _is_control(c) else _escaped(c) for c in text)


def _is_control(character: str) -> bool:
    return unicodedata.category(character) in {"Cc", "Cf", "Cs", "Co", "Zl", "Zp"}


def _escaped(character: str) -> str:
    code = ord(character)
    if code <= 0xFF:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


def html_text(text: object, *, keep: str = "") -> str:
    """Text for an element or a quoted attribute of a page."""
    return html.escape(visible(str(text), keep=keep), quote=True)


def finite(value: Any) -> Any:
    """The same with null for numbers that JSON does not know; a figure leaves them out."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value


def json_in_html(value: Any) -> str:
    r"""JSON for a script element: ``<``, ``>``, ``&`` and line separators are ``\u`` escapes, NaN and infinity null."""
    text = json.dumps(finite(value), allow_nan=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text
