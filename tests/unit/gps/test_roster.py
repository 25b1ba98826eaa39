"""The roster: who may enrol, who is told to go, and what a restarted GPS still knows."""

from pathlib import Path

import numpy as np
import pytest

from fedstrata.errors import (
    DuplicateDeviceError,
    ExcludedError,
    FedstrataError,
    PayloadError,
    UnknownChildError,
    WrongRunError,
)
from fedstrata.v1.answers_pb2 import Answer, ArrayHeader
from tests.support.gps_parts import IDS, GpsParts


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
        ("device_index", 5, UnknownChildError, "with index 5; it has device-000 to device-004"),
        ("device_index", -1, UnknownChildError, "this experiment has no device 'device-002' with index -1"),
        ("device_index", 3, UnknownChildError, "'device-002' with index 3"),
        ("device_id", "x" * 5000, UnknownChildError, "this experiment has no device 'xxx"),
        ("num_examples", 0, PayloadError, "has no examples to train on"),
        ("num_examples", 21, PayloadError, "21 examples to train on; expected 0 to 20"),  # as in partition
        ("num_examples", (1 << 30) // 10, PayloadError, "if it has more, raise bounds.max_examples"),
        ("num_held_out", 1 << 40, PayloadError, "1099511627776 examples to measure on; expected 0 to 1048576"),
        ("num_held_out", -1, PayloadError, "-1 examples to measure on"),
    ],
)
def test_who_does_not_belong_is_told_why(
    gps: GpsParts, field: str, value: object, kind: type[FedstrataError], reason: str
) -> None:
    request = gps.enrol_request(2)
    setattr(request, field, value)
    with pytest.raises(kind) as raised:
        gps.enrolment.enroll(request)
    assert reason in str(raised.value)
    assert len(str(raised.value)) < 300
    assert not gps.roster.devices


def test_a_device_cannot_come_back_with_other_data(gps: GpsParts) -> None:
    gps.roster.enroll(gps.enrol_request(2), is_late=False)
    request = gps.enrol_request(2)
    request.num_examples = 11
    with pytest.raises(PayloadError, match="enrolled with 10 examples to train on and 2 to measure on, but now has 11"):
        gps.roster.enroll(request, is_late=False)


def test_the_experiment_may_bound_what_a_device_claims(tmp_path: Path) -> None:
    gps = GpsParts(tmp_path, "bounds={max_examples: 12, max_held_out: 1}")
    request = gps.enrol_request(4)
    with pytest.raises(PayloadError, match="20 examples to train on; expected 0 to 12"):
        gps.roster.check(request)
    request.num_examples = 12
    with pytest.raises(PayloadError, match="2 examples to measure on; expected 0 to 1"):
        gps.roster.check(request)
    request.num_held_out = 1
    gps.roster.check(request)
    gps.roster.enroll(request, is_late=False)
    gps.restart()
    assert [(d.num_examples, d.num_held_out) for d in gps.roster.devices.values()] == [(12, 1)]


# --- two processes that claim one device --------------------------------------------------------------------


def test_a_second_process_is_refused_while_the_first_is_in_a_call(gps: GpsParts) -> None:
    gps.roster.enroll(gps.enrol_request(2, "first"), is_late=False)
    with gps.roster.call_of(IDS[2], "first"), pytest.raises(DuplicateDeviceError, match="give this process an index"):
        gps.roster.enroll(gps.enrol_request(2, "second"), is_late=False)


def test_a_restarted_device_takes_the_place_of_the_one_that_is_gone(gps: GpsParts) -> None:
    gps.roster.enroll(gps.enrol_request(2, "first"), is_late=False)
    gps.roster.enroll(gps.enrol_request(2, "second"), is_late=False)
    with gps.roster.call_of(IDS[2], "second") as device:
        assert device.device_id == IDS[2]
    with (
        pytest.raises(DuplicateDeviceError, match="another process has enrolled as"),
        gps.roster.call_of(IDS[2], "first"),
    ):
        pass


def test_who_has_not_enrolled_cannot_call(gps: GpsParts) -> None:
    with pytest.raises(UnknownChildError, match="has not enrolled"), gps.roster.call_of(IDS[0], "p"):
        pass


# --- what is kept -------------------------------------------------------------------------------------------


def answer(question: str, values: list[float]) -> Answer:
    array = np.float64(values)
    header = ArrayHeader(name="values", dtype="float64", shape=array.shape)
    return Answer(question=question, arrays=[header], data=array.tobytes())


def test_a_restarted_gps_knows_what_it_was_told(gps: GpsParts) -> None:
    device = gps.roster.enroll(gps.enrol_request(0), is_late=False)
    gps.roster.set_answer(device, answer("profile", [1.0]))
    gps.roster.set_answer(device, answer("relevance", [0.1, 1 / 3, 0.0]))
    gps.roster.enroll(gps.enrol_request(4), is_late=True)
    gps.restart()
    known = gps.roster.devices
    assert (known[0].answered, known[0].num_examples) == ({"profile", "relevance"}, 10)
    assert Answer.FromString(gps.journal.answers.one("relevance", 0)) == answer("relevance", [0.1, 1 / 3, 0.0])
    assert known[4].answered == set()
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


def test_that_a_device_has_lost_its_state_is_known_for_good(gps: GpsParts) -> None:
    request = gps.enrol_request(2)
    request.has_lost_state = True
    gps.enrolment.enroll(request)
    gps.enrol(0)
    for _ in range(2):
        assert (gps.roster.devices[2].has_lost_state, gps.roster.devices[0].has_lost_state) == (True, False)
        gps.enrol(2)  # its next life finds what it keeps, and what was lost stays so
        gps.restart()


def test_states_count_every_device_once(gps: GpsParts) -> None:
    for index in range(4):
        gps.roster.enroll(gps.enrol_request(index), is_late=False)
    gps.roster.set_answer(gps.roster.devices[1], answer("profile", [1.0]))
    gps.roster.set_answer(gps.roster.devices[1], answer("relevance", [1.0]))
    gps.roster.set_answer(gps.roster.devices[2], answer("profile", [1.0]))
    gps.roster.refuse(gps.roster.devices[3], "no reason")
    assert gps.roster.states() == {"absent": 1, "enrolled": 1, "answered": 2, "assigned": 0, "refused": 1}
    gps.roster.devices[2].cluster = 0
    assert gps.roster.states() == {"absent": 1, "enrolled": 1, "answered": 1, "assigned": 1, "refused": 1}


@pytest.mark.parametrize(
    ("pod_name", "kept"), [("device-3", "device-3"), ("../x", ""), ("A", ""), ("x" * 254, ""), ("x\n", "")]
)
def test_a_pod_name_is_kept_only_if_it_can_be_one(gps: GpsParts, pod_name: str, kept: str) -> None:
    request = gps.enrol_request(3)
    request.pod_name = pod_name
    assert gps.roster.enroll(request, is_late=False).pod_name == kept


def test_a_device_that_enrols_from_another_pod_is_known_there_also_after_a_restart(gps: GpsParts) -> None:
    for pod_name in ("board-x7f2", "board-k9d4"):
        request = gps.enrol_request(2)
        request.pod_name, request.kernel = pod_name, "SkylakeX"
        gps.roster.enroll(request, is_late=False)
    assert gps.roster.devices[2].pod_name == "board-k9d4"
    gps.restart()
    assert gps.roster.devices[2].pod_name == "board-k9d4"
    assert gps.roster.kernels() == {"SkylakeX": 1}
