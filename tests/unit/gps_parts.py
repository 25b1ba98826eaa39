"""A GPS's parts for tests: an experiment of five devices, and calls as devices make them."""

from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedstrata.datasets import DatasetInfo
from fedstrata.experiment import Experiment, parse_experiment
from fedstrata.logs import EventLog
from fedstrata.methods import make_method
from fedstrata.rpc.payload import PROFILE_PART, payload_header
from fedstrata.tensors import Layout, PayloadCodec
from fedstrata.v1 import gps_service_pb2 as pb
from gps.enrolment import Enrolment
from gps.journal import Journal
from gps.roster import Roster

FEATURES = 4
INFO = DatasetInfo(input_shape=(1, 2, 2), num_classes=4)
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
    """Journal, roster and enrolment of one GPS, as `gps.run` puts them together."""

    def __init__(self, folder: Path, *overrides: str) -> None:
        self.experiment: Experiment = parse_experiment(TEXT, overrides=overrides)
        self.folder = folder
        self.open()

    def open(self) -> None:
        """Begin, or begin again from what the journal holds."""
        experiment = self.experiment
        self.journal = Journal(
            self.folder / "journal.sqlite", run_id=experiment.run_id, experiment=experiment.to_yaml()
        )
        self.roster = Roster(experiment, self.journal)
        self.enrolment = Enrolment(
            experiment,
            method=make_method(experiment.method),
            info=INFO,
            roster=self.roster,
            journal=self.journal,
            log=EventLog("test"),
        )

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
            process_id=process_id,
        )

    def enrol(self, *indexes: int) -> None:
        for index in indexes:
            self.enrolment.enroll(self.enrol_request(index))

    async def profile(self, index: int, vectors: NDArray[np.float32] | None = None) -> None:
        """Send a device's eigenvectors; the first two axes where none are given."""
        vectors = np.eye(2, FEATURES, dtype=np.float32) if vectors is None else vectors
        await self.enrolment.submit_profile(profile_header(index, vectors), parts_of(vectors.tobytes()))

    async def profiles(self, index: int, from_index: int = 0) -> list[pb.ProfilePart]:
        """What a device is streamed."""
        request = pb.FetchProfilesRequest(device_id=IDS[index], process_id="p", from_index=from_index)
        return [part async for part in self.enrolment.profiles_for(request)]

    def relate(self, index: int, row: dict[int, float]) -> None:
        entries = [pb.Relevance(device_index=other, value=value) for other, value in row.items()]
        self.enrolment.submit_relevance(pb.SubmitRelevanceRequest(device_id=IDS[index], process_id="p", row=entries))


def profile_header(index: int, vectors: NDArray[np.float32], process_id: str = "p") -> pb.ProfileHeader:
    """What a device announces before its eigenvectors."""
    codec = PayloadCodec(Layout.of({PROFILE_PART: vectors.shape}), "float32")
    return pb.ProfileHeader(
        device_id=IDS[index],
        device_index=index,
        process_id=process_id,
        payload=payload_header(codec, name=PROFILE_PART),
    )


async def parts_of(data: bytes, step: int = 12) -> AsyncIterator[pb.ProfilePart]:
    """Bytes in small parts."""
    for start in range(0, len(data), step):
        yield pb.ProfilePart(data=data[start : start + step])
