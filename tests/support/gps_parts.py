"""A GPS's parts for tests: an experiment of five devices, and calls as devices make them."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedstrata.clock.clocks import clock_of
from fedstrata.experiment import Experiment
from fedstrata.experiment_file import parse_experiment
from fedstrata.methods import Arrays, Method, make_method
from fedstrata.process.logs import EventLog
from fedstrata.v1 import answers_pb2
from fedstrata.v1 import gps_service_pb2 as pb
from gps.devices.enrolment import Enrolment
from gps.devices.questions import Questions
from gps.devices.roster import Device, Roster
from gps.journal.journal import Journal
from gps.plans.places import Places

FEATURES = 4
TEXT = """
name: five
data: {name: "own:load", input_shape: [1, 2, 2], num_classes: 4}
partition:
  kind: tasks
  tasks:
    - {name: a, labels: [0, 1], devices: 3, examples_per_device: 10}
    - {name: b, labels: [2, 3], devices: 2, examples_per_device: 20}
method: {name: one_shot, clusters: 2, eigenvectors: 2}
"""
IDS = [f"device-{index:03d}" for index in range(5)]


class GpsParts:
    """Journal, roster, questions, enrolment, plans and places of one GPS, as `gps.run` puts them together."""

    def __init__(self, folder: Path, *overrides: str) -> None:
        self.experiment: Experiment = parse_experiment(TEXT, overrides=overrides)
        self.folder = folder
        self.returns = 0  # devices with a cluster that have enrolled anew
        self.place: Callable[[Device], None] = lambda device: None  # a late device
        self.open()

    def open(self) -> None:
        """Begin, or begin again from what the journal holds."""
        experiment, log = self.experiment, EventLog("test")
        self.method = make_method(experiment)
        self.journal = Journal(
            self.folder / "journal.sqlite", run_id=experiment.run_id, experiment=experiment.to_yaml()
        )
        self.roster = Roster(experiment, self.journal)
        self.ask(self.method)
        self.enrolment = Enrolment(
            experiment, questions=self.questions, roster=self.roster, journal=self.journal, log=log,
            on_return=self._count_return,
        )  # fmt: skip
        self.places = Places(experiment, self.method, self.roster, self.journal)
        self.plans = self.places.plans

    def ask(self, method: Method) -> None:
        """Have a method's questions asked."""
        self.questions = Questions(
            method, roster=self.roster, journal=self.journal, log=EventLog("test"), on_change=lambda: None,
            on_late=self._hand_on, clock=clock_of(self.experiment).gps(self.journal.clock).questions,
        )  # fmt: skip

    def _hand_on(self, device: Device) -> None:
        self.place(device)

    def _count_return(self) -> None:
        self.returns += 1

    def restart(self) -> None:
        """As after the death of the process."""
        self.journal.close()
        self.open()

    def enrol_request(self, index: int, process_id: str = "p") -> pb.EnrollRequest:
        return pb.EnrollRequest(
            device_id=IDS[index],
            device_index=index,
            experiment_sha256=self.experiment.digest,
            num_examples=10 if index < 3 else 20,
            num_held_out=2,
            process_id=process_id,
        )

    def enrol(self, *indexes: int) -> None:
        for index in indexes:
            self.enrolment.enroll(self.enrol_request(index))

    async def answer(self, index: int, question: str, **arrays: NDArray[np.generic]) -> None:
        """Send a device's answer to a question."""
        header, data = answer_header(index, arrays), b"".join(array.tobytes() for array in arrays.values())
        await self.questions.take(header, question, parts_of(data))

    def answered(self, index: int, question: str) -> Arrays:
        """What a device has answered, as the journal keeps it."""
        return self.questions.answers([self.roster.devices[index]])[question][index]

    async def profile(self, index: int, vectors: NDArray[np.float32] | None = None) -> None:
        """Send a device's eigenvectors; the first two axes where none are given."""
        vectors = np.eye(2, FEATURES, dtype=np.float32) if vectors is None else vectors
        await self.answer(index, "profile", eigenvectors=vectors)

    async def profiles(self, *indexes: int) -> None:
        """Send the first two axes as the eigenvectors of each of these devices."""
        for index in indexes:
            await self.profile(index)

    async def relayed(self, index: int, from_index: int = 0, question: str = "profile") -> list[answers_pb2.AnswerPart]:
        """What a device is streamed."""
        request = answers_pb2.FetchAnswersRequest(
            device_id=IDS[index], process_id="p", from_index=from_index, question=question
        )
        return [part async for part in self.questions.relayed_to(request)]

    async def relate(self, index: int, row: dict[int, float]) -> None:
        """Send a device's row of relevances."""
        devices, values = np.array(list(row), np.int64), np.array(list(row.values()), np.float64)
        await self.answer(index, "relevance", devices=devices, values=values)


def answer_header(index: int, arrays: Arrays, process_id: str = "p") -> answers_pb2.AnswerHeader:
    """What a device announces before an answer."""
    headers = [
        answers_pb2.ArrayHeader(name=name, dtype=array.dtype.name, shape=array.shape) for name, array in arrays.items()
    ]
    return answers_pb2.AnswerHeader(
        device_id=IDS[index],
        device_index=index,
        process_id=process_id,
        arrays=headers,
        payload_bytes=sum(array.nbytes for array in arrays.values()),
    )


async def parts_of(data: bytes, step: int = 12) -> AsyncIterator[answers_pb2.AnswerPart]:
    """Bytes in small parts."""
    for start in range(0, len(data), step):
        yield answers_pb2.AnswerPart(data=data[start : start + step])
