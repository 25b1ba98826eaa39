"""An LPS or a device that is revoked in a run without deadlines: others go on, and no bit changes."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fedstrata.store import write_aside
from fedstrata.trust.names import Name
from tests.support.programs import Program, events
from tests.support.secured import DEVICES, Secured
from tests.support.slowed import ROUNDS, SLOWED
from tests.support.tiers import run_in_process, small


def revoke(folder: Path, name: str) -> None:
    with write_aside(folder / "revoked.txt") as file:
        file.write(f"{name}\n".encode())


@pytest.fixture(scope="module")
def revoked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Secured, Program]]:
    """A run whose lps-0 was revoked at the GPS once training had begun, and that LPS."""
    text = small(*SLOWED).to_yaml()
    with Secured(tmp_path_factory.mktemp("revoked"), experiment=text) as run:
        first, _ = run.start_all()
        for status in run.statuses():
            if status.global_round >= 2 and not (run.folder / "tls" / "gps" / "revoked.txt").exists():
                revoke(run.folder / "tls" / "gps", "lps/lps-0")
        assert (status.phase, status.reason) == ("completed", "")
        yield run, first


def summary_of(run: Secured) -> Any:
    (path,) = (run.folder / "state").glob("*/record/summary.json")
    return json.loads(path.read_text())


@pytest.mark.runs
def test_its_cluster_goes_to_another_and_the_models_are_those_of_a_run_left_alone(
    revoked: tuple[Secured, Program], tmp_path: Path
) -> None:
    summary = summary_of(revoked[0])
    assert [(told["cluster"], told["by"]) for told in summary["adoptions"]] == [("lps-0", "lps-1")]
    assert summary["excluded"] == []
    plain = run_in_process(small(*ROUNDS), tmp_path / "plain")
    assert summary["model_sha256"] == plain.summary.model_sha256


@pytest.mark.runs
def test_it_ends_in_one_line_and_its_devices_have_gone_before(revoked: tuple[Secured, Program]) -> None:
    run, first = revoked
    assert first.end() == 2
    assert any(
        "lps/lps-0 is revoked; ask the operator of this run for a new certificate" in line for line in first.errors()
    )
    told = [event for event in events(run.folder / "devices.log") if event["event"] == "assigned"]
    assert len({event["lps"] for event in told if event["cluster"] == "lps-0"}) == 2


def test_who_has_the_gps_on_its_list_says_nothing_to_it_and_ends_in_one_line(tmp_path: Path) -> None:
    with Secured(tmp_path) as run:
        at_lps, at_devices = run.issued("lps-0", Name("lps", "lps-0")), run.issued("devices", *DEVICES)
        for folder in (at_lps, at_devices):
            revoke(folder, "gps")
        for program in (run.lps("lps-0", at_lps), run.devices("devices", at_devices)):
            assert program.end() == 4
            (line,) = program.errors()
            assert line.startswith("error: gps is in the list of revoked names of ")


def test_one_revoked_device_of_a_process_stops_and_the_process_ends_when_all_are_revoked(tmp_path: Path) -> None:
    revoke(tmp_path / "tls" / "gps", "device/device-004")
    with Secured(tmp_path) as run:
        devices = run.devices("devices", run.issued("devices", *DEVICES))
        for status in run.statuses():
            if sum(count.devices for count in status.devices if count.state != "absent") == 4:
                break
        revoke(tmp_path / "tls" / "gps", "device/device-000_device-004")
        assert devices.end() == 2
        assert len(devices.errors()) == 1
    stopped = [event["device"] for event in events(tmp_path / "devices.log") if event["event"] == "device_stopped"]
    assert (stopped[0], sorted(stopped)) == ("device-004", [f"device-00{number}" for number in range(5)])
