"""The files of the page, and the page as one file that also contains its data (the document)."""

import hashlib
from base64 import b64encode
from collections.abc import Iterable
from functools import cache
from html import escape
from importlib.resources import files
from string import Template
from typing import Any

from fedstrata.process.json_text import json_text

STYLES = ("style.css",)
SCRIPTS = (
    "d3.min.js", "plot.umd.min.js", "units.js", "document.js", "look.js", "topology.js", "curves.js", "traffic.js",
    "numbers.js", "relevance.js", "labels.js", "tables.js", "page.js",
)  # fmt: skip
TYPES = {"css": "text/css", "js": "text/javascript", "html": "text/html"}
# The style that Plot writes into each figure. Its hash allows it, because the policy forbids all other inline styles.
PLOT_STYLE = """:where(.plot) {
  --plot-background: white;
  display: block;
  height: auto;
  height: intrinsic;
  max-width: 100%;
}
:where(.plot text),
:where(.plot tspan) {
  white-space: pre;
}"""
NOTHING_ELSE = "default-src 'none'; img-src data:; base-uri 'none'; form-action 'none'"


@cache
def static_file(name: str) -> bytes:
    """Return the content of a file of the page."""
    return files("fedstrata.page").joinpath("static", name).read_bytes()


def _hashed(texts: Iterable[str]) -> str:
    return " ".join(f"'sha256-{b64encode(hashlib.sha256(text.encode()).digest()).decode()}'" for text in texts)


def _page(*, policy: str, head: str, body: str, title: str) -> str:
    template = Template(static_file("page.html").decode())
    return template.substitute(policy=escape(policy), head=head, body=body, title=escape(title))


def live_policy() -> str:
    """Return the Content-Security-Policy of the live page, which allows only files from the server of this page."""
    return f"{NOTHING_ELSE}; script-src 'self'; style-src 'self' {_hashed([PLOT_STYLE])}; connect-src 'self'"


@cache
def live_page() -> str:
    """Return the page that follows a run. Its files and events come from the same server."""
    head = "".join(f'<link rel="stylesheet" href="page/{name}">\n' for name in STYLES)
    body = "".join(f'<script src="page/{name}"></script>\n' for name in SCRIPTS)
    return _page(policy=live_policy(), head=head, body=body, title="Fedstrata run")


def page_with(document: Any, *, title: str) -> str:
    """Return the page as one self-contained file that draws a document. The same document gives the same bytes."""
    styles = [static_file(name).decode() for name in STYLES]
    scripts = [static_file(name).decode() for name in SCRIPTS]
    data = json_text(document, separators=(",", ":")).replace("<", "\\u003c")
    head = "".join(f"<style>{style}</style>\n" for style in styles)
    body = f'<script type="application/json" id="document">{data}</script>\n'
    body += "".join(f"<script>{script}</script>\n" for script in scripts)
    policy = f"{NOTHING_ELSE}; script-src {_hashed(scripts)}; style-src {_hashed([*styles, PLOT_STYLE])}"
    return _page(policy=policy, head=head, body=body, title=title)
