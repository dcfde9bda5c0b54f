"""The one definition of every metric: what a request experienced, what a run reduces to, how sure that is.

``docs/glossary.md`` has the definitions in words; simulated and measured logs go through the same functions.
"""

from servewise.metrics.bootstrap import block_counts, block_length
from servewise.metrics.check import broken
from servewise.metrics.difference import difference
from servewise.metrics.itl import itl_percentiles
from servewise.metrics.latency import (
    attainment,
    count_good,
    e2e_s,
    finished,
    good,
    tpot_s,
    ttft_s,
    ttft_sent_s,
    unjudged,
)
from servewise.metrics.measured import chunk_gaps, counted, counted_log
from servewise.metrics.summary import PERCENTILES, summarize

__all__ = [
    "PERCENTILES",
    "attainment",
    "block_counts",
    "block_length",
    "broken",
    "chunk_gaps",
    "count_good",
    "counted",
    "counted_log",
    "difference",
    "e2e_s",
    "finished",
    "good",
    "itl_percentiles",
    "summarize",
    "tpot_s",
    "ttft_s",
    "ttft_sent_s",
    "unjudged",
]
