"""Measuring a server: what is found out once, and a run of each load."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import replace
from datetime import UTC, datetime
from types import TracebackType
from typing import Final, Self

import numpy as np

from servewise.errors import InputError
from servewise.measure.apis import FORCED
from servewise.measure.discover import Discovery, discover
from servewise.measure.progress import Progress
from servewise.measure.prompts import WorkloadPrompts
from servewise.measure.runner import Run, Team, run_load
from servewise.measure.scrape import Scraper, compare_views
from servewise.measure.spec import LoadSpec
from servewise.measure.tokens import Wording, find_wording
from servewise.net.plain import PlainClient
from servewise.traffic import select_requests
from servewise.types import Api, Measurement, RequestStatus, Trust, Workload

__all__ = ["Session"]

MAX_INPUT_DRIFT_FRAC: Final = 0.01
"""Mean distance of prompts from their intended length above which a reader must know."""
MIN_OUTPUT_FRAC: Final = 0.99
"""Share of the intended output tokens below which a reader must know."""


class Session:
    """A server that loads are sent to.

    Parameters
    ----------
    base_url : str
        See :func:`servewise.net.address.base_url`.
    model, api : optional
        See :func:`servewise.measure.discover.discover`.
    api_key : str, optional
    stream : bool
        False asks for answers in one piece: E2E alone is measured.
    workers : int
        Processes that share the load.
    ray_address : str, optional
        Cluster whose machines share the load instead; see :class:`servewise.measure.on_ray.RayTeam`.

    Raises
    ------
    InputError, MeasurementError
        See :func:`servewise.measure.discover.discover`.
    """

    def __init__(
        self,
        base_url: str,
        *,
        model: str | None = None,
        api: Api | None = None,
        api_key: str | None = None,
        stream: bool = True,
        temperature: float | None = None,
        workers: int = 1,
        ray_address: str | None = None,
    ) -> None:
        self._api_key = api_key
        self._workers = workers
        with ExitStack() as stack:
            client = stack.enter_context(PlainClient(base_url, api_key=api_key))
            found = discover(client, base_url, model=model, api=api, stream=stream)
            self.discovery: Discovery = replace(found, endpoint=replace(found.endpoint, temperature=temperature))
            engine = self.discovery.endpoint.engine
            self._scraper = stack.enter_context(Scraper(base_url, engine, api_key=api_key))
            self.wording: Wording = find_wording(client, self.discovery.endpoint)
            self._team: Team | None = None
            if ray_address is not None:
                from servewise.measure.on_ray import RayTeam

                self._team = stack.enter_context(closing(RayTeam(ray_address)))
            self._stack = stack.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def run(
        self, spec: LoadSpec, *, name: str, seed: int, progress: Callable[[Progress], None] | None = None
    ) -> Measurement:
        """Send a load and keep what came back.

        Parameters
        ----------
        spec : LoadSpec
        name : str
        seed : int
            Of arrivals, lengths and words. A server that caches prefixes knows the prompts of a seed it has seen.
        progress : callable taking a Progress, optional

        Raises
        ------
        InputError
            When a request is longer than the server's context.
        """
        endpoint = self.discovery.endpoint
        asked = spec.make_workload(seed)
        workload = self._within_context(asked, skip=spec.skip_longer)
        prompts = WorkloadPrompts(workload, endpoint, self.wording, seed=seed)
        load = spec.make_load(workload)
        # a worker without a place in a closed loop would never send its part
        workers = min(self._workers, workload.num_requests, load.concurrency or self._workers)
        self._scraper.start()
        started = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
        run = run_load(
            endpoint, load, prompts, api_key=self._api_key, workers=workers, progress=progress, team=self._team
        )
        metrics = self._scraper.stop(run.start_ns / 1e9)
        measured = Measurement(
            name=name,
            endpoint=endpoint,
            load_words=f"{spec.words()}, seed {seed}",
            started=started,
            log=run.log,
            details=run.details,
            chunks=run.chunks,
            trust=run.trust,
            server_metrics=metrics,
            counted_s=(spec.warm_up_s, np.inf),
            interrupted=run.interrupted,
        )
        trust = self._trust(run, workload, measured)
        if skipped := asked.num_requests - workload.num_requests:
            words = f"{skipped:,} of {asked.num_requests:,} requests are longer than the server's context: not sent"
            trust = replace(trust, notes=(words, *trust.notes))
        return replace(measured, trust=trust)

    def _within_context(self, workload: Workload, *, skip: bool) -> Workload:
        """The requests that the server can take; all of them, unless others may be skipped."""
        tokens = workload.input_tokens + workload.output_tokens
        context = self.discovery.max_context_tokens
        if context is None or int(np.max(tokens)) <= context:
            return workload
        fits = np.flatnonzero(tokens <= context)
        if skip and len(fits):
            return select_requests(workload, fits)
        raise InputError(
            f"the longest request has {int(np.max(tokens)):,} tokens with its answer, the server takes {context:,};"
            " shorten the requests, skip the longer ones, or give the server a longer context"
        )

    def _trust(self, run: Run, workload: Workload, measured: Measurement) -> Trust:
        """The runner's verdict on the client, with what server, prompts and window add."""
        view = compare_views(measured.server_metrics, run.log, run.details)
        facts = dict(run.trust.facts) | dict(view.facts)
        notes = [*run.trust.notes, *view.notes]
        reasons = [*run.trust.reasons, *view.reasons]
        _input_lengths(run, self.wording, facts, notes)
        _output_lengths(run, workload, self.discovery.endpoint.engine, facts, notes)
        steady = _steady_tokens_per_s(run, measured.counted_s[0])
        if steady is not None:
            facts["steady_output_tokens_per_s"] = steady
        if run.log.num_requests and not np.any(run.log.intended_s >= measured.counted_s[0]):
            reasons.append("no request was sent after the warm-up; measure for longer")
        return Trust(reasons=tuple(reasons), notes=tuple(notes), facts=facts)


def _input_lengths(run: Run, wording: Wording, facts: dict[str, float], notes: list[str]) -> None:
    """Intended against actual tokens of the prompts."""
    known = run.log.input_tokens > 0
    if not known.any():
        if not wording.exact:
            notes.append(f"the lengths of the prompts rest on {wording.source}, and the server does not count them")
        return
    intended = run.details.intended_input_tokens[known]
    drift = run.log.input_tokens[known] / np.maximum(intended, 1) - 1.0
    facts["input_drift_mean_frac"] = float(np.mean(drift))
    facts["input_drift_max_frac"] = float(drift[np.argmax(np.abs(drift))])
    if np.mean(np.abs(drift)) > MAX_INPUT_DRIFT_FRAC:
        notes.append(
            f"prompts had {np.mean(run.log.input_tokens[known]):,.1f} tokens on average, {np.mean(intended):,.1f} were"
            f" meant (known from {wording.source})"
        )


def _output_lengths(run: Run, workload: Workload, engine: str, facts: dict[str, float], notes: list[str]) -> None:
    """Intended against actual tokens of the answers."""
    known = (run.log.status == RequestStatus.OK) & (run.log.output_tokens >= 0)
    if not known.any():
        return
    intended = workload.output_tokens[run.details.request[known]]
    share = float(np.sum(run.log.output_tokens[known]) / np.sum(intended))
    facts["output_of_intended_frac"] = share
    if share < MIN_OUTPUT_FRAC or share > 2.0 - MIN_OUTPUT_FRAC:
        why = "" if engine in FORCED else "; this engine cannot be told to answer at full length"
        notes.append(f"answers had {share:.1%} of the tokens that were meant{why}")


def _steady_tokens_per_s(run: Run, low_s: float) -> float | None:
    """Output tokens per second [1/s] from the warm-up's end to the last send, while the load was whole.

    None when tokens are unknown, came in one piece, or the time is too short to hold any.
    """
    log, offsets = run.log, run.chunks.offsets
    num_chunks = np.diff(offsets)
    high_s = float(log.sent_s.max()) if log.num_requests else low_s
    if high_s <= low_s or not len(run.chunks.time_s) or np.any(log.output_tokens[num_chunks > 0] < 0):
        return None
    tokens_per_chunk = log.output_tokens / np.maximum(num_chunks, 1)
    within = (run.chunks.time_s > low_s) & (run.chunks.time_s <= high_s)
    return float(np.sum(np.repeat(tokens_per_chunk, num_chunks)[within]) / (high_s - low_s))
