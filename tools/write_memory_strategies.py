"""Write docs/memory-strategies.md: what the commands on it print, and the words around that.

    python -m tools.write_memory_strategies

Takes a minute, most of it compiling when the simulator is new.
"""

from __future__ import annotations

import contextlib
import io
import os
from pathlib import Path

from servewise.cli import main as servewise

__all__ = ["COMMANDS", "PAGE", "page"]

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "memory-strategies.md"
COMMANDS = {
    "8B": "servewise compare examples/rag.yaml --rate-rps 3",
    "70B": "servewise compare examples/chatbot.yaml --rate-rps 3.5",
}
"""By the model's size; run from the repository's root."""

TEXT = """# What memory strategies cost

Written by `python -m tools.write_memory_strategies`; a test holds the tables against what the commands print. All of it
is simulated. Nobody runs the [textbook baselines](baseline-schedulers.md) today; they are given vLLM's kernels, so that
only the strategy differs.

A KV cache can be handed out in four ways:

| way | who | what is set aside for a request |
|---|---|---|
| contiguous | `static`, `orca` | a slot of the longest length; with `static` until the whole batch has ended |
| declared | TensorRT-LLM (`GUARANTEED_NO_EVICT`), TGI | whole blocks for its prompt and the declared `max_tokens` |
| paged | vLLM, `sarathi` | whole blocks for the tokens there are: less than a block is empty |
| by token | SGLang (pages of one token) | the tokens there are |

The columns are defined in the [glossary](glossary.md#memory-over-time). *Unused of reserved* says how wasteful one is,
*unused/KV* what that does to the memory there is, on average over the run and at its peak. Memory that is set aside and
empty takes no requests: *peak running* shows it, and the latencies follow. *Prefix saved* is what was not computed and
stored again because an earlier request had it.

Memory is not all that differs. `static` also waits for whole batches and pads prompts, `orca` computes whole prompts
beside decode rows, `sarathi` cuts them at 512 tokens, and the engines have budgets, kernels and overheads of their own
([vLLM](vllm-scheduler.md), [SGLang and TensorRT-LLM](reserving-scheduler.md)). Only `vllm without cache` against `vllm`
isolates one thing.

## An 8B model

A retrieval-augmented assistant with shared system prompts on one GPU:

```sh
{command_8b}
```

```text
{output_8b}```

## A 70B model

A chatbot with the traffic of Azure's conversation trace, about whose prefixes nothing is known:

```sh
{command_70b}
```

```text
{output_70b}```

`--json` prints the same and more as a document. `--gpu` and `--tp` choose another replica, `--rate-rps` another load;
the service file says everything else.
"""


def printed(command: str) -> str:
    """What a command prints on stdout, from the repository's root."""
    text = io.StringIO()
    with contextlib.chdir(ROOT), contextlib.redirect_stdout(text), contextlib.suppress(SystemExit):
        servewise(command.split()[1:])
    return text.getvalue()


def page() -> str:
    """The whole page."""
    parts = {f"command_{size.lower()}": command for size, command in COMMANDS.items()}
    parts |= {f"output_{size.lower()}": printed(command) for size, command in COMMANDS.items()}
    return TEXT.format(**parts)


if __name__ == "__main__":
    os.environ.pop("COLUMNS", None)
    PAGE.write_text(page(), encoding="utf-8")
