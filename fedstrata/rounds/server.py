"""A parent's side of the rounds: it opens them, streams their model down and gathers what comes up.

The LPS uses one for each cluster with devices as children, the GPS one with clusters as children.
"""

from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import Executor
from contextlib import nullcontext
from functools import partial
from typing import Any

from fedstrata.clock.exchanged import Exchanged
from fedstrata.errors import (
    NotReadyError,
    NotServedError,
    PayloadError,
    RunStoppedError,
    SupersededError,
    UnknownChildError,
)
from fedstrata.process.fault_points import reach
from fedstrata.process.logs import EventLog
from fedstrata.process.metrics import ProcessMetrics
from fedstrata.process.quoting import quoted
from fedstrata.process.sleeping import Changes, wait_until
from fedstrata.rounds.child import ChildState
from fedstrata.rounds.folding import fold_parts
from fedstrata.rounds.mask_keys import is_shown
from fedstrata.rounds.notes import check_evaluation, check_notes, check_run
from fedstrata.rounds.offered import offered
from fedstrata.rounds.one_at_a_time import Turns
from fedstrata.rounds.open_round import OpenRound
from fedstrata.rounds.refusals import Refusals
from fedstrata.rounds.result import RoundResult
from fedstrata.rounds.terms import RoundTerms
from fedstrata.rpc.payload import Acceptance
from fedstrata.tensors import PayloadCodec, Sums
from fedstrata.v1 import answers_pb2
from fedstrata.v1 import rounds_pb2 as pb


class RoundServer:
    """Serves one sequence of rounds to a set of children."""

    def __init__(self, exchange: RoundTerms, metrics: ProcessMetrics, log: EventLog, executor: Executor) -> None:
        self.exchange = exchange
        self._metrics = metrics
        self._log = log
        self._executor = executor
        self._round: OpenRound | None = None
        self._finished: str | None = None
        self.refused = Refusals(log)
        self._know_end: set[str] = set()
        self._is_released = False
        self._changes = Changes()
        self._turns = Turns()
        updates = exchange.updates()
        self.accepts_updates: Callable[[int], Acceptance] = lambda number: updates  # of a round up to the open one
        self.serves: Callable[[str], bool] = lambda child_id: True  # false of a child that another parent has now

    # --- the parent's own calls ---------------------------------------------------------------

    def open(self, opened: OpenRound) -> None:
        """Let children fetch the round's model and answer."""
        opened.announce(self.exchange.run_id, self.exchange.link.down)
        opened.intake.on_void = partial(self._voided, opened)
        for child_id in self.refused:  # before anybody is told of the round: nobody masks for them
            opened.intake.exclude(child_id)
        opened.deadline.begin(opened)
        self._round = opened
        self.exchange.clock.round_opened()
        self._metrics.round_opened(opened.number)
        self._changes.tell()

    def _voided(self, opened: OpenRound) -> None:
        if opened.masking is not None:
            opened.masking.renew()
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
        if opened.masking is not None:
            for child_id in await opened.masking.without_key(self._changes, wait.deadline_s):
                self._log.warning("no_key", child=child_id, round=opened.number)
                intake.exclude(child_id)
        await opened.deadline.decide(self._changes, partial(self._metrics.update, "late"))
        while not await wait_until(intake.reported, lambda: intake.is_complete, wait.deadline_s):
            self._log.warning("deadline_reached", round=opened.number, missing=list(intake.exclude_late()))
        intake.check_quorum(self.refused.reasons)
        reach("aggregation", opened.number)
        return await intake.close()

    async def gather_answers(self) -> Mapping[str, answers_pb2.Answer]:
        """Wait until all children of the open round have answered its question, or for its deadline.

        Raises:
            RunStoppedError: too few have, or can.
        """
        opened, wait = self.opened(), self.exchange.wait
        asking, intake = opened.asking, opened.intake
        if asking is None:
            return {}
        for child_id in self.refused:
            intake.exclude(child_id)
        await self._changes.wait_until(lambda: not asking.lacking(intake.missing), wait.deadline_s)
        for child_id in asking.lacking(intake.missing):
            self._log.warning("no_answer", child=child_id, round=opened.number, question=asking.question.name)
            intake.exclude(child_id)
        for child_id in opened.deadline.late_answers({name: asking.answers[name] for name in intake.missing}):
            intake.exclude(child_id)
        intake.check_quorum(self.refused.reasons, still_awaited=True)
        return {child_id: asking.answers[child_id] for child_id in intake.missing if child_id in asking.answers}

    def go_on(self, clusters: Mapping[str, int], sums: Sums) -> None:
        """Let the children of a round that have been asked go on, each in its cluster."""
        opened = self.opened()
        opened.intake.sums = sums
        if opened.asking is not None:
            opened.asking.go_on(clusters, self.exchange.clock.now_ns())
        self._changes.tell()

    async def wait_all_told(self, children: set[str], timeout_s: float) -> bool:
        """Wait, for a time, until these children have been told that the run is over."""
        return await self._changes.wait_until(lambda: children <= self._know_end, timeout_s)

    def exchanged(self, result: RoundResult) -> dict[str, Exchanged]:
        """What went between the children and this parent in the round just closed, for its timeline."""
        opened = self.opened()
        return {name: uploaded.after(opened.sent_to(name)) for name, uploaded in result.uploaded.items()}

    def asked(self, answers: Mapping[str, answers_pb2.Answer]) -> dict[str, Exchanged]:
        """What went between the children and this parent for answers in the open round, likewise."""
        opened = self.opened()
        return {name: Exchanged.of_answer(each).after(opened.sent_to(name)) for name, each in answers.items()}

    def has_refused(self, child_id: str) -> bool:
        """Whether a child was refused for the rest of the run."""
        return child_id in self.refused

    @property
    def awaited(self) -> tuple[int, tuple[str, ...], str]:
        """The open round, -1 where there is none, the children that it still waits for, and for what of theirs."""
        return (-1, (), "") if self._round is None else self._round.awaited

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
        await self._show_key(request)
        await self._changes.wait_until(lambda: self._is_released or self._has_news(request), self.exchange.held_s)
        if self._finished is None and not self.serves(child_id):
            raise NotServedError(f"{quoted(child_id)} has moved to another parent; ask for the assignment")
        if self._finished is not None:
            yield pb.ModelPart(finished=pb.Finished(reason=self._finished))
            if self._round is not None and self._round.intake.state_of(child_id) is not None:
                self._know_end.add(child_id)
            self._changes.tell()
        elif not self._has_news(request):
            yield pb.ModelPart(waiting=pb.Waiting(current_round=self._round.number if self._round else -1))
        else:
            async for part in offered(self.exchange.clock, self._turns, self.opened(), request):
                yield part
                del part  # a chunk; the next may be long in coming

    def _has_news(self, request: pb.FetchModelRequest) -> bool:
        if self._finished is not None or not self.serves(request.child_id):
            return True
        return self._round is not None and self._round.has_news_for(request)

    async def _show_key(self, request: pb.FetchModelRequest) -> None:
        """Under secure aggregation, keep the key that a child shows with each asking, once a round is open.

        Raises:
            PayloadError: it can be no key; the child is refused, which it can be of an open round alone.
        """
        if self.exchange.keys is not None:
            await self._changes.wait_until(
                lambda: self._round is not None or self._finished is not None, self.exchange.held_s
            )
        masking = self._round.masking if self._round is not None else None
        try:
            if not is_shown(self.exchange.keys, request):
                return
            is_news = masking is not None and masking.heard(request.child_id)
        except PayloadError as error:
            self.ban(request.child_id, str(error))
            raise
        if is_news:
            self._changes.tell()

    async def answer(self, message: pb.RoundAnswer) -> None:
        """Take a child's answer to the question of the open round; one that is not asked for any more is passed over.

        Raises:
            PayloadError: it is none; the child is refused. SupersededError: another has begun on its link.
        """
        check_run(self.exchange.run_id, message.run_id)
        opened, child_id = self._round, message.child_id
        if opened is None or (asking := opened.asked_by(message)) is None:
            return
        try:
            asking.check_answer(child_id, message.answer)
            await self.exchange.clock.answer_arrived(child_id, message.round, message.answer.ByteSize())
            if opened.asked_by(message) is not None:
                opened.keep_answer(child_id, message.answer)
                self._changes.tell()
        except PayloadError as error:
            self.ban(child_id, str(error))
            raise

    def announce(self, header: pb.UpdateHeader) -> None:
        """Hear what a child's update is before it is sent; what is not asked for, or not any more, is passed over.

        Raises:
            PayloadError: it can be none; the child is refused.
        """
        check_run(self.exchange.run_id, header.run_id)
        opened = self._round
        try:
            self.check_payload(header)
            check_notes(header, has_work=self.exchange.clock.wants_work)
            if opened is not None and opened.note_announced(header):
                self._changes.tell()
                reach("upload", opened.number)
        except PayloadError as error:
            self.ban(header.child_id, str(error))
            raise

    async def submit(self, header: pb.UpdateHeader, parts: AsyncIterator[pb.UpdatePart]) -> pb.UpdateReply:
        """Take one child's update for the open round; one that misses it is an answer, not an error."""
        check_run(self.exchange.run_id, header.run_id)
        try:
            announced = self.check_payload(header)  # of a late one, too
            check_notes(header, has_work=self.exchange.clock.wants_work)
            is_awaited = self._round is not None and self._round.number == header.round
            async with self.exchange.clock.arriving(header, parts) if is_awaited else nullcontext(parts) as come:
                accepted = await self._take(header, announced, come)
        except PayloadError as error:
            self.ban(header.child_id, str(error))
            self._metrics.update("rejected")
            raise
        number = self._round.number if self._round else -1
        return pb.UpdateReply(run_id=self.exchange.run_id, accepted=accepted, current_round=number)

    def check_payload(self, header: pb.UpdateHeader) -> tuple[PayloadCodec, tuple[int, ...]]:
        """The codec of an update and its weights; what is not taken is still read, in Attend, and so is checked.

        Raises:
            PayloadError: it is not what this parent's children send.
        """
        newest = self._round.number if self._round else 0
        return self.accepts_updates(min(max(header.round, 0), newest)).of(header.payload)

    async def _take(
        self, header: pb.UpdateHeader, announced: tuple[PayloadCodec, tuple[int, ...]], parts: AsyncIterator[Any]
    ) -> bool:
        opened = self._round
        if opened is not None and opened.has(header):
            return True  # the same one, sent again because its reply was lost
        if opened is None or opened.is_asking or not self._is_awaited(opened, header):
            self._metrics.update("late")
            return False
        if opened.deadline.is_gathering:
            self.announce(header)  # of one that was cut before; its data is asked for once all have said theirs
            return False
        intake = opened.intake
        intake.limits.check_measured(header.evaluations)
        try:
            upload = await intake.begin(header.child_id, *announced, header.offset)
            if upload is None:
                return True
            async with upload.until_superseded(upload.child_id):
                turns = self._turns if self.exchange.clock.takes_turns else None
                await fold_parts(opened, upload, parts, turns)
                await intake.finish(upload, header)
        except SupersededError:
            if not intake.is_closed:
                raise
            self._metrics.update("late")
            return False
        self._metrics.update("accepted")
        return True

    def _is_awaited(self, opened: OpenRound, header: pb.UpdateHeader) -> bool:
        """Whether an update is for the open round and its sender has not been given up."""
        if not opened.gathers(header) or not opened.is_masked_for(header):
            return False
        state = opened.intake.state_of(header.child_id)
        if state is None:
            raise UnknownChildError(f"{quoted(header.child_id)} is not of round {opened.number}")
        if state is ChildState.EXCLUDED:
            self.refused.check(header.child_id)
        return state is not ChildState.EXCLUDED and opened.is_in_time(header)

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
        """Refuse a child for the rest of the run."""
        if self.refused.refuse(self._round, child_id, reason):
            self._changes.tell()
