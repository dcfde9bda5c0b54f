"""Quality kept in each precision, what models score, and the choices a quality floor leaves."""

from servewise.quality.choices import Floor, below_floor, choices_of_models, precision_choices
from servewise.quality.hardware import not_run
from servewise.quality.recovery import Recovery, expected_recovery, size_class
from servewise.quality.scores import Score, benchmarks, expected_score, published_scores, scores_to_show

__all__ = [
    "Floor",
    "Recovery",
    "Score",
    "below_floor",
    "benchmarks",
    "choices_of_models",
    "expected_recovery",
    "expected_score",
    "not_run",
    "precision_choices",
    "published_scores",
    "scores_to_show",
    "size_class",
]
