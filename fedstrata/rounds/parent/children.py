"""The children of a round: the state of each child, whether enough children are left, and all that they report in
addition to tensors.
"""

import asyncio
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import ClassVar

from fedstrata.clock.exchanged import Exchanged
from fedstrata.errors import ExcludedError, PayloadError, RunStoppedError, UnknownChildError
from fedstrata.experiment import TierDeadline
from fedstrata.process.logs import EventLog
from fedstrata.process.quoting import brief, quoted
from fedstrata.rpc.stream import Supersedable
from fedstrata.tensors import PayloadCodec
from fedstrata.v1 import rounds_pb2 as pb


class ChildState(Enum):
    """Name the states of a child in a round."""

    AWAITED = "awaited"
    ACCEPTED = "accepted"
    EXCLUDED = "excluded"
    LATER = "later"  # its update belongs to a later round


@dataclass
class Upload(Supersedable):
    """Hold one call (gRPC stream) by which a child sends its update. A newer call of the child replaces this call."""

    child_id: str
    codec: PayloadCodec
    weights: tuple[int, ...]  # weights that the header announces, one per part of the payload
    offset: int

    def is_continued_by(self, other: "Upload") -> bool:
        """Return whether this upload and the other upload can be parts of the same update."""
        return (self.weights, self.codec.scales) == (other.weights, other.codec.scales)


@dataclass
class Child:
    """Hold the state of one child in a round."""

    state: ChildState = ChildState.AWAITED
    upload: Upload | None = None
    offset: int = 0
    squares: float = 0.0  # sum of squares of the values before `offset`; 0 if norms have no limit
    began: Upload | None = None  # upload that sent the bytes before `offset`
    has_switched: bool = False  # whether the child has changed to another update, which is allowed once per round
    is_asked_again: bool = False  # whether a complete update was removed from the sum and may be sent again
    is_refused: bool = False  # whether the child may not send its update again if the sum is emptied

    @property
    def has_part(self) -> bool:
        """Return whether a part of the child's update is in the sum, or an upload of the child is under way."""
        return self.offset > 0 or self.upload is not None

    def switch(self, name: str) -> None:
        """Note that the child continues with another update. `name` is the child's id, for the error. Raises
        PayloadError if the child does this for the second time in a round.
        """
        if self.has_switched:
            raise PayloadError(f"{name} has changed to another update for the second time in a round; once is allowed")
        self.has_switched = True

    def begin_anew(self) -> None:
        """Forget the messages that the child has sent in this round."""
        self.offset, self.squares, self.upload, self.began = 0, 0.0, None, None


@dataclass(frozen=True, kw_only=True)
class RoundResult:
    """Hold the result of a closed round."""

    children: int
    num_examples: int
    train_loss: float
    missing: tuple[str, ...]
    evaluations: tuple[pb.Evaluation, ...]
    exchanged: Mapping[str, Exchanged] = field(default_factory=dict)  # with a clock: transfers of the accepted children


@dataclass
class ChildReports:
    """Keep what children report in addition to tensors: losses, measurements and transferred bytes."""

    losses: dict[str, tuple[float, int]] = field(default_factory=dict)
    evaluations: dict[str, Sequence[pb.Evaluation]] = field(default_factory=dict)
    uploaded: dict[str, Exchanged] = field(default_factory=dict)

    def keep(self, header: pb.UpdateHeader, upload: Upload) -> None:
        """Keep what an accepted update reports.

        The training loss is kept with its number of examples. If the update has one part, this number is the part's
        weight, which was checked. Otherwise it is the number in the header.
        """
        name = upload.child_id
        examples = upload.weights[0] if len(upload.weights) == 1 else header.num_examples
        self.losses[name] = (header.train_loss, max(1, examples))
        self.evaluations[name] = [_apart(evaluation) for evaluation in header.evaluations]
        if header.HasField("work"):
            self.uploaded[name] = Exchanged.of_update(header)

    def forget(self, child_id: str) -> None:
        """Forget what a child has reported."""
        for kept in (self.losses, self.evaluations, self.uploaded):
            kept.pop(child_id, None)

    def result(self, children: Mapping[str, Child]) -> RoundResult:
        """Return the result of a round that ends with the children in these states."""
        losses = self.losses.values()
        missing = tuple(name for name, child in children.items() if child.state is not ChildState.ACCEPTED)
        return RoundResult(
            children=len(children) - len(missing),
            num_examples=sum(examples for _, examples in losses),
            train_loss=mean_loss(losses),
            missing=missing,
            evaluations=tuple(each for name in sorted(self.evaluations) for each in self.evaluations[name]),
            exchanged=self.uploaded,
        )


class Enough:
    """Decide whether enough children are left in a round. This base class requires only the quorum. Subclasses may
    require more children.
    """

    is_void_if_any_leaves: ClassVar[bool] = False
    """If true, the sum is void as soon as any child leaves the round, even a child that has sent nothing."""

    def are_left(self, left: int, quorum: int) -> bool:
        """Return whether a sum is possible with `left` children, of which at least `quorum` must report."""
        return True

    def check(self, left: int, of: int, refused: str) -> None:
        """Raise RunStoppedError if too few of the round's `of` children are left. `refused` is the end of the error
        message: a child that was refused, and the reason.
        """


NO_LEAST = Enough()


class Children:
    """Hold the state of each child of a round, and decide whether enough are left."""

    def __init__(self, names: Iterable[str], wait: TierDeadline, enough: Enough) -> None:
        """Set the children's names, the settings `wait` with the quorum, and `enough`, which decides whether enough
        children are left.
        """
        self._children = {name: Child() for name in names}
        self._awaited = self._left = len(self._children)  # awaited children, and children still in the round
        self._later: set[str] = set()
        self._wait = wait
        self._quorum = wait.quorum(len(self._children))
        self._enough = enough
        self.completed = asyncio.Event()  # set while the round waits for no child

    def state_of(self, child_id: str) -> ChildState | None:
        """Return the state of a child. If the child is not in this round, return None."""
        if child_id in self._later:
            return ChildState.LATER
        child = self._children.get(child_id)
        return child.state if child else None

    def release(self, names: Collection[str]) -> None:
        """Take awaited children out of the round, because their updates belong to later rounds. From now on, the quorum
        is a share of the children that remain in the round.
        """
        for name in names:
            del self._children[name]
        self._later.update(names)
        self._awaited, self._left = self._awaited - len(names), self._left - len(names)
        self._quorum = self._wait.quorum(len(self._children))
        self._tell()

    def take_back(self, child_id: str) -> None:
        """Wait again for a child that `release` has taken out of the round."""
        self._later.remove(child_id)
        self._children[child_id] = Child()
        self._awaited, self._left = self._awaited + 1, self._left + 1
        self._quorum = self._wait.quorum(len(self._children))
        self.completed.clear()

    def offset_of(self, child_id: str) -> int:
        """Return how many bytes of a child's payload have been added to the sum."""
        return 0 if child_id in self._later else self._child(child_id).offset

    @property
    def excluded(self) -> set[str]:
        """The children that have left the round."""
        return {name for name, child in self._children.items() if child.state is ChildState.EXCLUDED}

    @property
    def missing(self) -> tuple[str, ...]:
        """Return the children that the round still waits for."""
        return tuple(name for name, child in self._children.items() if child.state is ChildState.AWAITED)

    @property
    def is_complete(self) -> bool:
        """Return whether the round has stopped waiting. It stops when no child is awaited, or when too few children are
        left for a sum.
        """
        return not self._awaited or self._are_too_few

    @property
    def going_on(self) -> tuple[str, ...]:
        """Return the children that are still in the round."""
        return tuple(name for name, child in self._children.items() if child.state is not ChildState.EXCLUDED)

    @property
    def _are_too_few(self) -> bool:
        """Return whether too few children are left for a sum."""
        return not self._enough.are_left(self._left, self._quorum)

    def check_quorum(self, refusals: Mapping[str, str], *, still_awaited: bool = False) -> None:
        """Raise RunStoppedError if too few children have reported. `refusals` maps each refused child to the reason.

        With `still_awaited`, the children that can still report are counted too.
        """
        why = "".join(f" ({name} was refused: {reason})" for name, reason in list(refusals.items())[:1])
        self._enough.check(self._left, len(self._children), why)
        enough = (
            {ChildState.ACCEPTED, ChildState.AWAITED} if still_awaited or self._are_too_few else {ChildState.ACCEPTED}
        )
        reported = [name for name, child in self._children.items() if child.state in enough]
        if len(reported) < self._quorum:
            absent = sorted(set(self._children) - set(reported))
            raise RunStoppedError(
                f"{len(reported)} of {len(self._children)} have reported, but the quorum is {self._quorum}; "
                f"absent: {', '.join(absent[:10])}"
                + (" …" if len(absent) > 10 else "")
                + "".join(f" ({name} was refused: {refusals[name]})" for name in absent[:1] if name in refusals)
            )

    def keeps(self, child_id: str) -> bool:
        """Return whether a child that is now refused has a complete update in the sum. This update then stays in the
        sum. If the sum is emptied later, the child is excluded.
        """
        child = self._children.get(child_id)
        if child is None or child.state is not ChildState.ACCEPTED:
            return False
        child.is_refused = True
        return True

    def _tell(self) -> None:
        if self.is_complete:
            self.completed.set()

    def _child(self, child_id: str) -> Child:
        child = self._children.get(child_id)
        if child is None:
            raise UnknownChildError(f"{quoted(child_id)} does not belong to this round")
        return child

    def _move(self, child: Child, state: ChildState) -> None:
        """Set the state of a child. All changes of states go through this function."""
        self._awaited += (state is ChildState.AWAITED) - (child.state is ChildState.AWAITED)
        self._left -= (state is ChildState.EXCLUDED) - (child.state is ChildState.EXCLUDED)
        child.state = state


class Refusals:
    """Hold the children that a parent has refused until the end of the run, with the reasons."""

    def __init__(
        self,
        log: EventLog,
        on_ban: Callable[[str, str], None] | None = None,
        known: Mapping[str, str] | None = None,
        *,
        has_child: Callable[[str], bool] | None = None,
    ) -> None:
        """Set `on_ban`, which is called with each refused child and the reason, and `known`, the children that were
        refused before a restart, with the reasons. `has_child` says whether a child belongs to this parent. By default
        every name does.
        """
        self.reasons = dict(known or {})
        self._log = log
        self._on_ban = on_ban or (lambda child_id, reason: None)
        self._has_child = has_child or (lambda child_id: True)

    def __contains__(self, child_id: str) -> bool:
        return child_id in self.reasons

    def __iter__(self) -> Iterator[str]:
        return iter(self.reasons)

    def forget(self, child_id: str) -> None:
        """Forget the refusal of a child."""
        self.reasons.pop(child_id, None)

    def check(self, child_id: str) -> None:
        """Raise ExcludedError if the child was refused."""
        if child_id in self.reasons:
            raise ExcludedError(f"{child_id} was refused: {self.reasons[child_id]}")

    def refuse(self, number: int, child_id: str, reason: str) -> bool:
        """Refuse a child until the end of the run. Return whether this call refuses the child. It does not if the child
        was refused before, or if this parent has no such child. `number` is the number of the round, for the log.
        """
        if child_id in self.reasons or not self._has_child(child_id):
            return False
        self.reasons[child_id] = reason = brief(reason)
        self._log.warning("child_refused", child=child_id, round=number, reason=reason)
        self._on_ban(child_id, reason)
        return True


def mean_loss(losses: Collection[tuple[float, int]]) -> float:
    """Return the mean of losses. Each loss is weighted by its number of examples. Without losses, return 0.

    The result is never outside the range of the losses, even with rounding.
    """
    if not losses:
        return 0.0
    mean = math.fsum(loss * examples for loss, examples in losses) / sum(examples for _, examples in losses)
    return min(max(mean, min(losses)[0]), max(losses)[0])


def _apart(evaluation: pb.Evaluation) -> pb.Evaluation:
    """Return a copy of the message. The original message would keep the whole update in memory."""
    copy = pb.Evaluation()
    copy.CopyFrom(evaluation)
    return copy
