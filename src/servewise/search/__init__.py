"""The search for the deployments that keep a promise at the lowest cost."""

from servewise.search.plan import Progress, plan

__all__ = ["Progress", "plan"]
