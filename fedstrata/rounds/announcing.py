"""What the children of a round say of their updates before they send them, where who is late hangs on all of them.

So it is on the virtual clock with a deadline and a link up that is shared. Until all have said it, nobody's data is on
its way: it stays with its sender, and of each child that waits its parent holds a few numbers.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

from fedstrata.process.sleeping import Changes
from fedstrata.rounds.result import Uploaded
from fedstrata.v1 import rounds_pb2 as pb


@dataclass
class Announcing:
    """Who has announced its update, until it is found out who is late."""

    check: Callable[[str, Uploaded], None]  # raises PayloadError for what cannot be
    find_late: Callable[[Mapping[str, Uploaded]], Collection[str]]
    announced: dict[str, Uploaded] = field(default_factory=dict)
    is_decided: bool = False

    def note(self, header: pb.UpdateHeader) -> None:
        """Keep what a child says of its update; the first telling counts. Raises PayloadError."""
        if header.child_id not in self.announced:
            uploaded = Uploaded.of(header)
            self.check(header.child_id, uploaded)
            self.announced[header.child_id] = uploaded

    def lacking(self, children: Iterable[str]) -> tuple[str, ...]:
        """Those of some children who have not said it yet."""
        return tuple(child_id for child_id in children if child_id not in self.announced)

    def holds_back(self, child_id: str) -> bool:
        """Whether a child has said it and waits for the others."""
        return not self.is_decided and child_id in self.announced

    async def late(
        self, changes: Changes, missing: Callable[[], Iterable[str]], is_over: Callable[[], bool]
    ) -> Collection[str]:
        """Wait until all children that the round waits for have said it; gives those who are late.

        The others may send from then on. Where the round is over before, as too few are left for it, nobody is late.
        """
        await changes.wait_until(lambda: is_over() or not self.lacking(missing()), None)
        self.is_decided = True
        if is_over():
            return ()
        return self.find_late({child_id: self.announced[child_id] for child_id in missing()})
