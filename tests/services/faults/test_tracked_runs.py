"""Runs that trackers show: each point of the record once, in one run with a killed GPS, and in each run of a sweep."""

import json
from collections.abc import Iterator, Sequence, Set
from pathlib import Path

import pytest
import yaml

import fedstrata
from emulator.tracking.tracker import Key, Point, TrackedRun
from tests.support.tracked import DOCUMENT, KILLED, Found, check, expected


class Noting:
    """A tracker of one's own, which notes what it gets."""

    name = "noting"

    def __init__(self) -> None:
        self.runs: list[TrackedRun] = []
        self.points: list[Point] = []
        self.ended: list[bool] = []

    def begin(self, run: TrackedRun) -> None:
        self.runs.append(run)

    def write(self, points: Sequence[Point]) -> None:
        self.points += points

    def present(self, points: Sequence[Point]) -> Set[Key]:
        return {each.key for each in self.points} & {each.key for each in points}

    def end(self, *, is_completed: bool) -> None:
        self.ended.append(is_completed)

    def found(self) -> list[Found]:
        return [(each.key, each.value) for each in self.points]


def in_files(folder: Path) -> Iterator[Found]:
    """The points in TensorBoard's event files, as its own library reads them."""
    from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader
    from tensorboard.compat.proto.event_pb2 import Event

    for path in folder.glob("*/events.*"):
        for raw in RawEventFileLoader(str(path)).Load():
            event = Event.FromString(raw)
            yield from (((path.parent.name, each.tag, event.step), each.simple_value) for each in event.summary.value)


@pytest.mark.kills
def test_trackers_get_each_point_once_although_the_gps_is_killed(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    own = Noting()
    record = fedstrata.run(
        {**DOCUMENT, "faults": [KILLED]}, out=tmp_path / "run", track=["tensorboard", own], quiet=True
    )
    wanted = list(expected(record))
    assert len(wanted) == 2 * 6 * 3 + 2 * 3 * 2 + 1
    check(own.found(), wanted)
    assert (own.ended, own.runs[0].run_id) == ([True], record.run_id)
    check(list(in_files(tmp_path / "run" / "tensorboard")), wanted)
    events = [json.loads(line)["event"] for line in (tmp_path / "run" / "logs" / "gps.log").read_text().splitlines()]
    assert events.count("serving") == 2


@pytest.mark.runs
def test_each_run_of_a_sweep_has_trackers_of_its_own(tmp_path: Path) -> None:
    made: list[Noting] = []

    def make() -> Noting:
        made.append(Noting())
        return made[-1]

    sweep = {"base": DOCUMENT, "seeds": [1, 2], "cells": {"random": {}}}
    found = fedstrata.sweep(yaml.safe_load(yaml.safe_dump(sweep)), out=tmp_path / "sweep", track=[make], quiet=True)
    assert sorted(each.runs[0].label for each in made) == ["random, seed 1", "random, seed 2"]
    for each in made:
        record = found.record("random", seed=int(each.runs[0].settings["seed"]))
        assert each.runs[0].folder == record.folder
        check(each.found(), list(expected(record)))
