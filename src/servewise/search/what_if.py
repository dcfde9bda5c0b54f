"""What would change the decision, and what the promise costs: the plan made again with one thing changed at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace

import numpy as np

from servewise.effort import excess
from servewise.search.context import mean_tokens
from servewise.search.families import family_of
from servewise.search.fleet import Load
from servewise.search.operating_point import decode_s
from servewise.search.questions import Question, answer, loosest
from servewise.search.results import Result
from servewise.search.shapes import Shape
from servewise.types import (
    EFFORTS,
    Alternative,
    Deployment,
    Effort,
    Hosted,
    LargestBatch,
    Promise,
    Replanned,
    Restriction,
    Search,
    Variation,
    VariationPoint,
    WhatIf,
)

__all__ = ["largest_batch", "what_if"]

LIMIT_FACTORS = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0)
"""Multiples of a promised limit that are planned for."""
ATTAINMENTS = (0.9, 0.95, 0.98, 0.99, 0.995, 0.999, 0.9999)
NINES = 12
"""Digits of an attainment that count: 1 - 0.1 / 10 is 0.99."""
FEWEST_BAD = 10
"""An attainment is planned for only if it allows so many bad requests: fewer say nothing about traffic like this."""
LOAD_FACTORS = (0.125, 0.25, 0.5, 0.75, 0.9, 1.1, 1.25, 1.5, 2.0, 3.0)
"""Multiples of the load that are planned for, beside 1."""
JOINT = ("ttft_s", "tpot_s", "e2e_s", "deadline_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One value of a variable: the load, or one of the promise's keys, with the promise that it makes."""

    name: str
    value: float
    promise: Promise


@dataclass(slots=True, kw_only=True)
class Asking:
    """The search that is asked again and again, and what that took.

    Parameters
    ----------
    search : Search
    members : sequence of (Shape, Load)
    kind : tuple or None
        What the winner's shapes have in common.
    first : sequence of int
        Indices of good shapes, the winner first.
    pool : Executor
    tell : callable
        Called with the number of answers.
    """

    search: Search
    members: Sequence[tuple[Shape, Load]]
    kind: tuple[object, ...] | None
    first: Sequence[int]
    pool: Executor
    tell: Callable[[int], None]
    num_requests: int = 0
    num_asked: int = 0

    def fleets(self, questions: Sequence[Question], scale: float, fewest: dict[int, int]) -> list[Replanned | None]:
        """The cheapest for each question."""
        best, num_simulated = answer(questions, self.members, scale, self.pool, first=self.first, fewest=fewest)
        self.num_requests += num_simulated
        self.num_asked += 1
        self.tell(self.num_asked)
        return best

    def both(self, changes: Sequence[Change]) -> list[Question]:
        """The question with each promise, to all shapes and to the winner's kind."""
        found = []
        for change in changes:
            asked = replace(self.search, promise=change.promise)
            found.append(Question(search=asked))
            found.append(Question(search=asked, permits=lambda deployment: family_of(deployment) == self.kind))
        return found


def what_if(
    search: Search,
    results: Sequence[Result],
    winner: Result | None,
    first: Sequence[int],
    pool: Executor,
    tell: Callable[[str, int, int], None],
) -> WhatIf:
    """Plan again with other promises, other loads, and with one choice made beforehand.

    Parameters
    ----------
    search : Search
    results : sequence of Result
        Of the whole search.
    winner : Result or None
        Without one only looser promises and lower loads are planned.
    first : sequence of int
        Indices of good shapes, the winner first.
    pool : Executor
    tell : callable
        Called with the stage, the steps done and the steps in all.
    """
    shortlist = _shortlist(results)
    own = None if winner is None else winner.shape.deployment
    changes = _changes(search.promise, search.workload.num_requests)
    stricter = [change for change in changes if loosest((change.promise, search.promise)) == search.promise]
    looser = [change for change in changes if change not in stricter]
    expected = () if search.expected_load is None else (search.expected_load,)
    loads = sorted({*LOAD_FACTORS, *expected}) if search.workload.span_s > 0 else []
    if own is None:  # what is stricter is broken, too
        stricter, loads = [], [load for load in loads if load < 1.0]
    num_questions = 1 + bool(looser) + len(loads)
    asking = Asking(
        search=search,
        members=[(result.shape, result.load) for result in shortlist],
        kind=None if own is None else family_of(own),
        first=first,
        pool=pool,
        tell=lambda num_asked: tell("what if", num_asked, num_questions),
    )
    # what breaks the plan's promise breaks stricter ones, and a promise without a deadline at higher loads, too
    known = {result.shape.index: result.fewest for result in shortlist}
    choices = [] if own is None else list(_choices(search, [r.shape.deployment for r in shortlist], own.model.name))
    as_asked = Change(name="load", value=1.0, promise=search.promise)
    promised = asking.both([as_asked, *stricter])
    fleets = asking.fleets([*promised, *(question for *_, question in choices)], 1.0, known)
    curves: dict[str, list[VariationPoint]] = {}
    if looser:
        _add(curves, looser, asking.fleets(asking.both(looser), 1.0, {}))
    _add(curves, stricter, fleets[2 : len(promised)])
    if search.workload.span_s > 0:
        _add(curves, [as_asked], fleets[:2])
        _add_loads(curves, asking, as_asked, loads, known)
    return WhatIf(
        num_shapes=len(shortlist),
        num_simulated_requests=asking.num_requests,
        alternatives=tuple(
            Alternative(restriction=restriction, value=value, num_fit=num_fit, best=fleet)
            for (restriction, value, num_fit, _), fleet in zip(choices, fleets[len(promised) :], strict=True)
        ),
        variations=tuple(
            Variation(variable=name, points=tuple(sorted(curves[name], key=lambda point: point.value)))
            for name in dict.fromkeys(change.name for change in (*changes, as_asked))
            if name in curves
        ),
        largest_batch=None if winner is None else largest_batch(search, winner),
        hosted=() if own is None else _hosted(search, own.model.name),
        expected_load=search.expected_load,
    )


def _add(
    curves: dict[str, list[VariationPoint]], changes: Sequence[Change], fleets: Sequence[Replanned | None]
) -> None:
    """Put answers to the questions of ``both`` into their curves."""
    for change, best, stay in zip(changes, fleets[::2], fleets[1::2], strict=True):
        curves.setdefault(change.name, []).append(VariationPoint(value=change.value, best=best, stay=stay))


def _add_loads(
    curves: dict[str, list[VariationPoint]],
    asking: Asking,
    as_asked: Change,
    loads: Sequence[float],
    known: dict[int, int],
) -> None:
    """Plan for other loads, ascending: what a load breaks, a higher one breaks, too."""
    at_lower: dict[int, int] = {}
    for load in loads:
        carried = at_lower if load < 1.0 else known
        # a deadline is not harder to keep at a higher load: what comes sooner may end sooner
        fewest = carried if as_asked.promise.deadline_s is None else {}
        _add(curves, [replace(as_asked, value=load)], asking.fleets(asking.both([as_asked]), load, fewest))


def _shortlist(results: Sequence[Result]) -> list[Result]:
    """Of the shapes that differ only in settings: those that keep the promise, the largest and the smallest."""
    families: dict[tuple[object, ...], list[Result]] = {}
    for result in sorted(results, key=lambda result: result.shape.index):
        families.setdefault(family_of(result.shape.deployment), []).append(result)
    found = []
    for family in families.values():
        found += [r for r in family if r.candidate.status == "kept" or r is family[0] or r is family[-1]]
    return found


def _changes(promise: Promise, num_requests: int) -> list[Change]:
    """The promise with one limit changed at a time, and as it is."""
    found: list[Change] = []
    for name in JOINT:
        limit = getattr(promise, name)
        if limit is not None:
            values = [limit * factor for factor in LIMIT_FACTORS]
            found += [Change(name=name, value=v, promise=replace(promise, **{name: v})) for v in values]
    if any(limit is not None for limit in (promise.ttft_s, promise.tpot_s, promise.e2e_s)):
        next_nine = round(1.0 - (1.0 - promise.attainment) / 10.0, NINES)
        shares = {s for s in (*ATTAINMENTS, next_nine) if (1.0 - s) * num_requests >= FEWEST_BAD}
        values = sorted({*shares, promise.attainment})
        found += [Change(name="attainment", value=v, promise=replace(promise, attainment=v)) for v in values]
    for i, limit in enumerate(promise.percentiles):
        name = f"{limit.metric}_p{limit.percentile:g}_s"
        for value in (limit.limit_s * factor for factor in LIMIT_FACTORS):
            limits = (*promise.percentiles[:i], replace(limit, limit_s=value), *promise.percentiles[i + 1 :])
            found.append(Change(name=name, value=value, promise=replace(promise, percentiles=limits)))
    return found


def _choices(
    search: Search, deployments: Sequence[Deployment], model: str
) -> Iterator[tuple[Restriction, str, int, Question]]:
    """What can be chosen beforehand, where there is a choice, with the number of shapes that it leaves.

    Precisions are those of one model: what two models keep of their scores is not comparable.
    """

    for restriction in _chosen(deployments[0], model):
        counts = Counter(value for d in deployments if (value := _chosen(d, model)[restriction]))
        for value, num_fit in counts.items() if len(counts) > 1 else ():

            def permits(deployment: Deployment, restriction: Restriction = restriction, value: str = value) -> bool:
                return _chosen(deployment, model)[restriction] == value

            yield restriction, value, num_fit, Question(search=search, permits=permits)
    for level in EFFORTS[: EFFORTS.index(search.max_effort)]:

        def light(deployment: Deployment, level: Effort = level) -> bool:
            return not excess(deployment, level)

        question = Question(search=replace(search, max_effort=level), permits=light)
        yield "effort", level, sum(light(d) for d in deployments), question


def _chosen(deployment: Deployment, model: str) -> dict[Restriction, str]:
    """The choices that a deployment stands for; of a group with two kinds of GPU the prefill instances' first.

    The precision of another model than ``model`` is empty.
    """
    group, precision = deployment.disaggregation, deployment.precision
    gpus = [deployment.gpu.name] if group is None else [group.prefill.gpu.name, deployment.gpu.name]
    return {
        "model": deployment.model.name,
        "gpu": " + ".join(dict.fromkeys(gpus)),
        "engine": deployment.engine,
        "precision": f"{precision.weights}/{precision.kv}" if deployment.model.name == model else "",
    }


def _hosted(search: Search, model: str) -> tuple[Hosted, ...]:
    """What the traffic's tokens would cost elsewhere, cheapest first."""
    workload = search.workload
    inputs_per_output = float(workload.input_tokens.sum() / workload.output_tokens.sum())
    found = [
        Hosted(
            price=price, usd_per_mtok_output=inputs_per_output * price.usd_per_mtok_input + price.usd_per_mtok_output
        )
        for price in search.hosted_prices.get(model, ())
    ]
    return tuple(sorted(found, key=lambda hosted: (hosted.usd_per_mtok_output, hosted.price.provider)))


def largest_batch(search: Search, winner: Result) -> LargestBatch | None:
    """The most requests that a replica decodes at once within the TPOT limit, each with the traffic's mean context.

    None for groups, several ranks or stages, and drafters, whose steps are not one batch's.
    """
    deployment, memory = winner.shape.deployment, winner.shape.memory
    spread = deployment.parallelism
    several = spread.data_parallel_size * spread.pipeline_parallel_size > 1
    if deployment.disaggregation is not None or several or deployment.speculation is not None or memory is None:
        return None
    table, context = winner.load.step_model.table, max(1, mean_tokens(search))
    rows = np.arange(table.max_rows + 1, dtype=np.float64)
    step_s = decode_s(table, rows, rows * context)
    limit = search.promise.tpot_s
    slow = np.zeros(0, np.int64) if limit is None else np.flatnonzero(step_s[1:] > limit)
    by_tpot = int(slow[0]) if len(slow) else None
    by_kv_cache, by_settings = memory.kv_capacity_tokens // context, deployment.max_rows
    num = min(by_kv_cache, by_settings, table.max_rows if by_tpot is None else by_tpot)
    time_s = float(step_s[num]) if num else None
    return LargestBatch(
        num_requests=num,
        by_tpot=by_tpot,
        by_kv_cache=by_kv_cache,
        by_settings=by_settings,
        context_tokens=context,
        step_s=time_s,
        tokens_per_s=num / time_s if time_s else 0.0,
    )
