"""The devices of a run at the GPS: who has enrolled, profiled, related, and who was refused.

State and rules only; waiting is `gps.enrolment`'s business.
"""

import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np

from fedstrata.errors import (
    DuplicateDeviceError,
    ExcludedError,
    PayloadError,
    UnknownChildError,
    WrongRunError,
)
from fedstrata.experiment import Experiment
from fedstrata.tensors import Flat
from fedstrata.v1 import gps_service_pb2 as pb
from gps.journal import Journal

# Of all devices together: the exact sum takes updates of up to ±1 then, and of fewer examples larger ones. One device
# that claims more would have the updates of all others refused.
MOST_EXAMPLES = 1 << 30
POD_NAME = re.compile(r"^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$")


@dataclass
class Device:
    """One device as the GPS knows it."""

    device_id: str
    device_index: int
    num_examples: int
    pod_name: str
    is_late: bool = False
    profile_rows: int | None = None
    has_relevance: bool = False
    cluster: int | None = None
    from_global_round: int = 0  # of a late device: the first it takes part in
    refused: str | None = None
    process_id: str = ""
    calls_under_way: int = field(default=0)


class Roster:
    """All devices by index, written through to the journal."""

    def __init__(self, experiment: Experiment, journal: Journal) -> None:
        self._experiment = experiment
        self._journal = journal
        self._ids = experiment.device_ids()
        self._indexes = {device_id: index for index, device_id in enumerate(self._ids)}
        self.devices: dict[int, Device] = {}
        for row in journal.devices():
            self.devices[row.device_index] = Device(
                device_id=row.device_id,
                device_index=row.device_index,
                num_examples=row.num_examples,
                pod_name=row.pod_name,
                is_late=row.is_late,
                profile_rows=row.profile_rows,
                has_relevance=row.has_relevance,
                cluster=row.cluster,
            )
        for device_id, stage, reason in journal.exclusions():
            if stage == "enrolment" and reason.startswith("refused"):
                self.by_id(device_id).refused = reason

    @property
    def expected(self) -> int:
        """How many devices the experiment has."""
        return len(self._ids)

    def absent(self) -> list[str]:
        """Ids of the devices that have not enrolled."""
        return [device_id for index, device_id in enumerate(self._ids) if index not in self.devices]

    def enroll(self, request: pb.EnrollRequest, *, is_late: bool) -> Device:
        """Make a device known.

        Raises:
            WrongRunError, UnknownChildError, DuplicateDeviceError, ExcludedError, PayloadError.
        """
        self.check(request)
        return self._claim(request, is_late=is_late)

    def check(self, request: pb.EnrollRequest) -> None:
        """Refuse a device that is not of this experiment. Raises WrongRunError, UnknownChildError, PayloadError."""
        if request.experiment_sha256 != self._experiment.digest:
            raise WrongRunError(
                f"{request.device_id[:80]!r} was started with another experiment than the GPS "
                f"({request.experiment_sha256[:12]!r}, not {self._experiment.digest[:12]!r}); give both the same file"
            )
        index = request.device_index
        if not 0 <= index < len(self._ids) or self._ids[index] != request.device_id:
            raise UnknownChildError(
                f"{request.device_id[:80]!r} with index {index} is not of this experiment, which has "
                f"{self._ids[0]} … {self._ids[-1]}"
            )
        if request.num_examples < 1:
            raise PayloadError(f"{request.device_id} has no examples to train on; give it data or leave it out")
        most = max(1 << 20, MOST_EXAMPLES // len(self._ids))
        if request.num_examples > most:
            raise PayloadError(
                f"{request.device_id} has {request.num_examples} examples; at most {most} may be claimed"
            )

    def _claim(self, request: pb.EnrollRequest, *, is_late: bool) -> Device:
        device = self.devices.get(request.device_index)
        if device is None:
            pod_name = request.pod_name if POD_NAME.match(request.pod_name) else ""
            device = Device(
                device_id=request.device_id,
                device_index=request.device_index,
                num_examples=request.num_examples,
                pod_name=pod_name,
                is_late=is_late,
            )
            self._journal.enroll(
                index=device.device_index, device_id=device.device_id, num_examples=device.num_examples,
                pod_name=pod_name, is_late=is_late,
            )  # fmt: skip
            self.devices[device.device_index] = device
        if device.refused:
            raise ExcludedError(f"{device.device_id} was {device.refused}")
        if device.num_examples != request.num_examples:
            raise PayloadError(
                f"{device.device_id} enrolled with {device.num_examples} examples, and now has {request.num_examples}"
            )
        if device.process_id not in {"", request.process_id} and device.calls_under_way:
            raise DuplicateDeviceError(
                f"{device.device_id} is enrolled by another process that is still there; give this one its own index"
            )
        device.process_id = request.process_id
        return device

    def by_id(self, device_id: str) -> Device:
        """The device of that id. Raises UnknownChildError when it has not enrolled."""
        device = self.devices.get(self._indexes.get(device_id, -1))
        if device is not None:
            return device
        raise UnknownChildError(f"{device_id[:80]!r} has not enrolled; call Enroll first")

    @contextmanager
    def call_of(self, device_id: str, process_id: str) -> Iterator[Device]:
        """The device that makes a call, marked as being there while the call lasts."""
        device = self.by_id(device_id)
        if device.refused:
            raise ExcludedError(f"{device_id} was {device.refused}")
        if device.process_id and device.process_id != process_id:
            raise DuplicateDeviceError(f"{device_id} has since been enrolled by another process; stop one of the two")
        device.process_id = process_id  # a restarted GPS learns it again here
        device.calls_under_way += 1
        try:
            yield device
        finally:
            device.calls_under_way -= 1

    def set_profile(self, device: Device, eigenvectors: Flat) -> None:
        """Keep a device's profile, shape (k, d), and drop it from memory."""
        self._journal.set_profile(device.device_index, len(eigenvectors), eigenvectors.astype("<f4").tobytes())
        device.profile_rows = len(eigenvectors)

    def set_relevance(self, device: Device, row: dict[int, float]) -> None:
        """Keep a device's row as pairs of index and value."""
        pairs = np.array(sorted(row.items()), "<f8").reshape(-1, 2)
        self._journal.set_relevance(device.device_index, pairs.tobytes())
        device.has_relevance = True

    def relevance(self, device: Device) -> dict[int, float]:
        """The row that a device submitted, by device index."""
        pairs = np.frombuffer(self._journal.relevance(device.device_index), "<f8").reshape(-1, 2)
        return {int(index): float(value) for index, value in pairs}

    def refuse(self, device: Device, reason: str) -> None:
        """Go on without a device for the rest of the run."""
        device.refused = f"refused: {reason}"
        self._journal.exclude(device.device_id, "enrolment", device.refused)

    def states(self) -> Counter[str]:
        """How many devices are in which state."""
        states = Counter({"absent": len(self.absent()), "enrolled": 0, "profiled": 0, "related": 0, "assigned": 0})
        for device in self.devices.values():
            states[_state(device)] += 1
        return states


def _state(device: Device) -> str:
    if device.refused:
        return "refused"
    if device.cluster is not None:
        return "assigned"
    if device.has_relevance:
        return "related"
    return "profiled" if device.profile_rows is not None else "enrolled"
