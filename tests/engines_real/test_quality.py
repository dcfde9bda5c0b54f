"""What a quantized model loses, at real servers: the base itself loses nothing, int8 and 4 bits do.

The weights are random, so that distributions are flat: what is tested is that every engine's tokens and log
probabilities are understood, not how large a loss is.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import engine_installs
from benchmarks.engines import EngineServer, started
from servewise import api
from servewise.types import QualityComparison

ROOT = Path(__file__).resolve().parents[2]
SERVER_CORE = 0
TOKENS = 12


def compared(base: str, candidate: str, prompts: Path) -> QualityComparison:
    asked = api.Asked(max_tokens=TOKENS, positions=6, concurrency=2)
    found = api.quality(api.Target(url=base), api.Target(url=candidate), prompts, asked).comparison
    assert (found.unit, found.num_failed) == ("tokens", 0)
    assert len(found.prompts) == 12
    assert all(0 < prompt.candidate.num_positions <= 6 for prompt in found.prompts)
    return found


def agreement(found: QualityComparison) -> float:
    return next(figure.candidate.value for figure in found.figures if figure.name == "agreement")


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("prompts") / "prompts.jsonl"
    lines = (ROOT / "examples" / "prompts.jsonl").read_text().splitlines()
    path.write_text("\n".join(lines[:12]))
    return path


@pytest.mark.shared
@pytest.mark.engines
def test_llamacpp_in_4_bits(llamacpp_server: EngineServer, models: Path, prompts: Path, tmp_path: Path) -> None:
    itself = compared(llamacpp_server.url, llamacpp_server.url, prompts)
    assert itself.verdict == "no loss seen"
    quantized = tmp_path / "q4.gguf"
    tool = ROOT / "tools" / "quantize_gguf.py"
    subprocess.run([sys.executable, str(tool), "gguf", str(models / "tiny.gguf"), str(quantized), "Q4_0"], check=True)
    options = ["n_parallel=4", "n_ctx=8192"]
    with started("llamacpp", model=quantized, options=options, core=SERVER_CORE) as candidate:
        found = compared(llamacpp_server.url, candidate.url, prompts)
    assert found.verdict == "loss seen"
    assert agreement(found) < agreement(itself)


@pytest.mark.shared
@pytest.mark.engines
def test_vllm_in_int8_and_beside_llamacpp(
    vllm_server: EngineServer, llamacpp_server: EngineServer, models: Path, prompts: Path, tmp_path: Path
) -> None:
    assert compared(vllm_server.url, vllm_server.url, prompts).verdict == "no loss seen"
    other_engine = compared(vllm_server.url, llamacpp_server.url, prompts)
    python = engine_installs.find("vllm") / "bin" / "python"
    tool = ROOT / "tools" / "quantize_checkpoint.py"
    subprocess.run([str(python), str(tool), str(models / "tiny"), str(tmp_path / "int8")], check=True)
    with started("vllm", model=tmp_path / "int8", options=["--max-model-len", "512"], core=SERVER_CORE) as candidate:
        found = compared(vllm_server.url, candidate.url, prompts)
    assert agreement(found) < 1.0
    # the same weights in another engine are nearer than other weights
    assert agreement(other_engine) > agreement(found)
