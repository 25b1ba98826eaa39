"""The clock of a device: how long computing takes, and which work the device reports."""

import time
from dataclasses import dataclass

from fedstrata.clock.device_times import Boards
from fedstrata.clock.round_side import ChildClock, PacedChild
from fedstrata.experiment import Experiment
from fedstrata.links.tier_links import device_links
from fedstrata.process.waiting import until_ns
from fedstrata.v1 import answers_pb2
from fedstrata.v1 import rounds_pb2 as pb


@dataclass(frozen=True, kw_only=True)
class Done:
    """Hold the work that a device has done: when it began, on how many examples the device trained, and in which LPS
    round.
    """

    began_ns: int
    device_index: int
    examples: int
    lps_round: int = -1  # -1 before training


def is_asynchronous(experiment: Experiment) -> bool:
    """Return whether rounds between LPSs and devices are asynchronous."""
    return experiment.training.rounds.asynchronous is not None


class DeviceClock:
    """Represent a device in a run without a clock. Nothing is delayed, and messages carry no times."""

    def __init__(self, *, announces: bool = False) -> None:
        """Set whether devices announce their updates before they send them."""
        self.announces = announces

    def now_ns(self) -> int:
        """Return the current time of this machine's monotonic clock, in nanoseconds."""
        return time.monotonic_ns()

    def to_gps(self, device_id: str) -> ChildClock:
        """Return the clock for a device's calls to the GPS."""
        return ChildClock()

    def to_lps(self, device_id: str, payload_bytes: int) -> ChildClock:
        """Return the clock for a device's calls to its LPS. `payload_bytes` is the size of the largest payload that the
        device receives or sends.
        """
        return ChildClock()

    async def trained(self, answer: answers_pb2.Answer, done: Done) -> None:
        """Note that a device has trained to answer a question before the first round. On the real clock, wait until
        this training has taken as long as it would on the device's board.
        """

    async def answered(self, answer: answers_pb2.Answer, done: Done) -> int:
        """Note that a device has computed its answer in an LPS round. On the real clock, wait until this has taken as
        long as it would on the device's board, and return the nanoseconds since the work began. On other clocks, return
        0.
        """
        return 0

    async def worked(self, answer: answers_pb2.Answer | None, done: Done) -> pb.Work | None:
        """Note that a device has computed its update in an LPS round. On the real clock, wait until the computing has
        taken as long as it would on the device's board. Return the report of the work, or None if the run has no clock.

        `answer` is the device's answer in the round, if the round asked a question.
        """
        return None


class VirtualDeviceClock(DeviceClock):
    """Report a device's work to its parents. From these reports, the parents calculate how long the work takes."""

    def __init__(self, experiment: Experiment) -> None:
        shared = experiment.links.shared
        is_shared = shared is not None and shared.device_lps.up_rate is not None
        has_deadline = experiment.deadlines.lps.deadline_s is not None
        super().__init__(announces=(is_shared and has_deadline) or is_asynchronous(experiment))

    async def trained(self, answer: answers_pb2.Answer, done: Done) -> None:
        answer.trained_examples = done.examples

    async def answered(self, answer: answers_pb2.Answer, done: Done) -> int:
        answer.trained_examples = done.examples
        return 0

    async def worked(self, answer: answers_pb2.Answer | None, done: Done) -> pb.Work | None:
        return _work(answer, done)


class RealDeviceClock(DeviceClock):
    """Wait after each computation of a device, so that it takes as long as it would on the device's board."""

    def __init__(self, experiment: Experiment) -> None:
        super().__init__(announces=is_asynchronous(experiment))
        self._experiment, self._boards = experiment, Boards(experiment)

    def to_gps(self, device_id: str) -> ChildClock:
        return PacedChild(device_links(self._experiment, to_gps=True), device_id)

    def to_lps(self, device_id: str, payload_bytes: int) -> ChildClock:
        links, devices = device_links(self._experiment), self._experiment.device_count
        return PacedChild(links, device_id, payload_bytes=payload_bytes, children=devices)

    async def trained(self, answer: answers_pb2.Answer, done: Done) -> None:
        await until_ns(done.began_ns + self._boards.training_ns(done.device_index, done.examples))

    async def answered(self, answer: answers_pb2.Answer, done: Done) -> int:
        answer.trained_examples = done.examples
        answering_ns = self._boards.answering_ns(done.device_index, done.lps_round, done.examples)
        await until_ns(done.began_ns + answering_ns)
        return self.now_ns() - done.began_ns

    async def worked(self, answer: answers_pb2.Answer | None, done: Done) -> pb.Work | None:
        await until_ns(done.began_ns + self._boards.compute_ns(done.device_index, done.lps_round, done.examples))
        computed_ns = self.now_ns() - done.began_ns
        work = _work(answer, done)
        work.computed_ns = computed_ns
        return work


def _work(answer: answers_pb2.Answer | None, done: Done) -> pb.Work:
    answer = answer or answers_pb2.Answer()
    return pb.Work(examples=done.examples, answer_bytes=answer.ByteSize(), answer_examples=answer.trained_examples)
