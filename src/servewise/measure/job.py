"""The three ways to measure: one load, several, or the highest that keeps a promise; with what is kept on disk."""

from __future__ import annotations

import dataclasses
import json
import math
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from servewise.errors import InputError
from servewise.measure.apis import API_OF_PATH
from servewise.measure.loads import MAX_REQUESTS
from servewise.measure.progress import Progress
from servewise.measure.session import Session
from servewise.measure.spec import LoadSpec
from servewise.measure.sweep import is_judged, search_edge
from servewise.metrics import counted_log, summarize
from servewise.net.address import api_key, base_url, path_of
from servewise.net.server import is_local, parse_server
from servewise.store import SweepFolder, check_run_parent, new_run_dir, write_measurement
from servewise.types import Api, Edge, Measurement, Promise, Summary, Sweep, SweepPoint

__all__ = ["MeasureResult", "SweepResult", "Target", "find_max", "measure", "measure_loads"]

Report = Callable[[str, Progress], None]
"""Takes the run in words, and how far it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A server, and how it is asked.

    Parameters
    ----------
    url : str
        Address, with or without the path of an API, which then is the one that is used.
    model : str or None
        Needed when the server has several.
    api : Api or None
        None takes the engine's own.
    key_env : str or None
        Environment variable that holds the key; no key is sent without it.
    stream : bool
        False asks for answers in one piece: E2E alone is measured.
    temperature : float or None
        Of sampling; None leaves the server's own, which is what its other clients get.
    workers : int
        Processes that share the load.
    ray_address : str or None
        Ray cluster whose machines share the load.

    Raises
    ------
    InputError
        When the address is none, or holds a password.
    """

    url: str
    model: str | None = None
    api: Api | None = None
    key_env: str | None = None
    stream: bool = True
    temperature: float | None = None
    workers: int = 1
    ray_address: str | None = None

    def __post_init__(self) -> None:
        base_url(self.url)

    @property
    def base_url(self) -> str:
        """The address before the API's own path."""
        return base_url(self.url)

    @property
    def is_local(self) -> bool:
        """Whether it is this machine."""
        return is_local(parse_server(self.base_url))

    @property
    def shows_key(self) -> bool:
        """Whether a key would be sent where others can read it."""
        return self.key_env is not None and not self.is_local and self.base_url.startswith("http:")

    def open(self) -> Session:
        """Find out what answers there."""
        return Session(
            self.base_url,
            model=self.model,
            api=self.api or API_OF_PATH.get(path_of(self.url)),
            api_key=api_key(self.key_env),
            stream=self.stream,
            temperature=self.temperature,
            workers=self.workers,
            ray_address=self.ray_address,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureResult:
    """A measurement with what was made of it.

    Parameters
    ----------
    measurement : Measurement
    summary : Summary or None
        Of the requests that count; None when there are none.
    promise : Promise or None
        What the summary was judged by; None when nothing was promised.
    run_dir : Path or None
        Where it is kept.
    """

    measurement: Measurement
    summary: Summary | None
    promise: Promise | None
    run_dir: Path | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepResult:
    """Runs of several loads, and where they are kept.

    Parameters
    ----------
    sweep : Sweep
    run_dir : Path or None
    """

    sweep: Sweep
    run_dir: Path | None

    @property
    def trustworthy(self) -> bool:
        """Whether all runs can be trusted; of a search, whether it came to its end."""
        if self.sweep.edge is not None:
            return is_judged(self.sweep.points[-1])
        return all(point.trust.trustworthy for point in self.sweep.points)


def measure(
    target: Target,
    load: LoadSpec,
    *,
    promise: Promise | None = None,
    name: str = "measurement",
    seed: int | None = None,
    out_dir: Path | None = None,
    progress: Report | None = None,
) -> MeasureResult:
    """Send a load to a real server and measure what comes back.

    Parameters
    ----------
    target : Target
    load : LoadSpec
    promise : Promise, optional
        To judge the answers by.
    name : str
        Of the run folder.
    seed : int, optional
        Of arrivals, lengths and words. By default a new one each time: a server knows the prompts it has seen.
    out_dir : Path, optional
        Where to make a new run folder; nothing is written without it.
    progress : callable, optional
        Called about once a second with the load in words and a ``Progress``, on the sending thread: must be quick.

    Returns
    -------
    MeasureResult
        ``measurement.trust`` says whether the numbers can be trusted; after Ctrl-C it holds what was measured.

    Raises
    ------
    InputError
        When address, load or promise are wrong, or nothing can be written to ``out_dir``.
    MeasurementError
        When nothing that serves a language model answers.
    """
    _check(target, promise, out_dir)
    with target.open() as session:
        seed = _new_seed() if seed is None else seed
        measured = session.run(load, name=name, seed=seed, progress=_reporting(progress, load))
    summary = _summary(measured, promise)
    run_dir = None
    if out_dir is not None:
        run_dir = new_run_dir(out_dir, name)
        write_measurement(run_dir, measured, summary=summary, promise=promise)
    return MeasureResult(measurement=measured, summary=summary, promise=promise, run_dir=run_dir)


def measure_loads(
    target: Target,
    load: LoadSpec,
    loads: Sequence[float],
    *,
    promise: Promise | None = None,
    name: str = "sweep",
    seed: int | None = None,
    out_dir: Path | None = None,
    resume: Path | None = None,
    progress: Report | None = None,
) -> SweepResult:
    """Measure several concurrencies or rates, one after another; see :func:`find_max` for the parameters."""
    _check(target, promise, out_dir)
    with target.open() as session:
        job = _Job(session, load, name=name, seed=seed, promise=promise, progress=progress)
        job.open(out_dir, resume, {"loads": list(loads)})
        return job.result([job.measure(value, list(loads[:i]).count(value)) for i, value in enumerate(loads)], None)


def find_max(
    target: Target,
    load: LoadSpec,
    *,
    promise: Promise,
    name: str = "find-max",
    seed: int | None = None,
    out_dir: Path | None = None,
    resume: Path | None = None,
    progress: Report | None = None,
) -> SweepResult:
    """Search the highest concurrency or rate at which a real server keeps a promise.

    Parameters
    ----------
    target : Target
    load : LoadSpec
        Its concurrency or rate is where the search starts.
    promise : Promise
    name : str
    seed : int, optional
        Each run has a seed of its own, made from this one; by default a new one, or that of ``resume``.
    out_dir : Path, optional
        Where to make a new folder with a folder of each run.
    resume : Path, optional
        Folder of an interrupted search or sweep, to go on with: finished runs are not measured again.
    progress : callable, optional
        As in :func:`measure`.

    Raises
    ------
    InputError
        As in :func:`measure`, and when ``resume`` was asked something else.
    MeasurementError
        As in :func:`measure`.
    KeyboardInterrupt
        On Ctrl-C, after the run that it stopped was kept.
    """
    _check(target, promise, out_dir)
    with target.open() as session:
        job = _Job(session, load, name=name, seed=seed, promise=promise, progress=progress)
        job.open(out_dir, resume, {"find_max": True})
        start = float(load.concurrency or load.rate_rps or 1.0)
        edge = search_edge(job.measure, start=start, whole=load.concurrency is not None, most=_most_places(load))
        return job.result(edge.points, edge)


def _most_places(load: LoadSpec) -> float:
    """Concurrency beyond which a load stays the same: there are no more requests. A rate has no such limit."""
    if load.concurrency is None:
        return math.inf
    nums = (load.num_requests, None if load.workload is None else load.workload.num_requests)
    return float(min(num for num in (*nums, MAX_REQUESTS) if num is not None))


def _check(target: Target, promise: Promise | None, out_dir: Path | None) -> None:
    """Refuse before long work what could not be judged or kept."""
    if out_dir is not None:
        check_run_parent(out_dir)
    if target.stream or promise is None:
        return
    limited = {limit.metric for limit in promise.percentiles} - {"e2e"}
    if promise.ttft_s is not None or promise.tpot_s is not None or limited:
        raise InputError(
            "answers that come in one piece show E2E alone, so TTFT, TPOT and ITL cannot be judged; promise e2e_s, or"
            " let them stream"
        )


class _Job:
    """Runs of one server, taken from the folder where they are there already."""

    def __init__(
        self,
        session: Session,
        spec: LoadSpec,
        *,
        name: str,
        seed: int | None,
        promise: Promise | None,
        progress: Report | None,
    ) -> None:
        self._session = session
        self._spec = spec
        self._name = name
        self._seed = seed
        self._promise = promise
        self._progress = progress
        self._folder: SweepFolder | None = None

    def open(self, out_dir: Path | None, resume: Path | None, what: Mapping[str, Any]) -> None:
        """Make the folder, or open the one to go on with."""
        endpoint = dataclasses.asdict(self._session.discovery.endpoint)
        promise = None if self._promise is None else dataclasses.asdict(self._promise)
        asked = {"name": self._name, "endpoint": endpoint, "load": self._spec.words(), "promise": promise, **what}
        asked |= {field: getattr(self._spec, field) for field in ("ramp_up_s", "timeout_s", "skip_longer")}
        asked = json.loads(json.dumps(asked))  # as it will be read again
        if resume is not None:
            self._folder = SweepFolder.open(resume)
            earlier = dict(self._folder.asked)
            first_seed = int(earlier.pop("seed", 0))
            if self._seed is not None and self._seed != first_seed:
                raise InputError(f"{resume} was measured with seed {first_seed}; leave --seed out, or give that one")
            self._seed = first_seed
            differing = sorted(key for key in asked.keys() | earlier.keys() if asked.get(key) != earlier.get(key))
            if differing:
                key = differing[0]
                raise InputError(
                    f"{resume} was asked with {key} {earlier.get(key)!r}, not {asked.get(key)!r}; ask the same again"
                )
            return
        self._seed = _new_seed() if self._seed is None else self._seed
        if out_dir is not None:
            self._folder = SweepFolder.create(out_dir, self._name, {**asked, "seed": self._seed})

    def measure(self, load: float, repeat: int) -> SweepPoint:
        found = None if self._folder is None else self._folder.find(load, repeat)
        if found is not None:
            return self._point(load, repeat, found[0], _summary(found[0], self._promise), found[1].name)
        spec = self._spec.at(load)
        seed = int(np.random.SeedSequence([self._seed or 0, round(1000 * load), repeat]).generate_state(1)[0])
        measured = self._session.run(spec, name=self._name, seed=seed, progress=_reporting(self._progress, spec))
        summary = _summary(measured, self._promise)
        folder = None
        if self._folder is not None:
            folder = self._folder.write(load, repeat, measured, summary, self._promise)
        if measured.interrupted:
            kept = "" if self._folder is None else f"go on with --resume {self._folder.path}"
            raise KeyboardInterrupt(kept)
        return self._point(load, repeat, measured, summary, "" if folder is None else folder.name)

    def _point(
        self, load: float, repeat: int, measured: Measurement, summary: Summary | None, folder: str
    ) -> SweepPoint:
        return SweepPoint(load=load, repeat=repeat, summary=summary, trust=measured.trust, folder=folder)

    def result(self, points: Sequence[SweepPoint], edge: Edge | None) -> SweepResult:
        made = Sweep(
            name=self._name,
            endpoint=self._session.discovery.endpoint,
            kind="rate" if self._spec.concurrency is None else "concurrency",
            load_words=self._spec.words(),
            promise=self._promise,
            points=tuple(points),
            edge=edge,
        )
        return SweepResult(sweep=made, run_dir=None if self._folder is None else self._folder.path)


def _summary(measured: Measurement, promise: Promise | None) -> Summary | None:
    log = counted_log(measured)
    return summarize(log, promise or Promise()) if log.num_requests else None


def _reporting(progress: Report | None, spec: LoadSpec) -> Callable[[Progress], None] | None:
    if progress is None:
        return None
    words = (
        f"concurrency {spec.concurrency}" if spec.concurrency else f"{spec.rate_rps:g}/s" if spec.rate_rps else "replay"
    )
    return lambda how_far: progress(words, how_far)


def _new_seed() -> int:
    """A seed that no server has seen prompts of."""
    return secrets.randbits(31)
