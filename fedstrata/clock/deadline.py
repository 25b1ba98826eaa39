"""The deadline of a round in virtual time: which children miss it, and until when those are busy.

The round asks the deadline that it is given. `Deadline` itself lets nobody be late. Over links of their own each
child's lateness follows from what the child alone says. Over a shared link up it depends on what all send: children
announce their updates first, and nobody's data is on its way before it is known who is late. What is on its way over
the shared link as a deadline passes is broken off there and then, and its device is free. A device that is still
receiving or computing then is so until it is done.

Where children are asked in the round there are two deadlines: of answers, from the beginning of the round, and of
updates, from when the parent has heard of the plan.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from fedstrata.clock.calendar import UP, Flow, carried_by
from fedstrata.clock.round import (
    Beside,
    Child,
    Exchanged,
    Missed,
    answers_of,
    asked_address,
    flow_of,
    latency_of,
    updates_of,
)
from fedstrata.clock.timeline import DeviceTimeline, check_ever
from fedstrata.process.sleeping import Changes
from fedstrata.v1 import answers_pb2
from fedstrata.v1 import rounds_pb2 as pb

NOBODY = Beside()


class Waiting(Protocol):
    """The children that a round still waits for."""

    @property
    def missing(self) -> tuple[str, ...]:
        """Those that it waits for."""

    @property
    def is_complete(self) -> bool:
        """Whether it waits for none any more."""

    def exclude(self, child_id: str) -> None:
        """Go on without a child."""


class Begun(Protocol):
    """An open round, as far as its deadline needs it."""

    @property
    def number(self) -> int:
        """Its number."""

    @property
    def intake(self) -> Waiting:
        """Its children."""

    def sent_to(self, child_id: str) -> Exchanged:
        """What a child has been sent."""


class Deadline:
    """The deadline of a round whose time nobody works out: no child misses it, and none announces anything."""

    can_be_missed = False
    are_announced = False  # whether children announce their updates before they send them,
    is_gathering = False  # and whether not all have yet
    there: Mapping[str, int] | None = None  # when each child had the model, if that was worked out as the round opened

    def begin(self, opened: Begun) -> None:
        """Hear of the round, before any child does; leave out children that are busy until it is over."""

    # --- what children announce ---------------------------------------------------------------

    def wants_word_of(self, child_id: str) -> bool:
        """Return whether a child has to announce its update before it sends it."""
        return False

    def note(self, header: pb.UpdateHeader) -> None:
        """Keep what a child announces. Raises PayloadError for work that is never done."""

    def lacking(self, children: tuple[str, ...]) -> tuple[str, ...]:
        """Return the children whose next message the round waits for."""
        return children

    def holds_back(self, child_id: str) -> bool:
        """Return whether a child has announced its update and waits for the others."""
        return False

    async def decide(self, changes: Changes, note_late: Callable[[], None]) -> None:
        """Wait until all children have announced their updates, if they do, and leave out those that are late."""

    # --- which children are late --------------------------------------------------------------

    def is_late(self, header: pb.UpdateHeader) -> bool:
        """Return whether an update misses the deadline, as far as that follows from it alone."""
        return False

    def is_answer_late(self, child_id: str, answer: answers_pb2.Answer) -> bool:
        """Return whether an answer misses the deadline, as far as that follows from it alone."""
        return False

    def late_answers(self, answers: Mapping[str, answers_pb2.Answer]) -> Collection[str]:
        """Return the children whose answers miss the deadline, once all have answered."""
        return ()

    def found(self, late: Iterable[pb.Flow]) -> None:
        """Leave out children whose answers an earlier life of this parent has found late."""

    def goes_on(self, goes_on_ns: int) -> None:
        """Hear that the plan is made: from now on updates are waited for."""

    # --- what came of it ----------------------------------------------------------------------

    @property
    def ends_ns(self) -> int | None:
        """When the round ends, or the waiting for answers in it, if a child misses that."""
        return None

    @property
    def late_flows(self) -> list[pb.Flow]:
        """What the children that are late have done in vain, by name."""
        return []

    def settle(self, exchanged: Mapping[str, Exchanged]) -> tuple[Mapping[str, Exchanged], Beside]:
        """Return what counts of those whose updates the round has, and who was on the shared link beside them."""
        return exchanged, NOBODY

    def note_busy(self, busy_ns: MutableMapping[int, int], now_ns: int, here: Collection[int]) -> None:
        """Note, as the round has ended, until when the children that are `here` are busy, by index."""


class OwnLinks(Deadline):
    """Decides of each child as its answer or update comes, by the child's own link."""

    can_be_missed = True

    def __init__(
        self, devices: DeviceTimeline, *, begins_ns: int, deadline_ns: int, free: Mapping[str, int],
        indexes: Mapping[str, int],
    ) -> None:  # fmt: skip
        """`free` says by device from when on it is there and not busy, `indexes` their indexes."""
        self._devices = devices
        self._begins_ns = begins_ns
        self._deadline_ns = deadline_ns
        self._free = free
        self._indexes = indexes
        self._goes_on_ns: int | None = None
        self._drawn: set[int] = set()  # the devices of the round
        self._busy: dict[str, int] = {}  # until when, of those that have missed a deadline
        self._late: dict[str, pb.Flow] = {}  # what those did in vain
        self._missing: set[str] = set()  # of the part of the round that is under way

    def begin(self, opened: Begun) -> None:
        self._opened = opened
        awaited = opened.intake.missing
        self._drawn = {self._indexes[name] for name in awaited}
        free = {name: self._free[name] for name in awaited}
        self._answers_end_ns = (
            max(self._begins_ns, min(free.values(), default=0)) + self._deadline_ns
        )  # if all were away
        self._busy = {name: free_ns for name, free_ns in free.items() if free_ns >= self._answers_end_ns}
        self._missing = set(self._busy)
        for name in self._busy:
            opened.intake.exclude(name)
        sent = {name: opened.sent_to(name) for name in awaited if name not in self._busy}
        self._there = self._devices.arrivals(opened.number, self._begins_ns, sent, free, self._indexes)
        self.there = self._there

    @property
    def ends_ns(self) -> int | None:
        return self._deadline_at_ns if self._missing else None

    @property
    def _deadline_at_ns(self) -> int:
        return self._answers_end_ns if self._goes_on_ns is None else self._goes_on_ns + self._deadline_ns

    def goes_on(self, goes_on_ns: int) -> None:
        self._goes_on_ns = goes_on_ns
        self._missing.clear()

    def found(self, late: Iterable[pb.Flow]) -> None:
        names = {self._indexes[name]: name for name in self._there}
        for flow in late:
            name, took_ns = names.get(flow.child), flow.down_ns + flow.compute_ns + flow.up_ns
            if name is not None:
                self._miss_answer(name, Missed(busy_ns=max(self._answers_end_ns, self._begins_ns + took_ns), flow=flow))
                self._opened.intake.exclude(name)

    def is_answer_late(self, child_id: str, answer: answers_pb2.Answer) -> bool:
        missed = self._devices.missed_answer(
            self._opened.number, self._begins_ns, self._indexes[child_id], self._answered(child_id, answer),
            free_ns=self._free[child_id], there_ns=self._there[child_id],
        )  # fmt: skip
        return self._has_missed(child_id, missed)

    def is_late(self, header: pb.UpdateHeader) -> bool:
        name = header.child_id
        missed = self._devices.missed(
            self._opened.number, self._begins_ns, self._indexes[name], self._updated(header),
            free_ns=self._free[name], there_ns=self._there[name], goes_on_ns=self._goes_on_ns,
        )  # fmt: skip
        return self._has_missed(name, missed)

    def _answered(self, child_id: str, answer: answers_pb2.Answer) -> Exchanged:
        return Exchanged.of_answer(answer).after(self._opened.sent_to(child_id))

    def _updated(self, header: pb.UpdateHeader) -> Exchanged:
        return Exchanged.of_update(header).after(self._opened.sent_to(header.child_id))

    def _has_missed(self, name: str, back: Missed) -> bool:
        """Return whether what is back at a time comes too late; if so, note it."""
        if back.busy_ns <= self._deadline_at_ns:
            return False
        self._miss(name, back)
        return True

    def _miss(self, name: str, missed: Missed) -> None:
        self._busy[name], self._late[name] = missed.busy_ns, missed.flow
        self._missing.add(name)

    def _miss_answer(self, name: str, missed: Missed) -> None:
        self._miss(name, missed)

    @property
    def late_flows(self) -> list[pb.Flow]:
        return [flow for _, flow in sorted(self._late.items())]

    def note_busy(self, busy_ns: MutableMapping[int, int], now_ns: int, here: Collection[int]) -> None:
        """Note until when the children that are `here` are busy; one that has moved away is busy here no more."""
        not_drawn = {index: free for index, free in busy_ns.items() if index in here and index not in self._drawn}
        busy_ns.clear()
        busy_ns.update({index: free for index, free in not_drawn.items() if free > now_ns})
        busy_ns.update({self._indexes[name]: free for name, free in self._busy.items()})


@dataclass(frozen=True, kw_only=True)
class SharedRound:
    """An LPS round whose devices share a link up: from when on each is free, and when it has the model."""

    devices: DeviceTimeline
    lps_round: int
    begins_ns: int
    free: Mapping[str, int]
    there: Mapping[str, int]
    indexes: Mapping[str, int]
    late_answers: dict[str, Exchanged] = field(default_factory=dict)  # of those who are out of the round for it

    def missed_answers(self, answered: Mapping[str, Exchanged], ends_ns: int) -> dict[str, Missed]:
        """Whose answers are not there by a time, of all who have sent one."""
        children = self._children(answered)
        flows = answers_of(children, self._had(children))
        missed = {}
        for place, sent_ns, unsent in self._late(children, flows, asked_address(self._address), ends_ns):
            child, ready_ns = children[place], flows[place].start_ns
            only = replace(child, busy_ns=child.first_ns)
            down_ns = self.there[child.name] - self.begins_ns
            flow = flow_of(only, self.begins_ns, down_ns, sent_ns, unsent_bytes=unsent)
            missed[child.name] = Missed(busy_ns=max(ends_ns, ready_ns), flow=flow)
        return missed

    def missed_updates(
        self, announced: Mapping[str, Exchanged], ends_ns: int, goes_on_ns: int | None
    ) -> dict[str, Missed]:
        """Whose updates are not there by a time, of all who have one; with a question `goes_on_ns` says when it was
        that the LPS heard of the plan."""
        children = self._children(announced)
        asked = self._children(self.late_answers)
        ways = self.devices.ways(
            children, self.begins_ns, self._had(children), self._address, goes_on_ns,
            beside=answers_of(asked, self._had(asked)),
        )  # fmt: skip
        missed = {}
        for place, sent_ns, unsent in self._late(children, updates_of(children, ways), self._address, ends_ns):
            child, way = children[place], ways[place]
            flow = flow_of(child, self.begins_ns, way.down_ns, way.up_ns + sent_ns, unsent_bytes=unsent)
            missed[child.name] = Missed(busy_ns=max(ends_ns, way.ready_ns), flow=flow)
        return missed

    def check_ever(self, name: str, exchanged: Exchanged, goes_on_ns: int | None) -> None:
        """Raise PayloadError for work that is not done within 73 years; whoever says so is refused."""
        children = self._children({name: exchanged})
        (way,) = self.devices.ways(children, self.begins_ns, self._had(children), self._address, goes_on_ns)
        check_ever(max(way.ready_ns, children[0].busy_ns + way.up_ns), exchanged.work)

    @property
    def _address(self) -> list[int]:
        return self.devices.address(self.lps_round)

    def _children(self, exchanged: Mapping[str, Exchanged]) -> list[Child]:
        return self.devices.children(self.lps_round, exchanged, self.indexes, self.free)

    def _had(self, children: Sequence[Child]) -> list[int]:
        return [self.there[child.name] for child in children]

    def _late(
        self, children: Sequence[Child], flows: Sequence[Flow], address: Sequence[int], ends_ns: int
    ) -> Iterator[tuple[int, int, int]]:
        """Of each that is late its place, how long it was sending by then, and how many bytes had not left the link."""
        carried = carried_by(flows, self.devices.shared.up_rate, ends_ns)
        for place, (child, flow, (end_ns, bits)) in enumerate(zip(children, flows, carried, strict=True)):
            latency_ns = latency_of(child.link, flow.start_ns, address, child.index, UP)
            if end_ns is None or end_ns + latency_ns > ends_ns:
                yield place, max(0, ends_ns - flow.start_ns), (flow.bits - bits + 7) // 8


class SharedUplink(OwnLinks):
    """Decides of all children at once, since each one's lateness depends on what all send over the shared link."""

    are_announced = is_gathering = True

    def begin(self, opened: Begun) -> None:
        self.announced: dict[str, Exchanged] = {}
        self._counted: dict[str, Exchanged] = {}  # of those announced, all that the round then waited for
        self._late_answers: dict[str, Exchanged] = {}  # what those sent whose answers came too late
        super().begin(opened)

    @property
    def _shared(self) -> SharedRound:
        return SharedRound(
            devices=self._devices, lps_round=self._opened.number, begins_ns=self._begins_ns, free=self._free,
            there=self._there, indexes=self._indexes, late_answers=self._late_answers,
        )  # fmt: skip

    def wants_word_of(self, child_id: str) -> bool:
        return child_id not in self.announced

    def note(self, header: pb.UpdateHeader) -> None:
        """Keep what a child announces; the first time counts. Raises PayloadError for work that is never done."""
        if self.wants_word_of(header.child_id):
            updated = self._updated(header)
            self._shared.check_ever(header.child_id, updated, self._goes_on_ns)
            self.announced[header.child_id] = updated

    def lacking(self, children: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(filter(self.wants_word_of, children)) if self.is_gathering else children

    def holds_back(self, child_id: str) -> bool:
        return self.is_gathering and child_id in self.announced

    async def decide(self, changes: Changes, note_late: Callable[[], None]) -> None:
        """Wait until all children have announced their updates, and leave out those that are late.

        The others may send from then on. If the round is over before, since too few children are left, nobody is late.
        """
        children = self._opened.intake
        await changes.wait_until(lambda: children.is_complete or not self.lacking(children.missing), None)
        self.is_gathering = False
        if not children.is_complete:
            self._counted = {name: self.announced[name] for name in children.missing}
            missed = self._shared.missed_updates(self._counted, self._deadline_at_ns, self._goes_on_ns)
            for name, each in missed.items():
                self._miss(name, each)
                children.exclude(name)
                note_late()
        changes.tell()

    def is_late(self, header: pb.UpdateHeader) -> bool:
        return False

    def is_answer_late(self, child_id: str, answer: answers_pb2.Answer) -> bool:
        """Return False: all answers decide together. Raises PayloadError for one that takes more than 73 years."""
        self._shared.check_ever(child_id, self._answered(child_id, answer), None)
        return False

    def late_answers(self, answers: Mapping[str, answers_pb2.Answer]) -> Collection[str]:
        asked = {name: self._answered(name, each) for name, each in answers.items()}
        missed = self._shared.missed_answers(asked, self._deadline_at_ns)
        for name, each in missed.items():
            self._miss_answer(name, each)
        return missed.keys()

    def _miss_answer(self, name: str, missed: Missed) -> None:
        super()._miss_answer(name, missed)
        self._late_answers[name] = Exchanged.of_flow(missed.flow)

    def settle(self, exchanged: Mapping[str, Exchanged]) -> tuple[Mapping[str, Exchanged], Beside]:
        """Return what was announced by those whose updates the round has: lateness was worked out of that."""
        counted = {name: self._counted.get(name, each) for name, each in exchanged.items()}
        updates = {name: each for name, each in self._counted.items() if name not in exchanged}
        return counted, Beside(updates=updates, answers=self._late_answers)
