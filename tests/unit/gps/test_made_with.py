"""The journal's tables of what makes a run, also after a restart of the GPS."""

from pathlib import Path

import pytest

from tests.support.gps_parts import GpsParts

NEW, OLD = {"torch": "2.10.0"}, {"torch": "2.5.1"}


@pytest.fixture
def gps(tmp_path: Path) -> GpsParts:
    return GpsParts(tmp_path)


def enrol(gps: GpsParts, index: int, software: dict[str, str]) -> None:
    request = gps.enrol_request(index)
    request.software.update(software)
    gps.roster.enroll(request, is_late=False)


def test_devices_are_counted_by_software_the_most_frequent_first(gps: GpsParts) -> None:
    for index, software in enumerate((OLD, NEW, NEW, {})):
        enrol(gps, index, software)
    enrol(gps, 1, NEW)  # it starts again with the same software
    gps.restart()
    assert gps.journal.made_with.by_tier() == {"device": [(2, NEW), (1, OLD)]}
    enrol(gps, 0, NEW)  # it starts again with other software
    assert gps.journal.made_with.by_tier() == {"device": [(3, NEW), (1, OLD)]}


def test_a_device_cannot_fill_the_journal_with_software(gps: GpsParts) -> None:
    for number in range(20):
        enrol(gps, 0, {"torch": str(number)})
    enrol(gps, 1, {"torch": 3000 * "x"})
    assert len(gps.journal.made_with.by_tier()["device"]) == 8


def test_commands_are_kept_once_in_order(gps: GpsParts) -> None:
    for command in ("fedstrata run a", "", "fedstrata run a", "fedstrata run --resume a"):
        gps.journal.made_with.note_command(command)
        gps.restart()
    assert gps.journal.made_with.commands() == ["fedstrata run a", "fedstrata run --resume a"]
