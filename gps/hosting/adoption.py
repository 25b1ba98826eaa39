"""The adoption of clusters: another LPS serves the clusters of an absent LPS, and gives them back later."""

import asyncio
from collections.abc import Callable

from fedstrata.experiment import Experiment
from fedstrata.process.logs import EventLog
from fedstrata.process.waiting import AWAKE_S, RECONNECT_S, TIMER_S, Changes
from gps.hosting.backend_calls import BackendCalls
from gps.hosting.serving import Serving
from gps.journal.journal import Journal
from gps.plans.global_rounds import GlobalRounds


class Adoption:
    """Give the clusters of absent LPSs to other LPSs during training, and give them back later."""

    def __init__(
        self, experiment: Experiment, *, serving: Serving, rounds: GlobalRounds, journal: Journal,
        backend: BackendCalls, changes: Changes, tell: Callable[[], None], log: EventLog,
    ) -> None:  # fmt: skip
        self._deadline_s = experiment.deadlines.gps.deadline_s
        self._serving = serving
        self._rounds = rounds
        self._journal = journal
        self._backend = backend
        self._changes = changes
        self._tell = tell
        self._log = log

    async def until_served(self) -> None:
        """If the run has deadlines, wait until the LPS of every cluster has registered, but only for a limited time. If
        the run has no deadlines, do not wait.
        """
        if self._deadline_s is not None:
            await self.wait_until(lambda: self._serving.are_all_there)

    async def wait_until(self, is_true: Callable[[], bool]) -> None:
        """Wait until a condition holds. If the run has no deadlines, the wait has no limit.

        If the run has deadlines, the wait is limited. The limit is so long that the GPS can then say of each LPS
        whether it is absent, even if the LPS has never called.
        """
        longest_s = None
        if self._deadline_s is not None:
            longest_s = self._deadline_s + self._serving.presence.hold_s + RECONNECT_S
        await self._changes.wait_awake(is_true, longest_s)

    async def watch(self) -> None:
        """Watch the LPSs during training. If an LPS is absent, let another LPS adopt its clusters, as soon as another
        LPS is available.

        A GPS that was paused does not know which LPSs called during the pause. So each wait is short. If a wait ends
        later than planned, the GPS was paused, and the delay does not count as silence of the LPSs.
        """
        loop, presence = asyncio.get_running_loop(), self._serving.presence
        presence.listen()
        looked = loop.time()
        while (check_again_s := self._serving.check_again_s()) is not None:
            due = looked + max(TIMER_S, min(check_again_s, presence.hold_s / 2, AWAKE_S))
            await self._changes.wait_until(lambda: bool(self._adoptable()), due - loop.time())
            looked = loop.time()
            presence.forgive(max(0.0, looked - due))
            self._hand_over(self._adoptable())

    def hand_back(self) -> None:
        """Give each adopted cluster back to its own LPS, if this LPS is present again."""
        self._hand_over(self._serving.returnable())

    def _adoptable(self) -> dict[str, str]:
        return self._serving.adoptable(self._journal.rounds.reported())

    def _hand_over(self, lps_of: dict[str, str]) -> None:
        """Let other LPSs serve clusters. `lps_of` has the new LPS by cluster. The LPSs learn of the change by the
        replies to their open calls.
        """
        for home_id, lps_id in lps_of.items():
            before = self._serving.lps_of(home_id)
            handover = self._serving.hand_over(home_id, lps_id, self._rounds.global_round)
            self._rounds.server.restart(home_id)
            back, told = handover.is_return, f"{home_id} from {before} to {lps_id}, "
            self._log.warning("returned" if back else "adopted", cluster=home_id, lps=lps_id, was=before)
            told += self._serving.stage_of(handover.global_round)
            self._backend.tell("Returned" if back else "Adopted", told, is_warning=not back)
            self._backend.label_pods()
            self._tell()
