"""From a deployment to what starts it."""

from servewise.deploy.command import command, commands, launch, launches, notes, render_launch, render_shell

__all__ = ["command", "commands", "launch", "launches", "notes", "render_launch", "render_shell"]
