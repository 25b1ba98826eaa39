"""`report.html`: the page of a finished run as one file that works offline, on a screen and on paper."""

import dataclasses
import os
from pathlib import Path
from typing import Any

from emulator.record import RunRecord, load_record, summary_fields
from emulator.timeline import accuracy_over_time
from fedstrata.errors import OutputError
from fedstrata.page import page_with, relevance_part, round_values


def write_report(folder: Path) -> Path:
    """Put the record in `folder` into the page and write it there as `report.html`, whose path it gives.

    Raises:
        DataError: the record is missing or malformed.
        OutputError: the page cannot be written.
    """
    path = folder / "report.html"
    record = load_record(folder)
    write_page(path, page_with(document_of(record), title=f"{record.name} · Fedstrata run"))
    return path


def document_of(record: RunRecord) -> dict[str, Any]:
    """What the page draws of a record; the same as the GPS tells at the end of the run."""
    relevance = record.relevance
    fields = summary_fields(record.summary) | {"name": record.name}
    return {
        "parts": {
            "experiment": record.experiment_yaml,
            **{f"summary/{name}": value for name, value in fields.items()},
            "relevance": relevance_part(relevance.matrix, relevance.ids, record.summary.clusters)
            if relevance is not None
            else None,
            "virtual_curve": accuracy_over_time(record) or None,
            "real_links": [dataclasses.asdict(row) for row in record.links] or None,
        },
        "rounds": [round_values(row) for row in record.rounds],
    }


def write_page(path: Path, page: str) -> None:
    """Write a page aside, then put it in its place. Raises OutputError where it cannot be written."""
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        aside.write_text(page, encoding="utf-8")
        aside.replace(path)
    except OSError as error:
        aside.unlink(missing_ok=True)
        raise OutputError(f"cannot write {path}: {error.strerror}") from None
