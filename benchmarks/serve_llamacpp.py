"""A real llama.cpp server, for ``benchmarks.engines``; runs in an environment that has xllamacpp.

    python benchmarks/serve_llamacpp.py MODEL.gguf HOST PORT [NAME=VALUE ...]

A NAME is a field of llama.cpp's ``common_params``, with a dot for one inside another, a VALUE is JSON. Serves until it
is stopped.
"""

from __future__ import annotations

import json
import signal
import sys

import xllamacpp  # type: ignore[import-not-found]


def main() -> None:
    """Serve."""
    model, host, port, *settings = sys.argv[1:]
    params = xllamacpp.CommonParams()
    params.model.path = model
    params.model_alias = {"test"}
    params.hostnames = [host]
    params.port = int(port)
    params.n_gpu_layers = 0
    params.endpoint_metrics = params.endpoint_slots = params.endpoint_props = True
    for setting in settings:
        name, value = setting.split("=", 1)
        *outer, field = name.split(".")
        target = params
        for part in outer:
            target = getattr(target, part)
        setattr(target, field, json.loads(value))
    server = xllamacpp.Server(params)
    print("listening", server.listening_address, flush=True)
    signal.pause()


if __name__ == "__main__":
    main()
