"""Manifests against published schemas.

    problems = validate_manifest(document)

Kubernetes' own objects: the schemas that kubernetes-validate ships. Compose: the schema of compose-spec that
check-jsonschema ships. The others: ``tests/deploy/schemas``, where each says where it is from. Needs the development
dependencies.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
from referencing import Registry, Resource

__all__ = ["KUBERNETES_VERSION", "validate_manifest"]

KUBERNETES_VERSION = "1.34"
SCHEMAS = Path(__file__).resolve().parents[1] / "tests" / "deploy" / "schemas"
CUSTOM: Mapping[tuple[str, str], str] = {
    ("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet"): "leaderworkerset",
    ("nvidia.com/v1beta1", "DynamoGraphDeployment"): "dynamographdeployment",
    ("serving.kserve.io/v1beta1", "InferenceService"): "inferenceservice",
    ("monitoring.coreos.com/v1", "PodMonitor"): "podmonitor",
}
LLM_CONFIGS = ("llm_configs", "prefill_config", "decode_config")
"""Arguments of Ray Serve's applications that are an ``LLMConfig``, or a list of them."""


def validate_manifest(document: Mapping[str, Any]) -> list[str]:
    """What is wrong with a Kubernetes object, a Compose file or a Ray Serve configuration.

    Parameters
    ----------
    document : mapping
        Of plain data, as a YAML reader gives it.

    Returns
    -------
    list of str
        One line a fault, with where it is; a document of no known kind is a fault.
    """
    version, kind = document.get("apiVersion"), document.get("kind")
    if isinstance(version, str) and isinstance(kind, str):
        if (version, kind) in CUSTOM:
            return _faults(document, CUSTOM[version, kind])
        try:
            kubernetes_validate.validate(dict(document), KUBERNETES_VERSION, strict=True)
        except kubernetes_validate.SchemaNotFoundError as error:
            return [str(error.message)]
        except kubernetes_validate.ValidationError as error:
            return [_line(error)]
        return []
    if "services" in document:
        return _faults(document, "compose")
    if "applications" in document:
        found = _faults(document, "ray_serve")
        for application in document["applications"]:
            for name in LLM_CONFIGS:
                configs = application.get("args", {}).get(name, [])
                for config in configs if isinstance(configs, list) else [configs]:
                    found += _faults(config, "ray_llm_config")
        return found
    return [f"nothing is known that has the keys {', '.join(document)}"]


def _faults(document: Any, name: str) -> list[str]:
    return [_line(error) for error in sorted(_validator(name).iter_errors(document), key=lambda error: error.json_path)]


def _line(error: Any) -> str:
    return f"{error.json_path}: {error.message[:300]}"


@cache
def _validator(name: str) -> Any:
    if name == "compose":
        text = resources.files("check_jsonschema").joinpath("builtin_schemas/vendor/compose-spec.json").read_text()
    else:
        text = (SCHEMAS / f"{name}.json").read_text(encoding="utf-8")
    schema = json.loads(text)
    kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    return kind(schema, registry=_definitions() @ Registry())


@cache
def _definitions() -> Resource[Any]:
    """Kubernetes' own structures, to which the schemas of other objects refer."""
    folder = f"kubernetes-json-schema/v{KUBERNETES_VERSION}.0-local-strict"
    text = resources.files("kubernetes_validate").joinpath(folder).joinpath("_definitions.json").read_text()
    return Resource.from_contents(json.loads(text))
