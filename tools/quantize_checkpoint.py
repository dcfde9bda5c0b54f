"""A W8A8 checkpoint of a bf16 one, for a real vLLM to serve to ``servewise quality``.

    python tools/quantize_checkpoint.py CHECKPOINT_DIR OUT_DIR

Runs in vLLM's environment (``torch``, ``safetensors``). The form is that of compressed-tensors 0.17: symmetric int8
weights by output channel, rounded to the nearest; activations by token while it runs; head and embedding stay.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import torch  # type: ignore[import-not-found]
from safetensors.torch import load_file, save_file  # type: ignore[import-not-found]


def write_int8(source: Path, target: Path) -> None:
    """Quantize the matrices of all layers; the weights must be in one file."""
    weights = {}
    for name, values in load_file(source / "model.safetensors").items():
        if ".layers." in name and values.ndim == 2:
            exact = values.float()
            scale = exact.abs().amax(dim=1, keepdim=True).clamp(min=1e-8) / 127.0
            weights[name] = (exact / scale).round().clamp(-127, 127).to(torch.int8)
            weights[f"{name}_scale"] = scale
        else:
            weights[name] = values
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("*.safetensors", "config.json"))
    target.chmod(0o755)
    save_file(weights, target / "model.safetensors", metadata={"format": "pt"})
    of_weights = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel", "dynamic": False}
    of_inputs = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "token", "dynamic": True}
    config = json.loads((source / "config.json").read_text())
    config["quantization_config"] = {
        "quant_method": "compressed-tensors",
        "format": "int-quantized",
        "quantization_status": "compressed",
        "ignore": ["lm_head"],
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": of_weights, "input_activations": of_inputs}},
    }
    (target / "config.json").write_text(json.dumps(config, indent=1))


if __name__ == "__main__":
    write_int8(Path(sys.argv[1]), Path(sys.argv[2]))
