"""What a run tells while it goes on: whom it waits for, and its own clock."""

import io
import json
import sys

import jsonschema
import pytest
from rich.console import Console

from emulator.commands.main import execute
from emulator.runs.progress import JsonLines, LiveTables, LogLines, drawn, status_fields, waits_line
from emulator.runs.run import make_display
from emulator.runs.status_schema import status_schema
from emulator.sweeps.sweep_progress import SweepBars, SweepLines
from emulator.sweeps.sweep_progress import make_display as sweep_display
from fedstrata.v1 import gps_service_pb2 as pb
from fedstrata.v1 import rounds_pb2


def status(*names: str, seconds: float = 7.0) -> pb.RunStatus:
    waits = [pb.Wait(name=name, what="its update of round 3 of lps-1", seconds=seconds) for name in names]
    return pb.RunStatus(run_id="lab-1", phase="training", global_round=1, global_rounds=4, waits=waits, seconds=90.0)


def text_of(found: pb.RunStatus) -> str:
    console = Console(file=io.StringIO(), width=200)
    console.print(drawn(found, [], seconds=found.seconds))
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_a_status_names_whom_the_run_waits_for_and_how_long_it_has_taken() -> None:
    found = status("device-003")
    assert waits_line(found) == "waits for device-003 (its update of round 3 of lps-1, 7.0\N{NO-BREAK SPACE}s)"
    assert waits_line(found) in text_of(found)
    assert status_fields(found)["waits"] == [
        {"name": "device-003", "what": "its update of round 3 of lps-1", "seconds": 7.0}
    ]
    assert status_fields(found)["seconds"] == 90.0
    assert waits_line(status()) == ""


@pytest.mark.parametrize(("is_terminal", "display"), [(True, LiveTables), (False, LogLines)])
def test_where_colours_are_forced_and_nothing_can_be_drawn_over_lines_are_printed(
    monkeypatch: pytest.MonkeyPatch, is_terminal: bool, display: type
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # as Jupyter sets it for what its cells run
    monkeypatch.setattr(sys.stdout, "isatty", lambda: is_terminal, raising=False)
    assert type(make_display(is_json=False, is_quiet=False)) is display
    sweep = SweepBars if is_terminal else SweepLines
    assert type(sweep_display(Console(), is_json=False, is_quiet=False)) is sweep


def test_of_many_five_are_named() -> None:
    line = waits_line(status(*(f"device-{n:03d}" for n in range(12))))
    assert line.count("device-") == 5
    assert line.endswith(" and 7 more")


def test_a_log_says_once_that_somebody_is_waited_for_and_again_when_that_is_somebody_else() -> None:
    console = Console(file=io.StringIO(), width=200)
    lines = LogLines(console)
    for found in (
        status("device-003"),
        status("device-003", seconds=8.0),
        status("device-003", "device-004"),
        status(),
    ):
        lines.show(found)
    said = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert [line.count("device-") for line in said if line.startswith("waits for")] == [1, 2]


WHOLE = pb.RunStatus(
    run_id="lab-1", phase="training", global_round=1, global_rounds=4, seconds=90.0, lps_wanted=2,
    clusters=[
        pb.ClusterStatus(
            home_id="lps-0", devices=2, lps_round=3, loss=0.5, headline=0.75, is_evaluated=True, measured_round=1
        ),
        pb.ClusterStatus(home_id="lps-1", devices=1),
    ],
    link_bytes=[rounds_pb2.LinkBytes(link="device-lps", direction="up", kind="update", end="parent", bytes=9)],
    devices=[pb.StateCount(state="assigned", devices=3)],
    waits=[pb.Wait(name="device-002", what="its update", seconds=6.5)],
)  # fmt: skip


@pytest.mark.parametrize("found", [pb.RunStatus(phase="enrolment"), WHOLE])
def test_every_status_is_as_its_schema_says(found: pb.RunStatus, capsys: pytest.CaptureFixture[str]) -> None:
    JsonLines().show(found)
    jsonschema.validate(json.loads(capsys.readouterr().out), status_schema())


def test_the_schema_of_a_status_describes_every_field_and_refuses_what_is_none() -> None:
    schema = status_schema()
    assert set(schema["properties"]) == {"event", *status_fields(WHOLE)}
    assert [name for name, field in schema["properties"].items() if not field.get("description")] == []
    for wrong in ({"phase": "resting"}, {"seconds": "90"}, {"bytes": {}}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({"event": "status", **status_fields(WHOLE), **wrong}, schema)


def test_the_schema_of_a_status_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["schema", "status"]) == 0
    assert json.loads(capsys.readouterr().out) == status_schema()
