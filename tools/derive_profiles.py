"""Derive the built-in traffic profiles from the original traces.

    python tools/derive_profiles.py --out src/servewise/data/traffic \\
        --azure-conversation-2023 AzureLLMInferenceTrace_conv.csv \\
        --azure-code-2023 AzureLLMInferenceTrace_code.csv \\
        --mooncake-conversation conversation_trace.jsonl

The traces themselves are not part of the project: the profiles hold quantiles, counts per minute and fitted
concentrations. Each profile names its trace, the licence and the commit.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from servewise.traffic.profile_arrivals import fit_concentrations
from servewise.traffic.profile_lengths import LEVELS, bins_of, fit_lengths, segments_of
from servewise.traffic.profile_prefix import PrefixTable, observed_matches
from servewise.traffic.profiles import Profile, to_json
from servewise.traffic.reader import read_trace
from servewise.traffic.statistics import statistics
from servewise.types import PrefixBlocks, Provenance, Workload

NUM_BINS = 8
ACCESSED = "2026-11-29"
DERIVED = "derived statistics (rate curve, burstiness, joint length quantiles), not the trace itself"


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """A public trace.

    Parameters
    ----------
    source, licence : str
    window_s : float [s]
        Of the rate curve.
    num_levels : int
        How often the window is halved; the finest scale must not be below the resolution of the time stamps.
    num_segments : int
        Parts of the duration with lengths of their own, for a trace whose lengths drift.
    bucket_s : float [s]
        Distance of bucketed time stamps; 0 when they are exact.
    """

    source: str
    licence: str
    num_levels: int
    window_s: float = 60.0
    num_segments: int = 1
    bucket_s: float = 0.0


AZURE = "https://github.com/Azure/AzurePublicDataset @b469a11, data/"
ORIGINS = {
    "azure-conversation-2023": Origin(
        source=AZURE + "AzureLLMInferenceTrace_conv.csv",
        licence="CC-BY-4.0",
        num_levels=12,
        num_segments=12,
    ),
    "azure-code-2023": Origin(
        source=AZURE + "AzureLLMInferenceTrace_code.csv",
        licence="CC-BY-4.0",
        # Its silences of minutes between bursts need a finer curve.
        window_s=15.0,
        num_levels=10,
    ),
    "mooncake-conversation": Origin(
        source="https://github.com/kvcache-ai/Mooncake @3b5a594, conversation_trace.jsonl",
        licence="Apache-2.0",
        num_levels=4,
        bucket_s=3.0,
    ),
}


def derive(name: str, path: Path) -> Profile:
    """The profile of a trace."""
    origin = ORIGINS[name]
    workload = replace(read_trace(path), name=name)
    rng = np.random.default_rng(0)
    counts = np.bincount((workload.arrival_s // origin.window_s).astype(np.int64))
    segment = segments_of(workload.arrival_s, workload.span_s, origin.num_segments)
    notes = [DERIVED, f"licence of the trace: {origin.licence}"]
    prefix = None
    is_first = np.ones(workload.num_requests, dtype=np.bool_)
    if workload.prefix is not None:
        prefix, is_first = derive_prefix(workload, workload.prefix, segment)
    arrival_s = workload.arrival_s
    if origin.bucket_s:
        notes.append(f"time stamps are bucketed to {origin.bucket_s:g} s in the trace and spread evenly here")
        arrival_s = spread_buckets(arrival_s, origin.bucket_s, rng)
    return Profile(
        name=name,
        provenance=Provenance(kind="derived", source=origin.source, accessed=ACCESSED, note="; ".join(notes)),
        num_requests=workload.num_requests,
        duration_s=workload.span_s,
        window_s=origin.window_s,
        window_requests=tuple(counts.tolist()),
        concentrations=tuple(fit_concentrations(arrival_s, origin.window_s, origin.num_levels)),
        lengths=fit_lengths(
            workload.input_tokens[is_first],
            workload.output_tokens[is_first],
            segment[is_first],
            NUM_BINS,
        ),
        prefix=prefix,
        statistics=statistics(workload),
    )


def spread_buckets(arrival_s: NDArray[np.float64], bucket_s: float, rng: np.random.Generator) -> NDArray[np.float64]:
    """Times drawn evenly over the bucket that each time stamp names."""
    bucket = np.rint(arrival_s / bucket_s)
    return np.sort((bucket + rng.random(len(bucket))) * bucket_s)


def derive_prefix(
    workload: Workload, blocks: PrefixBlocks, segment: NDArray[np.int64]
) -> tuple[PrefixTable, NDArray[np.bool_]]:
    """How requests repeat earlier ones, and which do not."""
    matched, parent = observed_matches(blocks)
    num_blocks = workload.input_tokens // blocks.block_size_tokens
    first = blocks.ids[blocks.offsets[0] : blocks.offsets[1]]
    users = np.bincount(blocks.ids, minlength=blocks.num_ids)
    num_common = int(np.count_nonzero(users[first] == workload.num_requests))
    continued = np.flatnonzero(matched > num_common)
    bins = bins_of(workload.input_tokens[continued], NUM_BINS)
    share = matched[continued] / num_blocks[continued]
    lag_s = workload.arrival_s[continued] - workload.arrival_s[parent[continued]]
    table = PrefixTable(
        block_size_tokens=blocks.block_size_tokens,
        num_common_blocks=num_common,
        num_continuations=len(continued),
        lag_s=tuple(round(float(value), 3) for value in np.quantile(lag_s, LEVELS)),
        matched_frac=tuple(
            tuple(round(float(value), 4) for value in np.quantile(share[bins == index], LEVELS))
            for index in range(NUM_BINS)
        ),
        lengths=fit_lengths(
            workload.input_tokens[continued],
            workload.output_tokens[continued],
            segment[continued],
            NUM_BINS,
        ),
    )
    is_first = np.ones(workload.num_requests, dtype=np.bool_)
    is_first[continued] = False
    return table, is_first


def main() -> None:
    """Derive the profiles whose traces are given."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    for name in ORIGINS:
        parser.add_argument(f"--{name}", type=Path, metavar="TRACE")
    arguments = vars(parser.parse_args())
    for name in ORIGINS:
        path = arguments[name.replace("-", "_")]
        if path is not None:
            (arguments["out"] / f"{name}.json").write_text(to_json(derive(name, path)), encoding="utf-8")


if __name__ == "__main__":
    main()
