"""The verb that turns a plan into what deploys it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from servewise.deploy import Rendered, Target, render
from servewise.engines import ollama
from servewise.errors import InfeasibleError, InputError
from servewise.store import check_run_parent, new_run_dir, read_plan, write_text_atomic
from servewise.types import Deployment, Plan

__all__ = ["DeployResult", "deploy"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeployResult:
    """What deploys a plan, and the new folder that it was written to; None when nothing was to be written."""

    rendered: Rendered
    run_dir: Path | None

    @property
    def document(self) -> dict[str, Any]:
        """The same as data for JSON."""
        files = [{"name": f.name, "text": f.text, "checked": list(f.checked)} for f in self.rendered.files]
        folder = None if self.run_dir is None else str(self.run_dir)
        return {"target": self.rendered.target, "files": files, "notes": list(self.rendered.notes), "folder": folder}


def deploy(
    plan_path: Path,
    target: Target,
    *,
    candidate: int | None = None,
    model: str | None = None,
    llama_server: bool = False,
    hosts: Sequence[str] = (),
    port: int = 8000,
    out_dir: Path | None = None,
) -> DeployResult:
    """Write what deploys a plan's winner.

    Parameters
    ----------
    plan_path : Path
        plan.json.
    target : Target
    candidate : int, optional
        Index of another candidate that keeps the promise.
    model : str, optional
        Hub id or path of the checkpoint to serve, instead of the plan's name of the model.
    llama_server : bool
        Of a plan for Ollama, the llama-server that Ollama starts.
    hosts : sequence of str
        Machines of target ``command``.
    port : int
        At which clients reach the service: a machine's, or that of the service in Kubernetes.
    out_dir : Path, optional
        Where to make a new folder for the files; nothing is written without it.

    Raises
    ------
    InputError
        When the plan cannot be read, the candidate does not keep the promise, or the target cannot express it.
    InfeasibleError
        When the plan has no winner and no candidate is named.
    """
    if out_dir is not None:
        check_run_parent(out_dir)
    found, meta = read_plan(plan_path)
    deployment = _chosen(found, plan_path, candidate)
    if llama_server:
        if deployment.engine != "ollama":
            raise InputError(f"--llama-server is for plans for ollama, this one is for {deployment.engine}")
        deployment = ollama.as_llama_server(deployment)
    rendered = render(deployment, target, name=meta.name, model=model, hosts=hosts, port=port)
    run_dir = None
    if out_dir is not None:
        run_dir = new_run_dir(out_dir, f"{meta.name}-{target}")
        for file in rendered.files:
            write_text_atomic(run_dir / file.name, file.text)
    return DeployResult(rendered=rendered, run_dir=run_dir)


def _chosen(found: Plan, path: Path, candidate: int | None) -> Deployment:
    index = found.winner if candidate is None else candidate
    if index is None:
        raise InfeasibleError(f"{path}: no deployment keeps the promise, so there is none to deploy")
    if index not in found.ranking:
        kept = ", ".join(map(str, found.alternatives[:10])) or "none"
        raise InputError(f"{path}: candidate {index} is none that keeps the promise; such are {kept}")
    return found.candidates[index].deployment
