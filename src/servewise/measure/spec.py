"""The load that a user asks for, and the workload it is made of."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from servewise.errors import InputError
from servewise.measure.loads import arrivals, closed_loop, made_up, open_loop, ramp
from servewise.traffic import FixedLength, LengthDistribution, UniformLength, limit, rescale
from servewise.types import Load, Workload

__all__ = ["LoadSpec"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSpec:
    """A closed loop of ``concurrency``, an open loop of ``rate_rps``, or a workload at its own times.

    Parameters
    ----------
    concurrency : int or None
        Requests in flight.
    rate_rps : float or None [requests/s]
        A workload is rescaled to it.
    last_rate_rps : float or None [requests/s]
        The rate rises or falls to this one over the duration.
    burstiness : float
        Coefficient of variation of the gaps between arrivals: 0 constant, 1 Poisson.
    workload : Workload or None
        Requests to replay; None makes some of the lengths below.
    input_tokens, output_tokens : LengthDistribution [tokens]
    num_requests, duration_s : int or None, float or None [s]
        Send no more, and none later.
    warm_up_s : float [s]
        Requests that were to be sent before do not count.
    ramp_up_s : float [s]
        Time over which a closed loop starts its first requests.
    timeout_s : float [s]
        Of one request.
    skip_longer : bool
        Leave out requests that are longer than the server's context instead of refusing the load.
    """

    concurrency: int | None = None
    rate_rps: float | None = None
    last_rate_rps: float | None = None
    burstiness: float = 1.0
    workload: Workload | None = None
    input_tokens: LengthDistribution = field(default_factory=lambda: FixedLength(tokens=512))
    output_tokens: LengthDistribution = field(default_factory=lambda: FixedLength(tokens=128))
    num_requests: int | None = None
    duration_s: float | None = None
    warm_up_s: float = 0.0
    ramp_up_s: float = 0.0
    timeout_s: float = 600.0
    skip_longer: bool = False

    def __post_init__(self) -> None:
        if self.concurrency is not None and self.rate_rps is not None:
            raise InputError("a load has either a concurrency (closed loop) or a rate (open loop); give one of them")
        if self.concurrency is None and self.rate_rps is None and self.workload is None:
            raise InputError("the load has neither a concurrency nor a rate nor traffic to replay; give one of them")
        if self.last_rate_rps is not None and (self.rate_rps is None or not self.duration_s or self.workload):
            raise InputError("a ramp goes from one rate to another in a given time; give a rate and a duration")
        if self.ramp_up_s and self.concurrency is None:
            raise InputError("only a closed loop starts its first requests over a time; give a concurrency")
        if self.duration_s is not None and self.warm_up_s >= self.duration_s:
            raise InputError(
                f"the warm-up of {self.warm_up_s:g} s leaves nothing of {self.duration_s:g} s to count; shorten it"
            )

    def at(self, value: float) -> LoadSpec:
        """The same at another concurrency or rate."""
        if self.concurrency is not None:
            return replace(self, concurrency=round(value))
        return replace(self, rate_rps=value)

    def make_workload(self, seed: int) -> Workload:
        """The requests."""
        if self.workload is not None:
            workload = self.workload
            if self.rate_rps is not None:
                workload = rescale(workload, self.rate_rps, seed=seed)
            # in a closed loop the time of arrival says nothing
            return limit(workload, self.num_requests, self.duration_s if self.concurrency is None else None)
        when = None
        if self.rate_rps is not None:
            when = arrivals(self.rate_rps, self.burstiness)
            if self.last_rate_rps is not None and self.duration_s is not None:
                when = ramp(self.rate_rps, self.last_rate_rps, self.duration_s, self.burstiness)
        return made_up(
            self.input_tokens,
            self.output_tokens,
            when=when,
            concurrency=self.concurrency,
            num_requests=self.num_requests,
            duration_s=self.duration_s,
            seed=seed,
        )

    def make_load(self, workload: Workload) -> Load:
        """When they are sent."""
        if self.concurrency is None:
            # arrivals end with the duration already: the last ones are sent, however late; turns may wait beyond it
            until_s = None if workload.session is None else self.duration_s
            return open_loop(workload, duration_s=until_s, timeout_s=self.timeout_s)
        return closed_loop(
            workload,
            self.concurrency,
            duration_s=self.duration_s,
            ramp_up_s=self.ramp_up_s,
            timeout_s=self.timeout_s,
        )

    def words(self) -> str:
        """The load in words."""
        parts = []
        if self.concurrency is not None:
            parts.append(f"closed loop of {self.concurrency}")
        if self.rate_rps is not None:
            until = "" if self.last_rate_rps is None else f" to {self.last_rate_rps:g}"
            parts.append(f"{self.rate_rps:g}{until} requests/s")
            if self.workload is None:
                parts.append({0.0: "constant", 1.0: "Poisson"}.get(self.burstiness, f"gaps vary {self.burstiness:g}"))
        if self.workload is not None:
            parts.append(f"replay of {self.workload.name}")
        else:
            parts.append(f"{_length(self.input_tokens)} input and {_length(self.output_tokens)} output tokens")
        if self.num_requests is not None:
            parts.append(f"{self.num_requests:,} requests")
        if self.duration_s is not None:
            parts.append(f"{self.duration_s:g} s")
        if self.warm_up_s:
            parts.append(f"the first {self.warm_up_s:g} s not counted")
        return ", ".join(parts)


def _length(lengths: LengthDistribution) -> str:
    if isinstance(lengths, FixedLength):
        return str(lengths.tokens)
    return f"{lengths.low} to {lengths.high}" if isinstance(lengths, UniformLength) else "drawn"
