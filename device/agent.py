"""One device. Before training, it answers the FL method's questions: requests for small arrays, such as a summary of
the device's data. Then it trains for its LPS until the run is over.
"""

from functools import partial
from typing import Any

from device.enrolment import GpsClient
from device.kernels import kernels
from device.lying import LyingRounds
from device.rounds import DeviceRounds, Served
from device.work import DeviceProcess, DeviceWork, answered
from fedstrata.clock.device_side import Done
from fedstrata.errors import (
    HandshakeError,
    NotServedError,
    ParentAwayError,
    RosterError,
    UnknownChildError,
)
from fedstrata.methods import Moment
from fedstrata.partitions import DeviceData, device_data
from fedstrata.process.logs import EventLog
from fedstrata.process.waiting import Backoff
from fedstrata.store.attempts import word_of
from fedstrata.v1 import gps_service_pb2 as gps_pb

REFUSALS = 3  # refused TLS connections in a row after which the process gives up


class DeviceAgent:
    """Run one device of a process."""

    def __init__(self, host: DeviceProcess, device_index: int) -> None:
        self._host = host
        self._index = device_index
        self.device_id = host.experiment.device_ids()[device_index]
        self._log = EventLog("device", device=self.device_id)
        self._store = host.store_of(self.device_id)
        self._made: dict[str, Any] = {}  # values that a method computes once per run
        kind = LyingRounds if host.attacks_by(device_index) else DeviceRounds
        self._rounds = kind(host, device_index, self._store, self._made, self._log)
        self._silence_s = host.experiment.deadlines.gps.deadline_s

    async def run(self) -> None:
        """Take part in the run, from enrolment to the end of the run. Raises FedstrataError if a parent refuses this
        device.
        """
        host = self._host
        data = await host.compute_thread.compute(lambda: device_data(host.experiment, host.dataset, self._index))
        gps = GpsClient(
            host.channels.gps,
            host.experiment,
            device_id=self.device_id,
            device_index=self._index,
            clock=host.clock.to_gps(self.device_id),
            process_id=host.process_id,
            log=self._log,
            kernel=kernels(host.architectures.processor),
        )
        await self._enroll(gps, data)
        backoff = Backoff()
        silent: gps_pb.FetchAssignmentResponse | None = None
        refusals = 0  # refused TLS connections in a row by the LPS that the GPS names
        while True:
            assignment = await self._assignment(gps, data)
            if silent is not None:
                refusals = await self._count_refusal(silent, assignment, refusals)
                silent = None
                if refusals:
                    await backoff.pause()
                    continue  # ask the GPS again: the assignment may have changed
            self._log.info("assigned", cluster=assignment.home_id, lps=assignment.lps_address)
            served = Served(assignment, lambda: self._assignment(gps, data), self._silence_s, backoff)
            try:
                return await self._rounds.take_part(served, data)
            except ParentAwayError as error:  # the LPS may have moved, or another has adopted the cluster
                self._log.info("lps_away", lps=assignment.lps_address, reason=str(error))
                silent = assignment
            except NotServedError as error:  # GPS and LPS do not know the same assignment yet
                self._log.info("not_served", lps=assignment.lps_address, reason=str(error))
                await backoff.pause()
            except RosterError as error:
                self._log.warning("roster_refused", lps=assignment.lps_address, reason=str(error))
                await backoff.pause()

    async def _count_refusal(
        self, silent: gps_pb.FetchAssignmentResponse, now: gps_pb.FetchAssignmentResponse, before: int
    ) -> int:
        """Try a TLS connection to the LPS of the assignment `now`. If the LPS refuses it, return `before` + 1, where
        `before` is the number of earlier refusals in a row. If it does not refuse, return 0.

        If the previous assignment, `silent`, names another LPS or address, return 0 without a try. A few refusals are
        normal, because for a short time another process may listen at the LPS's port.

        Raises:
            HandshakeError: the LPS has refused several attempts in a row.
        """
        if (now.lps_id, now.lps_address) != (silent.lps_id, silent.lps_address):
            return 0
        reason = await self._host.channels.why_lps_refuses(now.lps_id, now.lps_address)
        if reason is None:
            return 0
        if before + 1 == REFUSALS:
            raise HandshakeError(reason)
        return before + 1

    async def _enroll(self, gps: GpsClient, data: DeviceData) -> None:
        was_born = self._store.was_born()
        if self._host.keeps_state:
            self._store.mark_born()
        who = (self._rounds.stated(len(data.train)), len(data.test), self._host.pod_name)
        enrolled = await gps.enroll(*who)
        self._store.enter(word_of(enrolled.run_id))
        if enrolled.is_known and self._host.keeps_state and not was_born and not self._rounds.have_begun:
            self._log.warning("state_lost", reason="this device's personal state is gone; it begins with a new one")
            await gps.enroll(*who, has_lost_state=True)
        self._log.info("enrolled", is_late=enrolled.is_late)
        await self._answer_all(gps, data, is_late=enrolled.is_late)

    async def _assignment(self, gps: GpsClient, data: DeviceData) -> gps_pb.FetchAssignmentResponse:
        """Wait for the GPS's assignment, and return it: the LPS that serves this device now. If the GPS does not know
        this device, enrol again first.
        """
        while True:
            try:
                return await gps.assignment()
            except UnknownChildError as error:
                self._log.info("enrolled_again", reason=str(error))
                await self._enroll(gps, data)

    async def _answer_all(self, gps: GpsClient, data: DeviceData, *, is_late: bool) -> None:
        """Answer the questions that the method asks before training. Some questions are relayed: the GPS forwards each
        device's answer to the other devices. After answering a relayed question, receive the other devices' answers.

        A device that enrolled late does not answer relayed questions, because the GPS does not forward answers of late
        devices. It only receives the other devices' answers.
        """
        method = self._host.method
        work = DeviceWork(self._host, data, self._index, made=self._made)
        heard: dict[int, Any] = {}
        for question in method.questions():
            if question.moment is not Moment.BEFORE:
                continue
            if not (is_late and question.relayed):
                before, began_ns = work.trained_examples, self._host.clock.now_ns()
                answer = await answered(method, question, work, heard)
                examples = work.trained_examples - before
                done = Done(began_ns=began_ns, device_index=self._index, examples=examples)
                await self._host.clock.trained(answer, done)
                await gps.submit_answer(answer)
                self._log.info("answered", question=question.name)
            if question.relayed:
                heard = await gps.hear(question, partial(method.hear, question, work))
