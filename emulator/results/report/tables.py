"""Tables as HTML. Every text that comes from a record is escaped here."""

from collections.abc import Iterable, Sequence
from html import escape


class Markup(str):
    """Text that is HTML already; every other string is escaped when it enters a page."""

    __slots__ = ()


def html(text: object) -> Markup:
    """`text` as HTML: escaped, unless it is Markup."""
    return text if isinstance(text, Markup) else Markup(escape(str(text)))


def table(caption: str, head: Sequence[str], rows: Iterable[Sequence[object]], numeric: str) -> Markup:
    """Return a table; `numeric` holds a character a column: `1` where it is set to the right, `.` to the left."""
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
