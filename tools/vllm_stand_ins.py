"""Import vLLM's scheduler from its source files, without a GPU, torch, or the rest of vLLM.

:func:`install` makes ``import vllm.v1.core.sched.scheduler`` work. Three kinds of modules follow:

- :data:`ORIGINAL`: vLLM's own files, every line of them that schedules, allocates, hashes or stops;
- :data:`WORKING`: the few functions from elsewhere that those files call;
- all other ``vllm`` and ``torch`` modules: names only, for annotations and base classes. Calling one of them, or
  asking whether it is true, raises. So no rule of the scheduler can be replaced by a stand-in unnoticed.

:func:`engine_config` is the configuration. A setting that it lacks raises AttributeError when it is read.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from oracle.vllm_plain import Params
from servewise.errors import InputError

ORIGINAL = (
    "vllm.utils.math_utils",
    "vllm.v1.core",
    "vllm.v1.core.block_pool",
    "vllm.v1.core.encoder_cache_manager",
    "vllm.v1.core.kv_cache_coordinator",
    "vllm.v1.core.kv_cache_manager",
    "vllm.v1.core.kv_cache_metrics",
    "vllm.v1.core.kv_cache_utils",
    "vllm.v1.core.sched",
    "vllm.v1.core.sched.async_scheduler",
    "vllm.v1.core.sched.interface",
    "vllm.v1.core.sched.output",
    "vllm.v1.core.sched.request_queue",
    "vllm.v1.core.sched.scheduler",
    "vllm.v1.core.sched.utils",
    "vllm.v1.core.single_type_kv_cache_manager",
    "vllm.v1.engine",
    "vllm.v1.hisparse.block_pool",
    "vllm.v1.kv_cache_interface",
    "vllm.v1.kv_cache_layout",
    "vllm.v1.kv_cache_spec_registry",
    "vllm.v1.metrics.stats",
    "vllm.v1.outputs",
    "vllm.v1.request",
)
"""Modules that are run from vLLM's own files."""

UNLIMITED_TOKENS = 10**6
"""Beyond every case: a limit that never binds."""


def _nothing(*_: Any) -> None:
    """What vLLM's factories return for a feature that is off."""


WORKING: dict[str, dict[str, Any]] = {
    "vllm.config": {"get_current_vllm_config_or_none": _nothing},
    "vllm.distributed.kv_events": {"EventPublisherFactory": SimpleNamespace(create=_nothing)},
    "vllm.logger": {"init_logger": logging.getLogger},
    "vllm.multimodal.utils": {"strip_covered_mm_data": lambda features, *_, **_options: features},
    "vllm.platforms": {
        "current_platform": SimpleNamespace(is_xpu=lambda: False, register_custom_kv_cache_specs=_nothing),
    },
    "vllm.utils": {"length_from_prompt_token_ids_or_embeds": lambda token_ids, _embeds: len(token_ids)},
    "vllm.utils.torch_utils": {"get_dtype_size": lambda _dtype: 2},
    "vllm.v1.structured_output.request": {
        "StructuredOutputRequest": SimpleNamespace(from_sampling_params=_nothing),
    },
    "vllm.v1.utils": {
        "ConstantList": lambda tokens: tokens,
        "record_function_or_nullcontext": lambda _name: contextlib.nullcontext(),
    },
}
"""Names with a function, by module; none of them has a part in what is compared."""


class _NameOnly(type):
    """Metaclass of a name that may be mentioned, subclassed and subscripted, but not used."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _NameOnly(f"{cls.__name__}.{name}", (), {})

    def __getitem__(cls, _key: Any) -> Any:
        return cls

    def __call__(cls, *_args: Any, **_kwargs: Any) -> Any:
        raise NotImplementedError(f"vLLM called {cls.__name__}, of which there is only the name here")

    def __bool__(cls) -> bool:
        raise NotImplementedError(f"vLLM tested {cls.__name__}, of which there is only the name here")


class _StandInModule(ModuleType):
    """A module in which every name exists."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        value = _NameOnly(f"{self.__name__}.{name}", (), {})
        setattr(self, name, value)
        return value


class _StandInLoader(Loader):
    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _StandInModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        vars(module).update(WORKING.get(module.__name__, {}))


class _Finder(MetaPathFinder):
    """Decides for ``vllm`` and ``torch`` which modules are original."""

    def __init__(self, files: dict[str, Path]) -> None:
        self.files = files

    def find_spec(self, fullname: str, _path: Sequence[str] | None, _target: ModuleType | None = None) -> Any:
        if fullname.split(".")[0] not in ("vllm", "torch"):
            return None
        if fullname in self.files:
            return spec_from_file_location(fullname, self.files[fullname])
        return ModuleSpec(fullname, _StandInLoader(), is_package=True)


def _file_of(source: Path, module: str) -> Path:
    """Where a module is in the unpacked wheel."""
    path = source.joinpath(*module.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    if not file.is_file():
        raise InputError(
            f"{source} lacks {file.relative_to(source)}; it must be the folder that holds the package `vllm` of "
            f"version 0.33.0: `pip download vllm==0.33.0 --no-deps`, unzip the wheel, name the folder"
        )
    return file


def install(source: Path) -> None:
    """Make vLLM's scheduler importable from the folder of an unpacked wheel.

    Raises
    ------
    InputError
        The folder or one of the files is missing, or msgspec is.
    """
    if not source.is_dir():
        raise InputError(f"{source} is no folder; name the folder into which the wheel of vLLM was unpacked")
    files = {module: _file_of(source, module) for module in ORIGINAL}
    if find_spec("msgspec") is None:
        raise InputError("the package msgspec is missing, which vLLM's scheduler imports: `pip install msgspec`")
    sys.meta_path.insert(0, _Finder(files))


def engine_config(params: Params, num_stages: int) -> SimpleNamespace:
    """``VllmConfig`` as far as the scheduler reads it: the case's settings, everything else off or by default."""
    return SimpleNamespace(
        scheduler_config=SimpleNamespace(
            async_scheduling=params.async_scheduling,
            enable_chunked_prefill=True,
            long_prefill_token_threshold=params.long_prefill_token_threshold,
            long_prefill_token_threshold_adaptive=False,
            max_num_active_seqs=None,
            max_num_batched_tokens=params.max_num_batched_tokens,
            max_num_scheduled_tokens=None,
            max_num_seqs=params.max_num_seqs,
            policy=params.scheduling_policy,
            prefill_schedule_interval=1,
            scheduler_reserve_full_isl=params.scheduler_reserve_full_isl,
            watermark=params.watermark,
        ),
        cache_config=SimpleNamespace(
            enable_mamba_shared_prefix_checkpoint=False,
            enable_prefix_caching=params.enable_prefix_caching,
            num_gpu_blocks=params.num_kv_blocks + 1,  # and the null block
        ),
        model_config=SimpleNamespace(
            is_diffusion=False,
            is_encoder_decoder=False,
            max_model_len=UNLIMITED_TOKENS,
            return_sampling_mask=False,
            runner_type="generate",
            supports_multimodal_inputs=False,
            uses_mrope=False,
        ),
        parallel_config=SimpleNamespace(
            data_parallel_index=0,
            data_parallel_size=1,
            decode_context_parallel_size=1,
            pipeline_parallel_size=num_stages,
            prefill_context_parallel_size=1,
        ),
        observability_config=SimpleNamespace(kv_cache_metrics=False, per_request_spec_decode_metrics=None),
        aux_output_config=SimpleNamespace(enabled=False),
        ec_manager_config=SimpleNamespace(get_encoder_cache_manager_obj=_nothing),
        ec_transfer_config=None,
        is_mm_encoder_only=False,
        kv_events_config=None,
        kv_transfer_config=None,
        lora_config=None,
        max_in_flight_tokens=UNLIMITED_TOKENS,
        num_hash_lookahead_tokens=0,
        num_lookahead_tokens=0,
        num_prefill_lookahead_tokens=0,
        num_speculative_tokens=0,
        speculative_config=None,
        use_v2_model_runner=True,
    )


def sampling_params(max_tokens: int, eos_token_id: int) -> SimpleNamespace:
    """``SamplingParams`` as far as the scheduler reads them."""
    return SimpleNamespace(
        eos_token_id=eos_token_id,
        extra_args=None,
        max_tokens=max_tokens,
        min_tokens=0,
        num_logprobs=None,
        repetition_detection=None,
        skip_reading_prefix_cache=None,
        stop_token_ids=[],
    )


def runner_output(request_ids: list[str], sampled_token_ids: list[list[int]]) -> SimpleNamespace:
    """``ModelRunnerOutput`` of a step: at most one sampled token a row, nothing else."""
    return SimpleNamespace(
        cudagraph_stats=None,
        ec_connector_output=None,
        kv_connector_output=None,
        logprobs=None,
        num_nans_in_logits=None,
        pooler_output=None,
        prompt_logprobs_dict={},
        prompt_token_id_logprobs_dict={},
        req_id_to_index={request_id: row for row, request_id in enumerate(request_ids)},
        sampled_token_ids=sampled_token_ids,
    )
