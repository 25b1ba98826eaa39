"""Whether an experiment has a clock, and which, is asked in the rooms of the clocks and links alone."""

import re
from pathlib import Path

import pytest

from fedstrata.clock.clocks import Clock, RealClock, VirtualClock, clock_of
from fedstrata.experiment_file import parse_experiment

ROOT = Path(__file__).parents[3]
ASKS = re.compile(r"\.is_paced\b|\.clock (?:==|!=|in) ")
# the room itself, the file and its rules across sections, and the record, whose tables differ by clock
ALLOWED = (
    "fedstrata/clock",
    "fedstrata/links",
    "fedstrata/checks",
    "fedstrata/experiment",
    "fedstrata/streams/streams.py",
    "fedstrata/record",
)
TEXT = "{name: clocks, method: fedavg, partition: {kind: iid, devices: 2, examples_per_device: 10}}"


def test_which_clock_there_is_is_asked_in_its_room_alone() -> None:
    files = [
        path
        for tier in ("fedstrata", "gps", "lps", "device", "fleet", "emulator")
        for path in (ROOT / tier).rglob("*.py")
    ]
    outside = [path for path in files if not str(path.relative_to(ROOT)).startswith(ALLOWED)]
    assert [str(path.relative_to(ROOT)) for path in outside if ASKS.search(path.read_text(encoding="utf-8"))] == []


@pytest.mark.parametrize(("name", "kind"), [("none", Clock), ("virtual", VirtualClock), ("real", RealClock)])
def test_each_word_of_the_file_has_its_clock(name: str, kind: type[Clock]) -> None:
    assert type(clock_of(parse_experiment(TEXT, overrides=[f"clock={name}"]))) is kind
