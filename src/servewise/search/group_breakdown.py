"""The mean TTFT and TPOT of groups of prefill and decode instances, by where a request is."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from servewise.search.breakdown import SOURCES, SPREAD_NOTE, Steps, sources_of
from servewise.search.fleet import Load
from servewise.search.operating_point import Decoding, Prompts, Served, decoding_of, prompts_of, single_steps_s
from servewise.sim import Handover, Outcome
from servewise.types import Breakdown, Deployment, KvLink, Part, Summary

__all__ = ["group_numbers"]

Floats = NDArray[np.float64]


def group_numbers(
    load: Load, deployment: Deployment, outcome: Outcome, summary: Summary
) -> tuple[Prompts, Decoding, list[Breakdown]]:
    """What prefill instances computed, what the tokens met on decode instances, and both means taken apart.

    Where the first token comes from the prefill instance (TensorRT-LLM) the way of the KV cache delays the second
    one, and so is a part of TPOT; otherwise it is a part of TTFT.

    Parameters
    ----------
    load : Load
    deployment : Deployment
        With ``disaggregation``.
    outcome : Outcome
        Of a whole run.
    summary : Summary
        Of the same run.
    """
    group, way, requests = deployment.disaggregation, outcome.handover, outcome.packed.requests
    assert group is not None  # noqa: S101 (the load of a group)
    assert way is not None  # noqa: S101 (a group was simulated)
    assert load.prefill_model is not None  # noqa: S101 (the load of a group)
    done = ~np.isnan(outcome.outputs.last)
    first, last = (times - requests.extra for times in (outcome.outputs.first, outcome.outputs.last))
    inputs, outputs = requests.input_tokens.astype(np.float64), requests.output_tokens.astype(np.float64)

    def served(
        scheduler: NDArray[np.int32], start: Floats, end: Floats, tokens: Floats, of: NDArray[np.bool_]
    ) -> Served:
        nothing = np.zeros(np.count_nonzero(of))
        return Served(
            scheduler=scheduler[of].astype(np.int64),
            first=start[of],
            last=end[of],
            inputs=inputs[of],
            outputs=tokens[of],
            cached=nothing,
        )

    sender = Steps(deployment=deployment.pool("prefill"), model=load.prefill_model)
    receiver = Steps(deployment=deployment.pool("decode"), model=load.step_model, beside_prompts=False)
    alone = served(way.prefill_of, way.prefill_end_s, way.prefill_end_s, np.ones_like(outputs), done)
    prompts = prompts_of(alone, sender.model.table, sender.deployment)
    from_prefill = deployment.engine == "tensorrt-llm"
    crossed = done & (way.decode_of >= 0)
    rows = served(way.decode_of, way.end_s if from_prefill else first, last, outputs, crossed)
    decoding = decoding_of(rows, receiver.model.table, receiver.deployment, beside_prompts=False)

    several = crossed & (outputs > 1)
    crossing = _crossing(way, group.link, done) if not from_prefill else []
    delay = _crossing(way, group.link, several, outputs[several] - 1) if from_prefill and several.any() else []
    entry = [] if from_prefill else _entry(receiver, rows, (first - way.end_s)[done], deployment.engine == "vllm")
    outside, prefill = sender.outside(inputs[done]), sender.prefill(prompts)
    mean_s = summary.means["ttft"]
    queue_s = mean_s - sum(part.value for part in (*outside, *prefill, *crossing, *entry))
    ttft = Breakdown(
        number="ttft",
        value=mean_s,
        unit="s",
        parts=(sender.part("prefill queue", "queue", queue_s), *prefill, *crossing, *entry, *outside),
        note=(
            "prefill queue is what is left: waiting on the prefill instance for the step under way, for other prompts "
            f"and for room{', here and on the decode instance' if deployment.engine == 'sglang' else ''}; {SPREAD_NOTE}"
        ),
    )
    if not len(decoding.rows):
        return prompts, decoding, [ttft]
    return prompts, decoding, [ttft, receiver.tpot(decoding, summary.means["tpot"], delay)]


def _crossing(way: Handover, link: KvLink, of: NDArray[np.bool_], tokens: Floats | float = 1.0) -> list[Part]:
    """The way of the KV cache from one instance to the other, on average, a token's share."""
    spans = {
        "decode_room": way.asked_s - way.prefill_end_s,
        "link_queue": way.start_s - way.asked_s,
        "wire": way.end_s - way.start_s - link.latency_s,
        "handshake": np.full(len(of), link.latency_s),
    }
    return [
        Part(
            group="KV transfer",
            name=name,
            value=float((span[of] / tokens).mean()),
            sources=sources_of(link.provenance, SOURCES.get(name, ())),
        )
        for name, span in spans.items()
    ]


def _entry(receiver: Steps, rows: Served, waited_s: Floats, computes_first: bool) -> list[Part]:
    """From the KV cache's arrival on the decode instance to the first token, which it may have to compute."""
    step_s = float(single_steps_s(rows, receiver.model.table, receiver.deployment).mean()) if computes_first else 0.0
    parts: Sequence[tuple[str, float]] = (("step_wait", float(waited_s.mean()) - step_s), ("first_step", step_s))
    return [receiver.part("decode instance", name, value) for name, value in parts if value]
