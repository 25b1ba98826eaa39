"""Tables of the record as text, line by line: a long run has more rows than memory should hold at once."""

import csv
import io
from collections.abc import Iterable, Iterator
from itertools import chain


def csv_lines(header: Iterable[str], rows: Iterable[Iterable[object]]) -> Iterator[str]:
    """The lines of a CSV file, each with its end."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for row in chain([header], rows):
        text.seek(0)
        text.truncate()
        writer.writerow(row)
        yield text.getvalue()
