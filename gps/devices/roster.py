"""The devices of a run as the GPS knows them: absent, enrolled, answered, assigned to a cluster, or refused.

This module has only states and rules. `gps.devices.enrolment` waits for devices.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from fedstrata.errors import (
    DuplicateDeviceError,
    ExcludedError,
    PayloadError,
    UnknownChildError,
    WrongRunError,
)
from fedstrata.experiment import Experiment
from fedstrata.process.quoting import brief, quoted
from fedstrata.v1 import answers_pb2
from fedstrata.v1 import gps_service_pb2 as pb
from gps.journal.devices import DeviceRow
from gps.journal.journal import Journal

MOST_HELD_OUT = 1 << 20  # the limit if the experiment has no bounds.max_held_out
NEVER_JOINED = "a newcomer that had not joined by the deadline"
LONGEST_KERNEL = 160  # characters
POD_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")


@dataclass(kw_only=True)
class Device(DeviceRow):
    """Hold what the GPS knows about one device. `Places` sets the device's cluster and its LPS (the fields `cluster`
    and `home`).
    """

    answered: set[str] = field(default_factory=set)  # names of the questions before training that it has answered
    cluster: int | None = None
    home: int | None = None  # the number of the device's LPS
    from_global_round: int = 0  # the first global round in which a late device takes part
    refused: str | None = None
    process_id: str = ""
    calls_under_way: int = 0


class Roster:
    """Hold all enrolled devices by index, and write each change to the journal."""

    def __init__(self, experiment: Experiment, journal: Journal) -> None:
        self._experiment = experiment
        self._journal = journal
        self._ids = experiment.device_ids()
        self._indexes = {device_id: index for index, device_id in enumerate(self._ids)}
        self.newcomers = experiment.newcomer_indexes
        self.awaits_newcomers = False  # whether the next global round waits for the newcomers
        self.devices: dict[int, Device] = {}
        for row in journal.devices.all():
            first = self._first_round(row.device_index)
            self.devices[row.device_index] = Device(**vars(row), from_global_round=first)
        for question, index in journal.answers.given():
            self.devices[index].answered.add(question)
        for device_id, stage, reason in journal.exclusions():
            if stage == "enrolment" and reason.startswith("refused") and device_id in self._indexes:
                self.by_id(device_id).refused = reason

    def _first_round(self, device_index: int) -> int:
        """Return the global round from which a device takes part according to the experiment. This is later than 0 only
        for newcomers.
        """
        settings = self._experiment.newcomers
        return settings.from_global_round - 1 if settings is not None and device_index in self.newcomers else 0

    @property
    def expected(self) -> int:
        """The number of devices that the GPS expects before training: all devices except newcomers."""
        return len(self._ids) - len(self.newcomers)

    @property
    def founders(self) -> list[Device]:
        """Return the enrolled devices that are not newcomers."""
        return [device for index, device in self.devices.items() if index not in self.newcomers]

    def absent(self) -> list[str]:
        """Return the ids of the devices that have not enrolled."""
        return [device_id for index, device_id in enumerate(self._ids) if index not in self.devices]

    def absent_founders(self) -> list[str]:
        """Return the ids of the devices that are not newcomers and have not enrolled."""
        return [name for name in self.absent() if self._indexes[name] not in self.newcomers]

    def unplaced_newcomers(self) -> list[str]:
        """Return the ids of the newcomers that the run waits for because they have no cluster yet."""
        decided = {d.device_id for d in self.devices.values() if d.cluster is not None or d.refused}
        decided |= {who for who, _, reason in self._journal.exclusions() if reason == NEVER_JOINED}
        return [self._ids[index] for index in sorted(self.newcomers) if self._ids[index] not in decided]

    def check(self, request: pb.EnrollRequest) -> None:
        """Check that a device fits the experiment.

        Raises:
            WrongRunError: the device was started with another experiment than the GPS.
            UnknownChildError: the experiment has no device with this id and index.
            PayloadError: the device has no examples, or more examples than the experiment allows.
        """
        if request.experiment_sha256 != self._experiment.digest:
            raise WrongRunError(
                f"{quoted(request.device_id)} was started with another experiment than the GPS "
                f"({quoted(request.experiment_sha256[:12])}, not {self._experiment.digest[:12]!r}); "
                "give both the same file"
            )
        index = request.device_index
        if not 0 <= index < len(self._ids) or self._ids[index] != request.device_id:
            raise UnknownChildError(
                f"this experiment has no device {quoted(request.device_id)} with index {index}; it has "
                f"{self._ids[0]} to {self._ids[-1]}"
            )
        if request.num_examples < 1:
            raise PayloadError(f"{request.device_id} has no examples to train on; give it data or leave it out")
        limits = self._experiment.limits
        most_held_out = MOST_HELD_OUT if limits.max_held_out is None else limits.max_held_out
        for what, number, bound, key in (
            ("train", request.num_examples, self._experiment.most_examples, "max_examples"),
            ("measure", request.num_held_out, most_held_out, "max_held_out"),
        ):
            if not 0 <= number <= bound:
                raise PayloadError(
                    f"{request.device_id} claims {number} examples to {what} on; expected 0 to {bound}; if it "
                    f"has more, raise bounds.{key}"
                )

    def enroll(self, request: pb.EnrollRequest, *, is_late: bool) -> Device:
        """Enrol a device that `check` has accepted, for the first time or again.

        Raises:
            PayloadError: the device contradicts its own earlier enrolment.
            DuplicateDeviceError: another process of the same device is present.
            ExcludedError: the device was refused.
        """
        device = self.devices.get(request.device_index)
        if device is None:
            pod_name = request.pod_name if POD_NAME.fullmatch(request.pod_name) else ""
            device = Device(
                device_id=request.device_id,
                device_index=request.device_index,
                num_examples=request.num_examples,
                num_held_out=request.num_held_out,
                pod_name=pod_name,
                kernel=request.kernel[:LONGEST_KERNEL],
                is_late=is_late,
                from_global_round=self._first_round(request.device_index),
            )
            self._journal.devices.enroll(device)
            self.devices[device.device_index] = device
        if device.refused:
            raise ExcludedError(f"{device.device_id} was {device.refused}")
        enrolled, now = (device.num_examples, device.num_held_out), (request.num_examples, request.num_held_out)
        if enrolled != now:
            raise PayloadError(
                f"{device.device_id} enrolled with {enrolled[0]} examples to train on and {enrolled[1]} to measure on, "
                f"but now has {now[0]} and {now[1]}; give it the same data as before"
            )
        if device.process_id not in {"", request.process_id} and device.calls_under_way:
            raise DuplicateDeviceError(
                f"another process runs {device.device_id} already; give this process an index of its own"
            )
        device.process_id = request.process_id
        self._journal.made_with.note("device", device.device_id, request.software)
        self._note_pod(device, request.pod_name)
        return device

    def _note_pod(self, device: Device, pod_name: str) -> None:
        """Note the name of the pod in which a device runs now. A restarted device may run in another pod."""
        if device.pod_name != pod_name and POD_NAME.fullmatch(pod_name):
            device.pod_name = pod_name
            self._journal.devices.enroll(device)

    def by_id(self, device_id: str) -> Device:
        """Return the device with this id. Raises UnknownChildError if the device has not enrolled."""
        device = self.devices.get(self._indexes.get(device_id, -1))
        if device is not None:
            return device
        raise UnknownChildError(f"{quoted(device_id)} has not enrolled; call Enroll first")

    @contextmanager
    def call_of(self, device_id: str, process_id: str) -> Iterator[Device]:
        """Yield the device that makes a call, and mark it as present while the block runs."""
        device = self.by_id(device_id)
        if device.refused:
            raise ExcludedError(f"{device_id} was {device.refused}")
        if device.process_id and device.process_id != process_id:
            raise DuplicateDeviceError(f"another process has enrolled as {device_id}; stop one of the two")
        device.process_id = process_id  # after a restart of the GPS it is not known until now
        device.calls_under_way += 1
        try:
            yield device
        finally:
            device.calls_under_way -= 1

    def set_answer(self, device: Device, answer: answers_pb2.Answer) -> None:
        """Write a device's answer to the journal. In memory, note only that the device has answered the question."""
        self._journal.answers.add(answer.question, device.device_index, answer.SerializeToString(deterministic=True))
        device.answered.add(answer.question)

    def note_lost_state(self, device: Device) -> None:
        """Note that a device has lost its saved state."""
        if not device.has_lost_state:
            self._journal.devices.note_lost_state(device.device_index)
            device.has_lost_state = True

    def refuse(self, device: Device, reason: str) -> None:
        """Refuse a device until the end of the run. The run continues without the device."""
        device.refused = f"refused: {brief(reason)}"
        self._journal.exclude(device.device_id, "enrolment", device.refused)

    def behind(self, questions: Sequence[str]) -> list[Device]:
        """Return the enrolled devices that have not answered all questions in `questions`, which are asked before
        training. Refused and late devices are left out.
        """
        there = [device for device in self.devices.values() if not device.refused and not device.is_late]
        return [device for device in there if not set(questions) <= device.answered]

    def kernels(self) -> dict[str, int]:
        """Return, for each OpenBLAS kernel, the number of devices that use it. Devices that report no kernel are left
        out.
        """
        return dict(sorted(Counter(device.kernel for device in self.devices.values() if device.kernel).items()))

    def state_of_devices(self) -> list[str]:
        """Return the state of each device, in index order."""
        there = self.devices
        return [_state(there[index]) if index in there else "absent" for index in range(len(self._ids))]

    def states(self) -> Counter[str]:
        """Return the number of devices in each state."""
        absent = len(self._ids) - len(self.devices)
        states = Counter({"absent": absent, "enrolled": 0, "answered": 0, "assigned": 0})
        for device in self.devices.values():
            states[_state(device)] += 1
        return states


def _state(device: Device) -> str:
    if device.refused:
        return "refused"
    if device.cluster is not None:
        return "assigned"
    return "answered" if device.answered else "enrolled"
