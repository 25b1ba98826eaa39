"""Fill the pages of sweeps and plans, which need no script. Both have the same frame around different sections."""

from importlib.resources import files
from string import Template

from emulator.results.report.html_tables import Markup, html


def framed(kind: str, *, name: str, said: Markup, **parts: Markup) -> str:
    """Return the page of a `sweep` or a `plan` as HTML. `kind` is one of these two words, and names the template of
    the sections, such as `sweep.html`. `parts` has the text for each placeholder of this template. `name` and `said`
    stand above the sections.
    """
    sections = _template(f"{kind}.html").substitute(parts)
    style = _text("style.css")
    return _template("frame.html").substitute(style=style, kind=kind, name=html(name), said=said, body=sections)


def _template(file: str) -> Template:
    return Template(_text(file))


def _text(file: str) -> str:
    return files("emulator.results.report").joinpath(file).read_text(encoding="utf-8")
