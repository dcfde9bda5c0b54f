"""Benchmarks: each is a module to run with ``python -m`` and prints one JSON line last."""

import os

# the matrices of the fit are too small for threads, which only wait for each other
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
