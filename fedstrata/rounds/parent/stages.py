"""The optional parts (stages) of a round: a question, and a deadline in virtual time.

In an LPS round with both, calls follow in this order. `Deadline` only says which children are late, and the stage that
called it leaves them out of the round.

1. `RoundServer.open` calls `begin` of each stage. `OnTime` calls `Deadline.begin`: some children may still be busy.
2. `Asking.hear` takes each answer, and calls `Deadline.is_answer_late`.
3. `Asking.gathered` waits for all answers, and calls `Deadline.late_answers`. The LPS sends the answers to the GPS. If
   the LPS was restarted after the GPS had made the plan, `Asking.restore` takes the place of steps 2 and 3.
4. The LPS learns of the plan. `LpsClock.go_on` calls `Deadline.go_on`: the time for updates begins. Then
   `RoundServer.go_on` calls `go_on` of each stage, and children train.
5. Each update comes to `judge` of each stage. `OnTime` calls `Deadline.is_update_late`. `Announcing` first takes the
   announcements of all children, and its method `gather` calls `Deadline.late_updates`. `Contributing` calls
   `Deadline.late_updates` when the closing time from `Deadline.closes_ns` is reached.
6. `RoundServer.gather` returns when the round is complete. `LpsClock.of_round` writes the times of the round and of its
   late children into the report.

A round without a question has steps 1, 5 and 6.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial

from fedstrata.clock.deadline import Deadline
from fedstrata.clock.exchanged import Exchanged
from fedstrata.errors import PayloadError
from fedstrata.methods.base import Arrays, Question
from fedstrata.process.fault_points import reach
from fedstrata.process.waiting import wait_awake, wait_until
from fedstrata.rounds.parent.children import ChildState
from fedstrata.rounds.parent.open_round import Around, Message, Stage, Verdict
from fedstrata.rpc.answer_messages import arrays_of, refused_by_method
from fedstrata.rpc.messages import MOST_MEASURED
from fedstrata.v1 import answers_pb2
from fedstrata.v1 import rounds_pb2 as pb


@dataclass
class Asking(Stage):
    """Ask the children a question. The GPS makes a plan from the answers, and after that the children train."""

    question: Question
    check: Callable[[Question, Arrays, Iterable[int]], None]  # the method's check of an answer
    deadline: Deadline  # deadline for answers
    answers: dict[str, answers_pb2.Answer] = field(default_factory=dict)
    clusters: Mapping[str, int] | None = None  # cluster by child, from the plan; None until the plan is made
    went_on_ns: int = 0  # on the real clock: time at which the parent learned of the plan

    def begin(self, around: Around) -> None:
        self._around = around

    @property
    def is_over(self) -> bool:
        """Return whether the wait for answers is over, so that the round collects updates."""
        return self.clusters is not None

    async def gathered(self) -> Mapping[str, answers_pb2.Answer]:
        """Wait until all children have answered, or until the round's deadline. Return the answers that were in time.

        Raises:
            RunStoppedError: too few children have answered in time.
        """
        around, intake = self._around, self._around.opened.intake
        for child_id in around.refused:
            intake.exclude(child_id)
        await around.messages.wait_awake(lambda: not self._silent(), around.terms.wait.deadline_s)
        for child_id in self._silent():
            around.log.warning("no_answer", child=child_id, round=around.opened.number, question=self.question.name)
            intake.exclude(child_id)
        answers = {child_id: self.answers[child_id] for child_id in intake.missing}
        for child_id in self.deadline.late_answers(self.exchanged(answers)):
            intake.exclude(child_id)
        intake.check_quorum(around.refused.reasons, still_awaited=True)
        return {child_id: self.answers[child_id] for child_id in intake.missing}

    def exchanged(self, answers: Mapping[str, answers_pb2.Answer]) -> dict[str, Exchanged]:
        """Return, by child, the bytes of the model that the child received, and of the child's answer."""
        opened = self._around.opened
        return {name: Exchanged.of_answer(each).after(opened.sent_to(name)) for name, each in answers.items()}

    def restore(self, late: Iterable[pb.Flow]) -> None:
        """After a restart of the parent, leave out the children with late answers again. `late` has the transfers of
        these children, which were recorded before the restart.
        """
        for child_id in self.deadline.restore(late):
            self._around.opened.intake.exclude(child_id)

    def _silent(self) -> list[str]:
        return [child_id for child_id in self._around.opened.intake.missing if child_id not in self.answers]

    async def hear(self, message: Message) -> bool:
        """Take a child's answer. Return whether the round uses the answer. If the answer misses a deadline on the
        virtual clock, the round leaves out the child.
        """
        if not isinstance(message, pb.RoundAnswer) or self.is_over:
            return False
        child_id, opened = message.child_id, self._around.opened
        self.check_answer(child_id, message.answer)
        clock = self._around.terms.clock
        await clock.answer_arrived(child_id, message.round, message.answer.ByteSize())
        if self.is_over or not opened.awaits(child_id):
            return False
        self.keep(child_id, message.answer)
        return True

    def keep(self, child_id: str, answer: answers_pb2.Answer) -> None:
        """Keep a checked answer. If a child answers twice, the first answer stays. Raises PayloadError if the answer
        takes more than 73 years, the limit of the virtual clock.
        """
        copy = answers_pb2.Answer()
        copy.CopyFrom(answer)  # a copy, because a part of a message keeps the whole message in memory
        kept = self.answers.setdefault(child_id, copy)
        if self.deadline.is_answer_late(child_id, self.exchanged({child_id: kept})[child_id]):
            self._around.opened.intake.exclude(child_id)

    def check_answer(self, child_id: str, answer: answers_pb2.Answer) -> None:
        """Raise PayloadError for an answer that is impossible for the child."""
        if not 0 <= answer.trained_examples < MOST_MEASURED:
            raise PayloadError(f"{child_id} reports training on {answer.trained_examples} examples for its answer")
        with refused_by_method():
            self.check(self.question, arrays_of(self.question, answer), ())

    def go_on(self, clusters: Mapping[str, int]) -> None:
        self.clusters, self.went_on_ns = clusters, self._around.terms.clock.now_ns()

    def holds_back(self, request: pb.FetchModelRequest, *, is_sent: bool) -> bool:
        return not self.is_over and self._is_of_this(request) and request.child_id in self.answers

    async def instead_of_model(self, request: pb.FetchModelRequest, *, is_sent: bool) -> pb.ModelPart | None:
        if is_sent or not self._is_of_this(request):
            return None
        child_id, number = request.child_id, self._around.opened.number
        if self.clusters is None:  # the parent has restarted since the answer and no longer has it
            return pb.ModelPart(send_again=pb.SendAgain(round=number))
        await self._around.terms.clock.heard(child_id, number, self.went_on_ns)
        return pb.ModelPart(go_on=pb.GoOn(round=number, cluster=self.clusters.get(child_id, 0)))

    def judge(self, header: pb.UpdateHeader) -> Verdict:
        return Verdict.TAKEN if self.is_over else Verdict.LATE

    def _is_of_this(self, request: pb.FetchModelRequest) -> bool:
        """Return whether a child reports that it has answered this round's question."""
        return request.HasField("answered_round") and request.answered_round == self._around.opened.number


@dataclass
class OnTime(Stage):
    """Leave out children that miss a deadline on the virtual clock. Use this stage if the lateness of an update does
    not depend on other updates.
    """

    deadline: Deadline

    def begin(self, around: Around) -> None:
        self._around, opened = around, around.opened
        self._let_rest(self.deadline.begin({name: opened.sent_to(name) for name in opened.intake.missing}))

    def _let_rest(self, children: Collection[str]) -> None:
        """Leave children out of the round before they learn of the round."""
        for child_id in children:
            self._around.opened.intake.exclude(child_id)

    def judge(self, header: pb.UpdateHeader) -> Verdict:
        opened, child_id = self._around.opened, header.child_id
        if opened.awaits(child_id) and self.deadline.is_update_late(child_id, self._updated(header)):
            opened.intake.exclude(child_id)
            return Verdict.LATE
        return Verdict.TAKEN

    def _updated(self, header: pb.UpdateHeader) -> Exchanged:
        return Exchanged.of_update(header).after(self._around.opened.sent_to(header.child_id))


@dataclass
class Announcing(OnTime):
    """Leave out children that miss a deadline on the virtual clock, if lateness depends on the updates of all children.
    So each child announces its update before it sends the update.
    """

    announced: dict[str, Exchanged] = field(default_factory=dict)
    is_gathering: bool = True  # whether the round still waits for announcements

    def holds_back(self, request: pb.FetchModelRequest, *, is_sent: bool) -> bool:
        return is_sent and self.is_gathering and request.child_id in self.announced

    async def instead_of_model(self, request: pb.FetchModelRequest, *, is_sent: bool) -> pb.ModelPart | None:
        if not is_sent or request.child_id in self.announced:
            return None
        number = self._around.opened.number_for(request.child_id)
        return pb.ModelPart(send_again=pb.SendAgain(round=number, announce=True))

    async def hear(self, message: Message) -> bool:
        return isinstance(message, pb.UpdateHeader) and self._keep(message)

    def _keep(self, header: pb.UpdateHeader) -> bool:
        """Keep the announcement of an update. If a child announces twice, the first announcement stays. Return whether
        the announcement belongs to the round. Raises PayloadError for an impossible announcement.
        """
        opened, child_id = self._around.opened, header.child_id
        if not opened.gathers(header):
            return False
        opened.intake.limits.check_measured(header.evaluations)
        if child_id not in self.announced and super().judge(header) is Verdict.TAKEN:
            self.announced[child_id] = self._updated(header)
        reach("upload", opened.number)
        return True

    def judge(self, header: pb.UpdateHeader) -> Verdict:
        if not self.is_gathering or not self._around.opened.awaits(header.child_id):
            return Verdict.TAKEN
        if self._keep(header):  # the header counts as the announcement
            self._around.messages.tell()
        return Verdict.NOT_YET

    def lacking(self) -> tuple[tuple[str, ...], str] | None:
        return (self._silent(), "its update") if self.is_gathering else None

    def _silent(self) -> tuple[str, ...]:
        missing = self._around.opened.intake.missing
        return tuple(child_id for child_id in missing if child_id not in self.announced)

    async def gather(self) -> None:
        """Wait until all children have announced their updates. Then leave out the late children, and let the other
        children send.

        If too few children are left, the round ends before all have announced. Then no child is late.
        """
        await self._around.messages.wait_until_ns(self._closes_ns)
        self.is_gathering = False
        if self._must_decide():
            self._leave_out(self.deadline.late_updates(self._updates()))
        self._let_send()

    def _must_decide(self) -> bool:
        """Return whether a child of the round can be late."""
        return not self._around.opened.intake.is_complete

    def _let_send(self) -> None:
        """Wake the calls of the children that may send their updates now."""
        self._around.calls.tell()

    def _closes_ns(self) -> int | None:
        """Return when the wait for announcements ends; None if this is not known yet."""
        if self._around.opened.intake.is_complete:
            return 0
        return self.deadline.closes_ns(self._at_work(), self._silent())

    def _at_work(self) -> Collection[str]:
        """Return the children with an update in this round or, if updates are kept, in a later round."""
        return self._around.opened.intake.missing

    def _updates(self) -> dict[str, Exchanged]:
        """Return the announced updates from which the deadline decides."""
        missing = self._around.opened.intake.missing
        return {name: self.announced[name] for name in missing if name in self.announced}

    def _leave_out(self, late: Collection[str]) -> None:
        """Leave late children out of the round."""
        for child_id in late:
            self._around.opened.intake.exclude(child_id)
            self._around.metrics.update("late")


@dataclass
class Contributing(Announcing):
    """Take the updates that arrive before this round closes, by the run's clock. Other updates stay at their devices
    until the round in which they arrive. Updates that were announced in an earlier round are not announced again.
    """

    @property
    def kept(self) -> Collection[str]:
        return self.announced.keys()

    def begin(self, around: Around) -> None:
        super().begin(around)
        self.announced.update(self.deadline.announced)
        self._children = around.opened.intake.missing
        self._has_decided = False  # whether the updates of the round have been decided once

    async def gather(self) -> None:
        """Wait until the round closes, and then until its updates have arrived. If a device is refused, compute again
        when the round closes, without this device's update. The round then closes later, or it closes with the same
        other updates. So no other update leaves the round.
        """
        intake, refused = self._around.opened.intake, None
        while refused != intake.excluded:
            refused = intake.excluded
            for name in self._children:
                if intake.state_of(name) is ChildState.LATER:
                    intake.take_back(name)
            self.is_gathering = True
            await super().gather()
            self._has_decided = True
            until_complete = partial(wait_until, intake.completed, lambda: intake.is_complete)
            while not await wait_awake(until_complete, self._around.terms.wait.deadline_s):
                intake.exclude_late()

    def _must_decide(self) -> bool:
        """Return whether the round must decide which updates it takes. If children are at work, a repeated decision is
        needed even if all other updates of the round are here. Until then, the refused device still belongs to the
        round.
        """
        return super()._must_decide() or (self._has_decided and bool(self._updates()))

    def _let_send(self) -> None:
        self._around.calls.tell_only(["", *self._around.opened.intake.missing])

    def _let_rest(self, children: Collection[str]) -> None:
        self._around.opened.intake.release(children)

    def _at_work(self) -> Collection[str]:
        excluded = self._around.opened.intake.excluded
        return [name for name in self._children if name not in excluded]

    def _updates(self) -> dict[str, Exchanged]:
        """Return the updates of all children at work. A child without an announcement has an empty entry, which is
        possible on the real clock.
        """
        silent = Exchanged()
        return {name: self.announced.get(name, silent) for name in self._at_work()}

    def _leave_out(self, late: Collection[str]) -> None:
        intake, is_later = self._around.opened.intake, set(late)
        intake.release([name for name in intake.missing if name in is_later])


def on_time(deadline: Deadline) -> list[Stage]:
    """Return a list with the stage that applies a round's virtual deadline. If no child can be late, the list is
    empty.
    """
    if not deadline.can_be_missed:
        return []
    if deadline.are_kept:
        return [Contributing(deadline)]
    return [Announcing(deadline) if deadline.are_announced else OnTime(deadline)]
