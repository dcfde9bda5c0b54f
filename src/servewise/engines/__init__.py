"""Serving engines: their defaults by version, their flags and what they take of a GPU's memory."""

from servewise.engines import vllm

__all__ = ["vllm"]
