"""Enrolment: answers relayed once, rows gathered once, and who is waited for no more."""

from pathlib import Path

import numpy as np
import pytest

from fedstrata.errors import ExcludedError, PayloadError, PluginError, RunStoppedError, SupersededError
from fedstrata.methods import Answers, Arrays, Moment, Plan
from fedstrata.v1 import answers_pb2 as pb
from gps.devices.roster import Device
from gps.plans.places import described
from tests.support.gps_parts import FEATURES, IDS, GpsParts, answer_header, parts_of

EVERYONE = range(5)
DEADLINE = ("deadlines.enrolment.deadline_s=0.001", "deadlines.enrolment.quorum_ratio=0.4")


@pytest.fixture
def gps(tmp_path: Path) -> GpsParts:
    return GpsParts(tmp_path)


async def all_profiled(gps: GpsParts) -> None:
    gps.enrol(*EVERYONE)
    await gps.profiles(*EVERYONE)


def row_of(index: int) -> dict[int, float]:
    """A row that tells by its values who sent it and about whom."""
    return {other: (10 * index + other) / 100 for other in EVERYONE if other != index}


def answers_of(gps: GpsParts) -> Answers:
    """What the method is given to make the first plan of."""
    devices = gps.enrolment.candidates()
    return Answers(described(gps.experiment, devices), gps.questions.answers(devices))


def first_plan(gps: GpsParts) -> Plan:
    return gps.method.plan(Moment.BEFORE, answers_of(gps), None)


def matrix_of(gps: GpsParts) -> np.ndarray:
    """The relevance matrix that the first plan is read from."""
    affinity = first_plan(gps).affinity
    assert affinity is not None
    return affinity


def headers(parts: list[pb.AnswerPart]) -> list[int]:
    return [part.header.device_index for part in parts if part.WhichOneof("part") == "header"]


# --- profiles -----------------------------------------------------------------------------------------------


async def test_each_device_gets_the_profiles_of_all_others_in_order(gps: GpsParts) -> None:
    await all_profiled(gps)
    assert headers(await gps.relayed(2)) == [0, 1, 3, 4]


async def test_a_profile_arrives_as_it_was_sent(gps: GpsParts) -> None:
    gps.enrol(*EVERYONE)
    sent = np.linalg.qr(np.random.default_rng(0).standard_normal((FEATURES, 2)))[0].T.astype(np.float32)
    await gps.profile(1, np.ascontiguousarray(sent))
    await gps.profiles(0, 2, 3, 4)
    parts = await gps.relayed(0)
    assert parts[0].header.arrays[0].shape == [2, FEATURES]
    assert (parts[0].question, parts[0].header.payload_bytes) == ("profile", sent.nbytes)
    assert parts[1].data == sent.tobytes()


async def test_a_stream_that_was_cut_goes_on_where_it_was(gps: GpsParts) -> None:
    await all_profiled(gps)
    assert headers(await gps.relayed(2, from_index=2)) == [3, 4]


async def test_a_profile_sent_twice_counts_once(gps: GpsParts) -> None:
    await all_profiled(gps)
    other = np.eye(2, FEATURES, k=2, dtype=np.float32)
    await gps.profile(0, other)
    kept = pb.Answer.FromString(gps.journal.answers.one("profile", 0))
    assert kept.data == np.eye(2, FEATURES, dtype=np.float32).tobytes()


async def test_devices_share_fewer_eigenvectors_than_asked_where_they_have_fewer_examples(gps: GpsParts) -> None:
    request = gps.enrol_request(0)
    request.num_examples = 1
    gps.enrolment.enroll(request)
    gps.enrol(1)
    await gps.profile(0, np.eye(1, FEATURES, dtype=np.float32))
    with pytest.raises(PayloadError, match="the answer has 1 eigenvectors; expected 2"):
        await gps.profile(1, np.eye(1, FEATURES, dtype=np.float32))
    kept = pb.Answer.FromString(gps.journal.answers.one("profile", 0))
    assert kept.arrays[0].shape == [1, FEATURES]


async def test_a_device_whose_answer_an_own_method_fails_to_check_is_refused_alone(
    gps: GpsParts, monkeypatch: pytest.MonkeyPatch
) -> None:
    def check(*_: object) -> None:
        raise PluginError("method own:Method failed in check_answer: KeyError: 1")

    gps.enrol(0, 1)
    with monkeypatch.context() as patch:
        patch.setattr(gps.method, "check_answer_of", check)
        with pytest.raises(PayloadError, match="failed in check_answer: KeyError: 1"):
            await gps.profiles(0, 1)
    assert [bool(gps.roster.devices[index].refused) for index in (0, 1)] == [True, False]


@pytest.mark.parametrize(
    ("vectors", "reason"),
    [
        (np.eye(3, FEATURES), "shape [3, 4]; expected float32 and at most (2, 4)"),
        (np.eye(2, 5), "shape [2, 5]; expected float32 and at most (2, 4); check the device's"),
        (np.full((2, FEATURES), np.nan), "eigenvectors in the answer to profile has numbers that are not finite"),
        (np.ones((2, FEATURES)), "must be finite and of length one"),
        (np.eye(FEATURES)[0], "shape [4]; expected float32 and at most (2, 4)"),
        (np.zeros((0, FEATURES)), "the answer has no eigenvector"),
    ],
)
async def test_a_profile_that_is_none_costs_its_device_the_run(gps: GpsParts, vectors: np.ndarray, reason: str) -> None:
    gps.enrol(*EVERYONE)
    with pytest.raises(PayloadError) as raised:
        await gps.profile(3, vectors.astype(np.float32))
    assert reason in str(raised.value)
    with pytest.raises(ExcludedError, match="device-003 was refused"):
        gps.enrol(3)
    assert [device for device, _, _ in gps.journal.exclusions()] == [IDS[3]]


@pytest.mark.parametrize("first", [0, 3])
async def test_who_gives_other_features_than_the_experiment_says_is_refused_whoever_comes_first(
    tmp_path: Path, first: int
) -> None:
    gps = GpsParts(tmp_path, "method.features=own:phi", "method.feature_dim=6")
    gps.enrol(*EVERYONE)
    for index in sorted(EVERYONE, key=lambda index: index != first):
        if index == 3:
            with pytest.raises(PayloadError, match=r"shape \[2, 4\]; expected float32 and at most \(2, 6\)"):
                await gps.profile(index, np.eye(2, 4, dtype=np.float32))
        else:
            await gps.profile(index, np.eye(2, 6, dtype=np.float32))
    assert [device for device, _, _ in gps.journal.exclusions()] == [IDS[3]]


@pytest.mark.parametrize("size", [0, 28])
async def test_a_profile_that_was_cut_is_sent_again_and_refuses_nobody(gps: GpsParts, size: int) -> None:
    gps.enrol(0)
    header = answer_header(0, {"eigenvectors": np.eye(2, FEATURES, dtype=np.float32)})
    with pytest.raises(SupersededError, match=f"answer to profile cut after {size} of 32 bytes; send it again"):
        await gps.questions.take(header, "profile", parts_of(bytes(size)))
    assert not gps.roster.devices[0].answered
    await gps.profile(0)
    assert gps.roster.devices[0].answered == {"profile"}
    assert not gps.journal.exclusions()


@pytest.mark.parametrize("size", [36, 4000])
async def test_a_profile_longer_than_announced_is_refused(gps: GpsParts, size: int) -> None:
    gps.enrol(0)
    header = answer_header(0, {"eigenvectors": np.eye(2, FEATURES, dtype=np.float32)})
    with pytest.raises(PayloadError, match="answer to profile has more bytes than the 32 announced"):
        await gps.questions.take(header, "profile", parts_of(bytes(size)))
    assert gps.roster.devices[0].refused


async def test_the_others_do_without_a_refused_device(gps: GpsParts) -> None:
    gps.enrol(*EVERYONE)
    await gps.profiles(0, 1, 2, 4)
    with pytest.raises(PayloadError):
        await gps.profile(3, np.zeros((2, FEATURES), np.float32))
    assert headers(await gps.relayed(0)) == [1, 2, 4]


# --- relevance ----------------------------------------------------------------------------------------------


async def test_the_matrix_is_made_from_all_rows(gps: GpsParts) -> None:
    await all_profiled(gps)
    for index in reversed(EVERYONE):
        await gps.relate(index, row_of(index))
    await gps.enrolment.gather_devices()
    await gps.enrolment.gather_answers()
    matrix = matrix_of(gps)
    assert matrix[1, 3] == matrix[3, 1] == (0.13 + 0.31) / 2
    assert np.diag(matrix).tolist() == [1.0] * 5


async def test_a_row_sent_twice_counts_once(gps: GpsParts) -> None:
    await all_profiled(gps)
    await gps.relate(0, row_of(0))
    await gps.relate(0, dict.fromkeys(row_of(0), 1.0))
    kept = gps.questions.answers([gps.roster.devices[0]])["relevance"][0]
    assert dict(zip(kept["devices"].tolist(), kept["values"].tolist(), strict=True)) == row_of(0)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({1: 0.5, 2: 0.5, 3: 0.5}, "the answer has 3 relevances for 3 devices, and lacks 1 devices"),
        ({1: 0.5, 2: 0.5, 3: 0.5, 4: 1.5}, "a relevance outside [0, 1]"),
        ({1: 0.5, 2: 0.5, 3: 0.5, 4: -0.1}, "a relevance outside [0, 1]"),
        ({1: 0.5, 2: 0.5, 3: 0.5, 4: float("nan")}, "has numbers that are not finite"),
    ],
)
async def test_a_row_that_is_none_costs_its_device_the_run(gps: GpsParts, row: dict[int, float], reason: str) -> None:
    await all_profiled(gps)
    with pytest.raises(PayloadError) as raised:
        await gps.relate(0, row)
    assert reason in str(raised.value)
    assert [device.device_index for device in gps.enrolment.candidates()] == []
    assert gps.roster.devices[0].refused


# --- who is waited for --------------------------------------------------------------------------------------


async def test_without_a_deadline_everybody_is_waited_for(gps: GpsParts) -> None:
    await all_profiled(gps)
    await gps.enrolment.gather_devices()
    assert gps.questions.is_closed
    assert not gps.journal.exclusions()


async def test_at_the_deadline_the_run_goes_on_with_a_quorum(tmp_path: Path) -> None:
    gps = GpsParts(tmp_path, *DEADLINE)
    gps.enrol(0, 1, 2)
    await gps.profiles(0, 1)
    await gps.enrolment.gather_devices()
    reasons = {device: reason for device, _, reason in gps.journal.exclusions()}
    assert reasons == {
        IDS[2]: "no answer by the deadline",
        IDS[3]: "not enrolled by the deadline",
        IDS[4]: "not enrolled by the deadline",
    }
    await gps.relate(0, {1: 0.5})
    await gps.relate(1, {0: 0.3})
    await gps.enrolment.gather_answers()
    np.testing.assert_allclose(matrix_of(gps), [[1, 0.4], [0.4, 1]])


async def test_below_the_quorum_the_run_stops_and_names_the_missing(tmp_path: Path) -> None:
    gps = GpsParts(tmp_path, *DEADLINE)
    gps.enrol(0)
    await gps.profile(0)
    with pytest.raises(RunStoppedError, match="1 of 5 devices take part, but the quorum is 2; missing: device-001, d"):
        await gps.enrolment.gather_devices()


async def test_a_refusal_below_the_quorum_is_told_with_its_reason(gps: GpsParts) -> None:
    gps.enrol(*EVERYONE)
    await gps.profiles(0, 1, 2, 3)
    with pytest.raises(PayloadError):
        await gps.profile(4, np.eye(2, 5, dtype=np.float32))
    with pytest.raises(
        RunStoppedError, match=r"4 of 5 .* missing: device-004 \(refused: the answer to profile has eigenvectors of"
    ):
        await gps.enrolment.gather_devices()


async def test_a_device_without_a_row_by_the_deadline_is_left_out(tmp_path: Path) -> None:
    gps = GpsParts(tmp_path, *DEADLINE)
    await all_profiled(gps)
    await gps.enrolment.gather_devices()
    for index in (0, 1, 2):
        await gps.relate(index, row_of(index))
    await gps.enrolment.gather_answers()
    assert [device.device_index for device in gps.enrolment.candidates()] == [0, 1, 2]
    assert first_plan(gps).related == (0, 1, 2)
    assert matrix_of(gps).shape == (3, 3)
    placed: list[Device] = []
    gps.place, gps.questions.sponsors = placed.append, [[0]]
    await gps.relate(3, row_of(3))  # too late for the first plan
    assert [device.device_index for device in placed] == [3]


async def test_a_gps_that_was_killed_while_it_grouped_waits_for_nobody_again(tmp_path: Path) -> None:
    gps = GpsParts(tmp_path, "method=oracle", *DEADLINE)
    gps.enrol(0, 1, 2)
    await gps.enrolment.gather_devices()
    gps.journal.begin_phase("grouping")
    gps.journal.close()
    gps.open()
    assert gps.questions.is_closed
    assert [device.device_index for device in gps.enrolment.candidates()] == [0, 1, 2]


async def test_without_questions_a_device_has_said_all_by_enrolling(tmp_path: Path) -> None:
    gps = GpsParts(tmp_path, "method=oracle")
    gps.enrol(*EVERYONE)
    await gps.enrolment.gather_devices()
    assert [device.device_index for device in gps.enrolment.candidates()] == list(EVERYONE)


# --- late devices -------------------------------------------------------------------------------------------


@pytest.fixture
async def grouped(tmp_path: Path) -> GpsParts:
    """Devices 0 to 3 are grouped, 0 and 3 stand for their clusters, and device 4 has not come yet."""
    gps = GpsParts(tmp_path, *DEADLINE)
    gps.enrol(0, 1, 2, 3)
    await gps.profiles(*range(4))
    await gps.enrolment.gather_devices()
    gps.questions.sponsors = [[0], [3]]
    return gps


async def test_a_device_that_comes_after_the_close_is_late(grouped: GpsParts) -> None:
    assert grouped.enrolment.enroll(grouped.enrol_request(4)).is_late
    assert not grouped.enrolment.enroll(grouped.enrol_request(1)).is_late


async def test_a_late_device_relates_itself_to_the_sponsors_only(grouped: GpsParts) -> None:
    placed: list[Device] = []
    grouped.place = placed.append
    grouped.enrol(4)
    assert headers(await grouped.relayed(4)) == [0, 3]
    with pytest.raises(PayloadError, match="lacks 1 devices"):
        await grouped.relate(4, {0: 0.9})
    assert placed == []


async def test_a_late_devices_row_is_handed_on_for_placing_once(grouped: GpsParts) -> None:
    placed: list[tuple[str, Arrays]] = []

    def place(device: Device) -> None:
        placed.append((device.device_id, grouped.answered(device.device_index, "relevance")))
        device.cluster = 0

    grouped.place = place
    grouped.enrol(4)
    await grouped.profile(4)
    assert placed == []  # its eigenvectors are of no use to anybody any more
    for _ in range(2):
        await grouped.relate(4, {0: 0.9, 3: 0.2})
    assert [device for device, _ in placed] == [IDS[4]]
    assert placed[0][1]["values"].tolist() == [0.9, 0.2]


async def test_a_late_device_changes_nothing_about_the_grouping(grouped: GpsParts) -> None:
    for index in range(4):
        await grouped.relate(index, {other: 0.5 for other in range(4) if other != index})
    before = matrix_of(grouped)
    grouped.enrol(4)
    await grouped.relate(4, {0: 0.9, 3: 0.2})
    assert np.array_equal(matrix_of(grouped), before)


async def test_who_comes_late_to_a_method_that_places_nobody_is_told_so(tmp_path: Path) -> None:
    gps = GpsParts(tmp_path, "method={name: ifca, clusters: 2}", "training.lps_rounds_per_global_round=1", *DEADLINE)
    gps.enrol(0, 1, 2, 3)
    await gps.enrolment.gather_devices()
    with pytest.raises(ExcludedError, match="method ifca cannot place a late device; next time start it before"):
        gps.enrol(4)
    gps.enrol(1)  # who has been there comes back


async def test_a_device_of_a_cluster_that_enrols_anew_is_told_of_so_that_its_pod_is_marked_again(gps: GpsParts) -> None:
    gps.enrol(1, 2)
    gps.enrol(2)  # it has no cluster yet
    assert gps.returns == 0
    gps.roster.devices[2].cluster = 0
    gps.enrol(2)
    assert gps.returns == 1
