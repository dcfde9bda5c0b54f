"""One entry for profiles, traces and synthesis; limits on output."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import servewise.traffic
from servewise.errors import InputError, UnknownNameError
from servewise.traffic import (
    Arrivals,
    FixedLength,
    SynthesisSpec,
    TrafficSource,
    assume_max_tokens,
    load,
    load_profile,
    read_trace,
    synthesize,
)
from traffic.workloads import bytes_of, check_invariants, workload_of

SPEC = SynthesisSpec(
    num_requests=50,
    arrivals=Arrivals(rate_rps=2),
    input_tokens=FixedLength(tokens=10),
    output_tokens=FixedLength(tokens=5),
)


def write(path: Path) -> Path:
    path.write_text("t,i,o\n" + "".join(f"{10 + second},{second + 1},3\n" for second in range(20)))
    return path


COLUMNS = {"arrival_s": "t", "input_tokens": "i", "output_tokens": "o"}


def test_profile() -> None:
    source = TrafficSource(profile="azure-code-2023", seed=2)
    assert bytes_of(load(source)) == bytes_of(load_profile("azure-code-2023", seed=2))


def test_synthesis() -> None:
    assert bytes_of(load(TrafficSource(synthesis=SPEC, seed=2))) == bytes_of(synthesize(SPEC, 2))


def test_trace(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv")
    source = TrafficSource(trace=path, columns=COLUMNS)
    assert bytes_of(load(source)) == bytes_of(read_trace(path, columns=COLUMNS))


@pytest.mark.parametrize("kind", ["profile", "trace", "synthesis"])
def test_limits_then_rate_then_max_tokens(tmp_path: Path, kind: str) -> None:
    given = {"profile": "azure-code-2023", "trace": write(tmp_path / "t.csv"), "synthesis": SPEC}[kind]
    more = {"columns": COLUMNS} if kind == "trace" else {}
    source = TrafficSource(**{kind: given}, **more, num_requests=12, duration_s=1e6, max_tokens=777)
    workload = load(source)
    check_invariants(workload)
    assert workload.num_requests == 12
    assert set(workload.max_tokens.tolist()) == {777}
    faster = load(TrafficSource(**{kind: given}, **more, num_requests=12, rate_rps=24 / workload.span_s))
    assert faster.num_requests == 24
    assert faster.span_s == pytest.approx(workload.span_s)


def test_needs_exactly_one_source() -> None:
    with pytest.raises(InputError, match="given: none"):
        TrafficSource()
    with pytest.raises(InputError, match="given: profile and trace"):
        TrafficSource(profile="azure-code-2023", trace=Path("t.csv"))
    with pytest.raises(InputError, match="columns describes a trace file"):
        TrafficSource(profile="azure-code-2023", columns=COLUMNS)


def test_unknown_profile() -> None:
    with pytest.raises(UnknownNameError, match="did you mean mooncake-conversation"):
        load(TrafficSource(profile="mooncake-conversations"))


def test_nothing_within_the_duration() -> None:
    late = workload_of([5.0, 6.0])
    with pytest.raises(InputError, match="no request arrives within duration_s 1"):
        servewise.traffic.limit(late, duration_s=1.0)


def test_default_limit_is_the_99th_percentile() -> None:
    workload = workload_of(range(101), output_tokens=list(range(1, 102)))
    limits = assume_max_tokens(workload).max_tokens
    # P99 of 1..101 is 100; the longest request keeps its own output and so ends by length.
    assert limits.tolist() == [100] * 100 + [101]


@settings(deadline=None)
@given(
    outputs=st.lists(st.integers(1, 5000), min_size=1, max_size=50),
    value=st.none() | st.integers(1, 5000),
    context_tokens=st.none() | st.integers(1, 8000),
)
def test_limit_is_never_below_the_output(outputs: list[int], value: int | None, context_tokens: int | None) -> None:
    workload = workload_of(range(len(outputs)), output_tokens=outputs)
    limited = assume_max_tokens(workload, value, context_tokens)
    check_invariants(limited)
    assert limited.max_tokens_kind == "assumed"
    most = np.ceil(np.percentile(outputs, 99, method="higher")) if value is None else value
    if context_tokens is not None:
        most = min(most, context_tokens - 100)
    assert limited.max_tokens.tolist() == [max(output, most) for output in outputs]


@pytest.mark.parametrize("arguments", [{"value": 0}, {"context_tokens": 0}])
def test_impossible_limits(arguments: dict[str, int]) -> None:
    with pytest.raises(InputError, match="it must be at least 1"):
        assume_max_tokens(workload_of([0]), **arguments)


def test_public_surface() -> None:
    names = servewise.traffic.__all__
    assert names == sorted(names, key=lambda name: (name.upper() != name, name[0].islower(), name))
    assert all(hasattr(servewise.traffic, name) for name in names)
