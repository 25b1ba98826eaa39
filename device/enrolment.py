"""The calls of a device to the GPS before training: enrolment, questions, assignment."""

import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from fedstrata.clock.round_side import ChildClock
from fedstrata.errors import BegunAgainError, PayloadError
from fedstrata.experiment import Experiment
from fedstrata.methods import Arrays, Question
from fedstrata.process.fault_points import reach
from fedstrata.process.logs import EventLog
from fedstrata.process.machine import software
from fedstrata.process.time_limits import HOLD_S, PATIENCE_S
from fedstrata.process.waiting import Backoff
from fedstrata.rpc.answer_messages import answer_parts, arrays_of, largest_bytes, payload_bytes
from fedstrata.rpc.client import CallError, ask, call_through_upgrade, call_until_answered, is_passing, refusal
from fedstrata.store.attempts import check_attempt
from fedstrata.v1 import answers_pb2
from fedstrata.v1 import gps_service_pb2 as pb


class GpsClient:
    """Make the calls of one device to the GPS."""

    def __init__(
        self, gps: Any, experiment: Experiment, *, device_id: str, device_index: int, process_id: str, log: EventLog,
        clock: ChildClock, kernel: str,
    ) -> None:  # fmt: skip
        self._gps = gps
        self._experiment = experiment
        self._who = {"run_id": "", "device_id": device_id, "process_id": process_id}  # `enroll` sets the attempt
        self._index = device_index
        self._kernel = kernel
        self._on_link_s = clock.on_link_s
        self._log = log

    async def enroll(
        self, num_examples: int, num_held_out: int, pod_name: str, *, has_lost_state: bool = False
    ) -> pb.EnrollResponse:
        """Enrol this device at the GPS, and return the GPS's reply, which names the attempt of the run.

        Raises:
            BegunAgainError: this device has enrolled in another attempt before.
            PayloadError: the GPS does not name an attempt of this run.
        """
        request = pb.EnrollRequest(
            device_id=self._who["device_id"],
            device_index=self._index,
            experiment_sha256=self._experiment.digest,
            num_examples=num_examples,
            num_held_out=num_held_out,
            process_id=self._who["process_id"],
            pod_name=pod_name,
            has_lost_state=has_lost_state,
            kernel=self._kernel,
            software=software(sys.modules),
        )
        reply: pb.EnrollResponse = await call_through_upgrade(
            lambda: self._gps.Enroll(request, timeout=PATIENCE_S, wait_for_ready=True), self._log, "Enroll"
        )
        check_attempt(reply.run_id, self._experiment.run_id)
        if self._who["run_id"] not in ("", reply.run_id):
            raise BegunAgainError(f"run {self._experiment.run_id} begins again; restart this process")
        self._who["run_id"] = reply.run_id
        return reply

    async def submit_answer(self, answer: answers_pb2.Answer) -> None:
        """Send this device's answer to a question to the GPS."""
        reach("relevance")

        async def parts() -> AsyncIterator[answers_pb2.AnswerPart]:
            header = answers_pb2.AnswerHeader(device_index=self._index, **self._who)  # type: ignore[arg-type]
            header.trained_examples = answer.trained_examples
            for part in answer_parts(answer, header):
                yield part

        timeout_s = PATIENCE_S + self._on_link_s(len(answer.data))
        await call_until_answered(
            lambda: self._gps.SubmitAnswer(parts(), timeout=timeout_s, wait_for_ready=True), self._log, "SubmitAnswer"
        )

    async def hear(self, question: Question, fold: Callable[[Arrays], Awaitable[object]]) -> dict[int, object]:
        """Receive the other devices' answers to a relayed question. Call `fold` with each answer, and return the
        results of `fold` by device index.

        Each call of `fold` gets a single answer, as soon as this answer arrives. So a result does not depend on the
        order in which answers arrive. The answers themselves are not kept.
        """
        heard: dict[int, object] = {}
        backoff = Backoff()
        while True:
            request = answers_pb2.FetchAnswersRequest(
                question=question.name, from_index=max(heard, default=-1) + 1, **self._who
            )
            timeout_s = (PATIENCE_S + self._on_link_s(largest_bytes(question))) + HOLD_S * self._experiment.device_count
            try:
                call = self._gps.FetchAnswers(request, timeout=timeout_s, wait_for_ready=True)
                if await _fold_answers(call, question, fold, heard):
                    return heard
                backoff.reset()
            except CallError as error:
                if not is_passing(error):
                    raise refusal(error) from None
                await backoff.pause()

    async def assignment(self) -> pb.FetchAssignmentResponse:
        """Wait until the GPS names the LPS that serves this device, and return the reply."""
        while True:
            request = pb.FetchAssignmentRequest(**self._who)
            reply: pb.FetchAssignmentResponse = await ask(self._gps, "FetchAssignment", request, self._log)
            if reply.is_assigned:
                return reply


async def _fold_answers(
    parts: AsyncIterator[answers_pb2.AnswerPart],
    question: Question,
    fold: Callable[[Arrays], Awaitable[object]],
    heard: dict[int, object],
) -> bool:
    """Receive one stream of answers. Call `fold` with each answer, and store the result in `heard` under the index of
    the answering device. Return True after the last answer. Return False if some answers have not reached the GPS yet,
    so that the device must call again.
    """
    header, expected, data = answers_pb2.AnswerHeader(), 0, bytearray()
    async for part in parts:
        match part.WhichOneof("part"):
            case "header":
                header, data = part.header, bytearray()
                expected = payload_bytes(question, header.arrays)
            case "data":
                data += part.data
                reach("profile_relay")
                if len(data) > expected:
                    raise PayloadError(f"the GPS sends more bytes of an answer to {question.name} than announced")
            case _:
                return False
        if len(data) == expected:
            answer = answers_pb2.Answer(question=question.name, arrays=header.arrays, data=bytes(data))
            heard[header.device_index] = await fold(arrays_of(question, answer))
    return True
