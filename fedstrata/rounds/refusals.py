"""The children that a parent has refused for the rest of the run, and why."""

from collections.abc import Callable, Iterator

from fedstrata.errors import ExcludedError
from fedstrata.process.logs import EventLog
from fedstrata.process.quoting import brief
from fedstrata.rounds.child import ChildState
from fedstrata.rounds.open_round import OpenRound


class Refusals:
    """Refuses children of the open round; the round goes on without them, or stops by its quorum."""

    def __init__(self, log: EventLog, on_ban: Callable[[str, str], None] | None = None) -> None:
        """`on_ban` is called with each child that is refused, and why."""
        self.reasons: dict[str, str] = {}
        self._log = log
        self._on_ban = on_ban or (lambda child_id, reason: None)

    def __contains__(self, child_id: str) -> bool:
        return child_id in self.reasons

    def __iter__(self) -> Iterator[str]:
        return iter(self.reasons)

    def forget(self, child_id: str) -> None:
        """Hear a child again."""
        self.reasons.pop(child_id, None)

    def check(self, child_id: str) -> None:
        """Raise ExcludedError for a child that was refused."""
        if child_id in self.reasons:
            raise ExcludedError(f"{child_id} was refused: {self.reasons[child_id]}")

    def refuse(self, opened: OpenRound | None, child_id: str, reason: str) -> bool:
        """Refuse a child of the open round, whose update is not in yet; whether it has been now."""
        state = opened.intake.state_of(child_id) if opened is not None else None
        if opened is None or state in {None, ChildState.ACCEPTED} or child_id in self.reasons:
            return False  # whoever says so now, an update that is in is the child's own
        self.reasons[child_id] = reason = brief(reason)
        self._log.warning("child_refused", child=child_id, round=opened.number, reason=reason)
        self._on_ban(child_id, reason)
        opened.intake.exclude(child_id)
        return True
