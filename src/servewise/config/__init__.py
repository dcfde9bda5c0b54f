"""The user's files (YAML) as the core's types. Unknown keys are errors with line and nearest known name."""

from servewise.config.deployment import named_deployment
from servewise.config.prices import read_prices
from servewise.config.promise import parse_promise
from servewise.config.service import Service, load_service
from servewise.config.template import Answers, service_text
from servewise.config.uses import Limit, Use, effort_permits, uses

__all__ = [
    "Answers",
    "Limit",
    "Service",
    "Use",
    "effort_permits",
    "load_service",
    "named_deployment",
    "parse_promise",
    "read_prices",
    "service_text",
    "uses",
]
