"""The questions in global rounds. Each LPS sends the answers of its devices together (a bundle), and the GPS makes the
plan of the round.
"""

import asyncio
import operator
from collections.abc import Callable, Mapping
from typing import Any

from fedstrata.clock.gps_side import GpsClock
from fedstrata.clock.timeline import LAST_NS
from fedstrata.errors import PayloadError, PluginError, SupersededError, UnknownChildError
from fedstrata.methods import Answers, Candidate, Method, Moment, Plan, Question
from fedstrata.plugins import or_failed
from fedstrata.process.logs import EventLog
from fedstrata.process.waiting import Changes
from fedstrata.rpc.answer_messages import arrays_of, bytes_of, refused_by_method
from fedstrata.streams.plan_checks import check_plan
from fedstrata.streams.streams import Streams
from fedstrata.v1 import answers_pb2 as pb
from gps.journal.journal import Journal
from gps.plans.places import Places


class Bundles:
    """Collect the bundles of a global round, and make the plan of the round. Each bundle is saved before the reply, so
    a restarted GPS does not ask again.
    """

    def __init__(
        self, method: Method, streams: Streams, *, places: Places, journal: Journal, changes: Changes, log: EventLog,
        clock: GpsClock, awaited: Callable[[], set[str]],
    ) -> None:  # fmt: skip
        """Set `awaited`, which returns the clusters that can still send bundles."""
        self._method = method
        self._streams = streams
        self._places = places
        self._plans = places.plans
        self._journal = journal
        self._changes = changes
        self._log = log
        self._clock = clock
        self._awaited = awaited
        self.question: Question | None = next((q for q in method.questions() if q.moment is not Moment.BEFORE), None)

    async def take(
        self, header: pb.BundleHeader, answers: Mapping[int, pb.Answer], is_current: Callable[[], bool] = lambda: True
    ) -> None:
        """Take the answers of an LPS's devices. A repeated bundle changes nothing.

        If the run's clock simulates links in real time, first wait until the LPS's link has delivered the answers. Then
        call `is_current`, which returns whether the devices still belong to this LPS. If they do not, ignore the
        answers.

        Raises:
            UnknownChildError: a device does not belong to the LPS.
            PayloadError: an answer is invalid.
            SupersededError: the stream ended before all answers had arrived.
        """
        question = self._check(header, answers)
        name, number, size = header.home_id, header.global_round, bytes_of(answers)
        if not self._plans.is_planned(number):
            await self._clock.rounds.answer_arrived(name, number, size)
        if not self._plans.is_planned(number) and is_current():
            told = {index: answer.SerializeToString(deterministic=True) for index, answer in answers.items()}
            arrived_ns = self._clock.bundled_ns(name, number, header.answered_ns, size)
            self._journal.answers.add_bundle(question.name, number, name, told, arrived_ns)
            self._changes.tell()

    def _check(self, header: pb.BundleHeader, answers: Mapping[int, pb.Answer]) -> Question:
        """Check the answers of an LPS's devices, and return the question that these answers belong to. For an invalid
        answer, raise one of the errors that `take` names.
        """
        if self.question is None:
            raise PayloadError("this run asks devices nothing in global rounds")
        if len(answers) < header.answers:
            raise SupersededError(f"{len(answers)} of {header.answers} answers arrived; send all again")
        members = {device.device_index for device in self._places.members(header.home_id)}
        if not set(answers) <= members:
            raise UnknownChildError(
                f"{header.home_id} sends answers of {len(set(answers) - members)} devices that are not its own"
            )
        with refused_by_method():
            for answer in answers.values():
                self._method.check_answer(self.question, arrays_of(self.question, answer), ())
        if not 0 <= header.answered_ns < LAST_NS:
            raise PayloadError(f"{header.home_id} sends answers of time {header.answered_ns} ns, which is impossible")
        return self.question

    @property
    def planned_ns(self) -> int:
        """The time on the run's clock at which the newest plan of a global round was made. This is the time at which
        the last answers for the plan arrived.
        """
        return self._journal.answers.bundled_ns(self._plans.planned_rounds - 1)

    async def plan_round(self, global_round: int, deadline_s: float | None) -> bool:
        """Wait for the answers of a global round, and make the plan of the round. Return whether this call made a plan.

        Refused LPSs send no answers, so this call does not wait for them.

        No plan is made if the method asks nothing in global rounds, or if the GPS made the plan before a restart.
        """
        question = self.question
        if question is None or self._plans.is_planned(global_round):
            return False
        await self._changes.wait_awake(
            lambda: self._awaited() <= self._journal.answers.bundled(global_round), deadline_s
        )
        given = {
            index: arrays_of(question, pb.Answer.FromString(answer))
            for index, answer in self._journal.answers.all(question.name, global_round).items()
        }
        devices = self._places.candidates()
        answers = Answers(devices, {question.name: given}, global_round)
        before = self._plans.at_start(global_round)
        plan = await asyncio.to_thread(planned, self._method, question.moment, answers, before)
        plan.check_covers(devices, may_be_empty=True)
        check_plan(self._streams, plan, self._method, before)
        self._places.make(global_round, plan)
        self._log.info("planned_again", global_round=global_round, rule=plan.rule)
        return True


def placed(method: Method, late: Candidate, answers: Answers, plan: Plan) -> int:
    """Return the number of the cluster that the method chooses for the late device `late`. Raises PluginError if the
    method's code fails, or chooses a cluster that the plan does not have.
    """
    with or_failed(f"method {method.options.name} failed in place:", method):
        cluster = operator.index(method.place(late, answers, plan))
    if not 0 <= cluster < len(plan.clusters):
        raise PluginError(f"a method placed a late device in cluster {cluster}, and there are {len(plan.clusters)}")
    return cluster


def planned(method: Method, moment: Moment, answers: Answers, before: Plan | None) -> Plan:
    """Let a method make a plan from the devices' answers, and return the plan. `before` is the previous plan; None for
    the first plan. Raises PluginError if the method's code fails, or returns something else than a plan.
    """
    with or_failed(f"method {method.options.name} failed in plan:", method):
        plan: Any = method.plan(moment, answers, before)
    if not isinstance(plan, Plan):
        raise PluginError(f"method {method.options.name}: plan must return a Plan, not {type(plan).__name__}")
    return plan
