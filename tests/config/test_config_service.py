"""Service files: what a good one means, and what is said about a bad one."""

from __future__ import annotations

from pathlib import Path

import pytest

from servewise.config import load_service
from servewise.errors import InputError
from servewise.traffic import Arrivals, LognormalLength, UniformLength
from servewise.types import Budget, PercentileLimit, Promise, Speculation

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"

PUBLISHED_EXAMPLE = """\
# examples/chatbot.yaml
name: support-chatbot
model: meta-llama/Llama-3.1-70B-Instruct        # catalog name, path to a config.json, or hub id; a list compares models
traffic:
  profile: azure-conversation-2023              # built-in profile, or trace: FILE, or prometheus: {...}
  rate_rps: 5.5                                 # optional: rescale
promise: {ttft_s: 1.0, tpot_s: 0.05, attainment: 0.99}   # question 1; e2e_s, percentiles and `objective: throughput` too
quality: {min_recovery_pct: 99}                 # question 2
operations: {max_effort: medium}                # question 3: low, medium, high
hardware: [H100-SXM-80GB, H200-SXM-141GB, A100-SXM-80GB, L40S-48GB]
engines: [vllm, sglang, tensorrt-llm, tgi, ollama]
budget: {max_gpus: 32, usd_per_h: 150}
prices: prices.yaml                             # optional: overrides the dated built-in table
"""  # noqa: E501 - as published

FIXED_9 = "{fixed: 9}"


def synthesis(arrivals: str, input_tokens: str) -> str:
    rest = f"arrivals: {arrivals}, input_tokens: {input_tokens}, output_tokens: {FIXED_9}"
    return f"{{synthesis: {{num_requests: 1, {rest}}}}}"


MINIMAL = {
    "model": "meta-llama/Llama-3.1-8B-Instruct",
    "traffic": "{profile: azure-code-2023}",
    "promise": "{ttft_s: 1}",
    "hardware": "[H100-SXM-80GB]",
}


def write(folder: Path, **parts: str | None) -> Path:
    lines = [f"{key}: {value}" for key, value in {**MINIMAL, **parts}.items() if value is not None]
    path = folder / "service.yaml"
    path.write_text("\n".join(lines) + "\n")
    return path


def message(path: Path) -> str:
    with pytest.raises(InputError) as caught:
        load_service(path)
    text = str(caught.value)
    assert "\n" not in text
    assert text.startswith(f"{path}, line ")
    return text.removeprefix(f"{path}, line ")


def test_the_published_example_loads(tmp_path: Path) -> None:
    (tmp_path / "chatbot.yaml").write_text(PUBLISHED_EXAMPLE)
    (tmp_path / "prices.yaml").write_text("prices: []\n")
    service = load_service(tmp_path / "chatbot.yaml")
    assert service.name == "support-chatbot"
    assert service.models == ("meta-llama/Llama-3.1-70B-Instruct",)
    assert service.traffic.profile == "azure-conversation-2023"
    assert service.traffic.rate_rps == 5.5
    assert service.promise == Promise(ttft_s=1.0, tpot_s=0.05, attainment=0.99)
    assert service.min_recovery_pct == 99
    assert service.max_effort == "medium"
    assert service.hardware == ("H100-SXM-80GB", "H200-SXM-141GB", "A100-SXM-80GB", "L40S-48GB")
    assert service.engines == ("vllm", "sglang", "tensorrt-llm", "tgi", "ollama")
    assert service.budget == Budget(max_gpus=32, usd_per_h=150)
    assert service.prices_path == tmp_path / "prices.yaml"


@pytest.mark.parametrize(
    "path", sorted(set(EXAMPLES.glob("*.yaml")) - {EXAMPLES / "prices.yaml"}), ids=lambda p: p.stem
)
def test_every_example_loads(path: Path) -> None:
    assert load_service(path).engines


def test_scores_of_the_users_own(tmp_path: Path) -> None:
    quality = "{scores: {llama-3.1-8b: {our-tickets: 61.5}}, min_scores: {our-tickets: 60, MMLU: 65}}"
    service = load_service(write(tmp_path, quality=quality))
    assert service.scores == {"meta-llama/Llama-3.1-8B-Instruct": {"our-tickets": 61.5}}
    assert service.min_scores == {"our-tickets": 60, "MMLU": 65}


def test_kinds_of_task_of_the_quality_floor(tmp_path: Path) -> None:
    assert load_service(write(tmp_path, quality="{tasks: [math, code]}")).quality_tasks == ("math", "code")
    assert load_service(write(tmp_path, quality="{tasks: long-context}")).quality_tasks == ("long-context",)


def test_defaults_are_the_documented_ones(tmp_path: Path) -> None:
    service = load_service(write(tmp_path))
    assert service.name == "service"
    assert service.promise == Promise(ttft_s=1.0, attainment=0.99)
    assert (service.min_recovery_pct, service.quality_tasks) == (99, ())
    assert (service.max_effort, service.router, service.price_kind) == ("medium", "round_robin", "on_demand")
    assert service.engines == ("vllm", "sglang", "tensorrt-llm", "tgi", "ollama")
    assert service.budget == Budget()
    assert service.prices_path is None
    assert (service.traffic.seed, service.traffic.rescale_method) == (0, "thinning")


def test_marginal_and_offline_promises(tmp_path: Path) -> None:
    promise = load_service(
        write(tmp_path, promise="{ttft_p99_s: 1, tpot_p50_s: 0.03, e2e_p99.9_s: 30, itl_p95_s: 0.2}")
    ).promise
    assert promise.percentiles == (
        PercentileLimit(metric="ttft", percentile=99, limit_s=1),
        PercentileLimit(metric="tpot", percentile=50, limit_s=0.03),
        PercentileLimit(metric="e2e", percentile=99.9, limit_s=30),
        PercentileLimit(metric="itl", percentile=95, limit_s=0.2),
    )
    assert promise.ttft_s is None
    assert load_service(write(tmp_path, promise="{deadline_s: 3600}")).promise == Promise(deadline_s=3600)
    assert load_service(write(tmp_path, promise="{objective: throughput}")).promise == Promise()


def test_paths_start_at_the_service_file(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.json").write_text("{}")
    (tmp_path / "mine" / "trace.csv").write_text("a\n")
    service = load_service(
        write(
            tmp_path,
            model="[mine/config.json, Qwen/Qwen3-8B]",
            traffic="{trace: mine/trace.csv, columns: {arrival_s: t}, format: csv, seed: 7, rescale: time}",
        )
    )
    assert service.models == (str(tmp_path / "mine" / "config.json"), "Qwen/Qwen3-8B")
    assert service.traffic.trace == tmp_path / "mine" / "trace.csv"
    assert service.traffic.columns == {"arrival_s": "t"}
    assert (service.traffic.seed, service.traffic.rescale_method) == (7, "time")


def test_synthesis_is_read_whole(tmp_path: Path) -> None:
    spec = load_service(
        write(
            tmp_path,
            traffic="{synthesis: {num_requests: 50,"
            " arrivals: {process: gamma, cv: 2.5, curve: [[60, 1], [60, 3.5]]}, output_tokens: {fixed: 9},"
            " input_tokens: {lognormal: {median: 800, sigma: 1, max_tokens: 8000}},"
            " system_prompts: {tokens: 64, num_groups: 3}, max_tokens: 12,"
            " conversations: {turns: {uniform: {low: 1, high: 4}}, turn_gap_s: 20}}}",
        )
    ).traffic.synthesis
    assert spec is not None
    assert spec.num_requests == 50
    assert spec.arrivals == Arrivals(process="gamma", cv=2.5, curve=((60.0, 1.0), (60.0, 3.5)))
    assert spec.input_tokens == LognormalLength(median=800, sigma=1, max_tokens=8000)
    assert spec.conversations is not None
    assert spec.conversations.turns == UniformLength(low=1, high=4)
    assert spec.system_prompts is not None
    assert (spec.system_prompts.tokens, spec.system_prompts.num_groups) == (64, 3)
    assert spec.max_tokens == 12


def test_a_drafter_has_one_rate_for_each_position_or_one_for_all(tmp_path: Path) -> None:
    ngram, draft = load_service(
        write(
            tmp_path,
            speculation="[{method: ngram, num_speculative_tokens: 2, acceptance: 0.5}, {method: draft_model,"
            " num_speculative_tokens: 1, acceptance: [0.7], draft_model: meta-llama/Llama-3.2-1B-Instruct}]",
        )
    ).speculations
    assert ngram == Speculation(method="ngram", num_speculative_tokens=2, acceptance=(0.5, 0.25))
    assert draft.draft_model is not None
    assert (draft.draft_model.name, draft.acceptance) == ("meta-llama/Llama-3.2-1B-Instruct", (0.7,))


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        (
            {"speculation": "[{method: ngram, num_speculative_tokens: 2, acceptance: [0.5]}]"},
            "5: speculation.0: acceptance has 1 rates for 2 speculative tokens; give one for each position",
        ),
        (
            {"speculation": "[{method: draft_model, num_speculative_tokens: 1, acceptance: 0.5}]"},
            "5: speculation.0: draft_model must be given with method 'draft_model', and only then",
        ),
        (
            {"speculation": "[{method: ngram, num_speculative_tokens: 2, acceptance: 0.5}]", "engines": "[sglang]"},
            "5: speculation: drafters are simulated with vllm only; add it to engines",
        ),
        (
            {"speculation": "[{method: eagle, num_speculative_tokens: 2, acceptance: 0.5}]"},
            "5: speculation.0: vLLM loads an EAGLE head by its hub id; give it as head_name",
        ),
        (
            {"speculation": "[{method: eagle, num_speculative_tokens: 2, acceptance: 0.5, head_name: --evil}]"},
            "5: speculation.0: model name '--evil' cannot be passed to vllm serve",
        ),
        (
            {
                "model": "[meta-llama/Llama-3.1-8B-Instruct, meta-llama/Llama-3.1-70B-Instruct]",
                "speculation": "[{method: eagle, num_speculative_tokens: 2, acceptance: 0.5}]",
            },
            "5: speculation.0: a drafter of method 'eagle' belongs to one model; list one in model",
        ),
        ({"modle": "x"}, "5: modle: unknown key; did you mean model?"),
        (
            {"colour": "x"},
            "5: colour: unknown key; known here: budget, calibration, engines, hardware, hosted, model, name,",
        ),
        ({"promise": "{tpot: 1}"}, "3: promise.tpot: unknown key; did you mean tpot_s?"),
        ({"promise": "{ttft_p99: 1}"}, "3: promise.ttft_p99: unknown key; did you mean ttft_p99_s?"),
        ({"promise": "{ttft_p100_s: 1}"}, "3: promise.ttft_p100_s: unknown key; did you mean ttft_p99_s?"),
        ({"promise": "{ttft_p0_s: 1}"}, "3: promise.ttft_p0_s: a percentile of 0 promises nothing"),
        ({"traffic": "{profil: x}"}, "2: traffic.profil: unknown key; did you mean profile?"),
        (
            {"traffic": "{synthesis: {arivals: 1}}"},
            "2: traffic.synthesis.arivals: unknown key; did you mean arrivals?",
        ),
        ({"model": None}, "1: model: this key is required and missing"),
        ({"model": ""}, "1: model: an empty value is not a list"),
        ({"model": "[]"}, "1: model: the list is empty; name at least one"),
        ({"model": "[a, a]"}, "1: model: 'a' is listed twice"),
        ({"model": "[a, 3]"}, "1: model.1: 3 is not text; put it in quotes"),
        ({"model": "no/such/config.json"}, "1: model: no file 'no/such/config.json' in "),
        ({"hardware": "{a: 1}"}, "4: hardware: a mapping is not a list"),
        ({"prices": "nowhere.yaml"}, "5: prices: no file 'nowhere.yaml' in "),
        ({"engines": "[vlm]"}, "5: engines: unknown engine 'vlm'; did you mean vllm?"),
        (
            {"promise": '{ttft_s: "1s"}'},
            "3: promise.ttft_s: '1s' carries a unit; write a number of seconds without it",
        ),
        (
            {"promise": "{ttft_s: 200ms}"},
            "3: promise.ttft_s: '200ms' carries a unit; write a number of seconds without it (e.g. 0.2)",
        ),
        (
            {"promise": "{ttft_p99_s: 1 s}"},
            "3: promise.ttft_p99_s: '1 s' carries a unit; write a number of seconds",
        ),
        ({"promise": "{ttft_s: fast}"}, "3: promise.ttft_s: 'fast' is not a number of seconds"),
        (
            {"promise": "{ttft_s: true}"},
            "3: promise.ttft_s: true is a boolean; it must be a number of seconds",
        ),
        ({"promise": "{ttft_s: yes}"}, "3: promise.ttft_s: 'yes' is not a number of seconds"),
        ({"promise": "{ttft_s: [1]}"}, "3: promise.ttft_s: a list is not a number of seconds"),
        ({"promise": "{ttft_s: -1}"}, "3: promise.ttft_s: -1 is out of range; it must be > 0"),
        ({"promise": "{ttft_s: 0}"}, "3: promise.ttft_s: 0 is out of range; it must be > 0"),
        ({"promise": "{ttft_s: .nan}"}, "3: promise.ttft_s: nan is not a finite number"),
        ({"promise": "{e2e_s: .inf}"}, "3: promise.e2e_s: inf is not a finite number"),
        ({"promise": "{tpot_p99_s: .inf}"}, "3: promise.tpot_p99_s: inf is not a finite number"),
        ({"promise": "{ttft_s: 1, attainment: 0}"}, "3: promise.attainment: 0 promises nothing"),
        ({"promise": "{ttft_s: 1, attainment: 1}"}, "3: promise.attainment: 1 promises every request"),
        (
            {"promise": "{ttft_s: 1, attainment: 99}"},
            "3: promise.attainment: 99 is not a share between 0 and 1; for 99 percent write 0.99",
        ),
        (
            {"promise": "{ttft_s: 1, attainment: 250}"},
            "3: promise.attainment: 250 is not a share between 0 and 1,",
        ),
        (
            {"promise": "{ttft_s: 1, attainment: -0.5}"},
            "3: promise.attainment: -0.5 is not a share between 0 and 1,",
        ),
        (
            {"promise": "{attainment: 0.9, deadline_s: 5}"},
            "3: promise.attainment: a share of requests needs limits",
        ),
        (
            {"promise": "{ttft_s: 1, objective: throughput}"},
            "3: promise.objective: throughput promises no latency",
        ),
        ({"promise": "{objective: latency}"}, "3: promise.objective: 'latency' is not one of throughput"),
        ({"promise": "{}"}, "3: promise: promises nothing; give ttft_s"),
        ({"promise": "[1]"}, "3: promise: a list is not a mapping"),
        ({"promise": "fast"}, "3: promise: 'fast' is not a mapping"),
        (
            {"quality": "{min_recovery_pct: 0.99}"},
            "5: quality.min_recovery_pct: 0.99 is read as a percentage; for 0.99 of the score write 99",
        ),
        (
            {"quality": "{min_recovery_pct: 101}"},
            "5: quality.min_recovery_pct: 101 is out of range; it must be <= 100",
        ),
        (
            {"quality": "{tasks: [code, maths]}"},
            "5: quality.tasks.1: 'maths' is not one of knowledge, math, code, long-context, chat; did you mean math?",
        ),
        ({"quality": "{tasks: [code, code]}"}, "5: quality.tasks: 'code' is listed twice"),
        ({"quality": "{task: code}"}, "5: quality.task: unknown key; did you mean tasks?"),
        (
            {"quality": "{min_scores: {MMLU-Pr: 50}}"},
            "5: quality.min_scores.MMLU-Pr: unknown benchmark 'MMLU-Pr'; did you mean",
        ),
        (
            {"quality": "{min_scores: {MMLU: 0.7}}"},
            "5: quality.min_scores.MMLU: 0.7 is read as a percentage; for a score of 0.7 of 1 write 70",
        ),
        (
            {"quality": "{scores: {llama-3.1-70b: {MMLU: 80}}}"},
            "5: quality.scores.llama-3.1-70b: scores of a model that `model` does not list: meta-llama/Llama-3.1-8B",
        ),
        ({"quality": "{scores: {llama-3.1-8b: {MMLU: 101}}}"}, "5: quality.scores.MMLU: 101 is out of range"),
        (
            {"operations": "{max_effort: hihg}"},
            "5: operations.max_effort: 'hihg' is not one of low, medium, high; did you mean high?",
        ),
        ({"operations": "{router: least-requests}"}, "5: operations.router: 'least-requests' is not one of"),
        ({"budget": "{max_gpus: 2.5}"}, "5: budget.max_gpus: 2.5 is not a whole number"),
        ({"budget": "{max_gpus: 0}"}, "5: budget.max_gpus: 0 is out of range; it must be >= 1"),
        (
            {"budget": "{usd_per_h: $150}"},
            "5: budget.usd_per_h: '$150' is not a number of US dollars per hour",
        ),
        (
            {"traffic": "{}"},
            "2: traffic: traffic needs exactly one of profile, trace and synthesis; given: none",
        ),
        (
            {"traffic": "{profile: azure-code-2023, trace: service.yaml}"},
            "2: traffic: traffic needs exactly one of",
        ),
        (
            {"traffic": "{profile: azure-code-2032}"},
            "2: traffic.profile: unknown profile 'azure-code-2032'; did you mean azure-code-2023",
        ),
        ({"traffic": "{trace: nowhere.csv}"}, "2: traffic.trace: no file 'nowhere.csv' in "),
        ({"traffic": "{profile: azure-code-2023, format: csv}"}, "2: traffic: format describes a trace file"),
        (
            {"traffic": "{profile: azure-code-2023, rate_rps: 5 rps}"},
            "2: traffic.rate_rps: '5 rps' carries a unit; write a number of requests per second without it (e.g. 5)",
        ),
        (
            {"traffic": synthesis("{}", FIXED_9)},
            "2: traffic.synthesis.arrivals: arrivals need either rate_rps or a rate curve",
        ),
        (
            {"traffic": synthesis("{rate_rps: 1}", "{}")},
            "2: traffic.synthesis.input_tokens: needs exactly one of fixed, uniform",
        ),
        (
            {"traffic": synthesis("{rate_rps: 1}", "{uniform: {low: 5, high: 2}}")},
            "2: traffic.synthesis.input_tokens.uniform: high is 2; it must be at least",
        ),
        (
            {"traffic": synthesis("{rate_rps: 1, curve: [[1]]}", FIXED_9)},
            "2: traffic.synthesis.arrivals.curve.0: ",
        ),
    ],
)
def test_mistakes_are_explained_with_their_line(tmp_path: Path, parts: dict[str, str], expected: str) -> None:
    assert message(write(tmp_path, **parts)).startswith(expected)


def test_the_first_mistake_in_the_file_is_reported(tmp_path: Path) -> None:
    path = write(tmp_path, promise="{ttft_s: -1}", budget="{max_gpus: -5}", quality="{min_recovery_pct: 500}")
    assert message(path).startswith("3: promise.ttft_s")
