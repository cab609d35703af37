"""The site of the documentation, as Sphinx builds it. `docs/site/build` runs it."""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.dont_write_bytecode = True
sys.path.insert(0, str(HERE))

import finish  # noqa: E402
from stage import VERSION  # noqa: E402

project = "Throng"
version = release = VERSION
html_title = f"Throng {VERSION}"
language = "en"
root_doc = "index"
extensions = ["myst_parser", "sphinx_copybutton"]
# Of a block with commands and their output, only the commands are copied.
copybutton_prompt_text = "$ "
# Anchors as forges make them: documents link headings of each other.
myst_heading_anchors = 6
# A block without a language is output of a command.
highlight_language = "none"
# Some blocks are parts of programs, or have dots where something is left out.
suppress_warnings = ["misc.highlighting_failure"]

html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_js_files = ["site.js"]
html_search_scorer = str(HERE / "scorer.js")
html_favicon = str(HERE.parents[1] / "web" / "icon.svg")
html_show_copyright = False
html_show_sphinx = False
html_copy_source = False
html_domain_indices = False
html_use_index = False
html_theme_options = {
    "light_css_variables": {
        "color-brand-primary": "#3b4cca",
        "color-brand-content": "#3b4cca",
        "color-brand-visited": "#6b46c1",
    },
    "dark_css_variables": {
        "color-brand-primary": "#9aa6ff",
        "color-brand-content": "#9aa6ff",
        "color-brand-visited": "#bda2ff",
    },
}


def setup(app):
    app.connect("build-finished", finish.finish)
