"""The question that a method may ask in training. Devices answer it in the first LPS round of each global round."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from functools import partial
from pathlib import Path

from fedstrata.clock.deadline import Deadline
from fedstrata.errors import StateError
from fedstrata.methods import Moment
from fedstrata.rounds import Asking, Identity
from fedstrata.rpc.answer_messages import bytes_of
from fedstrata.store import GLOBAL_ROUNDS_KEPT
from fedstrata.v1 import answers_pb2
from fedstrata.v1 import gps_service_pb2 as gps_pb
from fedstrata.v1 import rounds_pb2 as pb
from lps.holding import SessionParts
from lps.report_files import read_report, write_report


class RoundQuestion:
    """Ask the devices of an open round, send their answers to the GPS, and wait for the GPS's plan."""

    def __init__(self, parts: SessionParts) -> None:
        questions = parts.lps.method.questions()
        self._question = next((question for question in questions if question.moment is not Moment.BEFORE), None)
        self._parts = parts
        self._late = LateAnswers(parts.folder)

    def stage(self, lps_round: int, deadline: Deadline) -> Asking | None:
        """Return the stage of an LPS round in which devices answer the method's question. In LPS rounds that are not
        the first of a global round, or if the method has no question for training, return None.
        """
        if self._question is None or lps_round % self._parts.rounds:
            return None
        return Asking(self._question, self._parts.lps.method.check_answer, deadline)

    async def settle(self, asking: Asking, global_round: int, *, is_planned: bool) -> None:
        """Wait for the answers of the open round, send them to the GPS, and wait for the plan. If the plan was made
        before a restart (`is_planned`), only read which devices answered too late.
        """
        clock, members, deadline = self._parts.clock, self._parts.members, asking.deadline
        newest_plan = self._parts.gps.newest_plan
        if not is_planned:
            answers = await asking.gathered()
            if deadline.can_be_missed:
                await asyncio.to_thread(self._late.save, global_round, deadline.late_flows)
            indexes = {members.index_of(child_id): answer for child_id, answer in answers.items()}
            answered_ns = clock.answered_ns(partial(asking.exchanged, answers))
            bundle = partial(_bundle, self._parts.gps.uplink.identity, global_round, indexes, answered_ns)
            await self._parts.gps.stream("SubmitAnswers", bundle, bytes_of(indexes))
            await newest_plan.until_planned(global_round)
            await clock.plan_came(global_round)
        elif deadline.can_be_missed:
            asking.restore(self._late.read(global_round))
        clock.go_on(global_round, newest_plan.planned_ns)


async def _bundle(
    who: Identity, global_round: int, answers: Mapping[int, answers_pb2.Answer], answered_ns: int
) -> AsyncIterator[answers_pb2.BundlePart]:
    header = answers_pb2.BundleHeader(
        run_id=who.run_id, lps_id=who.lps_id, home_id=who.home_id, term=who.term, global_round=global_round,
        answers=len(answers), answered_ns=answered_ns,
    )  # fmt: skip
    question = next((answer.question for answer in answers.values()), "")
    yield answers_pb2.BundlePart(header=header, question=question)
    for index, answer in sorted(answers.items()):
        told = answers_pb2.DeviceAnswer(device_index=index, answer=answer)
        yield answers_pb2.BundlePart(answer=told, question=question)


class LateAnswers:
    """Keep files that say which devices have answered too late on the run's clock. `late-000012.pb` is the file of
    global round 12.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def save(self, global_round: int, late: list[pb.Flow]) -> None:
        """Save the transfers of the devices that answered too late in a global round.

        This must be done before the other answers go to the GPS. If the LPS is restarted after the GPS has made the
        plan, the LPS reads the file.
        """
        write_report(
            self._path(global_round), gps_pb.ReportHeader(lps_rounds=[pb.LpsRound(times=pb.RoundTimes(late=late))])
        )
        self._path(global_round - GLOBAL_ROUNDS_KEPT).unlink(missing_ok=True)

    def read(self, global_round: int) -> list[pb.Flow]:
        """Return the transfers of the devices that answered too late in a global round, as saved before a restart.

        Raises:
            StateError: the file is damaged or missing. Without the file, the LPS would let these devices take part in
                the round again.
        """
        path = self._path(global_round)
        if not path.exists():
            raise StateError(
                f"{path} is missing. It says which devices answered too late in global round {global_round + 1}; put "
                "the LPS's files back, or begin the run again"
            )
        return [flow for row in read_report(path).lps_rounds for flow in row.times.late]

    def _path(self, global_round: int) -> Path:
        return self._folder / f"late-{global_round:06d}.pb"
