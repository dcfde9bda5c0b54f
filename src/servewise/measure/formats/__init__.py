"""Result files of other load generators: read, written, and what their figures mean."""

from servewise.measure.formats.read import read_runs
from servewise.measure.formats.write import FORMATS, write_run

__all__ = ["FORMATS", "read_runs", "write_run"]
