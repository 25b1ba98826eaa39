"""Deadlines of rounds in virtual time: which children are late, and how long late children stay busy.

Each round has one deadline object. With the base class `Deadline`, no child is late. With `OwnLinks`, each child has a
link of its own, so a child's lateness does not depend on other children. With `SharedUplink`, children share a link, so
lateness depends on all transfers. Children then announce their updates, and send them when the parent knows which
children are late. A late transfer on the shared link is stopped at the deadline, and its device is then free. A device
that is still receiving or computing at the deadline is busy until it has finished.

A round can ask the devices a question before they train. The GPS then makes a plan from the answers. Such a round has
two deadlines. The time for answers begins with the round. The time for updates begins when the parent knows the plan.

A deadline object only says which children are late. The stages of the round ask it, and leave these children out:
`fedstrata.rounds.parent.stages` has the order of the calls.
"""

from collections.abc import Collection, Iterable, Mapping, MutableMapping

from fedstrata.clock.exchanged import Exchanged
from fedstrata.clock.timeline import Part, Round, Sent
from fedstrata.rules import AS_STATED, Weighing
from fedstrata.v1 import rounds_pb2 as pb


class Deadline:
    """Represent a round without a deadline in virtual time. No child is late, and no child announces its update."""

    can_be_missed = False
    are_announced = False  # whether children announce their updates before they send them
    are_kept = False  # whether a later round takes the updates that this round does not take
    weighing: Weighing = AS_STATED  # how much the updates of the round weigh

    @property
    def announced(self) -> Sent:
        """The updates that children have announced in earlier rounds."""
        return {}

    def closes_ns(self, at_work: Collection[str], silent: Collection[str]) -> int | None:
        """Return the time, by this machine's monotonic clock, at which the round stops waiting for announcements. If
        the time is not known yet, return None. `silent` has the children that have not announced their updates.
        """
        return None if silent else 0

    def begin(self, sent: Sent) -> Collection[str]:
        """Begin the time for answers or, in a round without a question, the time for updates. `sent` has the models
        that the parent sends to its children. Return the children that the round leaves out, because they are still
        busy at the deadline.
        """
        return ()

    # --- answers, then updates --------------------------------------------------------------------

    def is_answer_late(self, child_id: str, answered: Exchanged) -> bool:
        """Return whether an answer misses the deadline. If lateness depends on other children too, return False.

        Raises:
            PayloadError: the answer takes more than 73 years, the limit of the virtual clock.
        """
        return False

    def late_answers(self, answered: Sent) -> Collection[str]:
        """Return the children with late answers, except children that `is_answer_late` has found. `answered` has the
        transfers of all children that have answered.
        """
        return ()

    def restore(self, late: Iterable[pb.Flow]) -> Collection[str]:
        """After a restart of the parent, return again the children with late answers. `late` has their transfers,
        recorded before the restart.
        """
        return ()

    def go_on(self, goes_on_ns: int) -> None:
        """End the time for answers, and begin the time for updates. `goes_on_ns` is the time at which the parent
        learned of the plan that was made from the answers.
        """

    def is_update_late(self, child_id: str, updated: Exchanged) -> bool:
        """Return whether an update misses the deadline. If lateness depends on other children too, return False.

        Raises:
            PayloadError: the work takes more than 73 years, the limit of the virtual clock.
        """
        return False

    def late_updates(self, updated: Sent) -> Collection[str]:
        """Return the children with late updates, except children that `is_update_late` has found. `updated` has the
        announced transfers of all children for which the round waits.
        """
        return ()

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

    def transfers(self, exchanged: Sent) -> tuple[Sent, Sent]:
        """Return two mappings: the transfers of the children with updates in the round, and the transfers of late
        children that slowed a shared link. `exchanged` has the transfers of the accepted updates.
        """
        return exchanged, {}

    def note_busy(self, busy_ns: MutableMapping[int, int], now_ns: int, here: Collection[int]) -> None:
        """At the end of the round, update `busy_ns`, which maps the index of each busy child to the time at which the
        child is free again. `here` has the indexes of the children that this parent serves.
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
        self._asked: dict[int, str] = {}  # indexes and names of the devices that the round asks
        self._busy: dict[str, int] = {}  # late devices, with the times until which they are busy
        self._late: dict[str, pb.Flow] = {}  # late devices, with the transfers and work that the round does not use

    def begin(self, sent: Sent) -> Collection[str]:
        self._asked = {self._indexes[name]: name for name in sent}
        free = {name: self._free[name] for name in sent}
        first_ns = max(self._timed.begins_ns, min(free.values(), default=0))  # if all are away: when the first returns
        self._begin_time(first_ns)
        self._busy = {name: free_ns for name, free_ns in free.items() if free_ns >= self._at_ns}
        self._is_missed = bool(self._busy)
        self._timed.send_models({name: each for name, each in sent.items() if name not in self._busy})
        return tuple(self._busy)

    def _begin_time(self, begins_ns: int) -> None:
        """Begin the time for answers or for updates."""
        self._at_ns, self._is_missed = begins_ns + self._deadline_ns, False

    def is_answer_late(self, child_id: str, answered: Exchanged) -> bool:
        return self._is_late(self._timed.answer_alone(child_id, answered))

    def restore(self, late: Iterable[pb.Flow]) -> Collection[str]:
        found = {self._asked[flow.child]: flow for flow in late if flow.child in self._asked}
        for name, flow in found.items():
            took_ns = flow.down_ns + flow.compute_ns + flow.up_ns
            self._miss(name, max(self._at_ns, self._timed.begins_ns + took_ns), flow)
        return found

    def go_on(self, goes_on_ns: int) -> None:
        self._begin_time(goes_on_ns)

    def is_update_late(self, child_id: str, updated: Exchanged) -> bool:
        return self._is_late(self._timed.update_alone(child_id, updated))

    def _is_late(self, part: Part) -> bool:
        """Return whether a child's part of the round ends after the deadline. If so, add the part to `late_flows`."""
        is_late = part.ended_ns > self._at_ns
        if is_late:
            self._miss(part.name, part.ended_ns, part.flow)
        return is_late

    def _miss(self, name: str, busy_ns: int, flow: pb.Flow) -> None:
        self._busy[name], self._late[name], self._is_missed = busy_ns, flow, True

    @property
    def ends_ns(self) -> int | None:
        return self._at_ns if self._is_missed else None

    @property
    def late_flows(self) -> list[pb.Flow]:
        return [flow for _, flow in sorted(self._late.items())]

    def note_busy(self, busy_ns: MutableMapping[int, int], now_ns: int, here: Collection[int]) -> None:
        """Update `busy_ns`, which maps each busy child to the time at which the child is free again. Delete entries of
        earlier rounds for children that are not in `here`, because these children have moved to another LPS.
        """
        others = {index: free for index, free in busy_ns.items() if index in here and index not in self._asked}
        busy_ns.clear()
        busy_ns.update({index: free for index, free in others.items() if free > now_ns})
        busy_ns.update({self._indexes[name]: free for name, free in self._busy.items()})


class SharedUplink(OwnLinks):
    """Decide for all children together which of them are late. On a shared link, each arrival time depends on all
    transfers.
    """

    are_announced = True

    def begin(self, sent: Sent) -> Collection[str]:
        self._updated: Sent = {}  # announced updates of the children for which the round waited
        return super().begin(sent)

    def is_answer_late(self, child_id: str, answered: Exchanged) -> bool:
        self._timed.check_ends(child_id, answered)
        return False

    def late_answers(self, answered: Sent) -> Collection[str]:
        return self._miss_all(self._timed.late_answers(answered, self._at_ns))

    def is_update_late(self, child_id: str, updated: Exchanged) -> bool:
        self._timed.check_ends(child_id, updated)
        return False

    def late_updates(self, updated: Sent) -> Collection[str]:
        self._updated = updated
        return self._miss_all(self._timed.late_updates(updated, self._at_ns, dropped=self._late_answers))

    def _miss_all(self, parts: Iterable[Part]) -> list[str]:
        names = []
        for part in parts:
            self._miss(part.name, part.ended_ns, part.flow)
            names.append(part.name)
        return names

    @property
    def _late_answers(self) -> Sent:
        """The transfers of the children with late answers."""
        return {name: Exchanged.of_flow(flow) for name, flow in self._late.items() if name not in self._updated}

    def transfers(self, exchanged: Sent) -> tuple[Sent, Sent]:
        """Return the same two mappings as the base class, but with the announced transfers instead of the actual
        transfers. The reason is that lateness was calculated from the announced transfers.
        """
        counted = {name: self._updated.get(name, each) for name, each in exchanged.items()}
        dropped = {name: each for name, each in self._updated.items() if name not in exchanged}
        return counted, {**self._late_answers, **dropped}
