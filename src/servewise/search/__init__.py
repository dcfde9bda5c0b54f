"""The search for the deployments that keep a promise at the lowest cost."""

from servewise.search.groups import group_log
from servewise.search.plan import Progress, plan
from servewise.search.settings import default_version

__all__ = ["Progress", "default_version", "group_log", "plan"]
