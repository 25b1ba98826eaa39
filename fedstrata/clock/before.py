"""The virtual clock before training: the questions, one after the other, by each device's own link.

A device goes on to the next question once its answer is at the GPS and it has heard what is relayed to it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fedstrata.clock.calendar import BEFORE, DOWN, UP, Line, drawn_latency
from fedstrata.clock.round import check_clock_at, times_of
from fedstrata.clock.timeline import DeviceTimeline
from fedstrata.experiment import Experiment
from fedstrata.experiment.rates import end_of
from fedstrata.v1 import rounds_pb2 as pb


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A question: by device, bytes of the answer and examples trained on for it."""

    answer_bytes: Mapping[int, int]
    examples: Mapping[int, int]
    relayed: Sequence[int] = ()  # whose answers all others hear, in the order in which they come


@dataclass
class _Device:
    """How far a device is, how long it was about what, and how many bytes and examples that were."""

    now_ns: int = 0
    down_bytes: int = 0
    up_bytes: int = 0
    examples: int = 0
    down_ns: int = 0
    compute_ns: int = 0
    up_ns: int = 0


def before_training(experiment: Experiment, asked: Sequence[Asked]) -> pb.RoundTimes:
    """From the first question to the last answer; the parts are summed over the devices that have answered.

    Raises:
        RunStoppedError: that takes more than 73 years.
    """
    timeline = DeviceTimeline(experiment.model_copy(update={"schedule": ()}))  # which begins as training does
    devices = {index: _Device() for question in asked for index in sorted(question.answer_bytes)}
    for number, question in enumerate(asked):
        step = _Step(timeline, question, [experiment.seed, BEFORE, number])
        for index in question.answer_bytes:
            step.answer(index, devices[index])
        arrived = {index: devices[index].now_ns for index in question.answer_bytes}
        for index, device in devices.items():
            step.hear(index, device, arrived)
    ends_ns = max((device.now_ns for device in devices.values()), default=0)
    check_clock_at(ends_ns * len(devices))
    names = experiment.device_ids()
    slowest = next((names[index] for index, device in sorted(devices.items()) if device.now_ns == ends_ns), "")
    flows = [
        pb.Flow(child=index, **{name: at for name, at in vars(device).items() if name != "now_ns"})
        for index, device in sorted(devices.items())
    ]
    return times_of(0, ends_ns, flows, slowest)


class _Step:
    """One question at the devices."""

    def __init__(self, timeline: DeviceTimeline, question: Asked, address: Sequence[int]) -> None:
        self._timeline = timeline
        self._question = question
        self._address = address

    def answer(self, index: int, device: _Device) -> None:
        """Have a device work its answer out and send it."""
        question, link = self._question, self._timeline.link(index)
        busy_ns = self._timeline.training_ns(index, question.examples[index])
        start_ns = device.now_ns + busy_ns
        sent_ns = end_of(start_ns, 8 * question.answer_bytes[index], link.course("up"))
        device.now_ns = sent_ns + self._latency_ns(index, UP)
        device.compute_ns += busy_ns
        device.examples += question.examples[index]
        device.up_bytes += question.answer_bytes[index]
        device.up_ns += device.now_ns - start_ns

    def hear(self, index: int, device: _Device, arrived: Mapping[int, int]) -> None:
        """Have a device hear the others' answers, each when it and those before it are there."""
        others = [other for other in self._question.relayed if other != index and other in arrived]
        if not others:
            return
        line, ready_ns = Line(self._timeline.link(index).course("down"), free_ns=device.now_ns), 0
        device.down_bytes += sum(self._question.answer_bytes[other] for other in others)
        for other in others:
            ready_ns, bits = max(ready_ns, arrived[other]), 8 * self._question.answer_bytes[other]
            begins_ns = max(ready_ns, line.free_ns)
            device.down_ns += line.carry(ready_ns, bits) - begins_ns
        latency_ns = self._latency_ns(index, DOWN)
        device.down_ns += latency_ns
        device.now_ns = max(device.now_ns, line.free_ns + latency_ns)

    def _latency_ns(self, index: int, direction: int) -> int:
        link = self._timeline.link(index).at(0)
        return drawn_latency(link.latency, link.jitter, [*self._address, index, direction])
