"""The site of guides, references and runbooks: make docs, or sphinx-build -W -c docs/reference docs build/docs"""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "extensions"))

project = "Hourglass"
author = "The Hourglass maintainers"
project_copyright = "The Hourglass maintainers"
language = "en"

include_patterns = [
    "index.md",
    "glossary.md",
    "guides/*.md",
    "reference/*.md",
    "reference/*.rst",
    "runbooks/*.md",
    "performance/*.md",
    "adr/*.md",
]

extensions = ["myst_parser", "sphinx.ext.autodoc", "plain_docstrings", "http_api"]
myst_heading_anchors = 3
myst_enable_extensions = ["colon_fence"]

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_class_signature = "mixed"
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 100

html_theme = "furo"
html_title = "Hourglass"
html_show_sphinx = False
html_copy_source = False
