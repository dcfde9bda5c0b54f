"""From a deployment to what starts it."""

from servewise.deploy.command import command, commands, notes, render_shell

__all__ = ["command", "commands", "notes", "render_shell"]
