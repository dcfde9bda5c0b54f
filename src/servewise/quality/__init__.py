"""Quality kept in each precision, and the choices a quality floor leaves."""

from servewise.quality.choices import precision_choices
from servewise.quality.recovery import Recovery, expected_recovery, size_class

__all__ = ["Recovery", "expected_recovery", "precision_choices", "size_class"]
