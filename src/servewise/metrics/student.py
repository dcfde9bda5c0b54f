"""Student's t distribution for any degrees of freedom from 1, without scipy.

With t = sqrt(n) tan(x) the density of t with n degrees of freedom is proportional to cos(x)^(n - 1): a smooth function
on a bounded interval, which the trapezoid rule integrates.
"""

from __future__ import annotations

import functools
import math

import numpy as np
from numpy.typing import NDArray

__all__ = ["NORMAL", "student_p_value", "student_quantile"]

NORMAL = 1.959964
"""The normal distribution's 97.5% quantile, to which Student's comes down with many degrees of freedom."""
NUM_POINTS = 20_001

Floats = NDArray[np.float64]


@functools.lru_cache(maxsize=64)
def _distribution(degrees: float) -> tuple[Floats, Floats]:
    """Angles x from 0 to where nothing is left, and the probability of |t| <= sqrt(n) tan(x)."""
    # Beyond 10 deviations of the normal that large n lead to, the density is nothing.
    angles = np.linspace(0.0, min(math.pi / 2.0, 10.0 / math.sqrt(degrees)), NUM_POINTS)
    density = np.maximum(np.cos(angles), 0.0) ** (degrees - 1.0)
    mass = np.concatenate(([0.0], np.cumsum(density[1:] + density[:-1])))
    return angles, mass / mass[-1]


def student_quantile(confidence: float, degrees: float) -> float:
    """The t that \\|t\\| stays within with this probability, e.g. 2.228 for 0.95 and 10 degrees of freedom."""
    angles, inside = _distribution(degrees)
    return math.sqrt(degrees) * math.tan(float(np.interp(confidence, inside, angles)))


def student_p_value(t: float, degrees: float) -> float:
    """Probability that \\|t\\| is at least this large."""
    angles, inside = _distribution(degrees)
    return 1.0 - float(np.interp(math.atan(abs(t) / math.sqrt(degrees)), angles, inside))
