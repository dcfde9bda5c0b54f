"""What holds of every engine's runs, for the engines' tests to check on their own cases."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from oracle.strategies import unit_table
from servewise import metrics
from servewise.errors import InputError
from servewise.kernel import layout
from servewise.sim import Outcome, simulate, to_log
from servewise.types import ItlSegments, Promise, RequestLog, StepTable
from sim.agree import Comparison

TESTS = Path(__file__).resolve().parents[1]

# ------------------------------------------------------------------ compiled = interpreted


def digest_of(outcomes: Iterable[Outcome]) -> str:
    """Digest of every output bit of some runs."""
    digest = sha256()
    for outcome in outcomes:
        arrays = (outcome.replica_of, outcome.counters, outcome.times, outcome.packed.requests.arrival)
        for array in (*outcome.outputs, *arrays):
            digest.update(np.ascontiguousarray(array).tobytes())
        for replica, counts in enumerate(outcome.recorder.counts):
            digest.update(outcome.recorder.gaps[replica, : counts[0]].tobytes())
    return digest.hexdigest()


def open_and_closed(compared: Comparison, cases: Iterable[Any]) -> Iterable[Outcome]:
    """Two replicas that record gaps, and a closed loop, of each case."""
    for case in cases:
        yield compared.run_open(case, num_replicas=2, router="least_requests", record_itl=True)
        yield compared.run_closed(case, concurrency=5)


def assert_compiled_equals_source(fingerprint: Callable[[], str]) -> None:
    """A test module's ``fingerprint`` gives the same where nothing is compiled."""
    code = f"from {fingerprint.__module__} import fingerprint; print(fingerprint())"
    ended = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "NUMBA_DISABLE_JIT": "1", "PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path])},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.strip() == fingerprint()


# ------------------------------------------------------------------ what is recorded


def expanded(itl: ItlSegments) -> np.ndarray:
    """Every single gap."""
    runs = zip(itl.first_s, itl.increment_s, itl.steps, itl.weight, strict=True)
    gaps = [np.repeat(first + step * np.arange(count), weight) for first, step, count, weight in runs]
    return np.concatenate([*gaps, np.zeros(0)])


def assert_gaps(log: RequestLog, token_s: Sequence[Sequence[float]]) -> None:
    """The log's gaps are those between the tokens of its requests."""
    expected = np.sort(np.concatenate([np.diff(times) for times in token_s]))
    assert log.itl is not None
    np.testing.assert_allclose(np.sort(expanded(log.itl)), expected, rtol=1e-9, atol=1e-12)


def assert_gaps_are_those_of_the_tokens(compared: Comparison, case: Any, fast_forward: bool) -> Any:
    """Compare pooled gaps with those of the plain engine; returns the latter."""
    case = compared.normalized(case)
    plain = compared.run_plain(case)
    outcome = compared.run_open(case, record_itl=True, fast_forward=fast_forward)
    assert_gaps(to_log(compared.workload_of(case), outcome), [live.token_s for live in plain.lives])
    for live in plain.lives:
        assert live.rejected or len(live.token_s) == live.request.output_tokens
    return plain


def without_constants(times: StepTable) -> StepTable:
    """The table without what is added outside the engine, so that logs show engine times."""
    return replace(times, request_fixed_s=0.0, request_s_per_input_token=0.0)


def samples_of(outcome: Outcome) -> np.ndarray:
    """Samples of the first replica: time, running, waiting, used blocks."""
    samples = outcome.recorder.samples[0, : outcome.recorder.counts[0, 1]]
    assert len(samples) > 0
    assert (samples[:, 1:] >= 0).all()
    assert (samples[:, 3] <= outcome.num_kv_blocks).all()
    return samples


def assert_samples_count_the_requests(outcome: Outcome) -> None:
    """Running and waiting requests of a run without constants are those that have arrived and not left."""
    taken = outcome.outputs.rejected == 0
    arrival, last = outcome.packed.requests.arrival[taken], outcome.outputs.last[taken]
    for time_s, running, waiting, _ in samples_of(outcome):
        assert running + waiting == (arrival <= time_s).sum() - (last <= time_s).sum()


# ------------------------------------------------------------------ early ends


def assert_stops_exactly_when_too_many_are_bad(
    compared: Comparison, case: Any, num_replicas: int, share: float
) -> None:
    """With a limit of the time to first token that ``share`` of the requests of a run of one replica keep."""
    workload = compared.workload_of(case)
    assert_ends_early(
        lambda **asked: compared.run_open(case, **asked),
        lambda outcome: to_log(workload, outcome),
        share,
        num_replicas=num_replicas,
    )


def assert_ends_early(
    run: Callable[..., Outcome], log_of: Callable[[Outcome], RequestLog], share: float, **fleet: Any
) -> None:
    """A ``run`` that is asked to stops if and only if too many requests are bad."""
    ttft_s = metrics.ttft_s(log_of(run()))
    ttft_s = np.sort(ttft_s[~np.isnan(ttft_s)])
    promise = Promise(ttft_s=float(ttft_s[int(share * (len(ttft_s) - 1))]) if len(ttft_s) else 1.0)
    fleet = {**fleet, "router": "least_requests", "promise": promise}
    whole = run(**fleet)
    log = log_of(whole)
    num_bad = log.num_requests - metrics.count_good(log, promise)
    assert whole.num_bad == num_bad >= whole.outputs.rejected.sum()
    assert not whole.broken
    for max_bad in {0, num_bad - 1, num_bad} - {-1}:
        assert run(max_bad=max_bad, **fleet).broken == (num_bad > max_bad)


# ------------------------------------------------------------------ windows


def curved_table(
    rows: int, tokens: int, fixed_s: float = 0.01, knots: tuple[float, float, float] = (0.0, 512.0, 1300.0)
) -> StepTable:
    """A table like those of real engines: the more rows, tokens and context, the longer a step."""
    some = np.arange(rows + 1) > 0
    return replace(
        unit_table(rows, tokens),
        context_knots=np.array(knots),
        attention_base_s=np.outer(some, [0.0, 1e-4, 2e-4]),
        attention_slope_s=np.outer(some, [1e-8, 1.1e-8, 1.2e-8]),
        decode_fixed_s=fixed_s + 1e-5 * np.arange(rows + 1),
        mixed_tokens_s=fixed_s + 1e-5 * np.arange(tokens + 1),
    )


def assert_same_runs(fast: Outcome, slow: Outcome, *, apart: tuple[int, ...] = (), times: Any = slice(None)) -> None:
    """A run with windows equals one of single steps: all but the number of windows and the counters ``apart``."""
    np.testing.assert_allclose(fast.outputs.first, slow.outputs.first, rtol=1e-9)
    np.testing.assert_allclose(fast.outputs.last, slow.outputs.last, rtol=1e-9)
    np.testing.assert_allclose(fast.packed.requests.arrival, slow.packed.requests.arrival, rtol=1e-9)
    np.testing.assert_array_equal(fast.outputs.preemptions, slow.outputs.preemptions)
    np.testing.assert_array_equal(fast.outputs.rejected, slow.outputs.rejected)
    np.testing.assert_array_equal(fast.outputs.cached, slow.outputs.cached)
    same = np.ones(layout.NUM_INTS, bool)
    same[[layout.NUM_WINDOWS, *apart]] = False
    np.testing.assert_array_equal(fast.counters[:, same], slow.counters[:, same])
    np.testing.assert_allclose(fast.times[:, times], slow.times[:, times], rtol=1e-9)
    assert (slow.counters[:, layout.NUM_WINDOWS] == slow.counters[:, layout.NUM_STEPS]).all()


def assert_windows_change_nothing(
    compared: Comparison, case: Any, *, concurrency: int = 0, most: float, times: Any = slice(None)
) -> Outcome:
    """Compare runs with and without windows, in a closed loop if ``concurrency`` is given; returns the former.

    There are less than ``most`` windows a step.
    """

    def run(fast_forward: bool) -> Outcome:
        if concurrency:
            return compared.run_closed(case, concurrency=concurrency, fast_forward=fast_forward)
        return compared.run_open(case, fast_forward=fast_forward)

    fast = run(True)
    assert_same_runs(fast, run(False), times=times)
    assert fast.counters[0, layout.NUM_WINDOWS] < most * fast.counters[0, layout.NUM_STEPS]
    return fast


# ------------------------------------------------------------------ refusals


def assert_refused(compared: Comparison, case: Any, changes: dict[str, Any], message: str) -> None:
    """With these settings changed a case cannot be simulated."""
    workload, deployment, *rest = compared.arguments(case)
    deployment = replace(deployment, params=replace(deployment.params, **changes))  # type: ignore[type-var]
    with pytest.raises(InputError, match=message):
        simulate(workload, deployment, *rest)
