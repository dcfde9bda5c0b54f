"""The Prometheus scrape of a fleet's instances and routers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from servewise.deploy.artefact import yaml_text
from servewise.deploy.facts import engine_facts, router_facts
from servewise.deploy.parts import Fleet, Member
from servewise.deploy.serving import Place

__all__ = ["scrape_config"]


def scrape_config(fleet: Fleet, place_of: Callable[[Member], Place]) -> str:
    """``prometheus.yml`` with a job for each part and router that has a metrics page."""
    jobs: list[dict[str, Any]] = []
    for part in fleet.parts:
        path = engine_facts(part.instance.engine).metrics
        places = [place_of(Member(part.name, index)) for index in range(part.count)]
        if path:
            jobs.append(_job(part.name, path, [f"{place.address}:{place.port}" for place in places]))
    for router in fleet.routers:
        facts, place = router_facts(router.program), place_of(Member(router.name))
        if facts.metrics:
            jobs.append(_job(router.name, facts.metrics, [f"{place.address}:{facts.metrics_port + place.position}"]))
    return yaml_text({"global": {"scrape_interval": "15s"}, "scrape_configs": jobs})


def _job(name: str, path: str, targets: list[str]) -> dict[str, Any]:
    return {"job_name": name, "metrics_path": path, "static_configs": [{"targets": targets}]}
