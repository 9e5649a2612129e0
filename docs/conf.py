"""The site: `make docs`. Nothing in it is fetched from elsewhere, neither when it is built nor when it is read."""

from __future__ import annotations

import logging
import re
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import latex2mathml.converter
import pictures
import site_pages

import fairseq_syntax

for name in ("markdown_it", "matplotlib"):  # a module of fairseq's sets the root logger to DEBUG
    logging.getLogger(name).setLevel(logging.WARNING)

project = "fairseq-syntax"
author = copyright = "The fairseq-syntax authors"
version = release = fairseq_syntax.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
myst_enable_extensions = ["dollarmath", "amsmath", "colon_fence", "deflist"]
myst_heading_anchors = 4
exclude_patterns = ["_build"]
suppress_warnings = ["myst.header"]  # a README may begin below its first level where it is included
nitpicky = False

html_theme = "furo"
html_title = f"fairseq-syntax {version}"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_math_renderer = "mathml"

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True  # the fields of a named tuple are described once


def mathml(latex: str, display: str) -> str:
    """Mathematics as MathML, which browsers draw by themselves."""
    return latex2mathml.converter.convert(" ".join(latex.split()), display=display)


def visit_math(self: Any, node: Any) -> None:
    from docutils.nodes import SkipNode

    self.body.append(mathml(node.astext(), "inline"))
    raise SkipNode


def visit_math_block(self: Any, node: Any) -> None:
    from docutils.nodes import SkipNode

    self.body.append(f'<div class="math">{mathml(node.astext(), "block")}</div>')
    raise SkipNode


def make_sources(app: Any) -> None:
    site_pages.write_pages()
    pictures.site(site_pages.OUT / "pictures")


def relink_sources(app: Any, docname: str, content: list[str]) -> None:
    """Links of the site's own pages lead to sources, as they are read in the repository; here they lead to pages."""
    page = site_pages.DOCS / f"{docname}.md"
    if page.parent == site_pages.DOCS:
        content[0] = site_pages.relink(content[0], page, page)


def keep_options_whole(app: Any, pagename: str, templatename: str, context: dict[str, Any], doctree: Any) -> None:
    """Options in blocks of code as elements of their own: a browser would break a line after their hyphens."""
    if "body" in context:
        context["body"] = re.sub(
            r"<pre>.*?</pre>",
            lambda block: re.sub(r"(?<=[\s>(\[|])(--?[A-Za-z][\w-]*)", r'<span class="option">\1</span>', block[0]),
            context["body"],
            flags=re.S,
        )


def setup(app: Any) -> None:
    app.add_html_math_renderer("mathml", (visit_math, None), (visit_math_block, None))
    app.connect("builder-inited", make_sources)
    app.connect("source-read", relink_sources)
    app.connect("html-page-context", keep_options_whole)
