"""A real llama.cpp server for ``compare_with_llamacpp.py``, in an environment that has xllamacpp.

    pip install xllamacpp==2026.10.11549
    python tools/llamacpp_server.py '{"model": "tiny.gguf", "port": 8099, "n_parallel": 4, "n_ctx": 2048, ...}'

Everything but ``model`` and ``port`` is a field of llama.cpp's ``common_params``. Serves until it is stopped.
"""

from __future__ import annotations

import json
import signal
import sys
from typing import Any

import xllamacpp  # type: ignore[import-not-found]


def main() -> None:
    """Serve."""
    settings: dict[str, Any] = json.loads(sys.argv[1])
    params = xllamacpp.CommonParams()
    params.model.path = settings.pop("model")
    params.hostnames = ["127.0.0.1"]
    params.n_gpu_layers = 0
    params.endpoint_metrics = params.endpoint_slots = params.endpoint_props = True
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = settings.pop("threads")
    for name, value in settings.items():
        setattr(params, name, value)
    server = xllamacpp.Server(params)
    print("listening", server.listening_address, flush=True)
    signal.pause()


if __name__ == "__main__":
    main()
