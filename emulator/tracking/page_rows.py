"""Read the rows of rounds from the live page of a run, while the run is in progress."""

import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import fields
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from threading import Event
from typing import Any

from emulator.tracking.tracker import TrackedRun
from fedstrata.errors import AddressError
from fedstrata.process.address import split_address
from fedstrata.record.rounds import RoundRow
from fedstrata.tasks import CLASSIFICATION

SILENCE_S = 60.0  # a page sends something every ten seconds
RETRY_S = 1.0  # between two tries to reach the page, such as of a GPS that is started again
COLUMNS = [each.name for each in fields(RoundRow)]


def rows_of_page(address: str, stop: Event) -> Iterator[tuple[str, RoundRow]]:
    """Yield each row of rounds as soon as the page has the row, together with the name of the main metric. Stop when
    `stop` is set.

    If the connection is lost, connect again. The page then sends all rows again, so the same row may be yielded several
    times. A restarted GPS reads earlier rows from its journal, so no row is lost.
    """
    headline = CLASSIFICATION.headline.name
    while not stop.is_set():
        try:
            for event in _events(address):
                metrics = event["parts"].get("summary/metrics")
                headline = metrics[0]["name"] if metrics else headline
                for values in event["rounds"]:
                    cells = dict(zip(COLUMNS, values, strict=True))
                    yield headline, RoundRow(**{**cells, "metrics": {headline: cells["metrics"]}})
        except (OSError, HTTPException, ValueError, KeyError, TypeError):
            pass  # the page is away, or cut within a line
        stop.wait(RETRY_S)


def run_of_page(address: str, folder: Path) -> TrackedRun:
    """Return the description of the run that a live page shows. `folder` is the folder that the run's record will have
    on this machine.

    Raises:
        AddressError: the page does not answer, or has another content.
    """
    try:
        parts = next(_events(address))["parts"]
        return TrackedRun.of(parts["experiment"], parts["summary/run_id"], folder)
    except (OSError, HTTPException, ValueError, KeyError, TypeError, StopIteration) as error:
        raise AddressError(f"the GPS's page does not answer: {type(error).__name__}; run this again") from None


def _events(address: str) -> Iterator[dict[str, Any]]:
    with closing(HTTPConnection(*split_address(address), timeout=SILENCE_S)) as connection:
        connection.request("GET", "/page/events")
        with connection.getresponse() as response:
            for line in response:
                if line.startswith(b"data: "):
                    yield json.loads(line.removeprefix(b"data: "))
