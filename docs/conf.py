"""How Sphinx makes a site of the documents: `make docs`. The pages stay plain Markdown, readable without it."""

import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]

project = "Fedstrata"
release = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]
language = "en"
extensions = ["myst_parser", "sphinx_copybutton", "sphinx_design"]

myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4  # links name headings as a forge does
highlight_language = "none"

html_theme = "furo"
html_title = f"Fedstrata {release}"
html_favicon = "icon.svg"
html_copy_source = False

# These pages list the others of their folder for readers of the files; on the site the menu lists them, too.
INDEXES = {"results/README", "decisions/README"}
MENU = "\n\n```{toctree}\n:hidden:\n:glob:\n\n*\n```\n"


def add_menu(_: Any, name: str, source: list[str]) -> None:
    """Append the menu of its folder to a page that is an index."""
    if name in INDEXES:
        source[0] += MENU


def setup(app: Any) -> None:
    """Register what is special here; Sphinx calls this."""
    app.connect("source-read", add_menu)
