"""The search for a cluster's model on the cluster's devices, by a local parameter server (LPS) that lacks the model.

The LPS searches if another LPS served the cluster before, or if the LPS has lost its own files. Each device still has
the model that it last received, with the layers that belong to the cluster. An example with the devices a, b and c:

1. Each device calls `fetch`, and states the LPS round of its model. Device a has the model of LPS round 5. Devices b
   and c have the model of LPS round 6.
2. The LPS replies to all three devices that they must send their models. Each device calls `take_model`. The first
   message of this stream has the LPS round and the SHA-256 of the device's model.
3. Devices b and c name the same model, so the LPS reads the stream of b. If this stream fails, the LPS reads the stream
   of c.
4. When the LPS opens a round, it answers all waiting calls (`release`).
"""

import hashlib
import re
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fedstrata.errors import NotReadyError, PayloadError
from fedstrata.experiment import TierDeadline
from fedstrata.process.logs import EventLog
from fedstrata.process.quoting import quoted
from fedstrata.process.time_limits import HOLD_S, payload_timeout_s
from fedstrata.process.waiting import Changes
from fedstrata.rounds import RoundServer
from fedstrata.rounds.parent.children import Refusals
from fedstrata.rounds.parent.open_round import Message
from fedstrata.rounds.parent.report_checks import check_run
from fedstrata.rpc.payload import accepted_parts
from fedstrata.rpc.stream import Supersedable
from fedstrata.streams.streams import MODEL_PART
from fedstrata.tensors import Flat, Layout, PayloadCodec
from fedstrata.v1 import lps_service_pb2 as lps_pb
from fedstrata.v1 import rounds_pb2 as pb

REUNION_S = 10.0  # twice as long as devices take to notice that their LPS is away
ASKED = 16  # devices asked at once, so that liars are a minority; each may send 64 KiB before it is read
MOST_CUTS = 3  # cut transfers of one device's model before another device is read
DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, kw_only=True)
class Held:
    """Hold a model that a device has kept: the model's LPS round, and the model's values, shape (layout.size,)."""

    lps_round: int
    flat: Flat


class Said(NamedTuple):
    """Hold the statement of a device about its model: the model's LPS round, and the SHA-256 of the model's payload."""

    lps_round: int
    sha256: str


class Vote:
    """Hold one vote: the devices that are asked at the same time, and the model that each of these devices names."""

    def __init__(self, asked: Iterable[str], likely_rounds: range) -> None:
        """Set `asked`, the ids of the asked devices. Models of `likely_rounds` are preferred to other models."""
        self.asked = set(asked)
        self._said: dict[str, Said] = {}
        self._likely_rounds = likely_rounds

    def note(self, device_id: str, said: Said) -> None:
        """Note which model a device states that it has."""
        self._said[device_id] = said

    def take_back(self, device_id: str) -> None:
        """Forget the statement of a device, because its stream has ended. The device may send its model again."""
        self._said.pop(device_id, None)

    def leave_out(self, device_id: str) -> None:
        """Stop asking a device."""
        self.asked.discard(device_id)

    @property
    def is_decided(self) -> bool:
        """Return whether more than half of the asked devices name the same model, or all have answered."""
        votes = Counter(self._said.values())
        return self.asked <= set(self._said) or 2 * max(votes.values(), default=0) > len(self.asked)

    @property
    def chosen(self) -> str | None:
        """Return the device from which to read the model. Of the devices with the chosen model, it is the first by id.
        If no device has named a model, return None.

        Models of likely rounds are preferred. Of these, the model that most devices name is chosen. If several models
        are named equally often, the newest of these is chosen. For example, rounds 2 to 8 are likely, and
        devices 1, 2 and 3 name models of rounds 4, 5 and 99. Then the model of device 2 is chosen.
        """
        votes = Counter(self._said.values())
        if not votes:
            return None
        model = max(votes, key=lambda said: (said.lps_round in self._likely_rounds, votes[said], said))
        return min(name for name, said in self._said.items() if said == model)


class ModelSearch:
    """Find a cluster's model on the cluster's devices, before a round can open."""

    def __init__(
        self, run_id: str, *, layout: Layout, members: set[str], wait: TierDeadline, likely_rounds: range,
        refused: Refusals, log: EventLog,
    ) -> None:  # fmt: skip
        """Set `members`, the ids of the cluster's devices, and `wait`, the deadline for their calls. `likely_rounds`
        are the LPS rounds of which, according to the GPS, devices may have models. `refused` holds the refused devices.
        """
        self._run_id = run_id
        self._layout = layout
        self._members = members
        self._wait = wait
        self._refused = refused
        self._log = log
        self._likely_rounds = likely_rounds
        self._held: dict[str, int] = {}  # by device that has called: the LPS round of its model, or -1
        self._vote = Vote((), likely_rounds)
        self._reading: str | None = None  # the device whose model is read
        self._found: Held | None = None
        self._cuts: Counter[str] = Counter()
        self._newest: dict[str, Supersedable] = {}
        self._is_released = False
        self._changes = Changes()

    async def model(self) -> Held | None:
        """Ask the devices, at most `ASKED` at once, and return the model that most of the asked devices have. If no
        device sends a model, return None.
        """
        await self._hear_devices()
        asked_before: set[str] = set()
        while self._found is None and (asked := self._next_asked(asked_before)):
            asked_before |= asked
            self._vote = Vote(asked, self._likely_rounds)
            self._changes.tell()
            await self._hold_vote()
        found, self._found, self._vote = self._found, None, Vote((), self._likely_rounds)
        return found

    def _next_asked(self, asked_before: set[str]) -> set[str]:
        """Return the devices for the next vote: the first by name that have a model and were not asked before."""
        return set(sorted(name for name, held in self._held.items() if held >= 0 and name not in asked_before)[:ASKED])

    async def _hold_vote(self) -> None:
        """Wait until the asked devices name their models, and until the chosen device has sent its model. If the device
        does not send it in time, choose again among the other asked devices.
        """
        timeout_s = payload_timeout_s(self._layout.float32_bytes)
        while self._vote.asked:
            await self._changes.wait_until(lambda: self._vote.is_decided, timeout_s)
            self._reading = self._vote.chosen
            if self._reading is None:  # no device has answered in the time that a model may take
                break
            self._changes.tell()
            await self._changes.wait_until(lambda: self._found is not None or self._reading is None, timeout_s)
            if self._found is not None:
                return
            if self._reading is not None:
                self._give_up(self._reading)
        for device_id in sorted(self._vote.asked):
            self._give_up(device_id)

    @property
    def awaited(self) -> tuple[int, tuple[str, ...], str]:
        """Return the same kinds of values as `RoundServer.awaited`: -1 because no round is open, the devices that have
        not called, and an empty text.
        """
        return -1, tuple(sorted(self._members - set(self._held))), ""

    def _give_up(self, device_id: str) -> None:
        """Stop asking a device, because it has not sent the model that it named."""
        self._log.warning("model_not_sent", device=device_id)
        self._vote.leave_out(device_id)
        self._end_stream(device_id)

    def _end_stream(self, device_id: str) -> None:
        """Note that a device's stream has ended."""
        self._vote.take_back(device_id)
        if self._reading == device_id:
            self._reading = None
        self._changes.tell()

    async def _hear_devices(self) -> None:
        """Wait without a limit for the first device, and then for the other devices. If the run has deadlines, wait for
        the other devices only for a limited time.
        """
        await self._changes.wait_until(lambda: bool(self._held), None)
        longest_s = None if self._wait.deadline_s is None else max(self._wait.deadline_s, REUNION_S)
        await self._changes.wait_awake(lambda: self._members <= set(self._held), longest_s)

    def release(self) -> None:
        """Answer all waiting calls at once. A device that calls again finds an open round, or learns that this LPS does
        not serve the cluster.
        """
        self._is_released = True
        self._changes.tell()

    # --- the devices' calls -------------------------------------------------------------------

    async def fetch(self, request: pb.FetchModelRequest) -> AsyncIterator[pb.ModelPart | bytes]:
        """Note which model a device has, and hold the call for a limited time. Then reply that the device must send its
        model, or that it must call again.
        """
        check_run(self._run_id, request.run_id)
        device_id = request.child_id
        if device_id in self._members:
            held_round = request.held_round if request.HasField("held_round") else -1
            if device_id in self._vote.asked and held_round != self._held[device_id]:
                self._give_up(device_id)  # the device has restarted and lost the model that it was asked for
            self._held[device_id] = held_round
            self._changes.tell()
        await self._changes.wait_until(lambda: self._is_released or self._is_wanted(device_id), HOLD_S)
        if self._is_wanted(device_id):
            yield pb.ModelPart(send_model=pb.SendModel(round=self._held[device_id]))
        else:
            yield pb.ModelPart(waiting=pb.Waiting(current_round=-1))

    def _is_wanted(self, device_id: str) -> bool:
        """Return whether the search still asks a device for its model."""
        return self._found is None and device_id in self._vote.asked and not self._is_released

    async def take_model(self, header: lps_pb.HeldModelHeader, parts: AsyncIterator[lps_pb.HeldModelPart]) -> None:
        """Take the model that this LPS has requested from a device. If the LPS no longer needs the model, ignore the
        model.

        Raises:
            PayloadError: the model is not the requested model, or has values that are not finite. The device is
                refused, and the LPS asks another device.
            NotReadyError: the stream ended before the whole model had arrived.
            SupersededError: the device has begun a newer stream.
        """
        check_run(self._run_id, header.run_id)
        device_id = header.device_id
        if not self._is_wanted(device_id):
            return
        before, self._newest[device_id] = self._newest.get(device_id), (newest := Supersedable())
        if before is not None:
            before.supersede()
        try:
            async with newest.until_superseded(device_id):
                await self._take_if_chosen(header, parts)
        except PayloadError as error:
            self._refused.refuse(self._held[device_id], device_id, str(error))
            self._give_up(device_id)
            raise
        except NotReadyError:
            self._cuts[device_id] += 1
            if self._cuts[device_id] == MOST_CUTS:
                self._give_up(device_id)
            raise
        finally:
            if self._newest[device_id] is newest:
                self._end_stream(device_id)

    async def _take_if_chosen(self, header: lps_pb.HeldModelHeader, parts: AsyncIterator[lps_pb.HeldModelPart]) -> None:
        """Note which model a device states that it has. If the search chooses this device, read the device's model."""
        who, held_round = header.device_id, self._held[header.device_id]
        if header.round != held_round:
            raise PayloadError(f"{who} sends its model of round {header.round}, but was asked for round {held_round}")
        if not DIGEST.fullmatch(header.sha256):
            raise PayloadError(f"{who} sends a model with digest {quoted(header.sha256)}, expected a SHA-256")
        expected = [(MODEL_PART, self._layout)]
        codec, _ = accepted_parts(header.payload, layout=self._layout, parts=expected, encoding="float32")
        self._vote.note(who, Said(header.round, header.sha256))
        self._changes.tell()
        await self._changes.wait_until(lambda: self._reading == who or not self._is_wanted(who), None)
        if not self._is_wanted(who):
            return
        flat = await whole_model(header, self._layout, codec, parts)
        if self._is_wanted(who):
            self._found = Held(lps_round=header.round, flat=flat)
            self._log.info("model_taken_over", device=who, lps_round=header.round)
            self._changes.tell()

    async def submit(self, header: pb.UpdateHeader, parts: AsyncIterator[pb.UpdatePart]) -> pb.UpdateReply:
        """Reply that an update is late, because no round is open yet. The device sends the update again when a
        round is open.
        """
        check_run(self._run_id, header.run_id)
        return pb.UpdateReply(run_id=self._run_id, accepted=False, current_round=-1)

    async def hear(self, message: Message) -> None:
        """Ignore an answer or an announcement, because no round is open yet."""
        check_run(self._run_id, message.run_id)

    def locate(self, request: pb.LocateUpdateRequest) -> pb.LocateUpdateResponse:
        """Reply that no byte of an upload has arrived, because no round is open yet."""
        check_run(self._run_id, request.run_id)
        return pb.LocateUpdateResponse(run_id=self._run_id, offset=0, current_round=-1)

    def evaluate(self, run_id: str, evaluation: pb.Evaluation) -> None:
        """Refuse a measurement with NotReadyError, because no round is open yet. The device sends the measurement again
        later.
        """
        raise NotReadyError("this LPS is taking the cluster over; try again")


async def whole_model(
    header: lps_pb.HeldModelHeader, layout: Layout, codec: PayloadCodec, parts: AsyncIterator[lps_pb.HeldModelPart]
) -> Flat:
    """Read and check the model that a device sends. Raises the errors that `take_model` names."""
    who = header.device_id
    flat, offset, digest = np.empty(layout.size, np.float32), 0, hashlib.sha256()
    async for part in parts:
        values = codec.decode(part.data, offset)
        if not np.isfinite(values).all():
            raise PayloadError(f"the model that {who} holds has values that are not finite")
        start = offset // codec.element_bytes
        flat[start : start + len(values)] = values
        digest.update(part.data)
        offset += len(part.data)
    if offset != codec.payload_bytes:
        raise NotReadyError(f"the model of {who} was cut at byte {offset} of {codec.payload_bytes}; send it again")
    if digest.hexdigest() != header.sha256:
        raise PayloadError(f"the model that {who} sends has another digest than {who} announced")
    return flat


Handler = RoundServer | ModelSearch  # the object that answers the calls of a cluster's devices
