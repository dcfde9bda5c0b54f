"""What a fleet needs beside its commands: ports, addresses, drivers, volumes, and the names that clients use."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from benchmarks.artefacts import starts
from benchmarks.parsers import program_of
from deploy.fleets import CASES, one
from deploy.reading import commands, documents, option, values
from servewise.deploy import TARGETS, Target, render
from servewise.deploy.options import option_lists
from servewise.deploy.target_dynamo import ROUTER_MODES
from servewise.errors import InputError
from servewise.types import Deployment

LLAMA_SERVER = "/app/llama-server"
TRTLLM = CASES["tensorrt-llm, a group"]


def router_pod(deployment: Deployment) -> dict[str, Any]:
    found = documents(render(deployment, "kubernetes", name="chat"))
    (pod,) = [d["spec"]["template"]["spec"] for d in found if d["kind"] == "Deployment"]
    return pod  # type: ignore[no-any-return]


def service(name: str, deployment: Deployment, **options: Any) -> dict[str, Any]:
    (compose,) = documents(render(deployment, "compose", name="chat", **options))
    return compose["services"][name]  # type: ignore[no-any-return]


def test_images_start_programs_where_they_are() -> None:
    llama = CASES["llama.cpp, one GPU"]
    assert service("replica-0", llama)["entrypoint"] == [LLAMA_SERVER]
    assert [LLAMA_SERVER] in list(values(documents(render(llama, "kubernetes", name="chat")), "command"))
    assert [program_of(start.args) for start in starts(render(llama, "kserve", name="chat"))] == ["llama-server"]
    assert program_of([LLAMA_SERVER, "--ctx-size", "1"]) == "llama-server"
    assert program_of(["/usr/bin/python3", "-m", "sglang.launch_server"]) == "sglang"
    assert service("replica-0", CASES["sglang, one GPU"])["entrypoint"] == ["python3"]


def test_tensorrt_llm_s_router_has_the_driver_and_no_gpu_of_its_own() -> None:
    pod, (main,) = router_pod(TRTLLM), router_pod(TRTLLM)["containers"]
    assert {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"} in main["env"]
    assert "nvidia.com/gpu" not in main["resources"]["limits"]
    assert pod["nodeSelector"] == {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}
    assert [each["key"] for each in pod["tolerations"]] == ["nvidia.com/gpu"]
    assert any("needs the GPU's driver" in note for note in render(TRTLLM, "kubernetes", name="chat").notes)
    (device,) = service("router", TRTLLM)["deploy"]["resources"]["reservations"]["devices"]
    assert device["device_ids"] == ["0", "1"]
    other = CASES["vllm, a group"]
    assert router_pod(other).keys().isdisjoint(("nodeSelector", "tolerations"))
    assert "deploy" not in service("router", other)
    assert not any("driver" in note for note in render(other, "kubernetes", name="chat").notes)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("target", ["kubernetes", "kserve"])
def test_every_port_that_is_scraped_is_declared(case: str, target: Target) -> None:
    try:
        found = documents(render(CASES[case], target, name="chat"))
    except InputError:
        return
    declared: dict[str, list[dict[str, Any]]] = {}
    for document in found:
        ports = [port for group in values(document.get("spec", {}), "ports") for port in group]
        declared.setdefault(document["metadata"]["name"], []).extend(p for p in ports if "containerPort" in p)
    for document in found:
        if document["kind"] == "PodMonitor":
            (endpoint,) = document["spec"]["podMetricsEndpoints"]
            name = document["metadata"]["name"].removesuffix("-replica" if target == "kserve" else "")
            known = {port.get("name") for port in declared[name]} | {port["containerPort"] for port in declared[name]}
            assert endpoint.get("port", endpoint.get("targetPort")) in known
            assert ("targetPort" in endpoint) == (target == "kserve")


def test_a_router_s_figures_have_a_port_of_their_own() -> None:
    (main,) = router_pod(CASES["vllm, several replicas"])["containers"]
    assert {port["name"]: port["containerPort"] for port in main["ports"]} == {"http": 8000, "metrics": 8404}


def test_sglang_s_ranks_take_ports_of_their_own() -> None:
    replicas = replace(CASES["sglang, DP and EP"], num_replicas=2)
    found = commands(render(replicas, "command", name="chat"))
    ports = [int(option(found[f"replica-{n}"], "--dist-init-addr").removeprefix("127.0.0.1:")) for n in range(2)]
    assert abs(ports[1] - ports[0]) > 13  # server_args.py of 0.5.23: DP_ATTENTION_HANDSHAKE_PORT_DELTA
    assert "--dist-init-addr" not in commands(render(CASES["sglang, TP"], "command", name="chat"))["replica-0"]


@pytest.mark.parametrize("hosts", [(), ("127.0.0.1",), ("localhost",), ["127.0.0.1"]])
def test_this_machine_s_service_is_reached_from_it_only(hosts: Any) -> None:
    rendered = render(CASES["vllm, several replicas"], "command", name="chat", hosts=hosts)
    assert {option(args, "--host") for name, args in commands(rendered).items() if "replica" in name} == {"127.0.0.1"}
    assert not any("0.0.0.0" in file.text for file in rendered.files)  # noqa: S104
    assert not any("private network" in note for note in rendered.notes)


def test_a_machine_that_is_named_is_reached_from_others() -> None:
    rendered = render(one("vllm"), "command", name="chat", hosts=("10.0.0.7",))
    assert option(commands(rendered)["replica-0"], "--host") == "0.0.0.0"  # noqa: S104
    assert any("all addresses of 10.0.0.7" in note and "private network" in note for note in rendered.notes)


@pytest.mark.parametrize("target", [target for target in TARGETS if target not in ("command", "compose", "ray-serve")])
def test_services_set_no_variables_of_pods(target: Target) -> None:
    for case in ("vllm, one GPU", "vllm, several replicas", "vllm, several nodes", "vllm, a group"):
        try:
            found = documents(render(CASES[case], target, name="vllm"))
        except InputError:
            continue
        pods = list(pod_specs(found))
        assert pods
        assert [pod.get("enableServiceLinks") for pod in pods] == [False] * len(pods)


def pod_specs(tree: Any) -> Any:
    """Everything that has containers."""
    if isinstance(tree, dict):
        yield from [tree] if "containers" in tree else []
        tree = list(tree.values())
    if isinstance(tree, list):
        for branch in tree:
            yield from pod_specs(branch)


@pytest.mark.parametrize(
    ("case", "host", "words"),
    [
        ("vllm, several replicas", "127.0.0.1", "for a RayService, reached from others, set host to 0.0.0.0"),
        ("vllm, several nodes", "0.0.0.0", "keep the port within a private network"),  # noqa: S104
    ],
)
def test_ray_serve_is_reached_where_its_fleet_is(case: str, host: str, words: str) -> None:
    rendered = render(CASES[case], "ray-serve", name="chat", port=9000)
    (config,) = documents(rendered)
    assert config["http_options"] == {"host": host, "port": 9000}
    assert any(words in note for note in rendered.notes)


def test_haproxy_is_ready_once_it_has_a_server() -> None:
    replicas = CASES["vllm, several replicas"]
    (main,) = router_pod(replicas)["containers"]
    paths = {probe: main[probe]["httpGet"]["path"] for probe in ("startupProbe", "readinessProbe", "livenessProbe")}
    assert paths == {"startupProbe": "/ready", "readinessProbe": "/ready", "livenessProbe": "/health"}
    assert service("router", replicas)["healthcheck"]["test"][-1] == "http://127.0.0.1:8404/ready"


@pytest.mark.parametrize(("case", "kept"), [("vllm, one GPU", "/models"), ("ollama, one GPU", "/models")])
def test_models_are_kept_where_one_is_written(case: str, kept: str) -> None:
    (compose,) = documents(render(CASES[case], "compose", name="chat"))
    assert compose["volumes"] == {"models": {}}
    assert [each["target"] for each in compose["services"]["replica-0"]["volumes"]] == [kept]


@pytest.mark.parametrize("path", ["/models", "/models/"])
def test_a_model_of_the_machine_is_mounted_alone(path: str) -> None:
    (compose,) = documents(render(one("vllm"), "compose", name="chat", model=path))
    assert "volumes" not in compose
    replica = compose["services"]["replica-0"]
    assert [each["target"] for each in replica["volumes"]] == [path]
    assert "HF_HOME" not in replica["environment"]
    worker = documents(render(one("vllm"), "dynamo", name="chat", model=path))[-1]["spec"]["components"][-1]
    assert "HF_HOME" not in [entry["name"] for env in values(worker, "env") for entry in env]
    for target in ("compose", "kubernetes"):
        with pytest.raises(InputError, match="is where the container keeps"):
            render(CASES["ollama, one GPU"], target, name="chat", model=path)  # type: ignore[arg-type]


def test_clients_reach_kubernetes_at_the_port_that_was_asked_for() -> None:
    rendered = render(CASES["vllm, several replicas"], "kubernetes", name="chat", port=80)
    services = {d["metadata"]["name"]: d["spec"]["ports"] for d in documents(rendered) if d["kind"] == "Service"}
    assert services["chat"] == [{"name": "http", "port": 80, "targetPort": 8000}]
    assert services["chat-replica"] == [{"name": "http", "port": 8000, "targetPort": 8000}]
    assert any("http://chat:80," in note for note in rendered.notes)


@pytest.mark.parametrize(
    ("case", "target", "model", "name"),
    [
        ("ollama, one GPU", "command", None, "meta-llama-llama-3-1-8b-instruct"),
        ("ollama, one GPU", "compose", "/gguf/Llama 3.gguf", "gguf-llama-3-gguf"),
        ("vllm, TP", "kubernetes", "org/quantized", "org/quantized"),
        ("tensorrt-llm, TP", "kubernetes", "/checkpoints/llama", "llama"),
        ("tensorrt-llm, TP", "dynamo", "/checkpoints/llama", "/checkpoints/llama"),
        ("vllm, TP", "ray-serve", None, None),
    ],
)
def test_clients_are_told_what_the_model_is_called(
    case: str, target: Target, model: str | None, name: str | None
) -> None:
    notes = render(CASES[case], target, name="chat", model=model).notes
    told = [note.removeprefix("clients ask for the model as ") for note in notes if note.startswith("clients ask")]
    assert told == ([] if name is None else [name])


def test_dynamo_has_the_routers_that_are_written() -> None:
    (frontend,) = [each for each in option_lists() if each.command == ("python", "-m", "dynamo.frontend")]
    mode = frontend.named("--router-mode")
    assert mode is not None
    assert set(ROUTER_MODES.values()) <= set(mode.choices)


def test_what_is_assumed_of_several_launchers_is_said() -> None:
    several = render(CASES["tgi, several replicas"], "command", name="chat").notes
    assert any("--prometheus-port" in note and "assumed" in note for note in several)
    assert not any("--prometheus-port" in note for note in render(CASES["tgi, TP"], "command", name="chat").notes)
