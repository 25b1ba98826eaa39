"""The optional parts (stages) of a round: a question, and a deadline in virtual time."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial

from fedstrata.clock.deadline import Deadline
from fedstrata.clock.exchanged import Exchanged
from fedstrata.errors import PayloadError
from fedstrata.methods.base import Arrays, Question
from fedstrata.process.fault_points import reach
from fedstrata.rounds.open_round import Around, Message, Stage, Verdict
from fedstrata.rpc.answers import arrays_of, refused_by_method
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
        await around.changes.wait_awake(lambda: not self._silent(), around.terms.wait.deadline_s)
        for child_id in self._silent():
            around.log.warning("no_answer", child=child_id, round=around.opened.number, question=self.question.name)
            intake.exclude(child_id)
        for child_id in self.deadline.late_answers({name: self.answers[name] for name in intake.missing}):
            intake.exclude(child_id)
        intake.check_quorum(around.refused.reasons, still_awaited=True)
        return {child_id: self.answers[child_id] for child_id in intake.missing}

    def exchanged(self, answers: Mapping[str, answers_pb2.Answer]) -> dict[str, Exchanged]:
        """Return, by child, how many bytes the child and the parent have exchanged, up to the child's answer."""
        opened = self._around.opened
        return {name: Exchanged.of_answer(each).after(opened.sent_to(name)) for name, each in answers.items()}

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
        if self.deadline.is_answer_late(child_id, self.answers.setdefault(child_id, copy)):
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
    """Leave out children that miss a deadline on the virtual clock.

    If lateness depends on the transfers of all children, each child announces its update before it sends the update.
    """

    deadline: Deadline

    def begin(self, around: Around) -> None:
        self._around = around
        self.deadline.begin(around.opened)

    def holds_back(self, request: pb.FetchModelRequest, *, is_sent: bool) -> bool:
        return is_sent and self.deadline.holds_back(request.child_id)

    async def instead_of_model(self, request: pb.FetchModelRequest, *, is_sent: bool) -> pb.ModelPart | None:
        if not is_sent or not self.deadline.wants_word_of(request.child_id):
            return None
        return pb.ModelPart(send_again=pb.SendAgain(round=self._around.opened.number, announce=True))

    async def hear(self, message: Message) -> bool:
        return isinstance(message, pb.UpdateHeader) and self._note(message)

    def _note(self, header: pb.UpdateHeader) -> bool:
        """Keep the announcement of an update. Return whether the round needs the announcement. Raises PayloadError for
        an impossible announcement.
        """
        opened = self._around.opened
        if not self.deadline.are_announced or not opened.gathers(header):
            return False
        opened.intake.limits.check_measured(header.evaluations)
        self.deadline.note(header)
        reach("upload", opened.number)
        return True

    def judge(self, header: pb.UpdateHeader) -> Verdict:
        opened = self._around.opened
        if not opened.awaits(header.child_id):
            return Verdict.TAKEN
        if self.deadline.is_late(header):
            opened.intake.exclude(header.child_id)
            return Verdict.LATE
        if not self.deadline.is_gathering:
            return Verdict.TAKEN
        if self._note(header):  # the header counts as the announcement
            self._around.changes.tell()
        return Verdict.NOT_YET

    def lacking(self) -> tuple[tuple[str, ...], str] | None:
        if not self.deadline.is_gathering:
            return None
        return self.deadline.lacking(self._around.opened.intake.missing), "its update"

    async def gather(self) -> None:
        await self.deadline.decide(self._around.changes, partial(self._around.metrics.update, "late"))


def on_time(deadline: Deadline) -> list[Stage]:
    """Return a list with the stage that applies a round's virtual deadline. If no child can be late, the list is
    empty.
    """
    return [OnTime(deadline)] if deadline.can_be_missed else []
