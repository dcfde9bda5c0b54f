"""Models, GPUs, prices, which precision runs where: data with sources, and the reader of ``config.json``."""

from servewise.catalog.config_json import SUPPORTED_ARCHITECTURES, read_config_json
from servewise.catalog.devices import DEVICE_SUFFIX, device_offer, read_device
from servewise.catalog.facts import Fact, read_facts
from servewise.catalog.gpus import get_gpu, list_gpus
from servewise.catalog.hosted import all_hosted_prices, hosted_prices
from servewise.catalog.listing import gpu_rows, model_rows
from servewise.catalog.models import get_model, list_models
from servewise.catalog.params import ParamCounts, param_counts
from servewise.catalog.precisions import supported_precisions, unsupported_precisions, weights_only_stored
from servewise.catalog.prices import all_offers, offers, offers_from_rows

__all__ = [
    "DEVICE_SUFFIX",
    "SUPPORTED_ARCHITECTURES",
    "Fact",
    "ParamCounts",
    "all_hosted_prices",
    "all_offers",
    "device_offer",
    "get_gpu",
    "get_model",
    "gpu_rows",
    "hosted_prices",
    "list_gpus",
    "list_models",
    "model_rows",
    "offers",
    "offers_from_rows",
    "param_counts",
    "read_config_json",
    "read_device",
    "read_facts",
    "supported_precisions",
    "unsupported_precisions",
    "weights_only_stored",
]
