"""What starts a router, and where it does not do exactly what was planned."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from servewise.deploy.artefact import yaml_text
from servewise.deploy.facts import router_facts
from servewise.deploy.parts import Member, RouterPart
from servewise.deploy.serving import Place, bootstrap_port
from servewise.engines import Launch

__all__ = ["SESSION_HEADER", "router_launch", "router_notes"]

SESSION_HEADER = "X-Session-ID"
"""Names a conversation to HAProxy, as it does to vLLM's router."""
REQUEST_S = 3600
"""Longest time that an answer may take."""
HAPROXY_FILE, DISAGGREGATED_FILE = "haproxy.cfg", "disaggregated.yaml"
BALANCE = {"round_robin": "roundrobin", "least_requests": "leastconn", "session_sticky": "leastconn"}
SPREAD_POLICIES = {"round_robin": "round_robin", "least_requests": "power_of_two"}
"""Of vLLM's and SGLang's routers; of two instances the less busy is the least busy."""
TRTLLM_ROUTERS = {"round_robin": "round_robin", "least_requests": "load_balancing"}
PREFIX_ARGS = ("--cache-threshold", "0.0", "--balance-abs-threshold", "8", "--balance-rel-threshold", "1.0")
"""The longest prefix wins among replicas with at most 8 requests more than the least busy one, as in a plan."""


def router_launch(router: RouterPart, place_of: Callable[[Member], Place], place: Place) -> Launch:
    """What starts a router.

    Parameters
    ----------
    router : RouterPart
    place_of : callable
        Where its members are.
    place : Place
        Where it is itself.

    Sources
    -------
    ``servewise/data/deploy.toml``.
    """
    places = {role: [place_of(member) for member in members] for role, members in router.pools.items()}
    match router.program:
        case "haproxy":
            names = [f"{member.part}-{member.index}" for member in router.pools["replica"]]
            text = _haproxy(router, list(zip(names, places["replica"], strict=True)), place)
            return Launch(args=["haproxy", "-db", "-f", HAPROXY_FILE], files={HAPROXY_FILE: text})
        case "trtllm-serve":
            servers = {"prefill": "context_servers", "decode": "generation_servers"}
            document = {"hostname": place.bind, "port": place.port} | {
                servers[role]: {
                    "num_instances": len(members),
                    "urls": [f"{member.address}:{member.port}" for member in members],
                    "router": {"type": TRTLLM_ROUTERS[router.policy]},
                }
                for role, members in places.items()
            }
            args = ["trtllm-serve", "disaggregated", "-c", DISAGGREGATED_FILE]
            args += ["--server_start_timeout", str(round(router.start_s)), "--request_timeout", str(REQUEST_S)]
            return Launch(args=args, files={DISAGGREGATED_FILE: yaml_text(document)})
        case program:
            vllm = program == "vllm-router"
            args = ["vllm-router"] if vllm else ["python", "-m", "sglang_router.launch_router"]
            args += ["--host", place.bind, "--port", str(place.port)]
            args += ["--prometheus-host", place.bind]
            args += ["--prometheus-port", str(router_facts(program).metrics_port + place.position)]
            args += [
                "--worker-startup-timeout-secs",
                str(round(router.start_s)),
                "--request-timeout-secs",
                str(REQUEST_S),
            ]
            if "replica" in places:
                return Launch(args=[*args, *_prefix_args(places["replica"])])
            args.append("--vllm-pd-disaggregation" if vllm else "--pd-disaggregation")
            args += ["--policy", SPREAD_POLICIES[router.policy]]
            for member in places["prefill"]:
                args += ["--prefill", member.url, *([] if vllm else [str(bootstrap_port(member))])]
            for member in places["decode"]:
                args += ["--decode", member.url]
            return Launch(args=args)


def _prefix_args(places: Sequence[Place]) -> list[str]:
    return ["--policy", "cache_aware", *PREFIX_ARGS, "--worker-urls", *(place.url for place in places)]


def _haproxy(router: RouterPart, servers: Sequence[tuple[str, Place]], place: Place) -> str:
    """Configuration of HAProxy; nothing in it comes from the user but addresses, which were checked."""
    facts = router_facts("haproxy")
    sticky = [
        "    stick-table type string len 256 size 1m expire 2h",
        f"    stick on req.hdr({SESSION_HEADER})",
    ]
    lines = [
        "defaults",
        "    mode http",
        "    timeout connect 5s",
        f"    timeout client {REQUEST_S}s",  # answers are streamed for as long as they take
        f"    timeout server {REQUEST_S}s",
        "    option redispatch",
        "resolvers dns",
        "    parse-resolv-conf",
        "    hold valid 10s",
        "frontend clients",
        f"    bind {place.bind}:{place.port}",
        "    default_backend servers",
        "frontend status",
        f"    bind {place.bind}:{facts.metrics_port + place.position}",
        f"    http-request use-service prometheus-exporter if {{ path {facts.metrics} }}",
        f"    http-request return status 503 if {{ path {facts.ready} }} {{ nbsrv(servers) lt 1 }}",
        f"    http-request return status 200 if {{ path {facts.health} {facts.ready} }}",
        "    http-request deny",
        "backend servers",
        f"    balance {BALANCE[router.policy]}",
        *(sticky if router.policy == "session_sticky" else []),
        f"    option httpchk GET {router.health}",
        "    default-server check inter 5s fall 3 rise 1 resolvers dns init-addr last,libc,none",
        *(f'    server {name} "{at.address}:{at.port}"' for name, at in servers),  # variables stand in quotes
    ]
    return "\n".join(lines) + "\n"


def router_notes(router: RouterPart) -> tuple[str, ...]:
    """Where a router differs from the one that was simulated, in words."""
    if router.policy == "session_sticky":
        return (f"clients name their conversation in the header {SESSION_HEADER}; without it a request is a new one",)
    if router.policy == "prefix_aware":
        return (
            f"{router.program} compares prompts as texts and sends one that it has not seen to the replica with the "
            "smallest record; the plan's router compares blocks and sends it to the least busy one",
        )
    most = max(map(len, router.pools.values()))
    if router.program in ("vllm-router", "sglang-router") and router.policy == "least_requests" and most > 2:
        return (f"{router.program} takes the less busy of two instances drawn at random, the plan the least busy one",)
    return ()
