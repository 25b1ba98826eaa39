"""The rounds of a parent. The parent opens each round, waits for its children's messages, and closes the round.

An LPS has one `RoundServer` for each cluster or, if clusters span LPSs, one for all its devices. The GPS has one
`RoundServer` for all rounds with LPSs.
"""

from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from functools import partial

from fedstrata.process.fault_points import reach
from fedstrata.process.waiting import wait_awake, wait_until
from fedstrata.rounds.parent.child_calls import ChildCalls
from fedstrata.rounds.parent.children import RoundResult
from fedstrata.rounds.parent.open_round import Around, OpenRound
from fedstrata.rounds.parent.report_checks import check_run
from fedstrata.rules import Gathering
from fedstrata.v1 import rounds_pb2 as pb


class RoundServer(ChildCalls):
    """Serve one round after another to a set of children."""

    def open(self, opened: OpenRound) -> None:
        """Open a round, so that children can fetch its model and answer."""
        opened.announce(self.terms.run_id, self.terms.link.down)
        for child_id in self.refused:  # before any child learns of the round
            opened.intake.exclude(child_id)
        opened.intake.when_void(self._tell)
        around = Around(
            opened=opened,
            terms=self.terms,
            refused=self.refused,
            calls=self._calls,
            messages=self._messages,
            metrics=self._metrics,
            log=self._log,
        )
        for stage in opened.stages:
            stage.begin(around)
        self._round = opened
        self.terms.clock.round_opened()
        self._metrics.round_opened(opened.number)
        self._calls.tell(but=opened.kept)

    async def fetch_closed(
        self, closed: OpenRound, request: pb.FetchModelRequest
    ) -> AsyncIterator[pb.ModelPart | bytes]:
        """Yield the messages with the model of a closed round, for a child that must repeat the round."""
        check_run(self.terms.run_id, request.run_id)
        self.refused.check(request.child_id)
        closed.announce(self.terms.run_id, self.terms.link.down)
        async for part in self._parts_for(closed, request):
            yield part
            del part  # releases the memory of this chunk while the next one is awaited

    def finish(self, reason: str = "") -> None:
        """Tell every child, from now on, that the run is over. If the run failed, also tell the reason."""
        self._finished = reason
        self._tell()

    def look_again(self) -> None:
        """Let waiting calls check again whether there is a reply for them. Call this when the served children have
        changed.
        """
        self._tell()

    def release(self) -> None:
        """End all waiting calls, because this object will open no further round. When the children call again, the LPS
        uses another object, or tells them that it no longer serves them.
        """
        self._is_released = True
        self._tell()

    def restart(self, child_id: str) -> None:
        """Note that a child has a new process. Forget that the child was refused, and drop its incomplete upload."""
        self.refused.forget(child_id)
        if self._round is not None:
            self._round.intake.restart(child_id)

    async def gather(self) -> RoundResult:
        """Wait until the open round is complete, or until its deadline. Then close the round, and return its result.

        Raises:
            RunStoppedError: too few children have reported, or too few are left that can still report.
        """
        opened = self.opened()
        intake, wait = opened.intake, self.terms.wait
        for stage in opened.stages:
            await stage.gather()
        until_complete = partial(wait_until, intake.completed, lambda: intake.is_complete)
        while not await wait_awake(until_complete, wait.deadline_s):
            self._log.warning("deadline_reached", round=opened.number, missing=list(intake.exclude_late()))
        intake.check_quorum(self.refused.reasons)
        reach("aggregation", opened.number)
        result = await intake.close()
        exchanged = {name: sent_up.after(opened.sent_to(name)) for name, sent_up in result.exchanged.items()}
        return replace(result, exchanged=exchanged)

    def go_on(self, clusters: Mapping[str, int], sums: Gathering) -> None:
        """Collect updates in `sums` from now on. Each child then belongs to its cluster in `clusters`."""
        opened = self.opened()
        opened.intake.sums = sums
        for stage in opened.stages:
            stage.go_on(clusters)
        self._tell()

    async def wait_all_told(self, children: set[str], timeout_s: float) -> bool:
        """Wait until these children know that the run is over, but at most `timeout_s` seconds. Return whether all of
        them know.
        """
        return await self._messages.wait_until(lambda: children <= self._know_end, timeout_s)
