"""The clock of a device: how long its computing takes, and what it says of its work."""

import time
from dataclasses import dataclass

from fedstrata.clock.devices import Boards
from fedstrata.clock.links import device_links
from fedstrata.clock.round_side import ChildClock, PacedChild
from fedstrata.experiment import Experiment
from fedstrata.process.sleeping import until_ns
from fedstrata.v1 import answers_pb2
from fedstrata.v1 import rounds_pb2 as pb


@dataclass(frozen=True, kw_only=True)
class Done:
    """The work of a device since a time: the number of examples that it has trained on, and the LPS round."""

    began_ns: int
    device_index: int
    examples: int
    lps_round: int = -1  # before training


class DeviceClock:
    """The clock of a device without one: computing takes its own time, and no message has it."""

    announces = False  # whether updates are announced before they are sent

    def now_ns(self) -> int:
        """Return the time now."""
        return time.monotonic_ns()

    def to_gps(self, device_id: str) -> ChildClock:
        """Return what a device's calls to the GPS ask of the clock."""
        return ChildClock()

    def to_lps(self, device_id: str, payload_bytes: int) -> ChildClock:
        """Return what a device's rounds ask of the clock; `payload_bytes` is the largest that goes down and up."""
        return ChildClock()

    async def trained(self, answer: answers_pb2.Answer, done: Done) -> None:
        """Wait until a device would have trained for an answer before training."""

    async def answered(self, answer: answers_pb2.Answer, done: Done) -> int:
        """Wait until a device would have worked its answer in an LPS round out; return how long that took."""
        return 0

    async def worked(self, answer: answers_pb2.Answer | None, done: Done) -> pb.Work | None:
        """Wait until a device would have computed in an LPS round; return what it says of that, if it says anything.

        `answer` is what it has answered in the round.
        """
        return None


class VirtualDeviceClock(DeviceClock):
    """Says what has been done; when it would have been done is worked out by others."""

    def __init__(self, experiment: Experiment) -> None:
        shared = experiment.links.shared
        is_shared = shared is not None and shared.device_lps.up_rate is not None
        self.announces = is_shared and experiment.deadlines.lps.deadline_s is not None

    async def trained(self, answer: answers_pb2.Answer, done: Done) -> None:
        answer.trained_examples = done.examples

    async def answered(self, answer: answers_pb2.Answer, done: Done) -> int:
        answer.trained_examples = done.examples
        return 0

    async def worked(self, answer: answers_pb2.Answer | None, done: Done) -> pb.Work | None:
        answer = answer or answers_pb2.Answer()
        for_it = answer.trained_examples
        return pb.Work(examples=done.examples, answer_bytes=answer.ByteSize(), answer_examples=for_it)


class RealDeviceClock(VirtualDeviceClock):
    """Makes up for what is left of the modelled time."""

    def __init__(self, experiment: Experiment) -> None:
        super().__init__(experiment)
        self.announces = False
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
        work = await super().worked(answer, done)
        if work is not None:
            work.computed_ns = computed_ns
        return work
