"""The roster: who may enrol, who is told to go, and what a restarted GPS still knows."""

from pathlib import Path

import numpy as np
import pytest
from gps_parts import IDS, GpsParts

from fedstrata.errors import (
    DuplicateDeviceError,
    ExcludedError,
    FedstrataError,
    PayloadError,
    UnknownChildError,
    WrongRunError,
)


@pytest.fixture
def gps(tmp_path: Path) -> GpsParts:
    return GpsParts(tmp_path)


def test_a_device_enrols_once_however_often_it_calls(gps: GpsParts) -> None:
    first = gps.roster.enroll(gps.enrol_request(2), is_late=False)
    assert gps.roster.enroll(gps.enrol_request(2), is_late=False) is first
    assert gps.roster.absent() == [IDS[0], IDS[1], IDS[3], IDS[4]]
    assert gps.roster.expected == 5


@pytest.mark.parametrize(
    ("field", "value", "kind", "reason"),
    [
        ("experiment_sha256", "f" * 64, WrongRunError, "was started with another experiment"),
        ("device_index", 5, UnknownChildError, "is not of this experiment, which has device-000 … device-004"),
        ("device_index", -1, UnknownChildError, "is not of this experiment"),
        ("device_index", 3, UnknownChildError, "'device-002' with index 3"),
        ("device_id", "x" * 5000, UnknownChildError, "is not of this experiment"),
        ("num_examples", 0, PayloadError, "has no examples to train on"),
        ("num_examples", 1 << 28, PayloadError, "268435456 examples; at most 214748364 may be claimed"),
    ],
)
def test_who_does_not_belong_is_told_why(
    gps: GpsParts, field: str, value: object, kind: type[FedstrataError], reason: str
) -> None:
    request = gps.enrol_request(2)
    setattr(request, field, value)
    with pytest.raises(kind) as raised:
        gps.roster.enroll(request, is_late=False)
    assert reason in str(raised.value)
    assert len(str(raised.value)) < 300
    assert not gps.roster.devices


def test_a_device_cannot_come_back_with_other_data(gps: GpsParts) -> None:
    gps.roster.enroll(gps.enrol_request(2), is_late=False)
    request = gps.enrol_request(2)
    request.num_examples = 11
    with pytest.raises(PayloadError, match="enrolled with 10 examples, and now has 11"):
        gps.roster.enroll(request, is_late=False)


# --- two processes that claim one device --------------------------------------------------------------------


def test_a_second_process_is_refused_while_the_first_is_in_a_call(gps: GpsParts) -> None:
    gps.roster.enroll(gps.enrol_request(2, "first"), is_late=False)
    with gps.roster.call_of(IDS[2], "first"), pytest.raises(DuplicateDeviceError, match="give this one its own index"):
        gps.roster.enroll(gps.enrol_request(2, "second"), is_late=False)


def test_a_restarted_device_takes_the_place_of_the_one_that_is_gone(gps: GpsParts) -> None:
    gps.roster.enroll(gps.enrol_request(2, "first"), is_late=False)
    gps.roster.enroll(gps.enrol_request(2, "second"), is_late=False)
    with gps.roster.call_of(IDS[2], "second") as device:
        assert device.device_id == IDS[2]
    with (
        pytest.raises(DuplicateDeviceError, match="has since been enrolled by another process"),
        gps.roster.call_of(IDS[2], "first"),
    ):
        pass


def test_who_has_not_enrolled_cannot_call(gps: GpsParts) -> None:
    with pytest.raises(UnknownChildError, match="has not enrolled"), gps.roster.call_of(IDS[0], "p"):
        pass


# --- what is kept -------------------------------------------------------------------------------------------


def test_relevance_is_kept_to_the_bit(gps: GpsParts) -> None:
    device = gps.roster.enroll(gps.enrol_request(0), is_late=False)
    row = {4: 0.1, 1: 1 / 3, 2: 0.0}
    gps.roster.set_relevance(device, row)
    assert gps.roster.relevance(device) == row


def test_a_restarted_gps_knows_what_it_was_told(gps: GpsParts) -> None:
    device = gps.roster.enroll(gps.enrol_request(0), is_late=False)
    gps.roster.set_profile(device, np.eye(2, 4, dtype=np.float32))
    gps.roster.set_relevance(device, {1: 0.5})
    gps.roster.enroll(gps.enrol_request(4), is_late=True)
    gps.restart()
    known = gps.roster.devices
    assert (known[0].profile_rows, known[0].has_relevance, known[0].num_examples) == (2, True, 10)
    assert gps.roster.relevance(known[0]) == {1: 0.5}
    assert known[4].is_late
    assert not known[0].is_late


def test_a_refused_device_stays_refused(gps: GpsParts) -> None:
    gps.roster.refuse(gps.roster.enroll(gps.enrol_request(1), is_late=False), "NaN")
    for _ in range(2):
        with pytest.raises(ExcludedError, match="device-001 was refused: NaN"):
            gps.roster.enroll(gps.enrol_request(1), is_late=False)
        with pytest.raises(ExcludedError), gps.roster.call_of(IDS[1], "p"):
            pass
        gps.restart()


def test_states_count_every_device_once(gps: GpsParts) -> None:
    for index in range(4):
        gps.roster.enroll(gps.enrol_request(index), is_late=False)
    gps.roster.set_profile(gps.roster.devices[1], np.eye(2, 4, dtype=np.float32))
    gps.roster.set_relevance(gps.roster.devices[2], {0: 0.5})
    gps.roster.refuse(gps.roster.devices[3], "no reason")
    states = {"absent": 1, "enrolled": 1, "profiled": 1, "related": 1, "assigned": 0, "refused": 1}
    assert gps.roster.states() == states


@pytest.mark.parametrize(("pod_name", "kept"), [("device-3", "device-3"), ("../x", ""), ("A", ""), ("x" * 254, "")])
def test_a_pod_name_is_kept_only_if_it_can_be_one(gps: GpsParts, pod_name: str, kept: str) -> None:
    request = gps.enrol_request(3)
    request.pod_name = pod_name
    assert gps.roster.enroll(request, is_late=False).pod_name == kept
