"""`report.html`: the page of a finished run as one file that works offline, on a screen and on paper."""

import dataclasses
import os
from pathlib import Path
from typing import Any

from emulator.results.labels import label_picture
from emulator.results.record import RunRecord, load_record
from emulator.results.report.virtual_time import metric_over_time
from emulator.results.waits import parts_by_tier, picture
from fedstrata.errors import OutputError
from fedstrata.page import page_with, relevance_part
from fedstrata.record.rounds import page_row


def write_report(folder: Path, global_round: int | None = None) -> Path:
    """Write the page with the record in `folder` to `report.html` in the same folder. Return its path.

    With a clock one global round is drawn in detail: the given one, counted from 1, or the longest.

    Raises:
        DataError: the record is missing or malformed, or has no such global round.
        OutputError: the page cannot be written.
    """
    path = folder / "report.html"
    record = load_record(folder)
    write_page(path, page_with(document_of(record, global_round), title=f"{record.name} · Fedstrata run"))
    return path


def document_of(record: RunRecord, global_round: int | None = None) -> dict[str, Any]:
    """Return the page's data from a record: the same document as the GPS has at the end of the run, and the additions
    of a clock.
    """
    relevance, waits = record.relevance, record.waits
    return {
        "parts": {
            "experiment": record.experiment_yaml,
            **{f"summary/{name}": value for name, value in record.summary.document().items()},
            "relevance": relevance_part(relevance.matrix, relevance.ids, record.summary.clusters)
            if relevance is not None
            else None,
            "label_picture": label_picture(record),
            "virtual_curve": metric_over_time(record) or None,
            "round_picture": picture(record, waits, global_round),
            "real_parts": parts_by_tier(waits) if waits and not record.timeline else None,
            "real_links": [dataclasses.asdict(row) for row in record.links] or None,
        },
        "rounds": [page_row(row, record.headline) for row in record.rounds],
    }


def write_page(path: Path, page: str) -> None:
    """Write a page to a temporary file, then rename it. Raises OutputError if it cannot be written."""
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        aside.write_text(page, encoding="utf-8")
        aside.replace(path)
    except OSError as error:
        aside.unlink(missing_ok=True)
        raise OutputError(f"cannot write {path}: {error.strerror}") from None
