"""What a quantized or smaller model loses against its base on the user's own prompts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from servewise.types.measurement import Endpoint
from servewise.types.promise import Estimate

__all__ = [
    "AnswerPair",
    "AnswerTexts",
    "PromptComparison",
    "QualityComparison",
    "QualityFigure",
    "QualityVerdict",
    "TaskScore",
    "TaskSide",
]

QualityVerdict = Literal["loss seen", "no loss seen", "not trustworthy"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerPair:
    """One answer against the base's own to the same prompt, and what would be said at each position of the latter.

    Parameters
    ----------
    exact : bool
        The same answer to its end.
    common : int
        Tokens (characters where the tokenizers differ) until the first difference.
    common_frac : float
        The same as a share of the longer answer; 1 when both are empty.
    length : int
        Of this answer, in the same unit.
    hit_max : bool
        Ended only because it was as long as was asked for.
    num_positions : int
        Positions of the base's answer at which the next token was compared; 0 when none was.
    num_agree : int
        Positions at which both find the same token most probable.
    kl_sum_nats : float [nats]
        KL(base || other) summed over the positions: a lower bound of it, see
        :func:`servewise.quality.divergence.compare_step`.
    worst_kl_nats : float [nats]
    worst_position : int
        Where it is highest; -1 without positions.
    num_outside : int
        Positions at which the other server did not name the base's most probable token among its own.
    bucket_sum : float
        The base's probability of what one of the two did not name, summed over the positions.
    """

    exact: bool
    common: int
    common_frac: float
    length: int
    hit_max: bool
    num_positions: int = 0
    num_agree: int = 0
    kl_sum_nats: float = 0.0
    worst_kl_nats: float = 0.0
    worst_position: int = -1
    num_outside: int = 0
    bucket_sum: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerTexts:
    """Texts, where the user asked for them."""

    prompt: str
    base: str
    candidate: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptComparison:
    """One prompt.

    Parameters
    ----------
    line : int
        Of the prompts' file, from 1.
    base_length : int
        Of the base's answer, in tokens (characters where the tokenizers differ).
    base_hit_max : bool
    candidate : AnswerPair
        The candidate's answer against the base's.
    again : AnswerPair
        The base's second answer against its first.
    texts : AnswerTexts or None
    """

    line: int
    base_length: int
    base_hit_max: bool
    candidate: AnswerPair
    again: AnswerPair
    texts: AnswerTexts | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityFigure:
    """One figure with 95% intervals over prompts; their ends are NaN of one prompt, and of a KL or a length of 0.

    Parameters
    ----------
    name : str
        ``agreement``, ``kl_nats``, ``exact_match``, ``common_prefix``, ``length_ratio`` or ``hit_max``.
    candidate : Estimate
        The candidate against the base.
    noise : Estimate
        The base against itself.
    excess : Estimate
        The first minus the second, prompt by prompt: 0 lies outside of it when more than noise was seen.
    """

    name: str
    candidate: Estimate
    noise: Estimate
    excess: Estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSide:
    """A server's score in a standard task, with the standard error that the harness gives (NaN when it gives none)."""

    score: float
    stderr: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskScore:
    """A standard task by lm-evaluation-harness.

    Parameters
    ----------
    task, metric : str
        As the harness calls them, the metric with its filter, e.g. ``exact_match,strict-match``.
    higher_is_better : bool
    num_samples : int
        Questions asked; -1 when the harness does not say.
    base, candidate : TaskSide
    recovery_pct : Estimate [%]
        Candidate's score in percent of the base's, where more is better and the base scored at all; else NaN. Its
        number of samples is that of the questions that were paired: 0 where the interval treats both scores as
        independent, which makes it wider.
    """

    task: str
    metric: str
    higher_is_better: bool
    num_samples: int
    base: TaskSide
    candidate: TaskSide
    recovery_pct: Estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityComparison:
    """A candidate against its base.

    Parameters
    ----------
    base, candidate : Endpoint
    started : str
        ISO time in UTC.
    settings : mapping of str to int, str or bool
        What was asked: ``prompts_file``, ``prompts_digest``, ``max_tokens``, ``top_logprobs``, ``positions`` (0: all),
        ``concurrency``, ``seed``, ``raw``.
    verdict : QualityVerdict
    reasons : tuple of str
        What makes the figures not trustworthy; empty when nothing does.
    notes : tuple of str
        What a reader must know of them.
    unit : {'tokens', 'characters'}
        In which answers are compared: characters when the tokenizers differ or are not known.
    num_asked, num_failed : int
        Prompts, and those without an answer that could be compared.
    figures : tuple of QualityFigure
    prompts : tuple of PromptComparison
        In the file's order.
    failures : tuple of (int, str)
        Line and reason.
    interrupted : bool
    min_agreement : float or None
        The least top-token agreement that the user asks for.
    standing : str
        ``kept``, ``broken`` or ``too few to tell`` when there is such a limit, else empty.
    tasks : tuple of TaskScore
    """

    base: Endpoint
    candidate: Endpoint
    started: str
    settings: Mapping[str, int | str | bool]
    verdict: QualityVerdict
    reasons: tuple[str, ...]
    notes: tuple[str, ...]
    unit: Literal["tokens", "characters"]
    num_asked: int
    num_failed: int
    figures: tuple[QualityFigure, ...]
    prompts: tuple[PromptComparison, ...]
    failures: tuple[tuple[int, str], ...]
    interrupted: bool = False
    min_agreement: float | None = None
    standing: str = ""
    tasks: tuple[TaskScore, ...] = ()
