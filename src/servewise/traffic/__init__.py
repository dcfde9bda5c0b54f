"""Traffic: read traces, draw from built-in profiles, synthesize, rescale, and describe."""

from servewise.traffic.arrivals import Arrivals
from servewise.traffic.describe import describe
from servewise.traffic.formats import FIELDS, FORMATS
from servewise.traffic.lengths import (
    EmpiricalLength,
    FixedLength,
    LengthDistribution,
    LognormalLength,
    UniformLength,
)
from servewise.traffic.max_tokens import assume_max_tokens, context_limit
from servewise.traffic.profiles import load_profile, profile_names
from servewise.traffic.reader import read_trace
from servewise.traffic.rescale import RescaleMethod, rescale
from servewise.traffic.selection import limit, select_requests
from servewise.traffic.source import TrafficSource, load, named_source
from servewise.traffic.statistics import LengthStatistics, TrafficStatistics, statistics
from servewise.traffic.synthesis import Conversations, SynthesisSpec, SystemPrompts, synthesize

__all__ = [
    "FIELDS",
    "FORMATS",
    "Arrivals",
    "Conversations",
    "EmpiricalLength",
    "FixedLength",
    "LengthDistribution",
    "LengthStatistics",
    "LognormalLength",
    "RescaleMethod",
    "SynthesisSpec",
    "SystemPrompts",
    "TrafficSource",
    "TrafficStatistics",
    "UniformLength",
    "assume_max_tokens",
    "context_limit",
    "describe",
    "limit",
    "load",
    "load_profile",
    "named_source",
    "profile_names",
    "read_trace",
    "rescale",
    "select_requests",
    "statistics",
    "synthesize",
]
