"""The time of the last contact with each LPS, and the LPSs that are absent, refused or revoked."""

import asyncio
from collections.abc import Callable, Iterable

from fedstrata.experiment import Experiment
from fedstrata.process.time_limits import CALL_S, HOLD_S
from fedstrata.process.waiting import BROKEN_AFTER_S, RECONNECT_S
from fedstrata.trust.security import Security

ASKED_PER_DEADLINE = 3  # a live LPS calls this often within the deadline after which it counts as absent


class LpsPresence:
    """Track the contacts with each LPS. If global rounds have no deadline, only revoked LPSs count as absent."""

    def __init__(
        self, experiment: Experiment, known: Iterable[str], security: Security, clock: Callable[[], float] | None
    ) -> None:
        """Set `known`, the LPSs that registered before a restart, and `security`, which knows the revoked LPSs."""
        self._clock = clock or (lambda: asyncio.get_running_loop().time())
        self._security = security
        self._deadline_s = experiment.deadlines.gps.deadline_s
        self._heard = dict.fromkeys(known, float("-inf"))
        self._listening_since = float("inf")
        self._refused: set[str] = set()  # LPSs that serve nothing for the rest of the run

    @property
    def hold_s(self) -> float:
        """The longest time in seconds that the GPS may wait before it replies to an LPS's call. If global rounds have a
        deadline, this time is at most a third of the deadline. So a running LPS calls again well before the deadline.
        """
        return HOLD_S if self._deadline_s is None else min(HOLD_S, self._deadline_s / ASKED_PER_DEADLINE)

    def listen(self) -> None:
        """Begin to track contacts. The time before is not treated as silence of the LPSs, because the GPS may have been
        away.
        """
        self._listening_since = self._clock()

    def forgive(self, seconds: float) -> None:
        """Do not count the last `seconds` as silence of the LPSs, because the GPS itself did not run then. A long pause
        breaks the connections. After such a pause, each LPS that was not absent gets a few more seconds to connect
        again.
        """
        now = self._clock()
        self._heard = {lps_id: min(now, heard + seconds) for lps_id, heard in self._heard.items()}
        self._listening_since = min(now, self._listening_since + seconds)
        if seconds > BROKEN_AFTER_S:
            for lps_id, heard in self._heard.items():
                if heard > float("-inf") and self.left_s(lps_id) > 0:  # an LPS that has called, and was not absent
                    self._heard[lps_id] = max(heard, self._listening_since) + RECONNECT_S

    def register(self, lps_id: str) -> None:
        """Track an LPS from now on."""
        self._heard[lps_id] = self._clock()

    def hear(self, lps_id: str) -> None:
        """Note a contact with an LPS, if the LPS has registered."""
        if lps_id in self._heard:
            self._heard[lps_id] = max(self._heard[lps_id], self._clock())

    def refuse(self, lps_id: str) -> None:
        """Refuse an LPS until the end of the run. The LPS then serves no clusters. If the run has deadlines, another
        LPS adopts these clusters.
        """
        self._refused.add(lps_id)

    def is_refused(self, lps_id: str) -> bool:
        """Return whether an LPS is refused until the end of the run."""
        return lps_id in self._refused

    def is_revoked(self, lps_id: str) -> bool:
        """Return whether the name of an LPS is revoked."""
        return self._security.has_revoked("lps", lps_id)

    def may_serve(self, lps_id: str) -> bool:
        """Return whether an LPS is neither refused nor revoked."""
        return not (lps_id in self._refused or self.is_revoked(lps_id))

    def _silent_s(self, lps_id: str) -> float:
        """Return the seconds since the last contact with an LPS, or since the GPS began to track contacts, if this was
        later.
        """
        return self._clock() - max(self._heard.get(lps_id, 0.0), self._listening_since)

    def left_s(self, lps_id: str) -> float:
        """Return for how many more seconds an LPS may be silent before it is absent. For an absent or revoked LPS,
        return 0 or a negative number.

        With deadlines, refused and revoked LPSs are absent, and so are LPSs that are silent for too long. Without
        deadlines, only revoked LPSs are absent. For all other LPSs, even refused ones, the result is then infinite, and
        no other LPS adopts their clusters. Without deadlines, adoption would not help a cluster that has missed a
        round.
        """
        if self.is_revoked(lps_id):
            return -1.0
        if self._deadline_s is None:
            return float("inf")
        return -1.0 if lps_id in self._refused else self._deadline_s - self._silent_s(lps_id)

    def is_there(self, lps_id: str) -> bool:
        """Return whether the LPS has called the GPS since the GPS started, and is not absent. If global rounds have no
        deadline, its last call must also be recent.
        """
        if self._heard.get(lps_id, float("-inf")) == float("-inf") or self.left_s(lps_id) <= 0:
            return False
        return self._deadline_s is not None or self._silent_s(lps_id) <= self.hold_s + CALL_S

    def check_again_s(self, lps_ids: Iterable[str]) -> float | None:
        """Return after how many seconds the GPS must check again whether one of these LPSs is absent. If no LPS can
        become absent, return None.
        """
        look_s = self._security.look_s
        if self._deadline_s is None:
            return look_s
        away_s = min((seconds for each in lps_ids if (seconds := self.left_s(each)) > 0), default=self.hold_s)
        return away_s if look_s is None else min(away_s, look_s)
