"""The enrolment before training. Devices enrol and answer questions, and the GPS waits for them until the deadline."""

from collections.abc import Callable

from fedstrata.errors import ExcludedError, RunStoppedError
from fedstrata.experiment import Experiment
from fedstrata.process.fault_points import reach
from fedstrata.process.logs import EventLog
from fedstrata.v1 import gps_service_pb2 as pb
from gps.devices.questions import Questions
from gps.devices.roster import NEVER_JOINED, Device, Roster
from gps.journal.journal import Journal


class Enrolment:
    """Enrol devices, and decide when the GPS stops waiting for devices before training."""

    def __init__(
        self, experiment: Experiment, *, questions: Questions, roster: Roster, journal: Journal, log: EventLog,
        on_return: Callable[[], None],
    ) -> None:  # fmt: skip
        """Set `on_return`, which is called when a device that has a cluster enrols again."""
        self._experiment = experiment
        self._questions = questions
        self._roster = roster
        self._journal = journal
        self._log = log
        self._wait = experiment.deadlines.enrolment
        self._on_return = on_return

    # --- waiting --------------------------------------------------------------------------------

    async def gather_devices(self) -> None:
        """Wait until every device has enrolled and answered the first question, or until the deadline. Raises
        RunStoppedError if fewer devices than the quorum have done so.
        """
        if not self._questions.is_closed:
            await self._questions.changes.wait_awake(self._all_there, self._wait.deadline_s)
            self._close()
        self._check_quorum(self._present())

    async def gather_answers(self) -> None:
        """Wait until every device that has answered the first question has answered all questions, or until a deadline.
        The deadline is as long as the deadline of `gather_devices`, and begins now.

        Raises:
            RunStoppedError: fewer devices than the quorum have answered all questions.
        """
        have_all = lambda: all(map(self._questions.has_answered_all, self._present()))  # noqa: E731
        await self._questions.changes.wait_awake(have_all, self._wait.deadline_s)
        for device in self._present():
            if not self._questions.has_answered_all(device):
                self._leave_behind(device)
        self._check_quorum(self.candidates())

    def _all_there(self) -> bool:
        if len(self._roster.devices) < self._roster.expected:  # a cheap test first: it runs whenever a device enrols
            return False
        founders = self._roster.founders
        if len(founders) < self._roster.expected:
            return False
        return all(device.refused or self._questions.takes_part(device) for device in founders)

    def _present(self) -> list[Device]:
        """Return the devices that have enrolled in time and answered the first question, in index order. Refused
        devices are left out.
        """
        return [device for _, device in sorted(self._roster.devices.items()) if self._questions.takes_part(device)]

    def _close(self) -> None:
        for device_id in self._roster.absent_founders():
            self._note_absent(device_id, "not enrolled by the deadline")
        for device in self._roster.founders:
            if not device.refused and not self._questions.takes_part(device):
                self._leave_behind(device)
        self._questions.close()

    def _leave_behind(self, device: Device) -> None:
        """Continue without a device. If the method places late devices, the device joins when it has answered."""
        device.is_late = True
        self._journal.devices.note_late(device.device_index)
        self._note_absent(device.device_id, "no answer by the deadline")

    def _note_absent(self, device_id: str, reason: str) -> None:
        self._log.warning("device_missing", device=device_id, reason=reason)
        self._journal.exclude(device_id, "enrolment", reason)

    def _check_quorum(self, devices: list[Device]) -> None:
        quorum = self._wait.quorum(self._roster.expected)
        if len(devices) < quorum:
            there = {device.device_id for device in devices}
            newcomers = self._roster.newcomers
            ids = [name for i, name in enumerate(self._experiment.device_ids()) if i not in newcomers]
            missing = [name for name in ids if name not in there]
            refused = next((d.refused for d in self._roster.founders if d.refused), None)
            raise RunStoppedError(
                f"{len(devices)} of {self._roster.expected} devices take part, but the quorum is {quorum}; missing: "
                f"{', '.join(missing[:10])}" + (f" ({refused})" if refused else "")
            )

    def candidates(self) -> list[Device]:
        """Return the devices that have answered all questions, in index order. The first plan groups these devices."""
        return [device for device in self._present() if self._questions.has_answered_all(device)]

    async def gather_newcomers(self) -> None:
        """Wait until every newcomer (a device that the experiment adds in a later round) has a cluster or was refused.
        The wait lasts at most as long as the deadline of the enrolment.
        """
        are_placed = lambda: not self._roster.unplaced_newcomers()  # noqa: E731
        self._roster.awaits_newcomers = True
        try:
            came = await self._questions.changes.wait_awake(are_placed, self._wait.deadline_s)
        finally:
            self._roster.awaits_newcomers = False
        if not came:
            for device_id in self._roster.unplaced_newcomers():
                self._note_absent(device_id, NEVER_JOINED)

    # --- calls ----------------------------------------------------------------------------------

    def enroll(self, request: pb.EnrollRequest) -> pb.EnrollResponse:
        """Enrol a device. Raises the errors of `Roster.check` and `Roster.enroll`. Also raises ExcludedError if the
        device is late and the method cannot place late devices.
        """
        self._roster.check(request)
        is_new = request.device_index not in self._roster.devices
        if is_new and self._questions.is_closed and not self._questions.places_late:
            raise ExcludedError(
                f"{request.device_id} enrolled after the devices were grouped, and method "
                f"{self._experiment.method.name} cannot place a late device; next time start it before the run"
            )
        is_late = self._questions.is_closed or request.device_index in self._roster.newcomers
        device = self._roster.enroll(request, is_late=is_late)
        reach("enrolment")
        if request.has_lost_state:
            self._roster.note_lost_state(device)
            self._log.warning("device_lost_state", device=device.device_id)
        if is_new:
            self._log.info("device_enrolled", device=device.device_id, examples=device.num_examples)
            self._questions.tell()
            self._questions.place_if_ready(device)
        elif device.cluster is not None:
            self._on_return()
        return pb.EnrollResponse(run_id=self._journal.attempt_id, is_late=device.is_late, is_known=not is_new)
