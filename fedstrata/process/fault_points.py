"""Named points of the code at which tests can kill a process, to imitate a crash at a critical moment.

Nothing happens unless the environment variable FEDSTRATA_DIE_AT holds a JSON list of `{"point", "round", "count",
"marker"}`. A process kills itself by SIGKILL when it reaches the point for the `count`-th time. If `round` is given,
only this round is counted. Just before, the process creates the marker file. While this file exists, the process does
not kill itself again.
"""

import json
import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

VARIABLE = "FEDSTRATA_DIE_AT"
Point = Literal[
    "enrolment",  # GPS: a device is noted, but has no answer yet
    "profile_relay",  # GPS: while it sends other devices' answers to a device; device: a part of an answer has arrived
    "relevance",  # GPS: an answer before training is noted, but not confirmed; device: before it sends an answer
    "grouping",  # GPS: the clusters are computed, but not written
    "upload",  # parent: a part of an update is in the sum, or an update is announced; child: it has sent either
    "download",  # parent: part of a model has been sent; child: part of it has arrived
    "aggregation",  # parent: a round is complete, but its mean is not written
    "state_write",  # GPS, LPS: a file is half written
]


@dataclass
class _Order:
    point: str
    marker: Path
    count: int = 1
    round: int | None = None


def _orders() -> list[_Order]:
    said = json.loads(os.environ.get(VARIABLE, "[]"))
    return [_Order(**{**entry, "marker": Path(entry["marker"])}) for entry in said]


_ORDERS = _orders()


def reach(point: Point, round_number: int | None = None) -> None:
    """Count this call for each entry of FEDSTRATA_DIE_AT that names this point. An entry with a round counts only the
    calls with this round.

    If the number of calls reaches the entry's `count`, write the entry's marker file and kill this process. If the
    marker file exists already, do not kill the process.
    """
    for order in _ORDERS:
        if order.point != point or order.round not in {None, round_number}:
            continue
        order.count -= 1
        if order.count == 0 and not order.marker.exists():
            order.marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
