"""A candidate against its base: every prompt is answered by both, and by the base twice."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from queue import Empty, SimpleQueue
from typing import Final, Literal, TypeVar

from servewise.errors import InputError, MeasurementError
from servewise.quality.figures import figures, loss_seen, standing
from servewise.quality.pairs import answer_pair, chosen_positions, with_steps
from servewise.quality.prompts import Prompt
from servewise.quality.servers import Answer
from servewise.quality.way import Asked, Side, Way, find_way
from servewise.types import AnswerTexts, PromptComparison, QualityComparison

__all__ = ["compare_quality"]

MAX_FAILED_FRAC: Final = 0.05
"""Share of prompts without a result above which the others cannot stand for all: the long ones fail first."""
FEW_PROMPTS: Final = 30
"""Below this, intervals cannot be relied on."""
ASK_S: Final = 0.1
"""How often is looked whether the user stopped the run."""
Result = TypeVar("Result")
_Ending = tuple[Prompt, tuple[PromptComparison, bool] | Exception]
"""A prompt with its figures and whether the candidate's template makes other tokens of it, or what went wrong."""


class _StoppedError(Exception):
    """The user stopped the run."""


def compare_quality(
    base: Side,
    candidate: Side,
    prompts: Sequence[Prompt],
    asked: Asked,
    *,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> QualityComparison:
    """Let both servers answer each prompt greedily, and find what the candidate would have said at the base's places.

    Parameters
    ----------
    base, candidate : Side
    prompts : sequence of Prompt
        At least one.
    asked : Asked
    progress : callable
        Called with the prompts done and in all.

    Returns
    -------
    QualityComparison
        Of the prompts that were finished when the user pressed Ctrl-C, then with ``interrupted`` set.

    Raises
    ------
    InputError
        When one server has a chat template and the other has none.
    MeasurementError
        When no prompt could be compared.
    """
    is_raw = {side.endpoint.api == "openai-completions" for side in (base, candidate)}
    if len(is_raw) > 1:
        raise InputError("one of the servers has no chat template; ask both without one: add --raw")
    has_templates = not is_raw.pop()
    if not has_templates and (turns := next((prompt for prompt in prompts if len(prompt.messages) > 1), None)):
        raise InputError(
            f"line {turns.line} has several messages, and the servers have no chat template to put them in"
        )
    asked = replace(asked, raw=not has_templates)
    started = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
    way = find_way(base, candidate, prompts, asked)
    run = _Run(way, asked)
    interrupted = run.all(prompts, progress)
    if interrupted and not run.done:
        raise KeyboardInterrupt("no prompt was finished")
    if not run.done:
        line, why = run.failures[0]
        none = f"none of {len(prompts):,} prompts could be compared; that in line {line}: {why}"
        raise MeasurementError("; ".join((none, *way.notes)))
    order = sorted(run.done, key=lambda prompt: prompt.line)
    found = figures(order, seed=asked.seed)
    unit: Literal["tokens", "characters"] = "characters" if way.tokens is None else "tokens"
    reasons = _reasons(len(order), run.failures)
    verdict: Literal["loss seen", "no loss seen"] = "loss seen" if loss_seen(found) else "no loss seen"
    return QualityComparison(
        base=base.endpoint,
        candidate=candidate.endpoint,
        started=started,
        settings={
            "max_tokens": asked.max_tokens,
            "top_logprobs": asked.top,
            "positions": way.positions or 0,
            "concurrency": asked.concurrency,
            "seed": asked.seed,
            "raw": asked.raw,
        },
        verdict="not trustworthy" if reasons else verdict,
        reasons=reasons,
        notes=(*way.notes, *_notes(order, run, way, asked)),
        unit=unit,
        num_asked=len(prompts),
        num_failed=len(run.failures),
        figures=found,
        prompts=tuple(order),
        failures=tuple(sorted(run.failures)),
        interrupted=interrupted,
        min_agreement=asked.min_agreement,
        standing="" if asked.min_agreement is None else standing(found, asked.min_agreement),
    )


def _reasons(num_done: int, failures: Sequence[tuple[int, str]]) -> tuple[str, ...]:
    reasons = []
    num = num_done + len(failures)
    if len(failures) > MAX_FAILED_FRAC * num:
        line, why = min(failures)
        reasons.append(
            f"{len(failures):,} of {num:,} prompts failed, the others may not be like them; line {line}: {why}"
        )
    if num_done < 2:
        reasons.append("one prompt says nothing about others")
    return tuple(reasons)


def _notes(done: Sequence[PromptComparison], run: _Run, way: Way, asked: Asked) -> list[str]:
    """What a reader must know of the figures."""
    notes = ["prompts were sent as they are, without a chat template"] if asked.raw else []
    num = sum(prompt.candidate.num_positions for prompt in done)
    if num:
        bucket = sum(prompt.candidate.bucket_sum for prompt in done) / num
        outside = sum(prompt.candidate.num_outside for prompt in done)
        notes.append(
            "KL is a lower bound: servers name the most probable tokens only, the rest is taken as one; it held"
            f" {bucket:.2%} of the base's probability on average, and at {outside:,} of {num:,} positions the base's"
            " most probable token was in it"
        )
    if way.positions is not None and num:
        notes.append(f"at most {way.positions} positions of each answer were compared, evenly spread")
    if run.num_other_templates:
        notes.append(
            f"{run.num_other_templates:,} prompts are other tokens to the candidate: its chat template, or what it puts"
            " before a text, is another. That is part of how its answers differ; position by position both saw the"
            " base's tokens"
        )
    cut = sum(prompt.base_hit_max for prompt in done)
    if cut:
        notes.append(f"{cut:,} of {len(done):,} answers of the base were cut at the most tokens that were asked for")
    if len(done) < FEW_PROMPTS:
        notes.append(f"{len(done)} prompts are few: intervals of fewer than {FEW_PROMPTS} cannot be relied on")
    return notes


def _first(ended: SimpleQueue[_Ending]) -> _Ending:
    """The next that has ended. polars has system calls restarted after Ctrl-C: only one that ends by itself sees it."""
    while True:
        with suppress(Empty):
            return ended.get(timeout=ASK_S)


class _Run:
    """Prompts under way. Prompts are independent: each ends with all of its figures, or with a reason."""

    def __init__(self, way: Way, asked: Asked) -> None:
        self._way = way
        self._asked = asked
        self._stop = threading.Event()
        self.done: list[PromptComparison] = []
        self.failures: list[tuple[int, str]] = []
        self.num_other_templates = 0

    def all(self, prompts: Sequence[Prompt], progress: Callable[[int, int], None]) -> bool:
        """Compare prompts; whether the user stopped it before the end."""
        progress(0, len(prompts))
        left: SimpleQueue[Prompt] = SimpleQueue()
        for prompt in prompts:
            left.put(prompt)
        ended: SimpleQueue[_Ending] = SimpleQueue()
        for _ in range(min(self._asked.concurrency, len(prompts))):
            # a pool's threads would be waited for at the end, and with them requests that may take minutes
            threading.Thread(target=self._work, args=(left, ended), daemon=True).start()
        interrupted = False
        try:
            for num_ended in range(1, len(prompts) + 1):
                self._take(*_first(ended))
                progress(num_ended, len(prompts))
        except KeyboardInterrupt:
            interrupted = True
        finally:
            self._stop.set()
        while not ended.empty():
            self._take(*ended.get())
        return interrupted

    def _work(self, left: SimpleQueue[Prompt], ended: SimpleQueue[_Ending]) -> None:
        """Prompts one after another, until none is left or the user stopped the run."""
        while not self._stop.is_set():
            try:
                prompt = left.get_nowait()
            except Empty:
                return
            try:
                ended.put((prompt, self._one(prompt)))
            except Exception as error:  # noqa: BLE001 - raised again where the thread's result is taken
                ended.put((prompt, error))

    def _take(self, prompt: Prompt, found: tuple[PromptComparison, bool] | Exception) -> None:
        if isinstance(found, MeasurementError):
            self.failures.append((prompt.line, str(found)))
        elif isinstance(found, tuple):
            self.done.append(found[0])
            self.num_other_templates += found[1]
        elif not isinstance(found, _StoppedError):
            raise found

    def _one(self, prompt: Prompt) -> tuple[PromptComparison, bool]:
        """One prompt's figures, and whether the candidate's chat template makes other tokens of it."""
        way, asked = self._way, self._asked
        if way.tokens is None:
            servers = (way.base, way.base, way.candidate)
            said = [self._go(server.answer, prompt, asked.max_tokens, asked.seed) for server in servers]
            return self._compared(prompt, *said), False
        base, candidate = way.tokens
        own, others = (self._go(server.prompt_tokens, prompt) for server in way.tokens)
        places = ((base, own), (base, own), (candidate, others))
        said = [self._go(server.answer_tokens, ids, asked.max_tokens, asked.seed) for server, ids in places]
        found = self._compared(prompt, *said)
        positions = chosen_positions(said[0], way.positions)
        if way.forced and positions:
            answer = (said[0].tokens or ())[: positions[-1]]
            first, second, theirs = (
                self._go(server.distributions, own, answer, positions, asked.top) for server in (base, base, candidate)
            )
            found = replace(
                found,
                candidate=with_steps(found.candidate, positions, first, theirs),
                again=with_steps(found.again, positions, first, second),
            )
        return found, own != others

    def _go(self, ask: Callable[..., Result], *args: object) -> Result:
        """The next request, unless the user stopped the run."""
        if self._stop.is_set():
            raise _StoppedError
        return ask(*args)

    def _compared(self, prompt: Prompt, base: Answer, again: Answer, candidate: Answer) -> PromptComparison:
        texts = AnswerTexts(prompt=prompt.text, base=base.text, candidate=candidate.text)
        return PromptComparison(
            line=prompt.line,
            base_length=len(base.text if base.tokens is None else base.tokens),
            base_hit_max=base.hit_max,
            candidate=answer_pair(base, candidate),
            again=answer_pair(base, again),
            texts=texts if self._asked.keep_text else None,
        )
