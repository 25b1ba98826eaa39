"""Who misses the deadline of an LPS round on the virtual clock: decided of each device as its answer or update comes.

Where all share a link up it is decided of all at once, of what they have announced.
Where devices are asked in the round there are two deadlines: of answers, from the round's beginning, and of updates,
from when the LPS has heard of the plan, for which all LPSs wait for each other.
"""

from collections.abc import Collection, Iterable, Mapping
from functools import partial

from fedstrata.clock.late import Missed, SharedRound
from fedstrata.clock.timeline import Beside, DeviceTimeline, Exchanged
from fedstrata.rounds.announcing import Announcing
from fedstrata.rounds.open_round import OpenRound
from fedstrata.rounds.result import Uploaded
from fedstrata.v1 import answers_pb2
from fedstrata.v1 import rounds_pb2 as pb


class Lateness:
    """Who is late in the open round, and until when; who is busy with an earlier one until then is left out at once."""

    def __init__(
        self, opened: OpenRound, devices: DeviceTimeline, *, begins_ns: int, deadline_ns: int,
        free: Mapping[str, int], indexes: Mapping[str, int],
    ) -> None:  # fmt: skip
        """`free` says by device from when on it is there and not busy, `indexes` their indexes."""
        self._opened = opened
        self._devices = devices
        self._begins_ns = begins_ns
        self._deadline_ns = deadline_ns
        self._indexes = indexes
        self._free = free
        self._goes_on_ns: int | None = None
        self._answers_end_ns = max(begins_ns, min(free.values(), default=0)) + deadline_ns  # where all were away
        self.busy = {name: free_ns for name, free_ns in free.items() if free_ns >= self._answers_end_ns}
        self._missing = set(self.busy)  # of those that the part of the round which is under way waits for
        self.late: dict[str, pb.Flow] = {}  # what those did for nothing that have missed it
        for name in self.busy:
            opened.intake.exclude(name)
        offered = {
            name: Exchanged(down_bytes=opened.offer_to(name).whole_bytes, up_bytes=0, work=pb.Work())
            for name in free
            if name not in self.busy
        }
        self.there = devices.arrivals(opened.number, begins_ns, offered, free, indexes)
        self.announced: dict[str, Exchanged] = {}  # over a shared link up, by all that the round then waited for
        self._late_answers: dict[str, Exchanged] = {}  # what they sent over it whose answers came too late
        if devices.shared.up_rate is None:
            opened.is_late, opened.is_answer_late = self._is_late, self._is_answer_late
        else:
            self._share(begins_ns, indexes)

    def _share(self, begins_ns: int, indexes: Mapping[str, int]) -> None:
        """Have the round wait for all before it is decided who is late."""
        opened = self._opened
        shared = SharedRound(
            devices=self._devices,
            lps_round=opened.number,
            begins_ns=begins_ns,
            free=self._free,
            there=self.there,
            indexes=indexes,
            late_answers=self._late_answers,
        )
        opened.announcing = Announcing(partial(self._check_ever, shared), partial(self._find_late, shared))
        opened.is_answer_late = partial(self._is_answer_never, shared)
        if opened.asking is not None:
            opened.asking.find_late = partial(self._find_late_answers, shared)

    def beside_of(self, taken: Collection[str]) -> Beside:
        """Who was on the shared link up beside those whose updates the round has."""
        updates = {name: each for name, each in self.announced.items() if name not in taken}
        return Beside(updates=updates, answers=self._late_answers)

    @property
    def ends_ns(self) -> int | None:
        """When the round ends, or the waiting for answers in it, if somebody misses it; else None."""
        return self._deadline_at_ns if self._missing else None

    @property
    def _deadline_at_ns(self) -> int:
        return self._answers_end_ns if self._goes_on_ns is None else self._goes_on_ns + self._deadline_ns

    def goes_on(self, goes_on_ns: int) -> None:
        """The plan is made of the answers there were: from now on updates are waited for."""
        self._goes_on_ns = goes_on_ns
        self._missing.clear()

    def found(self, late: Iterable[pb.Flow]) -> None:
        """Leave those out whose answers an earlier life of this LPS has found late."""
        names = {self._indexes[name]: name for name in self.there}
        for flow in late:
            name, took_ns = names.get(flow.child), flow.down_ns + flow.compute_ns + flow.up_ns
            if name is not None:
                self._miss_answer(name, Missed(busy_ns=max(self._answers_end_ns, self._begins_ns + took_ns), flow=flow))
                self._opened.intake.exclude(name)

    def _is_answer_late(self, name: str, answer: answers_pb2.Answer) -> bool:
        exchanged = of_answer(answer).exchanged(self._opened.offer_to(name))
        back_ns, flow = self._devices.missed_answer(
            self._opened.number, self._begins_ns, self._indexes[name], exchanged,
            free_ns=self._free[name], there_ns=self.there[name],
        )  # fmt: skip
        return self._has_missed(name, back_ns, flow)

    def _is_late(self, header: pb.UpdateHeader) -> bool:
        name = header.child_id
        exchanged = Uploaded.of(header).exchanged(self._opened.offer_to(name))
        back_ns, flow = self._devices.missed(
            self._opened.number, self._begins_ns, self._indexes[name], exchanged,
            free_ns=self._free[name], there_ns=self.there[name], goes_on_ns=self._goes_on_ns,
        )  # fmt: skip
        return self._has_missed(name, back_ns, flow)

    def _has_missed(self, name: str, back_ns: int, flow: pb.Flow) -> bool:
        """Whether what comes back at a time comes too late; if so, it is noted."""
        if back_ns <= self._deadline_at_ns:
            return False
        self._miss(name, Missed(busy_ns=back_ns, flow=flow))
        return True

    def _miss(self, name: str, missed: Missed) -> None:
        self.busy[name], self.late[name] = missed.busy_ns, missed.flow
        self._missing.add(name)

    # --- over a shared link up ----------------------------------------------------------------

    def _miss_answer(self, name: str, missed: Missed) -> None:
        self._miss(name, missed)
        self._late_answers[name] = _asked_of(missed.flow)

    def _is_answer_never(self, shared: SharedRound, name: str, answer: answers_pb2.Answer) -> bool:
        """False, since that is found out of all together. Raises PayloadError for one of more than 73 years."""
        shared.check_ever(name, of_answer(answer).exchanged(self._opened.offer_to(name)), None)
        return False

    def _check_ever(self, shared: SharedRound, name: str, uploaded: Uploaded) -> None:
        shared.check_ever(name, uploaded.exchanged(self._opened.offer_to(name)), self._goes_on_ns)

    def _find_late_answers(self, shared: SharedRound, answers: Mapping[str, answers_pb2.Answer]) -> Collection[str]:
        asked = {name: of_answer(each).exchanged(self._opened.offer_to(name)) for name, each in answers.items()}
        missed = shared.missed_answers(asked, self._deadline_at_ns)
        for name, each in missed.items():
            self._miss_answer(name, each)
        return missed.keys()

    def _find_late(self, shared: SharedRound, announced: Mapping[str, Uploaded]) -> Collection[str]:
        self.announced = {name: each.exchanged(self._opened.offer_to(name)) for name, each in announced.items()}
        missed = shared.missed_updates(self.announced, self._deadline_at_ns, self._goes_on_ns)
        for name, each in missed.items():
            self._miss(name, each)
        return missed.keys()


def of_answer(answer: answers_pb2.Answer) -> Uploaded:
    """An answer in a round, as its sender's work says it later, without the update."""
    for_it = answer.trained_examples
    return Uploaded(up_bytes=0, work=pb.Work(examples=for_it, answer_bytes=answer.ByteSize(), answer_examples=for_it))


def _asked_of(flow: pb.Flow) -> Exchanged:
    """What went to and fro for an answer, by what is noted of it."""
    said = pb.Work(examples=flow.examples, answer_bytes=flow.answer_bytes, answer_examples=flow.answer_examples)
    return Exchanged(down_bytes=flow.down_bytes, up_bytes=0, work=said, stream=flow.stream)
