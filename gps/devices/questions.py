"""The questions that devices answer before training. The GPS takes and keeps the answers. If a question is relayed, the
GPS also sends the answers to other devices.

The GPS reads answers from the journal and sends them one at a time. So neither the GPS nor a device has all large
answers in memory.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from fedstrata.clock.round_side import ParentClock
from fedstrata.errors import ExcludedError, PayloadError, SupersededError
from fedstrata.methods import Arrays, Candidate, Method, Moment, Question, places_late
from fedstrata.process.fault_points import reach
from fedstrata.process.logs import EventLog
from fedstrata.process.time_limits import hold_s
from fedstrata.process.waiting import Changes, wait_until
from fedstrata.rpc.answer_messages import arrays_of, payload_bytes, question_named, refused_by_method
from fedstrata.rpc.messages import MOST_MEASURED
from fedstrata.v1 import answers_pb2 as pb
from fedstrata.v1 import rounds_pb2
from gps.devices.relayed import RelayedAnswers
from gps.devices.roster import Device, Roster
from gps.journal.journal import Journal


class Questions:
    """Take, keep and relay the answers that devices give before training."""

    def __init__(
        self, method: Method, *, roster: Roster, journal: Journal, log: EventLog, on_change: Callable[[], None],
        on_late: Callable[[Device], None], clock: ParentClock,
    ) -> None:  # fmt: skip
        """Set `on_change`, which is called after each change, and `on_late`, which chooses the cluster of a late
        device. `on_late` is called with the device when the device has answered all questions.
        """
        self._method = method
        self.places_late = places_late(type(method))  # whether the method can choose a cluster for a late device
        self._roster = roster
        self._journal = journal
        self._log = log
        self.asked = [question for question in method.questions() if question.moment is Moment.BEFORE]
        self._relayed = RelayedAnswers(journal.answers, [question for question in self.asked if question.relayed])
        relays = method.relays() if self._relayed.names else ()
        self._relays = [index for index in relays if index not in roster.newcomers]
        self._decided = {index: asyncio.Event() for index in self._relays}
        self.changes = Changes()
        self._hold_s = hold_s(roster.expected)
        # Whether the GPS has stopped waiting for devices and for their answers to relayed questions.
        self.is_closed = bool({"relevance", "grouping"} & journal.phases().keys() or journal.plans.made())
        self.sponsors: Sequence[Sequence[int]] | None = None  # indexes of devices by cluster; None before grouping
        self._clock = clock
        self._carried: list[rounds_pb2.Carried] = []
        self._decided_ns: dict[int, int] = {}  # by device index: when its answer had arrived, if known
        self._on_change = on_change
        self._on_late = on_late

    def close(self) -> None:
        """Stop waiting for devices, and for answers to relayed questions."""
        self.is_closed = True
        self.tell()

    def tell(self) -> None:
        """Let every waiting call check its condition again."""
        for index in [index for index in self._decided if self._is_decided(index)]:
            self._decided.pop(index).set()
            self._decided_ns[index] = time.monotonic_ns()
        self.changes.tell()
        self._on_change()

    def takes_part(self, device: Device) -> bool:
        """Return whether a device takes part in the run so far: it is neither late nor refused, and has answered the
        first question. If the method asks no question, the device needs no answer.
        """
        has_said = not self.asked or self.asked[0].name in device.answered
        return has_said and not device.refused and not device.is_late

    def has_answered_all(self, device: Device) -> bool:
        """Return whether a device is neither late nor refused, and has answered every question."""
        return self.takes_part(device) and all(question.name in device.answered for question in self.asked)

    def answers(self, devices: Sequence[Device]) -> dict[str, dict[int, Arrays]]:
        """Return the answers of `devices`, by question and device index. Answers to relayed questions are left out,
        because only devices read these answers.
        """
        there = {device.device_index for device in devices}
        return {
            question.name: {
                index: arrays_of(question, pb.Answer.FromString(answer))
                for index, answer in self._journal.answers.all(question.name).items()
                if index in there
            }
            for question in self.asked
            if not question.relayed
        }

    def carried(self) -> list[rounds_pb2.Carried]:
        """Return the transfers of answers over the links since the GPS started. Only a clock that simulates links in
        real time notes transfers. With any other clock, the list is empty.
        """
        for number in range(len(self.asked)):
            self._carried += self._clock.take(number)
        return list(self._carried)

    # --- calls ----------------------------------------------------------------------------------

    @contextmanager
    def _or_refuse(self, device: Device) -> Iterator[None]:
        """Run a block. If the block raises PayloadError, because the device's answer is invalid, refuse the device
        until the end of the run.
        """
        try:
            yield
        except PayloadError as error:
            self._roster.refuse(device, str(error))
            self._log.warning("device_refused", device=device.device_id, reason=device.refused)
            self.tell()
            raise

    async def take(self, header: pb.AnswerHeader, name: str, parts: AsyncIterator[pb.AnswerPart]) -> None:
        """Take a device's answer. A repeated answer changes nothing.

        Raises:
            PayloadError: the answer is invalid, and the device is refused.
            SupersededError: the stream ended before the whole answer had arrived.
            ExcludedError: the device is late, and the method cannot place late devices.
        """
        with self._roster.call_of(header.device_id, header.process_id) as device, self._or_refuse(device):
            self._check_wanted(device)
            question = question_named(self.asked, name)
            answer = await _whole(question, header, parts)
            number, size = self.asked.index(question), answer.ByteSize()
            await self._clock.answer_arrived(device.device_id, number, size, in_round=False)
            arrays = arrays_of(question, answer)
            whose = Candidate(device_index=device.device_index, num_examples=device.num_examples)
            with refused_by_method():
                self._method.check_answer_of(whose, question, arrays, self._heard_by(device))
            if name not in device.answered and not (question.relayed and self.is_closed):
                self._roster.set_answer(device, answer)
                reach("relevance")
                self.tell()
            self.place_if_ready(device)

    def _check_wanted(self, device: Device) -> None:
        if device.is_late and not self.places_late:
            raise ExcludedError(
                f"{device.device_id} answered after the devices were grouped, and method {self._method.options.name} "
                "cannot place a late device; next time raise deadlines.enrolment.deadline_s"
            )

    def publish_sponsors(self, sponsors: Sequence[Sequence[int]]) -> None:
        """Allow late devices to join. They receive the answers of `sponsors`, the indexes of some devices per cluster.
        If a late device has answered all questions, choose its cluster at once.
        """
        self.sponsors = sponsors
        for _, device in sorted(self._roster.devices.items()):
            self.place_if_ready(device)
        self.tell()

    def place_if_ready(self, device: Device) -> None:
        """Let the method choose the cluster of a late device, if the device has answered the last question and has no
        cluster yet.
        """
        last = self.asked[-1] if self.asked else None
        is_waiting = device.is_late and device.cluster is None and not device.refused
        if self.sponsors is not None and is_waiting and (last is None or last.name in device.answered):
            self._on_late(device)
            self.changes.tell()

    def _heard_by(self, device: Device) -> set[int]:
        """Return the indexes of the other devices from which this device has received answers."""
        if self.sponsors is not None and device.is_late:
            return {index for group in self.sponsors for index in group} - {device.device_index}
        devices = ((index, self._roster.devices.get(index)) for index in self._relays)
        there = {index for index, other in devices if other is not None and self.takes_part(other)}
        return there - {device.device_index}

    async def relayed_to(self, request: pb.FetchAnswersRequest) -> AsyncIterator[pb.AnswerPart]:
        """Yield the other devices' answers for a device, in index order, each as soon as it has arrived. If an answer
        does not arrive in time, yield a message that asks the device to call again.
        """
        question = question_named((question for question in self.asked if question.relayed), request.question)
        again = pb.AnswerPart(ask_again=pb.AskAgain(), question=question.name)
        with self._roster.call_of(request.device_id, request.process_id) as device:
            relay = self._clock.relay(device.device_id, self.asked.index(question))
            for index in await self._indexes_for(device):
                if index < request.from_index or index == device.device_index:
                    continue
                if not await self._wait_decided(index):
                    yield again
                    return
                other = self._roster.devices.get(index)
                if other is not None and question.name in other.answered and not other.refused and not other.is_late:
                    answer = self._relayed.of(question.name, other.device_id, index)
                    await relay.carry(self._decided_ns.get(index, 0), answer.size)
                    for part in answer.parts:
                        yield part
                        reach("profile_relay")
            if device.is_late and self.sponsors is None:
                yield again

    async def _indexes_for(self, device: Device) -> list[int]:
        if not device.is_late:
            return self._relays
        await self.changes.wait_until(lambda: self.sponsors is not None, self._hold_s)
        return sorted(index for group in self.sponsors or () for index in group)

    async def _wait_decided(self, index: int) -> bool:
        """Wait, for a limited time, until one device's answer has arrived, or can no longer arrive. Return False on
        time-out.

        A call is woken only for the device for which it waits. So an answer does not wake a thousand calls that wait
        for other devices.
        """
        if self._is_decided(index):
            return True
        decided, is_decided = self._decided.get(index), partial(self._is_decided, index)
        if decided is None:
            return await self.changes.wait_until(is_decided, self._hold_s)
        return await wait_until(decided, is_decided, self._hold_s)

    def _is_decided(self, index: int) -> bool:
        """Return whether a device's answers to relayed questions have arrived, or can no longer arrive."""
        device = self._roster.devices.get(index)
        has_ended = device is not None and (self._relayed.names <= device.answered or bool(device.refused))
        return self.is_closed or has_ended


async def _whole(question: Question, header: pb.AnswerHeader, parts: AsyncIterator[pb.AnswerPart]) -> pb.Answer:
    """Return the complete answer that follows `header` in the stream. Raises PayloadError for an invalid answer, and
    SupersededError if the stream ends before the whole answer has arrived.
    """
    expected, data = payload_bytes(question, header.arrays), bytearray()
    if header.payload_bytes != expected:
        raise PayloadError(f"{header.payload_bytes} bytes announced for {question.name}, expected {expected}")
    if not 0 <= header.trained_examples < MOST_MEASURED:
        raise PayloadError(f"{question.name}: {header.trained_examples} trained examples reported; expected 0 or more")
    async for part in parts:
        data += part.data
        if len(data) > expected:
            raise PayloadError(f"an answer to {question.name} has more bytes than the {expected} announced")
    if len(data) < expected:  # the connection broke; the device is not at fault
        raise SupersededError(f"answer to {question.name} cut after {len(data)} of {expected} bytes; send it again")
    answer = pb.Answer(question=question.name, arrays=header.arrays, data=bytes(data))
    answer.trained_examples = header.trained_examples
    return answer
