"""A small run for tests of trackers, and the points of curves that its record has."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from emulator.interface import Record
from emulator.tracking.tracker import COUNTED

DOCUMENT: dict[str, Any] = {
    "name": "tracked",
    "partition": {"kind": "iid", "devices": 4, "examples_per_device": 20},
    "model": {"name": "mlp", "hidden": [8]},
    "method": {"name": "random", "clusters": 2},
    "training": {"global_rounds": 3, "lps_rounds_per_global_round": 2, "local_steps": 1, "batch_size": 16},
}
Found = tuple[tuple[str, str, int], float]
KILLED = {"do": "kill", "process": "gps", "at": {"global_round": 2}}


def check(found: Sequence[Found], wanted: Sequence[Found]) -> None:
    """Check that each point is there once, with its value: rounds.csv has at least three decimals of it."""
    assert Counter(key for key, _ in found) == Counter(key for key, _ in wanted)
    assert dict(found) == {key: pytest.approx(value, abs=1e-3) for key, value in wanted}


def expected(record: Record) -> Iterator[Found]:
    """The points of a run of two LPS rounds per global round: measurements only after global rounds."""
    rounds = record.rounds
    for number in range(rounds.num_rows):
        lps_id, lps_round = str(rounds["lps_id"][number]), int(rounds["lps_round"][number])
        for name in (*COUNTED, *(("accuracy", "loss") if lps_round % 2 == 0 else ())):
            yield (lps_id, name, lps_round), float(rounds[name][number])
    yield ("run", "accuracy", int(rounds["lps_round"].max())), record.accuracy
