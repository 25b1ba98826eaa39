"""Deadlines of rounds in virtual time: which children are late, and how long late children stay busy.

Each round has one deadline object. With the base class `Deadline`, no child is late. With `OwnLinks`, each child has a
link of its own, so a child's lateness does not depend on other children. With `SharedUplink`, children share a link, so
lateness depends on all transfers. With `SharedUplink`, each child first announces its update. The child sends the
update only when the parent knows which children are late. A late transfer on the shared link is stopped at the
deadline, and its device is then free. A device that is still receiving or computing at the deadline is busy until it
has finished.

A round can ask the devices a question before they train. The GPS then makes a plan from the answers. Such a round has
two deadlines. The time for answers begins with the round. The time for updates begins when the parent knows the plan.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, MutableMapping
from typing import Protocol

from fedstrata.clock.exchanged import Exchanged
from fedstrata.clock.timeline import Part, Round
from fedstrata.process.sleeping import Changes
from fedstrata.v1 import answers_pb2
from fedstrata.v1 import rounds_pb2 as pb


class Waiting(Protocol):
    """Define the interface to the children for which a round still waits."""

    @property
    def missing(self) -> tuple[str, ...]:
        """The names of the children for which the round waits."""

    @property
    def is_complete(self) -> bool:
        """Return whether the round has stopped waiting for children."""

    def exclude(self, child_id: str) -> None:
        """Stop waiting for a child."""


class Begun(Protocol):
    """Define the attributes and methods of an open round that the round's deadline object uses."""

    @property
    def number(self) -> int:
        """The number of the round."""

    @property
    def intake(self) -> Waiting:
        """The children for which the round waits."""

    def sent_to(self, child_id: str) -> Exchanged:
        """Return which model the parent sends to a child, and its size in bytes with the header."""


class Deadline:
    """Represent a round without a deadline in virtual time. No child is late, and no child announces its update."""

    can_be_missed = False
    are_announced = False  # whether children announce their updates before they send them
    is_gathering = False  # whether the round still waits for announcements

    def begin(self, opened: Begun) -> None:
        """Prepare this deadline before any child learns that the round is open. Leave out children that are still busy
        at the deadline.
        """

    # --- what children announce ---------------------------------------------------------------

    def wants_word_of(self, child_id: str) -> bool:
        """Return whether a child must still announce its update before it may send the update."""
        return False

    def note(self, header: pb.UpdateHeader) -> None:
        """Keep the announcement of a child's update. Raises PayloadError if the announced work takes more than 73
        years, the limit of the virtual clock.
        """

    def lacking(self, children: tuple[str, ...]) -> tuple[str, ...]:
        """Return the given children that must still send something: an announcement while the round collects
        announcements, and afterwards an update.
        """
        return children

    def holds_back(self, child_id: str) -> bool:
        """Return whether a child has announced its update and must wait until all other children have announced
        theirs.
        """
        return False

    async def decide(self, changes: Changes, note_late: Callable[[], None]) -> None:
        """If this deadline needs announcements, wait until all children have announced their updates. Then leave out
        the late children, and call `note_late` for each.
        """

    # --- which children are late --------------------------------------------------------------

    def is_late(self, header: pb.UpdateHeader) -> bool:
        """Return whether an update misses the deadline. If its header alone cannot show this, return False."""
        return False

    def is_answer_late(self, child_id: str, answer: answers_pb2.Answer) -> bool:
        """Return whether an answer misses the deadline. If the answer alone cannot show this, return False."""
        return False

    def late_answers(self, answers: Mapping[str, answers_pb2.Answer]) -> Collection[str]:
        """Return the children with late answers that `is_answer_late` could not find. `answers` has the answers of all
        children.
        """
        return ()

    def found(self, late: Iterable[pb.Flow]) -> None:
        """After a restart of the parent, leave out the children with late answers again. `late` has the transfers of
        these children, which were recorded before the restart.
        """

    def goes_on(self, goes_on_ns: int) -> None:
        """Begin to wait for updates. `goes_on_ns` is the time at which the parent learned of the plan that was made
        from the answers.
        """

    # --- results of a deadline -------------------------------------------------------------------

    @property
    def ends_ns(self) -> int | None:
        """The time of the deadline, in nanoseconds, if at least one child misses it. If all children are in time, this
        is None. While the round waits for answers, this is the deadline for answers.
        """
        return None

    @property
    def late_flows(self) -> list[pb.Flow]:
        """The transfers and the work of each late child, ordered by the child's name. The round uses none of them."""
        return []

    def settle(self, exchanged: Mapping[str, Exchanged]) -> tuple[Mapping[str, Exchanged], Mapping[str, Exchanged]]:
        """Return two mappings: the transfers of the children with updates in the round, and the transfers of the other
        children.
        """
        return exchanged, {}

    def note_busy(self, busy_ns: MutableMapping[int, int], now_ns: int, here: Collection[int]) -> None:
        """Update `busy_ns` at the end of the round. It maps the index of each busy child to the time at which the child
        is free again. `here` has the indexes of the children that this parent serves.
        """


class OwnLinks(Deadline):
    """Decide for each child separately whether it is late, as soon as its answer or update arrives. Each child has a
    link of its own, so other children do not matter.
    """

    can_be_missed = True

    def __init__(self, timed: Round, *, deadline_ns: int, free: Mapping[str, int], indexes: Mapping[str, int]) -> None:
        """Set `timed`, the object that calculates the round's virtual times, and `deadline_ns`, the time that children
        have. `free` maps each child's id to the time from which the child is present and not busy. `indexes` maps the
        ids to the children's indexes.
        """
        self._timed = timed
        self._deadline_ns = deadline_ns
        self._free = free
        self._indexes = indexes
        self._goes_on_ns: int | None = None
        self._drawn: set[int] = set()  # indexes of the devices that the round asks
        self._busy: dict[str, int] = {}  # late devices, with the times until which they are busy
        self._late: dict[str, pb.Flow] = {}  # late devices, with the transfers and work that the round does not use
        self._missing: set[str] = set()  # devices that the current stage of the round still awaits

    def begin(self, opened: Begun) -> None:
        self._opened = opened
        awaited = opened.intake.missing
        self._drawn = {self._indexes[name] for name in awaited}
        free = {name: self._free[name] for name in awaited}
        first_ns = max(self._timed.begins_ns, min(free.values(), default=0))  # if all are away: when the first returns
        self._answers_end_ns = first_ns + self._deadline_ns
        self._busy = {name: free_ns for name, free_ns in free.items() if free_ns >= self._answers_end_ns}
        self._missing = set(self._busy)
        for name in self._busy:
            opened.intake.exclude(name)
        sent = {name: opened.sent_to(name) for name in awaited if name not in self._busy}
        self._there = self._timed.send_models(sent)

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
                self._miss_answer(name, max(self._answers_end_ns, self._timed.begins_ns + took_ns), flow)
                self._opened.intake.exclude(name)

    def is_answer_late(self, child_id: str, answer: answers_pb2.Answer) -> bool:
        return self._is_over_late(self._timed.answer_alone(child_id, self._answered(child_id, answer)))

    def is_late(self, header: pb.UpdateHeader) -> bool:
        return self._is_over_late(self._timed.update_alone(header.child_id, self._updated(header)))

    def _answered(self, child_id: str, answer: answers_pb2.Answer) -> Exchanged:
        return Exchanged.of_answer(answer).after(self._opened.sent_to(child_id))

    def _updated(self, header: pb.UpdateHeader) -> Exchanged:
        return Exchanged.of_update(header).after(self._opened.sent_to(header.child_id))

    def _is_over_late(self, part: Part) -> bool:
        """Check whether a child's part of the round ends after the deadline. If so, add the child to the late
        children.
        """
        if part.back_ns <= self._deadline_at_ns:
            return False
        self._miss(part.name, part.back_ns, part.flow)
        return True

    def _miss(self, name: str, busy_ns: int, flow: pb.Flow) -> None:
        self._busy[name], self._late[name] = busy_ns, flow
        self._missing.add(name)

    def _miss_answer(self, name: str, busy_ns: int, flow: pb.Flow) -> None:
        self._miss(name, busy_ns, flow)

    @property
    def late_flows(self) -> list[pb.Flow]:
        return [flow for _, flow in sorted(self._late.items())]

    def note_busy(self, busy_ns: MutableMapping[int, int], now_ns: int, here: Collection[int]) -> None:
        """Update `busy_ns`, which maps each busy child to the time at which the child is free again. Delete entries of
        earlier rounds for children that are not in `here`, because these children have moved to another LPS.
        """
        not_drawn = {index: free for index, free in busy_ns.items() if index in here and index not in self._drawn}
        busy_ns.clear()
        busy_ns.update({index: free for index, free in not_drawn.items() if free > now_ns})
        busy_ns.update({self._indexes[name]: free for name, free in self._busy.items()})


class SharedUplink(OwnLinks):
    """Decide for all children together which of them are late. On a shared link, each arrival time depends on all
    transfers.
    """

    are_announced = is_gathering = True

    def begin(self, opened: Begun) -> None:
        self.announced: dict[str, Exchanged] = {}
        self._counted: dict[str, Exchanged] = {}  # announced updates for which the round waited afterwards
        self._late_answers: dict[str, Exchanged] = {}  # transfers of the children with late answers
        super().begin(opened)

    def wants_word_of(self, child_id: str) -> bool:
        return child_id not in self.announced

    def note(self, header: pb.UpdateHeader) -> None:
        """Keep the first announcement of a child's update. Raises PayloadError if the announced work takes more than 73
        years, the limit of the virtual clock.
        """
        if self.wants_word_of(header.child_id):
            updated = self._updated(header)
            self._timed.check_ends(header.child_id, updated)
            self.announced[header.child_id] = updated

    def lacking(self, children: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(filter(self.wants_word_of, children)) if self.is_gathering else children

    def holds_back(self, child_id: str) -> bool:
        return self.is_gathering and child_id in self.announced

    async def decide(self, changes: Changes, note_late: Callable[[], None]) -> None:
        """Wait until all children have announced their updates. Then leave out the late children, and let the other
        children send.

        If too few children are left, the round ends before all have announced. Then no child is late.
        """
        children = self._opened.intake
        await changes.wait_until(lambda: children.is_complete or not self.lacking(children.missing), None)
        self.is_gathering = False
        if not children.is_complete:
            self._counted = {name: self.announced[name] for name in children.missing}
            late = self._timed.late_updates(self._counted, self._deadline_at_ns, dropped=self._late_answers)
            for part in late:
                self._miss(part.name, part.back_ns, part.flow)
                children.exclude(part.name)
                note_late()
        changes.tell()

    def is_late(self, header: pb.UpdateHeader) -> bool:
        return False

    def is_answer_late(self, child_id: str, answer: answers_pb2.Answer) -> bool:
        """Return False, because only all answers together show which of them are late. Raises PayloadError if an answer
        takes more than 73 years.
        """
        self._timed.check_ends(child_id, self._answered(child_id, answer))
        return False

    def late_answers(self, answers: Mapping[str, answers_pb2.Answer]) -> Collection[str]:
        asked = {name: self._answered(name, each) for name, each in answers.items()}
        late = self._timed.late_answers(asked, self._deadline_at_ns)
        for part in late:
            self._miss_answer(part.name, part.back_ns, part.flow)
        return [part.name for part in late]

    def _miss_answer(self, name: str, busy_ns: int, flow: pb.Flow) -> None:
        super()._miss_answer(name, busy_ns, flow)
        self._late_answers[name] = Exchanged.of_flow(flow)

    def settle(self, exchanged: Mapping[str, Exchanged]) -> tuple[Mapping[str, Exchanged], Mapping[str, Exchanged]]:
        """Return the same two mappings as the base class, but with the announced transfers instead of the actual
        transfers. The reason is that lateness was calculated from the announced transfers.
        """
        counted = {name: self._counted.get(name, each) for name, each in exchanged.items()}
        dropped = {name: each for name, each in self._counted.items() if name not in exchanged}
        return counted, self._late_answers | dropped
