"""From a deployment to what starts it."""

from servewise.deploy.artefact import Artefact, Rendered
from servewise.deploy.command import command, launch, launches, notes, render_launch, render_shell
from servewise.deploy.render import TARGETS, Target, render

__all__ = [
    "TARGETS",
    "Artefact",
    "Rendered",
    "Target",
    "command",
    "launch",
    "launches",
    "notes",
    "render",
    "render_launch",
    "render_shell",
]
