"""Where an instance listens and how it finds the other nodes and instances: what plans leave open."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from servewise.deploy.artefact import label
from servewise.deploy.parts import Part, is_path
from servewise.engines import Launch
from servewise.errors import InputError

__all__ = ["DEFAULT_PORT", "Place", "bootstrap_port", "node_args", "served", "served_name", "side_channel"]

DEFAULT_PORT = 8000
"""vLLM's and TensorRT-LLM's own."""
BOOTSTRAP_PORT = 8998
"""SGLang's own default of ``--disaggregation-bootstrap-port``."""
SIDE_CHANNEL_PORT = 5600
"""vLLM's own default of ``VLLM_NIXL_SIDE_CHANNEL_PORT``."""
SIDE_CHANNEL_STEP = 16
"""Ports that an instance may take from its first on: one a rank."""
DATA_PARALLEL_PORT = 13345
INIT_PORT, INIT_STEP = 20000, 16
"""Of SGLang's ranks; an instance takes up to thirteen ports after its first (server_args.py of 0.5.23)."""
TGI_MASTER_PORT, TGI_METRICS_PORT = 29500, 9000
TRTLLM_METRICS = "return_perf_metrics: true\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a process is.

    Parameters
    ----------
    bind : str
        Address that it listens on.
    address : str
        Name or address at which the others reach it.
    port : int
    position : int
        Among the processes that share its machine's ports, from 0.
    """

    bind: str
    address: str
    port: int = DEFAULT_PORT
    position: int = 0

    @property
    def url(self) -> str:
        """Where the others reach it."""
        return f"http://{self.address}:{self.port}"


def bootstrap_port(place: Place) -> int:
    """Port at which an SGLang prefill instance is asked for its cache."""
    return BOOTSTRAP_PORT + place.position


def side_channel(part: Part, place: Place) -> Mapping[str, str]:
    """Variables with which a vLLM instance of a group tells the others where its cache is.

    Sources
    -------
    vLLM docs/features/nixl_connector_usage.md.
    """
    if part.role == "replica" or part.instance.engine != "vllm":
        return {}
    port = SIDE_CHANNEL_PORT + SIDE_CHANNEL_STEP * place.position
    return {"VLLM_NIXL_SIDE_CHANNEL_HOST": place.address, "VLLM_NIXL_SIDE_CHANNEL_PORT": str(port)}


def served(part: Part, place: Place) -> Launch:
    """An instance's start with where it listens and with its metrics page."""
    start, port = part.start, str(place.port)
    match part.instance.engine:
        case "vllm":
            return replace(start, args=[*start.args, "--host", place.bind, "--port", port])
        case "sglang":
            more = ["--host", place.bind, "--port", port, "--enable-metrics"]
            if part.role == "prefill":
                more += ["--disaggregation-bootstrap-port", str(bootstrap_port(place))]
            if part.instance.parallelism.data_parallel_size > 1 and part.num_nodes == 1:
                # Its own choice, seven ports from port + 233 on, overlaps with that of an instance at the next port.
                more += ["--dist-init-addr", f"127.0.0.1:{INIT_PORT + INIT_STEP * place.position}"]
            return replace(start, args=[*start.args, *more])
        case "tensorrt-llm":
            files = {name: text + TRTLLM_METRICS for name, text in start.files.items()}
            return replace(start, args=[*start.args, "--host", place.bind, "--port", port], files=files)
        case "tgi":
            more = ["--hostname", place.bind, "--port", port]
            if place.position:  # what two launchers on one machine must not share
                more += ["--master-port", str(TGI_MASTER_PORT + place.position)]
                more += ["--prometheus-port", str(TGI_METRICS_PORT + place.position)]
                more += ["--shard-uds-path", f"/var/tmp/text-generation-server-{place.position}"]  # noqa: S108 (sockets)
            return replace(start, args=[*start.args, *more])
        case "ollama":
            return replace(start, env={**start.env, "OLLAMA_HOST": f"{place.bind}:{port}"})
        case _:
            return replace(start, args=[*start.args, "--host", place.bind, "--port", port, "--metrics"])


def served_name(part: Part) -> str:
    """The name that clients ask an instance for.

    Sources
    -------
    TensorRT-LLM ``serve/openai_server.py``: a folder is called by its own name. Ollama's is given to it by
    ``ollama create``. The others call a model what they are started with; llama.cpp and TGI take any name.
    """
    name = part.instance.model.name
    if part.instance.engine == "ollama":
        return label(name, "model")
    return name.rstrip("/").rsplit("/", 1)[-1] if part.instance.engine == "tensorrt-llm" and is_path(name) else name


def node_args(part: Part, rank: int | str, first: str) -> list[str]:
    """Options of one node of an instance on several.

    Parameters
    ----------
    part : Part
    rank : int or str
        The node's number; a text where it is filled in at start, which is never the first node's then.
    first : str
        Address of the first node.

    Raises
    ------
    InputError
        When the engine is started otherwise.

    Sources
    -------
    The helps of vLLM 0.32's ``serve`` and of SGLang 0.5.23's server; vLLM docs/serving/parallelism_scaling.md and
    data_parallel_deployment.md.
    """
    nodes, spread, engine = part.num_nodes, part.instance.parallelism, part.instance.engine
    if nodes == 1:
        return []
    if engine == "sglang":
        return ["--nnodes", str(nodes), "--node-rank", str(rank), "--dist-init-addr", f"{first}:{INIT_PORT}"]
    if engine != "vllm":
        raise InputError(
            f"a replica of {engine} on {nodes} nodes is started by mpirun or srun, for which nothing is written; plan "
            "for replicas that fit on one node"
        )
    headless = [] if rank == 0 else ["--headless"]
    if spread.data_parallel_size == 1:
        return ["--nnodes", str(nodes), "--node-rank", str(rank), "--master-addr", first, *headless]
    local = spread.data_parallel_size // nodes
    if isinstance(rank, str):
        if nodes > 2:
            raise InputError(
                f"the first rank of each of {nodes} nodes cannot be written into one manifest; use --target command"
            )
        rank = 1
    found = ["--data-parallel-size-local", str(local), "--data-parallel-address", first]
    found += ["--data-parallel-rpc-port", str(DATA_PARALLEL_PORT), *headless]
    return found if rank == 0 else [*found, "--data-parallel-start-rank", str(local * rank)]
