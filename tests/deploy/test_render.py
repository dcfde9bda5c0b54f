"""Every engine and topology for every target: what is written is what was planned, or it is refused."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from typing import Any

import pytest
from ruamel.yaml import YAML

from deploy.fleets import CASES, DENSE, L40S, grouped, one
from deploy.reading import commands, documents, option, values
from servewise.deploy import TARGETS, Target, render
from servewise.deploy.facts import engine_facts, table
from servewise.deploy.marks import start_mark
from servewise.engines import Launch
from servewise.errors import InputError
from servewise.types import Deployment, Parallelism

LABEL = re.compile(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?")


NODES = ("vllm, several nodes", "sglang, several nodes", "vllm, DP and EP on several nodes")
REFUSED = (
    {(case, "compose") for case in NODES}
    | {(case, "kserve") for case in CASES if case in NODES or "group" in case}
    | {(case, "ray-serve") for case in CASES if not case.startswith("vllm") or "DP" in case}
    | {(case, "dynamo") for case in CASES if case.startswith(("tgi", "ollama", "llama.cpp"))}
)
"""What a target cannot express."""


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("case", CASES)
def test_every_topology_is_written_or_refused(case: str, target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_marker")
    if (case, target) in REFUSED:
        with pytest.raises(InputError, match="use --target"):
            render(CASES[case], target, name="Chat & more")
        return
    rendered = render(CASES[case], target, name="Chat & more")
    assert rendered.files
    assert all(file.checked and file.text.endswith("\n") for file in rendered.files)
    assert all("hf_marker" not in file.text for file in rendered.files)
    if target == "command":
        return
    for document in documents(rendered):
        for name in values(document.get("metadata", {}), "name"):
            assert LABEL.fullmatch(name)
    for image in values(documents(rendered), "image"):
        assert not image.endswith(("latest", "{version}"))
        assert ":" in image


@pytest.mark.parametrize("case", CASES)
def test_as_many_processes_as_planned(case: str) -> None:
    deployment = CASES[case]
    names = set(commands(render(deployment, "command", name="chat")))
    group, nodes = deployment.disaggregation, -(-deployment.parallelism.num_gpus // deployment.gpu.gpus_per_node)
    instances = deployment.num_replicas * nodes
    routers = int(deployment.num_replicas > 1)
    if group is not None:
        instances = deployment.num_replicas * (group.prefill.num_instances + group.decode.num_instances)
        routers += deployment.num_replicas
    models = deployment.num_replicas if deployment.engine == "ollama" else 0
    assert sum("router" in name for name in names) == routers
    assert len(names) == instances + routers + models


@pytest.mark.parametrize("case", CASES)
def test_gpus_are_neither_shared_nor_invented(case: str) -> None:
    rendered = render(CASES[case], "kubernetes", name="chat")
    pods = 0
    for document in documents(rendered):
        spec = document.get("spec", {})
        copies = spec.get("replicas", 1)
        if document["kind"] == "LeaderWorkerSet":
            template = spec["leaderWorkerTemplate"]
            leader, worker = template["leaderTemplate"], template["workerTemplate"]
            pods += copies * _gpus(leader) + copies * (template["size"] - 1) * _gpus(worker)
        elif document["kind"] == "StatefulSet":
            pods += copies * _gpus(spec["template"])
    assert pods == CASES[case].num_gpus


def _gpus(pod: dict[str, Any]) -> int:
    (main,) = pod["spec"]["containers"]
    assert main["resources"]["requests"]["nvidia.com/gpu"] == main["resources"]["limits"]["nvidia.com/gpu"]
    assert pod["spec"]["nodeSelector"] == {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}
    return int(main["resources"]["limits"]["nvidia.com/gpu"])


def test_compose_gives_each_instance_gpus_of_its_own() -> None:
    (compose,) = documents(render(CASES["vllm, several groups"], "compose", name="chat"))
    ids = [gpu for devices in values(compose, "device_ids") for gpu in devices]
    assert sorted(ids) == [str(gpu) for gpu in range(8)]
    assert list(values(compose, "ports")) == [["127.0.0.1:8000:8000"], ["127.0.0.1:9090:9090"]]
    assert compose["services"]["g0-decode-0"]["environment"]["HF_TOKEN"] is None
    assert compose["services"]["router"]["depends_on"].keys() == {"g0-router", "g1-router"}


def test_commands_of_a_fleet_listen_on_ports_of_their_own() -> None:
    found = commands(render(CASES["tgi, several replicas"], "command", name="chat", port=9000))
    ports = [option(found[f"replica-{index}"], "--port") for index in range(3)]
    assert ports == ["9001", "9002", "9003"]
    for name in ("--master-port", "--prometheus-port", "--shard-uds-path"):
        assert len({option(found[f"replica-{index}"], name) for index in range(3)}) == 3
    rendered = render(CASES["tgi, several replicas"], "command", name="chat", port=9000)
    (config,) = [file.text for file in rendered.files if file.name == "router-haproxy.cfg"]
    assert "server replica-1-1" not in config
    assert re.findall(r'server \S+ "127\.0\.0\.1:(\d+)"', config) == ports
    assert "bind 127.0.0.1:9000" in config


def test_nodes_of_a_replica_find_each_other() -> None:
    found = commands(render(CASES["vllm, several nodes"], "command", name="chat", hosts=("10.0.0.1", "10.0.0.2")))
    first, second = found["replica-0-node-0"], found["replica-0-node-1"]
    assert option(first, "--node-rank") == "0"
    assert "--headless" not in first
    assert option(second, "--node-rank") == "1"
    assert "--headless" in second
    assert option(first, "--master-addr") == option(second, "--master-addr") == "10.0.0.1"
    ranks = commands(render(CASES["vllm, DP and EP on several nodes"], "command", name="chat"))
    assert option(ranks["replica-0-node-1"], "--data-parallel-start-rank") == "4"
    assert option(ranks["replica-0-node-0"], "--data-parallel-size-local") == "4"
    sglang = commands(render(CASES["sglang, several nodes"], "command", name="chat"))
    assert option(sglang["replica-0-node-1"], "--dist-init-addr") == "node-0:20000"


def test_pods_of_a_replica_learn_their_number_from_kubernetes() -> None:
    found = documents(render(CASES["vllm, several nodes"], "kubernetes", name="chat"))
    (group,) = [d["spec"]["leaderWorkerTemplate"] for d in found if d["kind"] == "LeaderWorkerSet"]
    (leader,), (worker,) = (group[kind]["spec"]["containers"] for kind in ("leaderTemplate", "workerTemplate"))
    assert option(worker["args"], "--node-rank") == "$(LWS_WORKER_INDEX)"
    assert option(worker["args"], "--master-addr") == "$(LWS_LEADER_ADDRESS)"
    assert option(leader["args"], "--node-rank") == "0"
    assert "startupProbe" in leader
    assert "startupProbe" not in worker
    (service,) = [d for d in found if d["kind"] == "Service"]
    assert service["spec"]["selector"]["leaderworkerset.sigs.k8s.io/worker-index"] == "0"


@pytest.mark.parametrize(
    ("engine", "program"), [("vllm", "vllm-router"), ("sglang", "python"), ("tensorrt-llm", "trtllm-serve")]
)
def test_a_group_s_router_knows_both_pools(engine: Any, program: str) -> None:
    rendered = render(CASES[f"{engine}, a group"], "command", name="chat")
    found = commands(rendered)
    router = found["router"]
    assert router[0] == program
    prefill = [f"127.0.0.1:{option(found[f'prefill-{n}'], '--port')}" for n in range(2)]
    decode = f"127.0.0.1:{option(found['decode-0'], '--port')}"
    if engine == "tensorrt-llm":
        (text,) = [file.text for file in rendered.files if file.name == option(router, "-c")]
        config = YAML(typ="safe").load(text)
        assert config["context_servers"] == {
            "num_instances": 2,
            "urls": prefill,
            "router": {"type": "load_balancing"},
        }
        assert config["generation_servers"]["urls"] == [decode]
        context = [file.text for file in rendered.files if file.name == "prefill-trtllm.yaml"]
        assert YAML(typ="safe").load(context[0])["disable_overlap_scheduler"] is True
        return
    assert [router[n + 1] for n, arg in enumerate(router) if arg == "--prefill"] == [f"http://{at}" for at in prefill]
    assert option(router, "--decode") == f"http://{decode}"
    if engine == "sglang":
        ports = [option(found[f"prefill-{n}"], "--disaggregation-bootstrap-port") for n in range(2)]
        assert [router[n + 2] for n, arg in enumerate(router) if arg == "--prefill"] == ports
        assert len(set(ports)) == 2


def test_vllm_s_instances_tell_where_their_cache_is() -> None:
    rendered = render(CASES["vllm, a group"], "command", name="chat")
    ports = {
        shlex.split(file.text)[index].partition("=")[2]
        for file in rendered.files
        for index, arg in enumerate(shlex.split(file.text, comments=True))
        if arg.startswith("VLLM_NIXL_SIDE_CHANNEL_PORT=")
        for index in [shlex.split(file.text).index(arg)]
    }
    assert len(ports) == 3
    pods = documents(render(CASES["vllm, a group"], "kubernetes", name="chat"))
    env = [entry for found in values(pods, "env") for entry in found if entry["name"].endswith("SIDE_CHANNEL_HOST")]
    assert [entry["value"] for entry in env] == ["$(POD_IP)"] * 2


@pytest.mark.parametrize("router", ["round_robin", "least_requests", "session_sticky"])
def test_haproxy_does_what_the_plan_s_router_does(router: Any) -> None:
    rendered = render(replace(CASES["vllm, several replicas"], router=router), "command", name="chat")
    (config,) = [file.text for file in rendered.files if file.name == "router-haproxy.cfg"]
    assert ("balance roundrobin" in config) == (router == "round_robin")
    assert ("balance leastconn" in config) == (router != "round_robin")
    assert ("stick on req.hdr(X-Session-ID)" in config) == (router == "session_sticky")
    assert any("X-Session-ID" in note for note in rendered.notes) == (router == "session_sticky")


def test_a_prefix_aware_router_is_the_engine_s_or_none() -> None:
    aware = replace(CASES["vllm, several replicas"], router="prefix_aware")
    router = commands(render(aware, "command", name="chat"))["router"]
    assert router[0] == "vllm-router"
    assert option(router, "--policy") == "cache_aware"
    assert option(router, "--balance-abs-threshold") == "8"
    with pytest.raises(InputError, match="no router that can be written here is prefix_aware for tgi"):
        render(replace(CASES["tgi, several replicas"], router="prefix_aware"), "compose", name="chat")
    trtllm = replace(CASES["tensorrt-llm, several replicas"], router="prefix_aware")
    (graph,) = [d for d in documents(render(trtllm, "dynamo", name="chat")) if d["kind"] == "DynamoGraphDeployment"]
    (env,) = [c["podTemplate"]["spec"]["containers"][0]["env"] for c in graph["spec"]["components"][:1]]
    assert {entry["name"]: entry["value"] for entry in env} == {
        "DYN_ROUTER_MODE": "kv",
        "DYN_ROUTER_USE_KV_EVENTS": "false",
    }


@pytest.mark.parametrize("target", ["kserve", "ray-serve", "dynamo"])
def test_routers_that_a_target_lacks_are_refused(target: Target) -> None:
    sticky = replace(CASES["vllm, several replicas"], router="session_sticky")
    with pytest.raises(InputError, match=r"session_sticky router.*use --target"):
        render(sticky, target, name="chat")


@pytest.mark.parametrize("case", ["vllm, a group", "vllm, speculation", "tensorrt-llm, TP", "sglang, PP"])
def test_probes_metrics_secrets_and_limits(case: str) -> None:
    deployment = CASES[case]
    found = documents(render(deployment, "kubernetes", name="chat"))
    facts = engine_facts(deployment.engine)
    for document in found:
        if document["kind"] != "StatefulSet":
            continue
        (main,) = document["spec"]["template"]["spec"]["containers"]
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            assert main[probe]["httpGet"] == {"path": facts.health, "port": 8000}
        assert main["startupProbe"]["failureThreshold"] * main["startupProbe"]["periodSeconds"] > 60
        assert {"memory", "nvidia.com/gpu"} <= main["resources"]["limits"].keys()
        (token,) = [entry for entry in main["env"] if entry["name"] == "HF_TOKEN"]
        assert token["valueFrom"] == {"secretKeyRef": {"name": "hf-token", "key": "HF_TOKEN", "optional": True}}
        assert "value" not in token
    scraped = [d["spec"]["podMetricsEndpoints"][0]["path"] for d in found if d["kind"] == "PodMonitor"]
    assert facts.metrics in scraped


def test_files_are_mounted_where_options_name_them() -> None:
    found = documents(render(CASES["tensorrt-llm, a group"], "kubernetes", name="chat"))
    maps = {d["metadata"]["name"]: d["data"] for d in found if d["kind"] == "ConfigMap"}
    for document in found:
        if document["kind"] not in ("StatefulSet", "Deployment"):
            continue
        pod = document["spec"]["template"]["spec"]
        (main,), (volume,) = pod["containers"], [v for v in pod["volumes"] if v["name"] == "files"]
        (mount,) = [m for m in main["volumeMounts"] if m["name"] == "files"]
        name = "-c" if main["args"][0] == "disaggregated" else "--extra_llm_api_options"
        folder, _, file = option(main["args"], name).rpartition("/")
        assert folder == mount["mountPath"]
        assert file in maps[volume["configMap"]["name"]]


def test_ollama_makes_its_model_before_it_serves() -> None:
    found = documents(render(CASES["ollama, several replicas"], "kubernetes", name="chat"))
    (pod,) = [d["spec"]["template"]["spec"] for d in found if d["kind"] == "StatefulSet"]
    (maker,) = pod["initContainers"]
    assert maker["args"][-2:] == ["meta-llama-llama-3-1-8b-instruct", "/servewise/Modelfile"]
    assert pod["containers"][0]["volumeMounts"] == maker["volumeMounts"]
    scripts = commands(render(CASES["ollama, one GPU"], "command", name="chat"))
    assert scripts["replica-0-model"][:2] == ["ollama", "create"]
    assert any("GGUF file" in note for note in render(CASES["ollama, one GPU"], "command", name="chat").notes)


def test_ray_serve_gets_options_as_data() -> None:
    (config,) = documents(render(CASES["vllm, a group"], "ray-serve", name="chat"))
    (application,) = config["applications"]
    assert application["import_path"] == "ray.serve.llm:build_pd_openai_app"
    prefill, decode = application["args"]["prefill_config"], application["args"]["decode_config"]
    assert prefill["deployment_config"] == {"num_replicas": 2}
    assert decode["engine_kwargs"]["kv_transfer_config"] == {"kv_connector": "NixlConnector", "kv_role": "kv_both"}
    assert decode["engine_kwargs"]["tensor_parallel_size"] == 2
    drafting = CASES["vllm, speculation"]
    off = replace(drafting, params=replace(drafting.vllm_params, enable_prefix_caching=False))
    (config,) = documents(render(off, "ray-serve", name="chat"))
    options = config["applications"][0]["args"]["llm_configs"][0]["engine_kwargs"]
    assert options["speculative_config"]["method"] == "eagle3"
    assert options["enable_prefix_caching"] is False


def test_dynamo_translates_tensorrt_llm_s_options() -> None:
    rendered = render(CASES["tensorrt-llm, a group"], "dynamo", name="chat")
    (graph,) = [d for d in documents(rendered) if d["kind"] == "DynamoGraphDeployment"]
    _, prefill, decode = graph["spec"]["components"]
    assert (prefill["type"], prefill["replicas"], decode["replicas"]) == ("prefill", 2, 1)
    args = prefill["podTemplate"]["spec"]["containers"][0]["args"]
    assert args[:2] == ["-m", "dynamo.trtllm"]
    assert option(args, "--tensor-parallel-size") == "2"
    assert option(args, "--disaggregation-mode") == "prefill"
    assert option(args, "--extra-engine-args") == "/servewise/trtllm.yaml"
    assert not [arg for arg in args if "_" in arg and arg.startswith("--")]
    assert any(f"brings tensorrt-llm {table('dynamo')['tensorrt-llm']}" in note for note in rendered.notes)


def test_other_kinds_of_gpu() -> None:
    amd = replace(L40S, name="MI300X-192GB", vendor="amd")
    rendered = render(replace(one("vllm", gpu=L40S), gpu=amd), "kubernetes", name="chat")
    (pod,) = [d["spec"]["template"]["spec"] for d in documents(rendered) if d["kind"] == "StatefulSet"]
    assert pod["containers"][0]["image"] == "vllm/vllm-openai-rocm:v0.33.0"
    assert pod["containers"][0]["resources"]["limits"]["amd.com/gpu"] == "1"
    assert "nodeSelector" not in pod
    assert any("no node label of MI300X-192GB is known" in note for note in rendered.notes)
    (compose,) = documents(render(replace(one("vllm", gpu=L40S), gpu=amd), "compose", name="chat"))
    assert compose["services"]["replica-0"]["devices"] == ["/dev/kfd", "/dev/dri"]
    with pytest.raises(InputError, match="no image of sglang for MI300X-192GB is known"):
        render(replace(one("sglang", gpu=L40S), gpu=amd), "kubernetes", name="chat")
    assert render(replace(one("sglang", gpu=L40S), gpu=amd), "command", name="chat").files


def test_pools_on_different_gpus_go_to_machines_of_their_own() -> None:
    deployment = grouped("vllm")
    group = deployment.disaggregation
    assert group is not None
    mixed = replace(deployment, disaggregation=replace(group, prefill=replace(group.prefill, gpu=L40S)))
    rendered = render(mixed, "command", name="chat")
    assert any("2 machines (node-0, node-1)" in note for note in rendered.notes)
    found = commands(rendered)
    assert option(found["decode-0"], "--host") == "0.0.0.0"  # noqa: S104
    with pytest.raises(InputError, match="takes 2 machines, a Compose file describes one"):
        render(mixed, "compose", name="chat")
    selectors = [
        d["spec"]["template"]["spec"]["nodeSelector"]["nvidia.com/gpu.product"]
        for d in documents(render(mixed, "kubernetes", name="chat"))
        if d["kind"] == "StatefulSet"
    ]
    assert selectors == ["NVIDIA-L40S", "NVIDIA-H100-80GB-HBM3"]


def broken(**changes: object) -> Deployment:
    return replace(one("vllm"), **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("deployment", "options", "words"),
    [
        (broken(num_replicas=10**9), {}, "make no fleet of 1 to 1000"),
        (broken(num_replicas=0), {}, "make no fleet"),
        (broken(model=replace(DENSE, name="./config.json")), {}, "no checkpoint; name one with --model"),
        (broken(engine="static"), {}, "no server"),
        (broken(engine_version="0.33.0 --evil"), {"target": "compose"}, "no tag of an image"),
        (broken(parallelism=Parallelism(pipeline_parallel_size=12)), {}, "do not fill whole nodes of 8"),
        (one("vllm"), {"hosts": ("a", "b")}, "takes 1 machines; give --host 1 times"),
        (one("vllm"), {"hosts": ("$(touch x)",)}, "no name or IPv4 address"),
        (one("vllm"), {"hosts": ("a",), "target": "kubernetes"}, "--host is of --target command"),
        (
            CASES["vllm, several nodes"],
            {"hosts": ("localhost", "b")},
            "2 machines cannot reach each other at localhost, b",
        ),
        (one("vllm"), {"port": 80, "target": "kserve"}, "--port is of the other targets; kserve chooses"),
        (one("vllm"), {"port": 80, "target": "dynamo"}, "--port is of the other targets; dynamo chooses"),
        (replace(one("vllm"), num_replicas=3), {"port": 65535}, "ports are 1 to 65535"),
        (replace(grouped("vllm"), engine="tgi"), {}, "tgi has no prefill and decode instances"),
    ],
)
def test_plans_and_options_that_make_no_sense(deployment: Deployment, options: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=re.escape(words)):
        render(deployment, options.pop("target", "command"), name="chat", **options)


@pytest.mark.parametrize(
    ("case", "target", "words"),
    [
        ("vllm, TP", "command", "vllm 0.33.0: its own parser takes 7 options; vLLM 0.32.0 was started by"),
        ("tgi, TP", "kubernetes", "known from documents, sources or another version only; not verified by running"),
        ("tensorrt-llm, a group", "compose", "trtllm-serve 1.2.1: 3 known from documents"),
        ("ollama, one GPU", "command", "ollama 0.33.0: "),
        ("sglang, several replicas", "command", "haproxy: configuration accepted"),
    ],
)
def test_files_say_what_of_them_was_checked(case: str, target: Target, words: str) -> None:
    marks = [mark for file in render(CASES[case], target, name="chat").files for mark in file.checked]
    assert any(words in mark for mark in marks)
    assert not [mark for mark in marks if "not known to it" in mark]


def test_an_option_that_a_program_lacks_is_named() -> None:
    mark = start_mark("vllm", Launch(args=["vllm", "serve", "x", "--max-num-seq", "1"]), "0.33.0", "not run")
    assert "not known to it: --max-num-seq" in mark


def test_a_stream_is_one_text() -> None:
    text = render(CASES["tensorrt-llm, one GPU"], "command", name="chat").stream
    assert text.startswith("printf %s 'cuda_graph_config:")
    assert "\ntrtllm-serve meta-llama" in text or "\nenv CUDA_VISIBLE_DEVICES=0 trtllm-serve" in text
    found = render(CASES["vllm, several replicas"], "kubernetes", name="chat").stream
    assert len(list(YAML(typ="safe").load_all(found))) == 7 + 2
