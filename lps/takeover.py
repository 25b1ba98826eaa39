"""What an LPS does first with a cluster that another served: it finds the cluster's model among its devices.

A cluster's own layers are in the files of the LPS that is away, and in what each device last received. One device of
those that hold the newest model is asked for it; the shared layers come from the GPS.
"""

import hashlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

import numpy as np

from fedstrata.errors import NotReadyError, PayloadError, StateError
from fedstrata.experiment import TierDeadline
from fedstrata.link import HOLD_S, Changes, payload_timeout_s
from fedstrata.logs import EventLog
from fedstrata.rounds import Model as Received
from fedstrata.rounds.notes import check_run
from fedstrata.rounds.server import MODEL_PART
from fedstrata.rpc.payload import accepted_codec
from fedstrata.store import AnyModel
from fedstrata.tensors import Flat, Layout
from fedstrata.v1 import lps_service_pb2 as lps_pb
from fedstrata.v1 import rounds_pb2 as pb
from lps.pieces import spliced
from lps.state import ClusterState

REUNION_S = 10.0  # twice as long as devices take to notice that their LPS is away


@dataclass(frozen=True, kw_only=True)
class Held:
    """A model that a device has received: of which LPS round, and its values, shape (layout.size,)."""

    lps_round: int
    flat: Flat


class Gathering:
    """Speaks to a cluster's devices before there is a round to open: who holds what, and one model up."""

    def __init__(self, run_id: str, *, layout: Layout, members: set[str], wait: TierDeadline, log: EventLog) -> None:
        self._run_id = run_id
        self._layout = layout
        self._members = members
        self._wait = wait
        self._log = log
        self._held: dict[str, int] = {}  # the round of each device that has asked; -1 for none
        self._asked: str | None = None
        self._model: Held | None = None
        self._is_released = False
        self._changes = Changes()

    async def model(self) -> Held | None:
        """The newest model that a device holds; None when none holds one."""
        await self._hear_devices()
        timeout_s = payload_timeout_s(self._layout.float32_bytes)
        tried: set[str] = set()
        while (device_id := self._newest(tried)) is not None:
            tried.add(device_id)
            self._asked = device_id
            self._changes.tell()
            await self._changes.wait_until(lambda: self._model is not None or self._asked is None, timeout_s)
            if self._model is not None:
                self._log.info("model_taken_over", device=device_id, lps_round=self._model.lps_round)
                return self._model
            self._log.warning("model_not_sent", device=device_id)
        return None

    def _newest(self, tried: set[str]) -> str | None:
        """The device with the newest model now, the first by name, of those that have not been asked."""
        holders = [name for name in self._held if self._held[name] >= 0 and name not in tried]
        return min(holders, key=lambda name: (-self._held[name], name), default=None)

    async def _hear_devices(self) -> None:
        """Wait for the first device, however long, and then for the others; with deadlines not for ever."""
        await self._changes.wait_until(lambda: bool(self._held), None)
        longest_s = None if self._wait.deadline_s is None else max(self._wait.deadline_s, REUNION_S)
        await self._changes.wait_until(lambda: self._members <= set(self._held), longest_s)

    def release(self) -> None:
        """Answer all held calls at once: who asks again finds a round open, or nothing here any more."""
        self._is_released = True
        self._changes.tell()

    # --- the devices' calls -------------------------------------------------------------------

    async def fetch(self, request: pb.FetchModelRequest) -> AsyncIterator[pb.ModelPart | bytes]:
        """Note what a device holds, and hold the call until it is asked for that or the rounds begin."""
        check_run(self._run_id, request.run_id)
        device_id = request.child_id
        if device_id in self._members and self._model is None:
            held_round = request.held_round if request.HasField("held_round") else -1
            if device_id == self._asked and held_round != self._held[device_id]:
                self._asked = None  # it has been started again, and what it was asked for is gone
            self._held[device_id] = held_round
            self._changes.tell()
        await self._changes.wait_until(lambda: self._is_released or self._is_wanted(device_id), HOLD_S)
        if self._is_wanted(device_id):
            yield pb.ModelPart(send_model=pb.SendModel(round=self._held[device_id]))
        else:
            yield pb.ModelPart(waiting=pb.Waiting(current_round=-1))

    def _is_wanted(self, device_id: str) -> bool:
        return self._model is None and self._asked == device_id and not self._is_released

    async def take_model(self, header: lps_pb.HeldModelHeader, parts: AsyncIterator[lps_pb.HeldModelPart]) -> None:
        """Take the model that a device was asked for; one that is not wanted any more is passed over.

        Raises:
            PayloadError: it is not what was asked for, not whole, or not finite; another device is asked.
        """
        check_run(self._run_id, header.run_id)
        if not self._is_wanted(header.device_id):
            return
        try:
            flat = await self._whole_model(header, parts)
        except PayloadError:
            self._asked = None
            self._changes.tell()
            raise
        if self._is_wanted(header.device_id):
            self._model = Held(lps_round=header.round, flat=flat)
            self._changes.tell()

    async def _whole_model(self, header: lps_pb.HeldModelHeader, parts: AsyncIterator[lps_pb.HeldModelPart]) -> Flat:
        who, round_number = header.device_id, self._held[header.device_id]
        if header.round != round_number:
            raise PayloadError(f"{who} sends its model of round {header.round}, and was asked for {round_number}")
        codec, _ = accepted_codec(header.payload, layout=self._layout, encoding="float32", name=MODEL_PART)
        flat, offset, digest = np.empty(self._layout.size, np.float32), 0, hashlib.sha256()
        async for part in parts:
            values = codec.decode(part.data, offset)
            if not np.isfinite(values).all():
                raise PayloadError(f"the model that {who} holds has values that are not finite")
            start = offset // codec.element_bytes
            flat[start : start + len(values)] = values
            digest.update(part.data)
            offset += len(part.data)
        if offset != codec.payload_bytes or digest.hexdigest() != header.sha256:
            raise PayloadError(f"{offset} of {codec.payload_bytes} bytes of the model that {who} holds, or others")
        return flat

    async def submit(self, header: pb.UpdateHeader, parts: AsyncIterator[pb.UpdatePart]) -> pb.UpdateReply:
        """Any update is late here: no round is open yet, and the device sends it again when one is."""
        check_run(self._run_id, header.run_id)
        return pb.UpdateReply(run_id=self._run_id, accepted=False, current_round=-1)

    def locate(self, request: pb.LocateUpdateRequest) -> pb.LocateUpdateResponse:
        """Nothing of any upload is here."""
        check_run(self._run_id, request.run_id)
        return pb.LocateUpdateResponse(run_id=self._run_id, offset=0, current_round=-1)

    def evaluate(self, run_id: str, evaluation: pb.Evaluation) -> None:
        """Refuse a measurement for now."""
        raise NotReadyError("this LPS is taking the cluster over; try again")


def round_to_open(held_round: int | None, global_round: int, rounds_per_global: int) -> int:
    """The LPS round to open with a model of `held_round`, when the GPS has that global round open.

    The round held, if it belongs to this global round: nothing is lost. Or the last one of the global round before:
    its updates are gathered again for the cluster's own layers, and its aggregate counts no more. Else the first
    round of this global round, with the shared layers of now.
    """
    first = global_round * rounds_per_global
    if held_round is not None and first - 1 <= held_round < first + rounds_per_global:
        return held_round
    return first


def check_goes_on(held_round: int | None, global_round: int, rounds_per_global: int, cluster_id: str) -> None:
    """Refuse a model with which the cluster would not go on where it stood: without deadlines, that is a wrong one.

    Raises:
        StateError: the model is of an older or a newer global round than the GPS has open.
    """
    if round_to_open(held_round, global_round, rounds_per_global) != held_round:
        raise StateError(
            f"no whole state of {cluster_id} is here, and the newest model that its devices hold is of LPS round "
            f"{held_round}, while the GPS is at global round {global_round + 1}; put the files back, or begin the run "
            "anew"
        )


def write_start(
    state: ClusterState, held: AnyModel, held_round: int | None, shared: Received, places: Sequence[slice]
) -> int:
    """Write the state that a cluster goes on from, of a model of `held_round`, or of none in particular, and of the
    shared layers of the global round now open, which stand at `places` of a model; gives the LPS round to open."""
    rounds = state.rounds_per_global
    opened = round_to_open(held_round, shared.round, rounds)
    base = opened - opened % rounds
    report = state.empty_report()
    is_of_now = base == shared.round * rounds
    if opened != base:  # first: a base that stands alone would pass for the round to go on from
        state.write(opened, held.pieces(), report, durable=True)
    state.save(base, spliced(held, shared.flat, places) if is_of_now else held.pieces(), report).close()
    return opened
