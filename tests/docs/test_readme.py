"""The README's example is the example, and its output is what servewise says."""

from __future__ import annotations

import re

import pytest

from docs.readme_output import COLUMNS, COMMAND, README, ROOT, shown
from servewise import api
from servewise.search.families import families
from servewise.search.fleet import summary_of, try_fleet
from servewise.search.shapes import enumerate_shapes

EXAMPLE = ROOT / "examples" / "chatbot.yaml"


def figures(pattern: str) -> tuple[str, ...]:
    found = re.search(pattern, shown())
    assert found is not None, f"the output in the README has no {pattern}"
    return found.groups()


def test_the_two_commands_are_shown() -> None:
    text = README.read_text(encoding="utf-8")
    for command in ("make plan", "make test", "pip install .", COMMAND):
        assert command in text
    assert COMMAND in (ROOT / "Makefile").read_text(encoding="utf-8").replace("$(BIN)/", "")


def test_the_service_file_is_the_example() -> None:
    found = re.search(r"```yaml\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    assert found[1] == EXAMPLE.read_text(encoding="utf-8")


def test_the_output_fits_the_terminal() -> None:
    assert max(len(line) for line in shown().splitlines()) <= COLUMNS


def test_the_output_is_what_the_simulator_says() -> None:
    """The winner's figures, from one simulation of its fleet; the search is not repeated."""
    gpu, num_replicas, size, weights, kv, engine = figures(
        r": \d+ x (\S+): (\d+) replicas?, TP(\d+), (\S+) weights, (\S+) KV, (\S+) "
    )
    num_seqs, num_tokens = figures(r"\n +1 .* (\d+)/(\d+) ")
    (num_candidates,) = figures(r"\n([\d,]+) candidates,")
    attainment, num_requests, low, high = figures(
        r"kept by +([\d.]+)% of ([\d,]+) requests; sampling 95% \[([\d.]+), ([\d.]+)\]"
    )
    ttft_ms, tpot_ms, e2e_s = figures(r"TTFT p99 (\d+) ms, TPOT p99 (\d+) ms, E2E p99 ([\d.]+) s")

    asked = api.resolve(api.load_service(EXAMPLE))
    shapes = enumerate_shapes(asked)
    assert len(shapes) == int(num_candidates.replace(",", ""))
    wanted = (gpu, int(size), weights, kv, engine, int(num_seqs), int(num_tokens))
    (shape,) = (
        s
        for s in shapes
        if s.deployment.parallelism.num_gpus == int(size)
        and wanted
        == (
            s.deployment.gpu.name,
            s.deployment.parallelism.tensor_parallel_size,
            s.deployment.precision.weights,
            s.deployment.precision.kv,
            s.deployment.engine,
            s.deployment.max_rows,
            s.deployment.max_step_tokens,
        )
    )
    (family,) = families(asked, [shape])
    assert shape.memory is not None
    trial = try_fleet(shape, shape.memory, family.loads[0], int(num_replicas), stop=False)
    _, summary = summary_of(trial, family.loads[0], with_intervals=True)

    assert asked.workload.num_requests == int(num_requests.replace(",", ""))
    assert [100 * x for x in (summary.attainment.value, summary.attainment.low, summary.attainment.high)] == [
        pytest.approx(float(x), abs=0.006) for x in (attainment, low, high)
    ]
    p99 = {name: estimates["p99"].value for name, estimates in summary.percentiles.items()}
    assert 1e3 * p99["ttft"] == pytest.approx(float(ttft_ms), abs=0.6)
    assert 1e3 * p99["tpot"] == pytest.approx(float(tpot_ms), abs=0.6)
    assert p99["e2e"] == pytest.approx(float(e2e_s), abs=0.006)
    assert trial.kept
