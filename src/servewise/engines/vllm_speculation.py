"""How vLLM is told of a drafter."""

from __future__ import annotations

import json

from servewise.engines.launch import checked_name
from servewise.errors import InputError
from servewise.types import Speculation

__all__ = ["speculative_config"]


def speculative_config(speculation: Speculation) -> str:
    """Value of ``--speculative-config``, in JSON; acceptance is not an option, it comes out.

    Raises
    ------
    InputError
        When an EAGLE head has no name.

    Sources
    -------
    vLLM 0.32, ``vllm serve --help``; vLLM 0.33.0, ``config/speculative.py``: ``model``, ``method`` and
    ``num_speculative_tokens``; the name of the method by that of the head.
    """
    config: dict[str, str | int] = {"method": speculation.method}
    if speculation.draft_model is not None:
        config["model"] = checked_name(speculation.draft_model.name, "vllm serve")
    if speculation.method == "eagle":
        if not speculation.head_name:
            raise InputError("vLLM loads an EAGLE head by its name; set head_name")
        config["model"] = checked_name(speculation.head_name, "vllm serve")
        config["method"] = "eagle3" if "eagle3" in speculation.head_name.lower() else "eagle"
    config["num_speculative_tokens"] = speculation.num_speculative_tokens
    return json.dumps(config)
