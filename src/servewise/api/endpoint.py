"""Verbs around a real endpoint: calibrate a step model with its runs, verify a plan against it."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from servewise.calibrate import calibrate as fit_calibration
from servewise.calibrate import measured_run
from servewise.errors import InputError
from servewise.measure import Progress
from servewise.measure.job import Target
from servewise.measure.spec import LoadSpec
from servewise.report import verification_json
from servewise.store import (
    calibration_to_json,
    check_run_parent,
    digest,
    new_run_dir,
    read_measurement,
    read_plan,
    read_workload,
    write_calibration,
    write_measurement,
    write_text_atomic,
)
from servewise.types import Calibration, Deployment, Verification, Workload
from servewise.verify import endpoint_warnings
from servewise.verify import verify as verify_run

__all__ = [
    "WORKLOAD_FILE",
    "VerifyResult",
    "calibrate",
    "calibration_document",
    "planned_deployment",
    "verify",
]

DEFAULT_VERIFY_S = 300.0
"""How long a plan's traffic is sent to verify it, unless something is said [s]."""
WORKLOAD_FILE = "workload.json"
"""The plan's traffic, beside plan.json."""


def planned_deployment(plan_path: Path) -> Deployment:
    """One replica of a plan's winner.

    Raises
    ------
    InputError
        When the file is no plan, or the plan has no winner.
    """
    found = read_plan(plan_path)[0]
    if found.winner is None:
        raise InputError(f"{plan_path}: the plan has no winner, so it names no deployment")
    return replace(found.candidates[found.winner].deployment, num_replicas=1)


def calibrate(
    run_dirs: Sequence[Path],
    deployment: Deployment,
    *,
    out: Path | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> Calibration:
    """Fit a step model's few physical parameters to measured runs of one replica.

    Parameters
    ----------
    run_dirs : sequence of Path
        Folders that ``servewise measure`` wrote: at least three loads of the same server.
    deployment : Deployment
        What served them, see :func:`named_deployment` and :func:`planned_deployment`.
    out : Path, optional
        New file for the calibration.
    progress : callable, optional
        Called with the stage, the steps done and the steps in all.

    Raises
    ------
    InputError
        When a folder is no measurement, or the runs or the deployment cannot be used.
    MeasurementError
        When a run cannot be trusted.
    """
    if out is not None and out.exists():
        raise InputError(f"{out} exists already and is not overwritten; choose another name")
    runs = [measured_run(read_measurement(folder)) for folder in run_dirs]
    hashes = {"/".join(folder.resolve().parts[-2:]): digest(folder / "requests.parquet") for folder in run_dirs}
    found = fit_calibration(runs, deployment, input_hashes=hashes, progress=progress or (lambda _s, _d, _t: None))
    if out is not None:
        write_calibration(out, found)
    return found


def calibration_document(calibration: Calibration) -> Mapping[str, Any]:
    """A calibration as the JSON document that its file holds."""
    return calibration_to_json(calibration)


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyResult:
    """A verification with where it is kept."""

    verification: Verification
    run_dir: Path | None


def verify(
    plan_path: Path,
    target: Target,
    *,
    duration_s: float | None = None,
    num_requests: int | None = None,
    replicas: int | None = None,
    out_dir: Path | None = None,
    seed: int | None = None,
    progress: Callable[[str, Progress], None] | None = None,
) -> VerifyResult:
    """Send a plan's own traffic to the endpoint that serves it, and hold what comes back against the plan.

    Parameters
    ----------
    plan_path : Path
        plan.json, with the plan's traffic in the same folder.
    target : Target
    duration_s, num_requests : float, int, optional
        Send the start of the traffic only; 300 s by default.
    replicas : int, optional
        Replicas behind the endpoint, which get their share of the traffic; all of the plan's by default.
    out_dir : Path, optional
        Where to make a new run folder; nothing is written without it.
    seed : int, optional
        Of the prompts' words; a new one each time by default, which the server has not cached.
    progress : callable, optional
        As of :func:`measure`.

    Raises
    ------
    InputError
        When the plan or its traffic cannot be read, or has no winner.
    MeasurementError
        When nothing that serves a language model answers, or nothing counts.
    KeyboardInterrupt
        On Ctrl-C, after what was measured until then has been written to ``out_dir``.
    """
    if out_dir is not None:
        check_run_parent(out_dir)
    found, meta = read_plan(plan_path)
    if found.winner is None:
        raise InputError(f"{plan_path}: the plan has no winner, so there is nothing to verify")
    winner = found.candidates[found.winner]
    share = 1.0 if replicas is None else replicas / winner.deployment.num_replicas
    if share > 1.0:
        raise InputError(f"the plan has {winner.deployment.num_replicas} replicas, not {replicas}")
    load, warnings = _planned_load(
        read_workload(plan_path.with_name(WORKLOAD_FILE)),
        share,
        DEFAULT_VERIFY_S if duration_s is None and num_requests is None else duration_s,
        num_requests,
    )
    with target.open() as session:
        discovery = session.discovery
        warnings += endpoint_warnings(winner.deployment, discovery.endpoint, discovery.max_context_tokens)
        words = f"the plan's traffic to {discovery.endpoint.base_url}"
        told = None if progress is None else lambda how_far: progress(words, how_far)
        chosen = secrets.randbits(32) if seed is None else seed
        measured = session.run(load, name=f"{meta.name} verified", seed=chosen, progress=told)
    verification = verify_run(meta.name, winner, meta.promise, measured, warnings, share=share)
    run_dir = None
    if out_dir is not None:
        run_dir = new_run_dir(out_dir, f"{meta.name}-verified")
        write_measurement(run_dir, measured, summary=verification.summary, promise=meta.promise)
        write_text_atomic(run_dir / "verification.json", json.dumps(verification_json(verification), indent=1) + "\n")
    if measured.interrupted:
        raise KeyboardInterrupt("" if run_dir is None else f"what was measured until then is in {run_dir}")
    return VerifyResult(verification=verification, run_dir=run_dir)


def _planned_load(
    workload: Workload, share: float, duration_s: float | None, num_requests: int | None
) -> tuple[LoadSpec, tuple[str, ...]]:
    """The load of a verification, and what to know of it."""
    rate_rps = None
    notes = []
    if share < 1.0:
        rate_rps = share * workload.num_requests / max(workload.span_s, 1e-9)
        notes.append(f"the endpoint got {share:.3g} of the plan's traffic, as its share of the replicas")
    spec = LoadSpec(workload=workload, rate_rps=rate_rps, duration_s=duration_s, num_requests=num_requests)
    if duration_s is not None and duration_s < workload.span_s:
        notes.append(f"the first {duration_s:,.0f} s of the plan's {workload.span_s:,.0f} s of traffic were sent")
    return spec, tuple(notes)
