"""servewise: decide how to serve a large language model.

The public verbs live in :mod:`servewise.api`; see ``docs/architecture.md`` for the house.
"""

__version__ = "0.1.0"
__all__ = ["__version__"]
