"""Write tables as HTML. All texts from a record are escaped here."""

from collections.abc import Iterable, Sequence
from html import escape


class Markup(str):
    """Mark a text that is already HTML. All other texts are escaped when they are written to a page."""

    __slots__ = ()


def html(text: object) -> Markup:
    """Return a text as HTML. The text is escaped unless it is already Markup."""
    return text if isinstance(text, Markup) else Markup(escape(str(text)))


def table(caption: str, head: Sequence[str], rows: Iterable[Sequence[object]], numeric: str) -> Markup:
    """Return a table as HTML. `numeric` has one character per column: `1` for a column aligned to the right, and `.`
    for a column aligned to the left.
    """
    kinds = [' class="n"' if kind == "1" else "" for kind in numeric]
    top = "".join(f'<th scope="col"{kind}>{html(cell)}</th>' for cell, kind in zip(head, kinds, strict=True))
    body = "".join(
        "<tr>" + "".join(f"<td{kind}>{html(cell)}</td>" for cell, kind in zip(row, kinds, strict=True)) + "</tr>\n"
        for row in rows
    )
    return Markup(
        f'<div class="wide"><table><caption>{html(caption)}</caption><thead><tr>{top}</tr></thead>\n'
        f"<tbody>{body}</tbody></table></div>"
    )
