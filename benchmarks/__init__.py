"""Benchmarks: each is a module to run with ``python -m`` and prints one JSON line last."""
