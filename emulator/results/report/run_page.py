"""Write `report.html`, the page of a finished run. This one file works offline, on a screen and on paper."""

import dataclasses
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from emulator.results.curves import metric_over_time
from emulator.results.labels import label_picture
from emulator.results.read_record import RunRecord, load_record
from emulator.results.waits_chart import parts_by_tier, picture
from emulator.results.works_chart import picture_of_works, updates_by_device
from fedstrata.errors import OutputError
from fedstrata.page import page_with, relevance_part
from fedstrata.record.rounds import page_row
from fedstrata.record.summary import summary_parts


def write_report(folder: Path, global_round: int | None = None) -> Path:
    """Write the page about the record in `folder` to `report.html` in the same folder. Return the path of the page.

    For a run on the virtual or the real clock, the page shows one global round in detail. This is `global_round`,
    counted from 1. By default it is the longest global round. If rounds are asynchronous, the page shows several global
    rounds, by default from the first.

    Raises:
        DataError: the record is missing or malformed, or has no such global round.
        OutputError: the page cannot be written.
    """
    path = folder / "report.html"
    record = load_record(folder)
    write_page(path, page_of(record, document_of(record, global_round)))
    return path


def page_of(record: RunRecord, document: Mapping[str, Any]) -> str:
    """Return the page about a record. `document` has the data of the page."""
    return page_with(document, title=f"{record.name} · Fedstrata run")


def document_of(record: RunRecord, global_round: int | None = None) -> dict[str, Any]:
    """Return the data of the page. They contain the data that the live page has at the end of the run, and the labels
    of the devices' training examples. For a run on the virtual or the real clock, they also contain the times of rounds
    and links.
    """
    relevance, waits = record.relevance, record.waits
    is_asynchronous = record.summary.asynchronous is not None
    return {
        "parts": {
            "experiment": record.experiment_yaml,
            "lps_rounds_per_global_round": record.lps_rounds_per_global_round,
            **summary_parts(record.summary),
            "relevance": relevance_part(relevance.matrix, relevance.ids, record.summary.clusters)
            if relevance is not None
            else None,
            "label_picture": label_picture(record),
            "virtual_curve": metric_over_time(record) or None,
            "round_picture": picture_of_works(record, global_round)
            if is_asynchronous
            else picture(record, waits, global_round),
            "updates_by_device": updates_by_device(record) or None,
            "real_parts": parts_by_tier(waits) if waits and not record.timeline else None,
            "real_links": [dataclasses.asdict(row) for row in record.links] or None,
        },
        "rounds": [page_row(row, record.headline) for row in record.rounds],
    }


def write_page(path: Path, page: str) -> None:
    """Write a page to a temporary file, then rename the file to `path`. Raises OutputError if the page cannot be
    written.
    """
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        aside.write_text(page, encoding="utf-8")
        aside.replace(path)
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror}") from None
    finally:
        with suppress(OSError):  # the file is renamed, or its folder cannot be written
            aside.unlink()
