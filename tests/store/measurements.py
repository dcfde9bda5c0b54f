"""A small measurement for tests."""

from __future__ import annotations

import numpy as np

from servewise.types import Chunks, Endpoint, ItlSegments, Measurement, RequestDetails, RequestLog, Trust

NAN = float("nan")


def measurement() -> Measurement:
    """Three requests: one of the warm-up, one whole answer, one that failed after a token."""
    gaps = np.array([0.1, 0.2, 0.1])
    ones = np.ones(3, dtype=np.int64)
    return Measurement(
        name="evil \x1b[31m name",
        endpoint=Endpoint(base_url="http://localhost:8000", api="openai-chat", model="m", engine="vllm"),
        load_words="concurrency 1",
        started="2026-11-30T00:00:00Z",
        log=RequestLog(
            intended_s=np.array([0.0, 1.0, 2.0]),
            sent_s=np.array([0.0, 1.0, 2.001]),
            first_token_s=np.array([0.5, 1.5, 2.5]),
            last_token_s=np.array([0.6, 1.8, 2.5]),
            input_tokens=np.array([10, 11, -1]),
            output_tokens=np.array([2, 3, -1]),
            cached_tokens=np.array([-1, 4, -1]),
            num_preemptions=-ones,
            replica=-ones,
            status=np.array([0, 0, 2], dtype=np.int8),
            itl=ItlSegments(first_s=gaps, increment_s=0.0 * gaps, steps=ones, weight=ones),
        ),
        details=RequestDetails(
            request=np.array([0, 1, 2]),
            intended_input_tokens=np.array([10, 10, 10]),
            first_answer_s=np.array([0.5, NAN, 2.5]),
            end_s=np.array([0.6, 1.9, 4.0]),
            http_status=np.array([200, 200, 200]),
            retries=np.array([0, 1, 0]),
            finish_reason=["length", "stop", ""],
            failure=["", "", "=cmd()"],
        ),
        chunks=Chunks(offsets=np.array([0, 2, 5, 6]), time_s=np.array([0.5, 0.6, 1.5, 1.7, 1.8, 2.5])),
        trust=Trust(reasons=("slow client",), notes=("a note",), facts={"failed_frac": 1 / 3, "tokens_per_chunk": NAN}),
        server_metrics={"time_s": np.array([0.0, 1.0]), "running": np.array([1.0, NAN])},
        counted_s=(1.0, float("inf")),
        interrupted=True,
    )
