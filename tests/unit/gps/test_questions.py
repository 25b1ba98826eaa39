"""What devices are asked before training: who is told what, what is kept, and when a late device is placed."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

from fedstrata.errors import ExcludedError, PayloadError
from fedstrata.methods import Answers, Arrays, Method, Moment, Plan, Question
from gps.devices.roster import Device
from tests.support.gps_parts import IDS, GpsParts
from tests.support.methods import method_with

DEADLINE = ("deadlines.enrolment.deadline_s=0.001", "deadlines.enrolment.quorum_ratio=0.4")
PAIR = {"name": "own:TwoNumbers"}


class TwoNumbers(Method):
    """Asks one number after the other, relays neither; its plan is one cluster, into which late devices come, too."""

    def questions(self) -> Sequence[Question]:
        number: Mapping[str, tuple[str, tuple[int, ...]]] = {"number": ("int64", (1,))}
        return (
            Question(name="first", moment=Moment.BEFORE, arrays=number),
            Question(name="second", moment=Moment.BEFORE, arrays=number),
            Question(name="later", moment=Moment.TRAINED, arrays=number),
        )


class PlacesNobody(TwoNumbers):
    """The same with a plan of its own, and no word of late devices."""

    def plan(self, moment: Moment, answers: Answers, before: Plan | None) -> Plan:
        return super().plan(moment, answers, before)


def number(value: int) -> np.ndarray:
    return np.array([value], np.int64)


@pytest.fixture
def gps(tmp_path: Path) -> GpsParts:
    return GpsParts(tmp_path)


def asking_two_numbers(gps: GpsParts, kind: type[TwoNumbers] = TwoNumbers) -> GpsParts:
    """The same GPS with a method above."""
    method = method_with(kind, PAIR, gps.method.facts)
    gps.method = method  # type: ignore[assignment]
    gps.ask(method)  # type: ignore[arg-type]
    gps.enrolment._questions = gps.questions
    return gps


# --- who is told what ---------------------------------------------------------------------------------------


async def test_only_answers_to_relayed_questions_are_given_to_other_devices(gps: GpsParts) -> None:
    gps.enrol(0, 1)
    await gps.profiles(0, 1)
    await gps.relate(0, {1: 0.5})
    with pytest.raises(PayloadError, match="no question is called 'relevance'"):
        await gps.relayed(1, question="relevance")


async def test_a_method_is_given_what_was_not_relayed_of_the_devices_that_it_plans_for(gps: GpsParts) -> None:
    gps.enrol(0, 1)
    await gps.profiles(0, 1)
    await gps.relate(0, {1: 0.5})
    await gps.relate(1, {0: 0.25})
    answers = Answers([], gps.questions.answers([gps.roster.devices[1]]))
    assert answers.of("profile") == {}
    assert list(answers.of("relevance")) == [1]
    assert answers.of("relevance")[1]["values"].tolist() == [0.25]


async def test_answers_outlive_a_restart(gps: GpsParts) -> None:
    gps.enrol(0, 1)
    await gps.profiles(0, 1)
    await gps.relate(0, {1: 1 / 3})
    gps.restart()
    assert gps.roster.devices[0].answered == {"profile", "relevance"}
    assert gps.questions.has_answered_all(gps.roster.devices[0])
    assert not gps.questions.has_answered_all(gps.roster.devices[1])
    given = gps.questions.answers([gps.roster.devices[0]])
    assert given["relevance"][0]["values"].tolist() == [1 / 3]


@pytest.mark.parametrize("question", ["profil", "", "later", "x" * 5000])
async def test_an_answer_to_what_was_not_asked_costs_its_device_the_run(tmp_path: Path, question: str) -> None:
    gps = asking_two_numbers(GpsParts(tmp_path))
    gps.enrol(0)
    with pytest.raises(PayloadError, match="no question is called") as raised:
        await gps.answer(0, question, number=number(1))
    assert len(str(raised.value)) < 300
    assert gps.roster.devices[0].refused


@pytest.mark.parametrize(
    ("arrays", "reason"),
    [
        ({"figure": number(1)}, r"the answer to first has arrays \['figure'\]; expected \['number'\]"),
        ({}, r"the answer to first has arrays \[\]; expected \['number'\]"),
        ({"number": np.float64([1])}, "number of 'float64' and shape .* expected int64"),
        ({"number": np.int64([1, 2])}, r"shape \[2\]; expected int64 and \(1,\)"),
        ({"number": np.int64([])}, r"shape \[0\]; expected int64 and \(1,\)"),
        ({"number": np.int64([[1]])}, r"shape \[1, 1\]; expected int64 and \(1,\)"),
    ],
)
async def test_arrays_are_those_that_the_question_names(tmp_path: Path, arrays: Arrays, reason: str) -> None:
    gps = asking_two_numbers(GpsParts(tmp_path))
    gps.enrol(0)
    with pytest.raises(PayloadError, match=reason):
        await gps.answer(0, "first", **arrays)


async def test_questions_in_rounds_are_none_before_training(tmp_path: Path) -> None:
    gps = asking_two_numbers(GpsParts(tmp_path))
    assert [question.name for question in gps.questions.asked] == ["first", "second"]
    gps.enrol(0)
    device = gps.roster.devices[0]
    await gps.answer(0, "first", number=number(1))
    assert (gps.questions.takes_part(device), gps.questions.has_answered_all(device)) == (True, False)
    await gps.answer(0, "second", number=number(2))
    assert gps.questions.has_answered_all(device)


# --- late devices -------------------------------------------------------------------------------------------


class Placed:
    """Notes the late devices that are handed on, and puts them into cluster 1."""

    def __init__(self, gps: GpsParts) -> None:
        self._gps = gps
        self.told: list[tuple[str, int]] = []
        gps.place = self

    def __call__(self, device: Device) -> None:
        answer = self._gps.answered(device.device_index, "second")
        self.told.append((device.device_id, int(answer["number"][0])))
        device.cluster = 1


async def closed_with_two(tmp_path: Path) -> GpsParts:
    """Devices 0 and 1 have answered the first question before the deadline."""
    gps = asking_two_numbers(GpsParts(tmp_path, *DEADLINE))
    gps.enrol(0, 1)
    for index in (0, 1):
        await gps.answer(index, "first", number=number(index))
    await gps.enrolment.gather_devices()
    return gps


async def test_a_late_device_is_placed_by_its_last_answer(tmp_path: Path) -> None:
    gps = await closed_with_two(tmp_path)
    placed = Placed(gps)
    gps.questions.publish_sponsors(())
    gps.enrol(4)
    await gps.answer(4, "first", number=number(7))
    assert placed.told == []
    await gps.answer(4, "second", number=number(8))
    assert placed.told == [(IDS[4], 8)]


async def test_a_late_device_that_answers_before_there_are_clusters_is_placed_once_there_are(tmp_path: Path) -> None:
    gps = await closed_with_two(tmp_path)
    placed = Placed(gps)
    gps.enrol(4)
    await gps.answer(4, "first", number=number(7))
    await gps.answer(4, "second", number=number(8))
    assert placed.told == []
    gps.questions.publish_sponsors(())
    assert placed.told == [(IDS[4], 8)]
    gps.questions.publish_sponsors(())
    assert len(placed.told) == 1


async def test_a_gps_killed_between_a_late_answer_and_the_placing_places_the_device_in_its_next_life(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gps = await closed_with_two(tmp_path)
    gps.questions.publish_sponsors(())
    gps.enrol(4)
    await gps.answer(4, "first", number=number(7))

    def die(point: str) -> None:
        raise RuntimeError(point)

    monkeypatch.setattr("gps.devices.questions.reach", die)
    with pytest.raises(RuntimeError, match="relevance"):
        await gps.answer(4, "second", number=number(8))
    monkeypatch.undo()
    gps.restart()
    asking_two_numbers(gps)
    placed = Placed(gps)
    gps.questions.publish_sponsors(())
    assert placed.told == [(IDS[4], 8)]


async def test_who_answers_too_late_for_a_method_that_places_nobody_is_told_so(tmp_path: Path) -> None:
    gps = asking_two_numbers(GpsParts(tmp_path, *DEADLINE), PlacesNobody)
    gps.enrol(0, 1, 2)
    for index in (0, 1):
        await gps.answer(index, "first", number=number(index))
    await gps.enrolment.gather_devices()
    gps.questions.publish_sponsors(())
    with pytest.raises(
        ExcludedError, match=r"device-002 answered after .* method own:TwoNumbers cannot place a late device"
    ):
        await gps.answer(2, "first", number=number(2))
    assert not gps.roster.devices[2].refused
