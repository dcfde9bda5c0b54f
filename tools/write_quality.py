"""Write docs/quality.md: how much of its score a model keeps, and what models score, from data/quality.

python tools/write_quality.py
"""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TABLE = ROOT / "src" / "servewise" / "data" / "quality" / "recovery.csv"
SCORES = ROOT / "src" / "servewise" / "data" / "quality" / "scores.csv"
PUBLISHED = ROOT / "tools" / "data" / "quality_published.csv"
PAGE = ROOT / "docs" / "quality.md"
SIZES = ("small", "medium", "large", "any")
KINDS = ("knowledge", "math", "code", "long-context", "chat", "any")

HEAD = """# How much quality a precision keeps

Written by `python tools/write_quality.py` from `data/quality/recovery.csv` and `scores.csv`; a test holds the page
against them.

Question 2 of a service file, `quality: {min_recovery_pct: 99, tasks: [math, code]}`, is answered from published
results: the score of the quantized model as a share of the score of the same model in bf16 (or as its authors publish
it). The table gives the median, in brackets the 10th and 90th percentile, and how many results of how many models it
rests on. 100 is the ceiling. The percentiles include the noise of the benchmarks, which is a point or two for one
model and one benchmark. Few results mean a range that may move. About half of all results are of knowledge, so *all
kinds* says most about that. What a checkpoint loses on your own prompts can be [measured](measuring-quality.md).

## Kinds of task

| kind | benchmarks |
|---|---|
| `knowledge` | MMLU, MMLU-Pro, C-Eval, CMMLU, ARC, HellaSwag, Winogrande, TruthfulQA, PIQA, BoolQ, LAMBADA, and such |
| `math` | mathematics and reasoning: GSM8K, MATH, AIME, GPQA, BBH, MuSR |
| `code` | HumanEval, MBPP, LiveCodeBench, SWE-bench |
| `long-context` | RULER at 128K |
| `chat` | following instructions: IFEval, Arena-Hard |

Sizes are total parameters: small below 4, medium below 20, large from 20 billion.

## The table

"""

TAIL = """
## How a floor is applied

1. For each kind in `tasks` (none: all kinds together) the finest cell with at least 5 results is taken: the kind and
   the model's size, the kind and all sizes, all kinds and the model's size, all kinds and all sizes. The plan says
   which.
2. A precision is dropped when the median is below the floor in any of the kinds.
3. It is *at risk* when a 10th percentile is below the floor, when a kind had to be taken from all kinds, when the cell
   rests on one model, or when the combination of weights and KV cache was not measured.
4. The plan shows the kind that keeps least.

## Where the results come from

The collection of engines' repositories and documentation that `data/quality/recovery.csv` names, and
{num_published} results transcribed into `tools/data/quality_published.csv`, each with its source: {num_cards} model
cards of Red Hat AI (formerly Neural Magic), and the tables of "Quantitative Analysis of Performance Drop in
DeepSeek Model Quantization" (arXiv:2505.02390) in its authors' repository. The cards were read in stored copies,
since the originals could not be reached; the column `note` says for each whether the original or a second copy was
seen to agree. Of the others there is one copy, which does not name its repository: the address follows from the
model's name. From all cards only rows were taken whose printed recovery follows from the two scores within their
rounding; where a card prints the average of its OpenLLM v1 scores and none of them is missing (24 cards), it
follows from them, too. So an altered digit would have shown, unless it is in the rounding. Averages over benchmarks
that are listed, and most scores below 40%, were left out. `tools/derive_quality.py` says which results count.

Not in the table, because the figures are averages, ranges or could not be checked:

- Long inputs hurt 4-bit weights more than these cells show. Over five models, five methods and inputs from 64K
  tokens 8-bit weights lost about 0.8% on average, 4-bit ones up to 59% on some tasks (arXiv:2505.20276). The
  long-context cells rest on one model, so a precision chosen by them is always at risk: measure your own task.
- NVIDIA's NVFP4 checkpoints of DeepSeek-R1-0528: their cards compare with scores that another party measured.
- Perplexity and divergence of GGUF types: no way is known to turn them into accuracy. So `q4_0` has no figure.
"""


SCORES_HEAD = """
## Scores of models

How much a precision keeps does not say how good the model is. So that a large model in 4 bits and a small one in 16
stand side by side, `data/quality/scores.csv` has published scores of the catalog's models, each with its source and
how it was asked. A plan multiplies a model's score with the recovery of the precision on that kind of task.

1. Scores compare within one *evaluation*: the same publisher, prompts, shots and sampling. Of each benchmark the plan
   takes the evaluation that scored most of its models; a model that this one left out brings a score of another
   evaluation, which the plan says, or none: *not comparable*.
2. Of each kind of task one benchmark is shown: the one on which one evaluation scored most of the models, then the one
   on which most have any score. `tasks` restricts the kinds; benchmarks of your own and those with a floor are
   always shown.
3. `quality.scores` in the service file replaces published scores with your own, or adds a benchmark.
   Your own scores compare with each other, not with published ones.
4. `quality.min_scores` drops a model in a precision whose score typically falls below; where its lower end does, or the
   score or the recovery is not known, it is *at risk*.

A score says little about your task: measure that, and give it as your own. Scores in thinking mode come with answers
that are many times longer; the traffic that is planned for must have them. A name in the catalog may stand for several
checkpoints of the same shapes; the scores are those of the one that is named. GPQA of Llama 3.1 and 3.2 is left out of
Meta's scores, since its cards contradict each other; HumanEval and MBPP of gemma-2-2b-it, printed as those of the 9B
model; gpt-oss-20b, for want of a second copy of its card.

"""


def scores_section() -> str:
    """A table an evaluation: models in rows, benchmarks in columns."""
    found: dict[str, dict[str, dict[str, str]]] = defaultdict(lambda: defaultdict(dict))
    sources: dict[str, dict[str, None]] = defaultdict(dict)
    with SCORES.open(newline="", encoding="utf-8") as stream:
        for row in csv.DictReader(stream):
            report, benchmark = row["field"].split("/")
            found[report][row["entity"]][benchmark] = row["value"]
            sources[report][row["source"]] = None
    text = SCORES_HEAD
    for report, models in found.items():
        names = list(dict.fromkeys(name for scores in models.values() for name in scores))
        text += f"### {report}\n\n{', '.join(f'<{source}>' for source in sources[report])}\n\n"
        text += f"| model | {' | '.join(names)} |\n|---|{'---|' * len(names)}\n"
        for model, scores in models.items():
            text += f"| {model} | {' | '.join(scores.get(name, '') for name in names)} |\n"
        text += "\n"
    return text.rstrip("\n") + "\n"


def cells(path: Path) -> Mapping[str, Mapping[str, Mapping[str, str]]]:
    """Fields by scheme and by ``kind/size``."""
    found: dict[str, dict[str, dict[str, str]]] = defaultdict(lambda: defaultdict(dict))
    with path.open(newline="", encoding="utf-8") as stream:
        for row in csv.DictReader(stream):
            scheme, cell = row["entity"].split("/", 1)
            found[scheme][cell][row["field"]] = row["value"]
    return found


def words(fields: Mapping[str, str] | None) -> str:
    """A cell, e.g. ``99.9 [98.8, 100.0] 79/13``."""
    if fields is None:
        return ""
    low, typical, high = (f"{float(fields[name]):.1f}" for name in ("low", "typical", "high"))
    return f"{typical} [{low}, {high}] {fields['num_results']}/{fields['num_models']}"


def page() -> str:
    """The text of docs/quality.md."""
    lines = ["| precision | kind | small | medium | large | all sizes |", "|---|---|---|---|---|---|"]
    for scheme, found in cells(TABLE).items():
        for kind in KINDS:
            row = [words(found.get(f"{kind}/{size}")) for size in SIZES]
            if any(row):
                lines.append(f"| `{scheme}` | {'all kinds' if kind == 'any' else kind} | {' | '.join(row)} |")
    with PUBLISHED.open(newline="", encoding="utf-8") as stream:
        sources = [row["source"] for row in csv.DictReader(stream)]
    num_cards = len({source for source in sources if "huggingface.co/RedHatAI" in source})
    tail = TAIL.format(num_published=len(sources), num_cards=num_cards)
    return HEAD + "\n".join(lines) + "\n" + tail + scores_section()


def main() -> None:
    """Write the page."""
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
