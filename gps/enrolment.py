"""Before training: devices enrol, their profiles are relayed, their relevance rows gathered, each once.

Profiles go from the journal straight to the wire, one at a time: neither the GPS nor a device holds them all.
"""

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from functools import partial

import numpy as np

from fedstrata.datasets import DatasetInfo
from fedstrata.errors import ExcludedError, PayloadError, RunStoppedError
from fedstrata.experiment import Experiment
from fedstrata.fault_points import reach
from fedstrata.features import feature_dim
from fedstrata.link import HOLD_S, Changes, wait_until
from fedstrata.logs import EventLog
from fedstrata.methods import Method
from fedstrata.relevance import Matrix, landmarks, relevance_matrix
from fedstrata.rpc.payload import PROFILE_PART, accepted_codec, payload_header
from fedstrata.tensors import CHUNK_BYTES, Flat, Layout, PayloadCodec
from fedstrata.v1 import gps_service_pb2 as pb
from fedstrata.v1 import rounds_pb2, tensors_pb2
from gps.journal import Journal
from gps.roster import Device, Roster


class Enrolment:
    """Gathers what devices say before training and decides when nobody is waited for any more."""

    def __init__(
        self,
        experiment: Experiment,
        *,
        method: Method,
        info: DatasetInfo,
        roster: Roster,
        journal: Journal,
        log: EventLog,
    ) -> None:
        self._experiment = experiment
        self._method = method
        self._roster = roster
        self._journal = journal
        self._log = log
        self._features = feature_dim(experiment.method, info)
        self._wait = experiment.deadlines.enrolment
        self._closes_at: float | None = None
        self._changes = Changes()
        settings = experiment.method
        self._landmarks = landmarks(
            roster.expected, experiment.seed, exact_up_to=settings.exact_up_to, count=settings.landmarks
        )
        self._decided = {index: asyncio.Event() for index in self._landmarks}
        self.is_closed = "relevance" in journal.phases() or journal.grouping_rule() is not None
        self.representatives: list[int] | None = None  # set once the devices are grouped
        self.on_change: Callable[[], None] = lambda: None
        self.on_late_relevance: Callable[[Device], None] = lambda device: None

    def tell(self) -> None:
        """Let every held call look again."""
        for index in [index for index in self._decided if self._is_decided(index)]:
            self._decided.pop(index).set()
        self._changes.tell()
        self.on_change()

    # --- waiting --------------------------------------------------------------------------------

    async def gather_devices(self) -> None:
        """Wait until every device has enrolled, and profiled where the method needs it, or for the deadline."""
        self._set_deadline()
        if not self.is_closed:
            await self._changes.wait_until(self._all_there, self._time_left())
            self._close()
        self._check_quorum(self._present())

    async def gather_relevance(self) -> None:
        """Wait until every device that has profiled has related itself to the others, or for as long once more."""
        self._set_deadline()
        await self._changes.wait_until(self._all_related, self._time_left())
        unrelated = [device for device in self._present() if not device.has_relevance]
        for device in unrelated:
            self._note_absent(device.device_id, "no relevance row by the deadline")
        self._check_quorum(self.candidates())

    def _set_deadline(self) -> None:
        if self._wait.deadline_s is not None:
            self._closes_at = asyncio.get_running_loop().time() + self._wait.deadline_s

    def _time_left(self) -> float | None:
        if self._closes_at is None:
            return None
        return max(0.0, self._closes_at - asyncio.get_running_loop().time())

    def _all_there(self) -> bool:
        devices = self._roster.devices.values()
        return len(devices) == self._roster.expected and all(d.refused or self._is_present(d) for d in devices)

    def _is_present(self, device: Device) -> bool:
        has_said = device.profile_rows is not None or not self._method.needs_profiles
        return has_said and not device.refused and not device.is_late

    def _present(self) -> list[Device]:
        """The devices that take part in the grouping, by index."""
        return [device for _, device in sorted(self._roster.devices.items()) if self._is_present(device)]

    def _all_related(self) -> bool:
        return all(device.has_relevance for device in self._roster.devices.values() if self._is_present(device))

    def _close(self) -> None:
        self.is_closed = True
        for device_id in self._roster.absent():
            self._note_absent(device_id, "absent at the deadline")
        for device in self._roster.devices.values():
            if not device.refused and not self._is_present(device):
                device.is_late = True
                self._note_absent(device.device_id, "no profile by the deadline")
        self.tell()

    def _note_absent(self, device_id: str, reason: str) -> None:
        self._log.warning("device_missing", device=device_id, reason=reason)
        self._journal.exclude(device_id, "enrolment", reason)

    def _check_quorum(self, devices: list[Device]) -> None:
        quorum = max(1, math.ceil(self._wait.quorum_ratio * self._roster.expected - 1e-9))
        if len(devices) < quorum:
            there = {device.device_id for device in devices}
            missing = [name for name in self._experiment.device_ids() if name not in there]
            refused = next((d.refused for d in self._roster.devices.values() if d.refused), None)
            raise RunStoppedError(
                f"{len(devices)} of {self._roster.expected} devices are there, the quorum is {quorum}; missing: "
                f"{', '.join(missing[:10])}" + (f" ({refused})" if refused else "")
            )

    def candidates(self) -> list[Device]:
        """The devices to group, by index: present, and related where the method needs it."""
        return [d for d in self._present() if d.has_relevance or not self._method.needs_profiles]

    def related(self) -> list[Device]:
        """The candidates that all are related to, by index: every one, or the landmarks where there are many."""
        known = set(self._landmarks)
        return [device for device in self.candidates() if device.device_index in known]

    def relevance_matrix(self) -> Matrix:
        """R over the related candidates, shape (N, N), in their order (Eq. 5)."""
        candidates = self.related()
        places = {device.device_index: place for place, device in enumerate(candidates)}
        rows = np.ones((len(candidates), len(candidates)))
        for device in candidates:
            for index, value in self._roster.relevance(device).items():
                if index in places:
                    rows[places[device.device_index], places[index]] = value
        return relevance_matrix(rows)

    # --- calls ----------------------------------------------------------------------------------

    def enroll(self, request: pb.EnrollRequest) -> pb.EnrollResponse:
        """Make a device known and say what is wanted of it."""
        self._roster.check(request)
        is_new = request.device_index not in self._roster.devices
        if is_new and self.is_closed and not self._method.needs_profiles:
            raise ExcludedError(
                f"{request.device_id} came after the devices were grouped, and method "
                f"{self._experiment.method.name} has no relevance to place it by; start it before the run next time"
            )
        device = self._roster.enroll(request, is_late=self.is_closed)
        reach("enrolment")
        if is_new:
            self._log.info("device_enrolled", device=device.device_id, examples=device.num_examples)
            self.tell()
        return pb.EnrollResponse(
            run_id=self._experiment.run_id, wants_profile=self._method.needs_profiles, is_late=device.is_late
        )

    @contextmanager
    def _or_refuse(self, device: Device) -> Iterator[None]:
        """Refuse the device for the run when what it sends is not what was declared."""
        try:
            yield
        except PayloadError as error:
            self._roster.refuse(device, str(error))
            self._log.warning("device_refused", device=device.device_id, reason=str(error))
            self.tell()
            raise

    async def submit_profile(self, header: pb.ProfileHeader, parts: AsyncIterator[pb.ProfilePart]) -> None:
        """Take a device's eigenvectors; a second time changes nothing."""
        with self._roster.call_of(header.device_id, header.process_id) as device, self._or_refuse(device):
            layout = self._profile_layout(header.payload)
            accepted_codec(header.payload, layout=layout, encoding="float32", name=PROFILE_PART)
            data = bytearray()
            async for part in parts:
                data += part.data
                if len(data) > layout.float32_bytes:
                    break
            if len(data) != layout.float32_bytes:
                raise PayloadError(f"{len(data)} bytes of eigenvectors, expected {layout.float32_bytes}")
            vectors = np.frombuffer(bytes(data), "<f4").reshape(layout.tensors[0].shape)
            _check_eigenvectors(vectors)
            if device.profile_rows is None and not self.is_closed:
                self._roster.set_profile(device, vectors)
                self.tell()

    @property
    def profile_bytes(self) -> int:
        """The most that a profile takes: k eigenvectors of d features, float32."""
        return Layout.of({PROFILE_PART: (self._experiment.method.eigenvectors, self._features)}).float32_bytes

    def _profile_layout(self, payload: tensors_pb2.PayloadHeader) -> Layout:
        """The shape announced, if it may be one: at most k eigenvectors of d features."""
        shapes = [tuple(tensor.shape) for part in payload.parts for tensor in part.tensors]
        most = self._experiment.method.eigenvectors
        if len(shapes) != 1 or len(shapes[0]) != 2 or not 1 <= shapes[0][0] <= most:
            raise PayloadError(f"a profile of shapes {shapes[:3]}, expected one of at most {most} eigenvectors")
        if shapes[0][1] != self._features:
            raise PayloadError(
                f"eigenvectors of {shapes[0][1]} features, expected {self._features}; check its data and Φ"
            )
        return Layout.of({PROFILE_PART: shapes[0]})

    async def profiles_for(self, request: pb.FetchProfilesRequest) -> AsyncIterator[pb.ProfilePart]:
        """Stream the other devices' profiles in index order, each as soon as it is there."""
        with self._roster.call_of(request.device_id, request.process_id) as device:
            for index in await self._indexes_for(device):
                if index < request.from_index or index == device.device_index:
                    continue
                if not await self._wait_decided(index):
                    yield pb.ProfilePart(waiting=rounds_pb2.Waiting())
                    return
                other = self._roster.devices.get(index)
                if other is not None and other.profile_rows is not None and not other.refused and not other.is_late:
                    for part in self._profile_parts(other):
                        yield part
                        reach("profile_relay")
            if device.is_late and self.representatives is None:
                yield pb.ProfilePart(waiting=rounds_pb2.Waiting())

    async def _indexes_for(self, device: Device) -> list[int]:
        if not device.is_late:
            return self._landmarks
        await self._changes.wait_until(lambda: self.representatives is not None, HOLD_S)
        return self.representatives or []

    async def _wait_decided(self, index: int) -> bool:
        """Wait for one device's profile alone: a thousand calls that look at every change would be a million."""
        if self._is_decided(index):
            return True
        decided, is_decided = self._decided.get(index), partial(self._is_decided, index)
        if decided is None:
            return await self._changes.wait_until(is_decided, HOLD_S)
        return await wait_until(decided, is_decided, HOLD_S)

    def _is_decided(self, index: int) -> bool:
        """Whether a device's profile is there, or will not come."""
        device = self._roster.devices.get(index)
        return self.is_closed or (device is not None and (device.profile_rows is not None or bool(device.refused)))

    def _profile_parts(self, device: Device) -> Iterator[pb.ProfilePart]:
        data = self._journal.profile(device.device_index)
        rows = device.profile_rows or 1
        codec = PayloadCodec(Layout.of({PROFILE_PART: (rows, len(data) // 4 // rows)}), "float32")
        yield pb.ProfilePart(
            header=pb.ProfileHeader(
                run_id=self._experiment.run_id,
                device_id=device.device_id,
                device_index=device.device_index,
                payload=payload_header(codec, name=PROFILE_PART),
            )
        )
        for start in range(0, len(data), CHUNK_BYTES):
            yield pb.ProfilePart(data=data[start : start + CHUNK_BYTES])

    def submit_relevance(self, request: pb.SubmitRelevanceRequest) -> None:
        """Take a device's row; a second time changes nothing."""
        with self._roster.call_of(request.device_id, request.process_id) as device, self._or_refuse(device):
            row = {entry.device_index: entry.value for entry in request.row}
            self._check_row(device, row)
            if not device.has_relevance:
                self._roster.set_relevance(device, row)
                reach("relevance")
                if self.representatives is not None:
                    self.on_late_relevance(device)
                self.tell()

    def _check_row(self, device: Device, row: dict[int, float]) -> None:
        if self.representatives is not None:
            expected = set(self.representatives) - {device.device_index}
        else:
            devices = ((index, self._roster.devices.get(index)) for index in self._landmarks)
            expected = {index for index, other in devices if other is not None and self._is_present(other)}
            expected -= {device.device_index}
        if not expected <= set(row):
            raise PayloadError(f"a row of {len(row)} relevances that lacks {len(expected - set(row))} devices")
        if not all(0.0 <= value <= 1.0 + 1e-9 for value in row.values()):
            raise PayloadError("a relevance outside [0, 1]")


def _check_eigenvectors(vectors: Flat) -> None:
    """Refuse rows that are not finite or not of length one."""
    lengths = np.linalg.norm(vectors.astype(np.float64), axis=1)
    if not np.all(np.abs(lengths - 1) < 1e-3):
        raise PayloadError("eigenvectors must be finite and of length one")
