"""Sphinx: the pages under docs/ as a site; `make docs` builds it and fails on a broken link."""

project = "cadenza"
copyright = "the cadenza authors, Apache-2.0"
extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
html_theme = "furo"
html_title = "cadenza"
exclude_patterns = ["_build"]
myst_heading_anchors = 4
