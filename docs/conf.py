"""The documentation site: `make docs` builds it, offline and with warnings as errors; `make docs-quick` without running examples."""

from __future__ import annotations

import os
import sys
from pathlib import Path

DOCS = Path(__file__).parent
ROOT = DOCS.parent
QUICK = os.environ.get("COMPFED_DOCS_QUICK") == "1"  # no figures, no examples run

sys.path[:0] = [str(DOCS / "_ext"), str(ROOT / "src")]

import compfed  # noqa: E402

project = "compfed"
author = "The compfed developers"
copyright = f"2026, {author}"
version = release = compfed.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx_design",
    "sphinx_gallery.gen_gallery",
    "docstrings",  # the rest is ours, in _ext
    "generated_pages",
    "code_host_links",
    "mathml",
]
exclude_patterns = [
    "_build",
    "_ext",
    "Thumbs.db",
    "gallery/**/*.ipynb",
    "gallery/**/*.py",
    "gallery/**/*.json",
    "**sg_execution_times.rst",
]
suppress_warnings = ["config.cache"]  # a function in the settings of the gallery
nitpicky = True
nitpick_ignore_regex = [
    (r"py:.*", r"(?!compfed\.).*")
]  # only our own names have pages here; there is no network to look elsewhere

# Markdown
myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_dmath_allow_labels = False
myst_heading_anchors = 4
myst_links_external_new_tab = False

# Mathematics: MathML, written at build time (_ext/mathml.py); no script draws it, nothing is fetched
html_math_renderer = "mathml"

# Docstrings
highlight_language = "text"  # a formula in a docstring is not Python
default_role = "literal"  # `name` in a docstring is code
autodoc_typehints = "none"  # numpydoc sections say the types in words
autodoc_member_order = "bysource"
autosummary_generate = False  # _ext/generated_pages.py writes the pages
napoleon_google_docstring = False
napoleon_use_param = False
napoleon_use_rtype = False
# Types in words are not names to link.
napoleon_custom_sections = [("Attributes", "params_style")]

# The gallery
sphinx_gallery_conf = {
    "examples_dirs": [str(ROOT / "examples" / "gallery")],
    "gallery_dirs": ["gallery"],
    "filename_pattern": r"/plot_",  # what is run
    "ignore_pattern": r"__init__\.py",
    "within_subsection_order": "FileNameSortKey",
    "plot_gallery": not QUICK,
    "abort_on_example_error": True,
    "download_all_examples": False,
    "show_memory": False,
    "show_signature": False,
    "write_computation_times": False,
    "remove_config_comments": True,
    "capture_repr": (),
    "matplotlib_animations": False,
    "image_srcset": ["2x"],
    "backreferences_dir": None,
    "reference_url": {},
}

# Look
html_theme = "pydata_sphinx_theme"
html_title = "compfed"
html_logo = "_static/logo.svg"
html_favicon = "_static/favicon.svg"
html_static_path = ["_static"]
html_css_files = ["compfed.css"]
html_js_files = [("pages.js", {"defer": "defer"})]
html_show_sourcelink = False
html_copy_source = False
html_show_sphinx = False
# Summaries are fetched, which a browser refuses for files on the disk.
html_show_search_summary = False
html_theme_options = {
    "logo": {"text": f"compfed {version}", "alt_text": "compfed, the start page"},
    "header_links_before_dropdown": 5,
    "navbar_align": "left",
    "navbar_end": ["theme-switcher"],
    "navbar_persistent": ["search-button-field"],
    "secondary_sidebar_items": ["page-toc"],
    "show_toc_level": 2,
    "navigation_depth": 3,
    "show_nav_level": 1,
    "collapse_navigation": True,
    "footer_start": ["copyright"],
    "footer_end": [],
    "pygments_light_style": "tango",
    "pygments_dark_style": "github-dark",
}
html_context = {"default_mode": "auto"}  # light or dark, as the reader's system is
html_sidebars = {
    "index": [],
    "reference/methods/index": [],
}  # the widest table has the page to itself
