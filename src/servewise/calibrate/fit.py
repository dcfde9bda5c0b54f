"""The fit: simulate the measured loads, and move the parameters until simulation and measurement agree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from servewise.calibrate.parameters import Parameter
from servewise.calibrate.runs import MeasuredRun, workload_of
from servewise.calibrate.statistics import FLOORS, Observed, log_statistics, paired
from servewise.errors import InputError
from servewise.perf import corrected
from servewise.sim import simulate, simulate_closed_loop, to_log
from servewise.types import PARAMETERS, Deployment, MemoryReport, RequestLog, RequestStatus, StepCorrection, StepModel

__all__ = ["Fit", "Served", "fit"]

Array = NDArray[np.float64]

NUM_DRAWS = 64
ENDS = (0.05, 0.95)
STEP = 0.1
LEAST_STEP = 0.02
"""Difference quotients over this share of a parameter, and no less of its unit: a schedule jumps from step to step, so
its derivative is taken over many of them."""
STARTS = (0.05, 0.3)
"""Of added times, in units. The valley of the least squares is long: two ends of it are tried."""
OPEN_FRAC = 0.7
"""A parameter that the runs leave as open as this share of what was believed beforehand is not fitted."""
MAX_EVALUATIONS = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """What served the runs: one replica, its memory, and its step times before calibration."""

    deployment: Deployment
    memory: MemoryReport
    step_model: StepModel

    def simulated(self, run: MeasuredRun, by: StepCorrection) -> RequestLog:
        """What the simulator says of a run under corrected step times.

        Raises
        ------
        InputError
            When the deployment would have refused requests that were answered.
        """
        model = replace(self.step_model, table=corrected(self.step_model.table, by))
        workload = workload_of(run)
        if run.concurrency is None:
            outcome = simulate(workload, self.deployment, model, self.memory)
        else:
            outcome = simulate_closed_loop(
                workload, self.deployment, model, self.memory, concurrency=min(run.concurrency, workload.num_requests)
            )
        log = to_log(workload, outcome)
        refused = int(np.count_nonzero(log.status != RequestStatus.OK))
        if refused:
            raise InputError(
                f"run {run.name}: the deployment as it was given refuses {refused} requests that were answered; its "
                f"longest request is {self.deployment.max_request_tokens} tokens: give the settings of the server"
            )
        return log


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """Fitted parameters.

    Parameters
    ----------
    correction : StepCorrection
    free : tuple of Parameter
        Those that were fitted.
    seen : tuple of Observed
        The runs, with deviations that the requests' lengths do not explain.
    kept : mapping of str to str
        The others, and why they were not.
    draws : float64 array, shape (NUM_DRAWS, len(PARAMETERS))
    """

    correction: StepCorrection
    free: tuple[Parameter, ...]
    seen: tuple[Observed, ...]
    kept: Mapping[str, str]
    draws: Array


def fit(served: Served, seen: Sequence[Observed], parameters: Sequence[Parameter], base: StepCorrection) -> Fit:
    """Fit the parameters that the runs can tell.

    Parameters
    ----------
    served : Served
    seen : sequence of Observed
    parameters : sequence of Parameter
    base : StepCorrection
        Of what is not fitted.

    Returns
    -------
    Fit

    Notes
    -----
    Least squares with a loss that grows in proportion for outliers (``soft_l1``), on natural logarithms: each statistic
    weighs as much as its own resamples and the form's floor allow, the second time as what the lengths of the requests
    do not explain. What a parameter is believed to be beforehand is one more residual each. A parameter that comes out
    nearly as open as it was believed to be stays at that, the most open first, and the rest is fitted again.
    """
    free = list(parameters)
    problem = Problem(served=served, seen=seen, free=tuple(free), base=base)
    at = problem.solved_from_afar()
    seen = problem.paired(at)
    kept: dict[str, str] = {}
    while True:
        problem = Problem(served=served, seen=seen, free=tuple(free), base=base)
        at = problem.solved(at)
        deviations = problem.gain(at).deviations
        ratio = [0.0 if p.essential else float(sd / p.prior_sd) for p, sd in zip(free, deviations, strict=True)]
        worst = int(np.argmax(ratio))
        if ratio[worst] <= OPEN_FRAC:
            break
        out = free.pop(worst)
        at = np.delete(at, worst)
        kept[out.name] = f"these runs do not tell it from the others (standard error {ratio[worst]:.0%} of the prior's)"
    everything = replace(problem, free=tuple(parameters))
    found = problem.correction(at)
    whole = np.array([getattr(found, p.name) / p.unit for p in parameters])
    draws = everything.drawn(whole, everything.gain(whole))
    return Fit(
        correction=found,
        free=tuple(free),
        seen=tuple(seen),
        kept=kept,
        draws=np.array([everything.row(x) for x in draws]),
    )


def refitted(served: Served, known: Fit, load: str, base: StepCorrection) -> StepCorrection:
    """Fit the same parameters to the runs of all load points but one."""
    others = [one for one in known.seen if one.run.load != load]
    problem = Problem(served=served, seen=others, free=known.free, base=base)
    return problem.correction(problem.solved_from_afar())


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """How the parameters follow what is measured: linearised at the fit."""

    from_data: Array
    from_prior: Array
    deviations: Array
    residuals: Array


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """The least-squares problem of some free parameters."""

    served: Served
    seen: Sequence[Observed]
    free: tuple[Parameter, ...]
    base: StepCorrection

    def correction(self, at: Array) -> StepCorrection:
        """The parameters as a correction."""
        values = {p.name: float(x) * p.unit for p, x in zip(self.free, at, strict=True)}
        return replace(self.base, **values)

    def row(self, at: Array) -> list[float]:
        """The parameters as a row of draws."""
        found = self.correction(at)
        return [getattr(found, name) for name in PARAMETERS]

    def predicted(self, at: Array) -> Array:
        """Statistics of all runs, simulated, as logarithms."""
        by = self.correction(at)
        return np.concatenate([log_statistics(one, self.served.simulated(one.run, by)) for one in self.seen])

    @property
    def measured(self) -> Array:
        """Statistics of all runs, measured."""
        return np.concatenate([one.logs for one in self.seen])

    @property
    def sigma(self) -> Array:
        """Standard deviation of each: its resamples' and the form's."""
        parts = [np.hypot(one.deviations.std(axis=0), [FLOORS[metric] for metric in one.metrics]) for one in self.seen]
        return np.concatenate(parts)

    def paired(self, at: Array) -> list[Observed]:
        """The runs with the deviations of measured over simulated."""
        by = self.correction(at)
        return [paired(one, self.served.simulated(one.run, by)) for one in self.seen]

    def solved_from_afar(self) -> Array:
        """The least squares, found from several starts."""
        starts = [np.array([p.prior or start for p in self.free]) for start in STARTS]
        best = min((self._solution(start) for start in starts), key=lambda found: float(found.cost))
        return np.asarray(best.x)

    def solved(self, start: Array) -> Array:
        """The least squares, found from a start near to it."""
        return np.asarray(self._solution(start).x)

    def _solution(self, start: Array) -> Any:
        from scipy.optimize import least_squares  # takes longer to import than most commands take

        measured, sigma = self.measured, self.sigma
        prior = np.array([p.prior for p in self.free]), np.array([p.prior_sd for p in self.free])

        def residuals(x: Array) -> Array:
            return np.concatenate([(self.predicted(x) - measured) / sigma, (x - prior[0]) / prior[1]])

        def jacobian(x: Array) -> Array:
            return np.vstack([self.slope(x) / sigma[:, None], np.diag(1.0 / prior[1])])

        lower = np.array([p.lower for p in self.free])
        upper = np.array([p.upper for p in self.free])
        return least_squares(
            residuals,
            np.clip(start, lower + 1e-6, upper - 1e-6),
            jac=jacobian,
            bounds=(lower, upper),
            loss="soft_l1",
            x_scale="jac",
            xtol=1e-3,
            ftol=3e-4,
            gtol=None,
            max_nfev=MAX_EVALUATIONS,
        )

    def slope(self, at: Array) -> Array:
        """Derivatives of the statistics, over steps that are no smaller than a schedule's jumps."""
        columns = []
        for i in range(len(self.free)):
            step = np.zeros(len(at))
            step[i] = max(STEP * abs(at[i]), LEAST_STEP)
            low = np.maximum(at - step, [p.lower for p in self.free])
            columns.append((self.predicted(at + step) - self.predicted(low)) / (at[i] + step[i] - low[i]))
        return np.column_stack(columns)

    def gain(self, at: Array) -> Gain:
        """How the fit follows the data and the prior."""
        slope, residuals = self.slope(at), self.predicted(at) - self.measured
        z = residuals / self.sigma
        weight = 1.0 / (self.sigma**2 * np.sqrt(1.0 + z**2))  # of the loss at each residual
        prior = np.diag(np.array([p.prior_sd for p in self.free]) ** -2.0)
        inverse = np.linalg.inv(slope.T @ (weight[:, None] * slope) + prior)
        return Gain(
            from_data=inverse @ (slope.T * weight),
            from_prior=np.asarray(inverse @ prior),
            deviations=np.sqrt(np.diag(inverse)),
            residuals=residuals,
        )

    def drawn(self, at: Array, gain: Gain) -> Array:
        """Parameters as other runs of the same loads might have given them.

        Three things are drawn: which blocks of requests were seen, together for all statistics of a run; what a whole
        run is off by, together for all statistics of a metric; and what was believed beforehand.
        """
        random = np.random.default_rng(0)
        spread = self.spread_of_runs(gain.residuals)
        out = np.empty((NUM_DRAWS, len(self.free)))
        sd = np.array([p.prior_sd for p in self.free])
        for b in range(NUM_DRAWS):
            moved = []
            for one in self.seen:
                common = {metric: random.normal(0.0, spread[metric]) for metric in FLOORS}
                resample = one.deviations[random.integers(len(one.deviations))]
                moved.append(resample + np.array([common[metric] for metric in one.metrics]))
            shift = gain.from_data @ np.concatenate(moved)
            out[b] = at + shift + gain.from_prior @ random.normal(0.0, sd)
        return np.clip(out, [p.lower for p in self.free], [p.upper for p in self.free])

    def spread_of_runs(self, residuals: Array) -> dict[str, float]:
        """What whole runs are off by beyond their resamples, by metric; no less than half the floor.

        A fit of few runs leaves smaller residuals than it should: they are widened by its degrees of freedom.
        """
        metrics = [metric for one in self.seen for metric in one.metrics]
        runs = [i for i, one in enumerate(self.seen) for _ in one.metrics]
        groups = len(set(zip(runs, metrics, strict=True)))
        widened = groups / max(groups - len(self.free), groups / 3)
        sampling = np.concatenate([one.deviations.var(axis=0) for one in self.seen])
        spread = {}
        for metric, floor in FLOORS.items():
            mine = np.array([m == metric for m in metrics])
            beyond = float(np.mean(residuals[mine] ** 2 * widened - sampling[mine])) if mine.any() else 0.0
            spread[metric] = float(np.sqrt(max(beyond, (0.5 * floor) ** 2)))
        return spread
