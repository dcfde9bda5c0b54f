"""Sphinx configuration: MyST pages in the Furo theme. Built with ``-W``: a warning is an error."""

from servewise import __version__

project = "servewise"
author = "servewise maintainers"
copyright = "servewise maintainers"  # noqa: A001 - Sphinx's name
release = __version__
version = __version__

extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build"]
myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3

html_theme = "furo"
html_title = f"servewise {__version__}"
html_copy_source = False
html_show_sourcelink = False
