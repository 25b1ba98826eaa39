"""A parent's side of the rounds: it opens them, streams their model down and gathers what comes up.

The LPS uses one for each cluster with devices as children, the GPS one with clusters as children.
"""

import time
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import Executor

from fedstrata.clock.round import Exchanged
from fedstrata.errors import NotReadyError, NotServedError, PayloadError, RunStoppedError
from fedstrata.process.fault_points import reach
from fedstrata.process.logs import EventLog
from fedstrata.process.metrics import ProcessMetrics
from fedstrata.process.quoting import quoted
from fedstrata.process.sleeping import Changes, wait_until
from fedstrata.rounds.children import Refusals, RoundResult
from fedstrata.rounds.notes import check_evaluation, check_run
from fedstrata.rounds.one_at_a_time import Turns
from fedstrata.rounds.open_round import Around, OpenRound, RoundTerms
from fedstrata.rounds.uploads import Uploads
from fedstrata.rpc.payload import Acceptance
from fedstrata.tensors import Sums
from fedstrata.v1 import rounds_pb2 as pb


class RoundServer:
    """Serves one sequence of rounds to a set of children."""

    def __init__(
        self,
        exchange: RoundTerms,
        metrics: ProcessMetrics,
        log: EventLog,
        executor: Executor,
        *,
        accepts_updates: Callable[[int], Acceptance] | None = None,
        serves: Callable[[str], bool] | None = None,
        refused: Refusals | None = None,
    ) -> None:
        """`accepts_updates` gives what an update of a round has to be; by default, what `exchange` says.

        `serves` is false for a child that another parent has now. `refused` keeps refused children for others, too.
        """
        self.exchange = exchange
        self._metrics = metrics
        self._log = log
        self._executor = executor
        self._round: OpenRound | None = None
        self._finished: str | None = None
        self.refused = refused if refused is not None else Refusals(log)
        self._know_end: set[str] = set()
        self._is_released = False
        self._changes = Changes()
        self._turns = Turns()
        self._uploads = Uploads(exchange, metrics, self.refused, self._turns, accepts_updates)
        self._serves = serves or (lambda child_id: True)

    # --- the parent's own calls ---------------------------------------------------------------

    def open(self, opened: OpenRound) -> None:
        """Let children fetch the round's model and answer."""
        opened.announce(self.exchange.run_id, self.exchange.link.down)
        for child_id in self.refused:  # before anybody hears of the round: nobody masks for them
            opened.intake.exclude(child_id)
        opened.intake.when_void(self._changes.tell)
        around = Around(
            opened=opened,
            terms=self.exchange,
            refused=self.refused,
            changes=self._changes,
            metrics=self._metrics,
            log=self._log,
        )
        for stage in opened.stages:
            stage.begin(around)
        self._round = opened
        self.exchange.clock.round_opened()
        self._metrics.round_opened(opened.number)
        self._changes.tell()

    def finish(self, reason: str = "") -> None:
        """Tell every child from now on that the run is over, and why if it was not completed."""
        self._finished = reason
        self._changes.tell()

    def look_again(self) -> None:
        """Have held calls look whether there is news for them: who is served here has changed."""
        self._changes.tell()

    def release(self) -> None:
        """Answer all held calls at once: nothing more will come from here, and who asks again is sent elsewhere."""
        self._is_released = True
        self._changes.tell()

    def restart(self, child_id: str) -> None:
        """Another process speaks for a child from now on; what the one before has done or sent in part is void."""
        self.refused.forget(child_id)
        if self._round is not None:
            self._round.intake.restart(child_id)

    async def gather(self) -> RoundResult:
        """Wait until the open round is complete, or its deadline is reached with a quorum, and close it.

        Raises:
            RunStoppedError: too few children have reported, or can.
        """
        opened = self.opened()
        intake, wait = opened.intake, self.exchange.wait
        for stage in opened.stages:
            await stage.gather()
        while not await wait_until(intake.reported, lambda: intake.is_complete, wait.deadline_s):
            self._log.warning("deadline_reached", round=opened.number, missing=list(intake.exclude_late()))
        intake.check_quorum(self.refused.reasons)
        reach("aggregation", opened.number)
        return await intake.close()

    def go_on(self, clusters: Mapping[str, int], sums: Sums) -> None:
        """Gather updates from now on, of children that go on each in its cluster."""
        opened = self.opened()
        opened.intake.sums = sums
        for stage in opened.stages:
            stage.go_on(clusters)
        self._changes.tell()

    async def wait_all_told(self, children: set[str], timeout_s: float) -> bool:
        """Wait, for a time, until these children have been told that the run is over."""
        return await self._changes.wait_until(lambda: children <= self._know_end, timeout_s)

    def exchanged(self, result: RoundResult) -> dict[str, Exchanged]:
        """What went between the children and this parent in the round just closed, for its timeline."""
        opened = self.opened()
        return {name: uploaded.after(opened.sent_to(name)) for name, uploaded in result.uploaded.items()}

    @property
    def awaited(self) -> tuple[int, tuple[str, ...], str]:
        """Return the open round, -1 for none, the children that it still waits for, and for what of theirs."""
        return (-1, (), "") if self._round is None else (self._round.number, *self._round.lacking)

    def opened(self) -> OpenRound:
        """The open round. Raises RunStoppedError where there is none."""
        if self._round is None:
            raise RunStoppedError("no round is open")
        return self._round

    # --- the children's calls -----------------------------------------------------------------

    async def fetch(self, request: pb.FetchModelRequest) -> AsyncIterator[pb.ModelPart | bytes]:
        """Hold the call until there is something for this child, then stream it."""
        check_run(self.exchange.run_id, request.run_id)
        child_id = request.child_id
        self.refused.check(child_id)
        held_until = time.monotonic() + self.exchange.held_s
        await self._changes.wait_until(
            lambda: self._is_released or self._round is not None or self._is_over_for(request), self.exchange.held_s
        )
        self._hear_of(request)
        await self._changes.wait_until(
            lambda: self._is_released or self._has_news(request), held_until - time.monotonic()
        )
        if self._finished is None and not self._serves(child_id):
            raise NotServedError(f"{quoted(child_id)} has moved to another parent; ask for the assignment")
        if self._finished is not None:
            yield pb.ModelPart(finished=pb.Finished(reason=self._finished))
            if self._round is not None and self._round.intake.state_of(child_id) is not None:
                self._know_end.add(child_id)
            self._changes.tell()
        elif not self._has_news(request):
            yield pb.ModelPart(waiting=pb.Waiting(current_round=self._round.number if self._round else -1))
        else:
            async for part in self._parts_for(self.opened(), request):
                yield part
                del part  # a chunk; the next may be long in coming

    async def _parts_for(self, opened: OpenRound, request: pb.FetchModelRequest) -> AsyncIterator[pb.ModelPart | bytes]:
        """Give what a child gets of the open round: its model, or what is said instead."""
        for first in opened.first(request):
            yield first
        if (said := await opened.instead_of_model(request)) is not None:
            yield said
            return
        child_id, offset = request.child_id, opened.resumed_at(request)
        model = self.exchange.clock.model(self._turns.one, opened.offer_to(child_id), child_id, opened.number, offset)
        async for part in model:
            yield part
            del part  # as above

    def _has_news(self, request: pb.FetchModelRequest) -> bool:
        return self._is_over_for(request) or (self._round is not None and self._round.has_news_for(request))

    def _is_over_for(self, request: pb.FetchModelRequest) -> bool:
        """Return whether a child gets nothing more here: the run is over, or another parent has the child now."""
        return self._finished is not None or not self._serves(request.child_id)

    def _hear_of(self, request: pb.FetchModelRequest) -> None:
        """Let the stages of the open round know that a child asks.

        Raises:
            PayloadError: no honest child asks so; the child is refused, which it can be of an open round alone.
        """
        try:
            self.exchange.keys.show(request.child_id, request.mask_key)
            if self._round is not None and self._round.asked(request):
                self._changes.tell()
        except PayloadError as error:
            self.ban(request.child_id, str(error))
            raise

    async def hear(self, message: pb.RoundAnswer | pb.UpdateHeader) -> None:
        """Take what a child says beside its update: an answer, or an announcement. What is not wanted is passed over.

        Raises:
            PayloadError: no honest child says so; the child is refused. SupersededError: it has begun another call.
        """
        check_run(self.exchange.run_id, message.run_id)
        try:
            if isinstance(message, pb.UpdateHeader):
                self._uploads.check(self._round, message)
            if self._round is not None and await self._round.hear(message):
                self._changes.tell()
        except PayloadError as error:
            self.ban(message.child_id, str(error))
            raise

    async def submit(self, header: pb.UpdateHeader, parts: AsyncIterator[pb.UpdatePart]) -> pb.UpdateReply:
        """Take one child's update for the open round; one that misses it is an answer, not an error."""
        check_run(self.exchange.run_id, header.run_id)
        try:
            accepted = await self._uploads.take(self._round, header, parts)
        except PayloadError as error:
            self.ban(header.child_id, str(error))
            self._metrics.update("rejected")
            raise
        number = self._round.number if self._round else -1
        return pb.UpdateReply(run_id=self.exchange.run_id, accepted=accepted, current_round=number)

    def check_payload(self, header: pb.UpdateHeader) -> None:
        """Raise PayloadError for an update that is not what this parent's children send."""
        self._uploads.check_payload(self._round, header)

    def locate(self, request: pb.LocateUpdateRequest) -> pb.LocateUpdateResponse:
        """Say where a child's upload stands."""
        check_run(self.exchange.run_id, request.run_id)
        opened = self._round
        offset, number = (opened.offset_of(request), opened.number) if opened else (0, -1)
        return pb.LocateUpdateResponse(run_id=self.exchange.run_id, offset=offset, current_round=number)

    def evaluate(self, run_id: str, evaluation: pb.Evaluation) -> None:
        """Take what a child measured of the final model; idempotent.

        Raises:
            NotReadyError: after a restart the final model is not out again; asking for the round says what is wanted.
        """
        check_run(self.exchange.run_id, run_id)
        check_evaluation(evaluation)
        if self._finished is not None:
            return  # it is in already, or not wanted any more
        opened = self._round
        if opened is None or not opened.evaluate_only:
            raise NotReadyError("the final model is not out; try again, or ask for the round that is open")
        opened.intake.limits.check_measured([evaluation])
        opened.intake.accept_evaluation(evaluation.device_id, evaluation)

    def ban(self, child_id: str, reason: str) -> None:
        """Refuse a child for the rest of the run, if its update of the open round is not in yet."""
        opened = self._round
        if opened is not None and self.refused.refuse(opened.intake, opened.number, child_id, reason):
            opened.intake.exclude(child_id)
            self._changes.tell()
