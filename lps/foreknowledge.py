"""Which updates of devices are known before the devices train."""

from collections.abc import Callable
from functools import partial

from fedstrata.clock.exchanged import Exchanged
from fedstrata.clock.expected_updates import ExpectedUpdates
from lps.holding import Holding, SessionParts


class Foreknowledge:
    """Calculate the updates of a session's devices before the devices train."""

    def __init__(self, parts: SessionParts, holding: Holding) -> None:
        self._members, self._holding = parts.members, holding
        self._updates = ExpectedUpdates(parts.lps.experiment, parts.lps.method, parts.lps.task)

    def of_round(self, number: int) -> Callable[[str], Exchanged | None]:
        """Return a function that returns the update of a device in LPS round `number`, or None if it is not known."""
        return partial(self._expected, number)

    def _expected(self, number: int, device_id: str) -> Exchanged | None:
        """Return the update of a device, if it is known. A round with a large model waits for the devices'
        announcements, because it reads the model from a file while it is open.
        """
        codec = self._holding.accepts_updates(number).codec
        return self._updates.of(self._members.sender(device_id), number, codec) if codec.layout.is_small else None
