"""The virtual clock: how long rounds take, calculated from bytes and from the work that devices report.

An LPS calculates its devices' parts of an LPS round, and the GPS calculates the LPSs' parts of a global round. Both use
nanoseconds since training began. Transfers that are repeated after a fault take no virtual time.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from fedstrata.clock.device_times import Boards
from fedstrata.clock.exchanged import Exchanged
from fedstrata.errors import PayloadError, RunStoppedError
from fedstrata.experiment import Experiment
from fedstrata.experiment.rates import end_of
from fedstrata.links.shared_link import Flow, carried_by, fair_ends
from fedstrata.links.tier_links import DOWN, UP, Line, Link, TierLinks, device_links, lps_links
from fedstrata.v1 import rounds_pb2 as pb

PARTS = ("down", "compute", "up")
LAST_NS = 1 << 61  # 73 years: limit of a timeline and of the sum of a round's times, so that both fit int64

Sent = Mapping[str, Exchanged]  # transfers by child id


@dataclass(frozen=True, kw_only=True)
class Part:
    """Hold the times and bytes of one child in a round, in which the child receives a model, computes, and sends an
    answer or an update.
    """

    name: str
    index: int
    link: Link
    exchanged: Exchanged
    begins_ns: int  # begin of the round
    free_ns: int = 0  # time from which the child can receive
    compute_ns: int
    answer_compute_ns: int = 0  # the part of `compute_ns` for the answer to the round's question
    sends_bytes: int  # size of the child's next upload: the update, or after `answering` the answer
    received_ns: int = 0  # time at which the child has the model
    ready_ns: int = 0  # time at which the child begins to send
    down_ns: int = 0  # duration of receiving
    up_ns: int = 0  # duration of sending
    ended_ns: int = 0  # time at which the child's upload has arrived or was given up
    unsent_bytes: int = 0

    def received(self, at_ns: int) -> "Part":
        """Return this part, changed so that the child has received the model at `at_ns`, and then computes."""
        return replace(self, received_ns=at_ns, ready_ns=at_ns + self.compute_ns, down_ns=at_ns - self.begins_ns)

    def answering(self) -> "Part":
        """Return this part, changed so that the child only computes and sends its answer."""
        return replace(
            self,
            compute_ns=self.answer_compute_ns,
            ready_ns=self.received_ns + self.answer_compute_ns,
            sends_bytes=self.exchanged.work.answer_bytes,
        )

    def updating(self, answered_ns: int, goes_on_ns: int, latency_ns: int) -> "Part":
        """Return this part, changed so that the child has answered, and now works for its update. The child learns of
        the plan one latency after its parent, computes the rest of its work, and is then ready to send (`ready_ns`).
        """
        return replace(
            self,
            ready_ns=goes_on_ns + latency_ns + self.compute_ns - self.answer_compute_ns,
            down_ns=self.down_ns + latency_ns,
            up_ns=answered_ns - self.received_ns - self.answer_compute_ns,
        )

    def ended(self, at_ns: int, unsent_bytes: int = 0) -> "Part":
        """Return this part, changed so that its upload has arrived or was given up at `at_ns`. `unsent_bytes` is the
        number of bytes that had not left the shared link by then.
        """
        up_ns = self.up_ns + at_ns - self.ready_ns
        return replace(self, ended_ns=at_ns, up_ns=up_ns, unsent_bytes=unsent_bytes)

    @property
    def upload(self) -> Flow:
        """The child's next upload, as a flow on the link."""
        return Flow(start_ns=self.ready_ns, bits=8 * self.sends_bytes, rate=self.link.rate(UP))

    @property
    def flow(self) -> pb.Flow:
        """This child's part of the round, as a message for the record."""
        sent = self.exchanged
        return pb.Flow(
            child=self.index,
            down_bytes=sent.down_bytes,
            up_bytes=sent.up_bytes,
            examples=sent.work.examples,
            stream=sent.stream,
            down_ns=self.down_ns,
            compute_ns=self.compute_ns,
            up_ns=self.up_ns,
            away_ns=max(0, self.free_ns - self.begins_ns),
            answer_bytes=sent.work.answer_bytes,
            answer_examples=sent.work.answer_examples,
            unsent_bytes=self.unsent_bytes,
        )

    def check_ends(self, at_ns: int) -> None:
        """Raise PayloadError if the time `at_ns` or the work of this part is 73 years or more, the limit of the virtual
        clock. The parent then refuses the child.
        """
        if max(at_ns, self.compute_ns + self.up_ns) >= LAST_NS:
            examples = self.exchanged.work.examples
            raise PayloadError(f"training on {examples} examples takes more than 73 years of the virtual clock")


class Round:
    """Calculate a round of a parent and its children in virtual time. The parent is an LPS or the GPS.

    A round with a deadline begins with `send_models`. In a round with a question, methods about answers come next, then
    `go_on`, then methods about updates. The last method is `times`.
    """

    def __init__(
        self,
        links: TierLinks,
        computing_ns: Callable[[int, pb.Work], tuple[int, int]],
        *,
        number: int,
        begins_ns: int,
        free: Mapping[str, int] | None = None,
    ) -> None:
        """Begin a round. `computing_ns` returns how long a child works, and how much of this time is for the answer.

        `free` has the time from which each child can receive. A child that is not in `free` can receive from the start.
        """
        self.number, self.begins_ns = number, begins_ns
        self._links, self._computing_ns = links, computing_ns
        self._free = free or {}
        self._received_ns: Mapping[str, int] | None = None
        self._goes_on_ns: int | None = None

    def send_models(self, sent: Sent) -> Mapping[str, int]:
        """Calculate the time at which each child has its model. Keep these times, and return them.

        Call this if children may leave the round before its end. Otherwise a child that leaves would change the times
        of the children that share a link with it.
        """
        self._received_ns = {part.name: part.received_ns for part in self._parts(sent)}
        return self._received_ns

    def go_on(self, goes_on_ns: int) -> None:
        """Let the children that have answered continue. `goes_on_ns` is the time at which their parent learned of the
        plan that was made from the answers.
        """
        self._goes_on_ns = goes_on_ns

    def answered_ns(self, asked: Sent) -> int:
        """Return when the last answer arrives at the parent.

        Raises:
            RunStoppedError: the last answer takes more than 73 years.
        """
        answered_ns = max(self._answered(self._parts(asked)), default=self.begins_ns)
        check_clock_at(answered_ns)
        return answered_ns

    def answer_alone(self, name: str, answered: Exchanged) -> Part:
        """Return one child's part of the round up to its answer to a question, as if no other child used the links.
        Raises PayloadError if the part takes more than 73 years, the limit of the virtual clock.
        """
        (part,) = self._parts({name: answered})
        return self._alone(part.answering(), is_answer=True)

    def update_alone(self, name: str, updated: Exchanged) -> Part:
        """Return one child's part of the round, including its update, as if no other child used the links. Raises
        PayloadError if the part takes more than 73 years.
        """
        (part,) = self._updating(self._parts({name: updated}))
        return self._alone(part)

    def _alone(self, part: Part, *, is_answer: bool = False) -> Part:
        (at_ns,) = self._arrivals([part], is_answer=is_answer)
        part.check_ends(at_ns)
        return part.ended(at_ns)

    def check_ends(self, name: str, updated: Exchanged) -> None:
        """Raise PayloadError if a child would begin to send its update after 73 years of virtual time."""
        (part,) = self._updating(self._parts({name: updated}))
        part.check_ends(part.ready_ns)

    def late_answers(self, answered: Sent, ends_ns: int) -> list[Part]:
        """Return the parts of the children with answers that arrive after `ends_ns`. `answered` has all children that
        have answered.
        """
        return list(self._late([part.answering() for part in self._parts(answered)], ends_ns, is_answer=True))

    def late_updates(self, updated: Sent, ends_ns: int, *, dropped: Sent) -> list[Part]:
        """Return the parts of the children with updates that arrive after `ends_ns`. `updated` has all children with
        updates.

        `dropped` has the children with late answers. Their answers also used the shared link.
        """
        parts = self._updating(self._parts(updated), self._parts(dropped))
        return list(self._late(parts[: len(updated)], ends_ns))

    def times(self, exchanged: Sent, *, ends_ns: int | None = None, dropped: Sent | None = None) -> pb.RoundTimes:
        """Return the times of the round. The round ends at `ends_ns` or, if this is None, when the last update arrives.

        `dropped` has the children that left the round after their transfers had slowed the shared link.
        """
        parts = self._updating(self._parts(exchanged), self._parts(dropped or {}))
        ended = [part.ended(at_ns) for part, at_ns in zip(parts, self._arrivals(parts), strict=True)][: len(exchanged)]
        last_ns = max((part.ended_ns for part in ended), default=self.begins_ns)
        ends_ns = last_ns if ends_ns is None else ends_ns
        # The times that children report for their answers may be too long, even if the round ends early.
        said_ns = sum(part.compute_ns + part.up_ns for part in parts[: len(exchanged)])
        check_clock_at(max(ends_ns, (ends_ns - self.begins_ns) * len(ended), said_ns))
        slowest = next((part.name for part in ended if part.ended_ns == last_ns), "")
        return times_of(self.begins_ns, ends_ns, [part.flow for part in ended], slowest)

    def _parts(self, exchanged: Sent) -> list[Part]:
        """Return the parts of the children, ordered by name. Each part has the time at which the child has the round's
        model.
        """
        parts = []
        for name, each in sorted(exchanged.items()):
            index = self._links.number_of(name)
            compute_ns, answer_ns = self._computing_ns(index, each.work)
            part = Part(
                name=name,
                index=index,
                link=self._links.link_of(index),
                exchanged=each,
                begins_ns=self.begins_ns,
                free_ns=self._free.get(name, 0),
                compute_ns=compute_ns,
                answer_compute_ns=answer_ns,
                sends_bytes=each.up_bytes,
            )
            parts.append(part)
        known = self._received_ns
        received = self._models_received(parts) if known is None else [known[part.name] for part in parts]
        return [part.received(at_ns) for part, at_ns in zip(parts, received, strict=True)]

    def _models_received(self, parts: Sequence[Part]) -> list[int]:
        """Return the time at which each child has received its model, in the order of `parts`.

        A broadcast crosses the shared link once. It begins when the first child can receive the model. A child has its
        model when both the broadcast and the child's own link have carried it.
        """
        shared, flows = self._links.shared, []
        for part in parts:
            start_ns = max(self.begins_ns, part.free_ns)
            flows.append(Flow(start_ns=start_ns, bits=8 * part.exchanged.down_bytes, rate=part.link.rate(DOWN)))
        ends = fair_ends(flows, None if shared.is_broadcast else shared.down)
        if shared.is_broadcast:
            streams: dict[int, Flow] = {}
            for part, flow in zip(parts, flows, strict=True):
                one = streams.setdefault(part.exchanged.stream, flow)
                start_ns, bits = min(one.start_ns, flow.start_ns), max(one.bits, flow.bits)
                streams[part.exchanged.stream] = Flow(start_ns=start_ns, bits=bits, rate=None)
            over = dict(zip(streams, fair_ends(list(streams.values()), shared.down), strict=True))
            ends = [max(end, over[part.exchanged.stream]) for part, end in zip(parts, ends, strict=True)]
        latencies = [
            self._links.latency_ns(self.number, part.index, DOWN, flow.start_ns) if part.exchanged.down_bytes else 0
            for part, flow in zip(parts, flows, strict=True)
        ]
        return [end + latency_ns for end, latency_ns in zip(ends, latencies, strict=True)]

    def _answered(self, parts: Sequence[Part]) -> list[int]:
        """Return the times, in nanoseconds, at which the children's answers arrive at the parent."""
        return self._arrivals([part.answering() for part in parts], is_answer=True)

    def _updating(self, parts: Sequence[Part], dropped: Sequence[Part] = ()) -> list[Part]:
        """Return the parts of the children, then the parts of children that dropped out. In each part `ready_ns` is the
        time at which the child begins to send its update.
        """
        every, goes_on_ns = [*parts, *dropped], self._goes_on_ns
        if goes_on_ns is None:
            return every
        return [
            part.updating(
                answered_ns,
                goes_on_ns,
                self._links.latency_ns(self.number, part.index, DOWN, goes_on_ns, is_answer=True),
            )
            for part, answered_ns in zip(every, self._answered(every), strict=True)
        ]

    def _arrivals(self, parts: Sequence[Part], *, is_answer: bool = False) -> list[int]:
        """Return when the next transfer of each child arrives at the parent."""
        ends = fair_ends([part.upload for part in parts], self._links.shared.up)
        return [end + self._up_latency_ns(part, is_answer=is_answer) for part, end in zip(parts, ends, strict=True)]

    def _late(self, parts: Sequence[Part], ends_ns: int, *, is_answer: bool = False) -> Iterator[Part]:
        """Yield the parts that miss the deadline `ends_ns`. Each part has the number of bytes that had not left the
        shared link by then.
        """
        carried = carried_by([part.upload for part in parts], self._links.shared.up, ends_ns)
        for part, (end_ns, bits) in zip(parts, carried, strict=True):
            if end_ns is None or end_ns + self._up_latency_ns(part, is_answer=is_answer) > ends_ns:
                yield part.ended(max(ends_ns, part.ready_ns), (part.upload.bits - bits + 7) // 8)

    def _up_latency_ns(self, part: Part, *, is_answer: bool = False) -> int:
        return self._links.latency_ns(self.number, part.index, UP, part.ready_ns, is_answer=is_answer)


class DeviceTimeline:
    """Create LPS rounds in virtual time, with the links and boards of an experiment."""

    def __init__(self, experiment: Experiment) -> None:
        self.links, self._boards = device_links(experiment), Boards(experiment)

    def round(self, lps_round: int, begins_ns: int, free: Mapping[str, int] | None = None) -> Round:
        """Return an LPS round that begins at `begins_ns`."""

        def computing_ns(index: int, work: pb.Work) -> tuple[int, int]:
            answering_ns = self._boards.answering_ns(index, lps_round, work.answer_examples)
            return self._boards.compute_ns(index, lps_round, work.examples), answering_ns

        return Round(self.links, computing_ns, number=lps_round, begins_ns=begins_ns, free=free)

    def compute_ns(self, index: int, lps_round: int, examples: int) -> int:
        """Return how long a device computes for its update in an LPS round."""
        return self._boards.compute_ns(index, lps_round, examples)


class LpsTimeline:
    """Create global rounds in virtual time, with the links of an experiment. Calculate when messages between the GPS
    and an LPS arrive.
    """

    def __init__(self, experiment: Experiment) -> None:
        self._links = lps_links(experiment)

    def round(self, global_round: int, begins_ns: int) -> Round:
        """Return a global round that begins at `begins_ns`."""
        return Round(self._links, lambda _, work: (work.busy_ns, 0), number=global_round, begins_ns=begins_ns)

    def arrival_ns(self, lps_id: str, global_round: int, begins_ns: int, payload_bytes: int) -> int:
        """Return when the model of a global round arrives at an LPS. The global round begins at `begins_ns`."""
        number = self._links.number_of(lps_id)
        sent_ns = end_of(begins_ns, 8 * payload_bytes, self._links.link_of(number).rate(DOWN))
        return sent_ns + self._links.latency_ns(global_round, number, DOWN, begins_ns)

    def bundled_ns(self, lps_id: str, global_round: int, answered_ns: int, bundle_bytes: int) -> int:
        """Return when the answers of an LPS's devices arrive at the GPS. `answered_ns` is the time at which the LPS has
        the last answer.
        """
        number = self._links.number_of(lps_id)
        sent_ns = end_of(answered_ns, 8 * bundle_bytes, self._links.link_of(number).rate(UP))
        return sent_ns + self._links.latency_ns(global_round, number, UP, answered_ns, is_answer=True)

    def told_ns(self, lps_id: str, global_round: int, planned_ns: int) -> int:
        """Return when an LPS learns of a global round's plan: the link's latency after the GPS has made the plan."""
        number = self._links.number_of(lps_id)
        return planned_ns + self._links.latency_ns(global_round, number, DOWN, planned_ns, is_answer=True)


class Driver:
    """Calculate the rounds of all LPSs and the waits between rounds. Programs that run no GPS and no LPS use this
    class.
    """

    def __init__(self, experiment: Experiment) -> None:
        self._devices, self.uplinks = DeviceTimeline(experiment), LpsTimeline(experiment)

    def lps_rounds(
        self, global_round: int, first: int, begins: Mapping[str, int], sent: Mapping[str, Sequence[Sent]], *,
        is_asking: bool,
    ) -> dict[str, list[pb.RoundTimes]]:  # fmt: skip
        """Return, by LPS, the times of consecutive LPS rounds. The first round has the number `first`. For each LPS,
        `begins` has the time at which this round begins, and `sent` has the transfers of each round.

        With `is_asking`, devices answer a question in the first round. All LPSs then wait for the plan that is made
        from the answers.
        """
        opened = {name: self._devices.round(first, begins[name]) for name in sent}
        if is_asking:
            self._ask(global_round, opened, {name: children for name, (children, *_) in sent.items()})
        found: dict[str, list[pb.RoundTimes]] = {name: [] for name in sent}
        for name, rounds in sent.items():
            times, current = found[name], opened[name]
            for number, children in enumerate(rounds, first + 1):
                times.append(current.times(children))
                current = self._devices.round(number, times[-1].ends_ns)
        return found

    def _ask(self, global_round: int, opened: Mapping[str, Round], sent: Mapping[str, Sent]) -> None:
        """Let devices answer, and continue each LPS's round when the LPS knows the plan."""
        planned_ns = max(
            self.uplinks.bundled_ns(
                name,
                global_round,
                opened[name].answered_ns(children),
                sum(each.work.answer_bytes for each in children.values()),
            )
            for name, children in sent.items()
        )
        for name, each in opened.items():
            each.go_on(self.uplinks.told_ns(name, global_round, planned_ns))


# --- before training ----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Asked:
    """Describe a question before training. `answer_bytes` has the size of each device's answer, by device. `examples`
    has the number of examples on which each device trains for its answer. `relayed` has the devices with answers that
    the GPS sends to all other devices, in the order in which it sends them.
    """

    answer_bytes: Mapping[int, int]
    examples: Mapping[int, int]
    relayed: Sequence[int] = ()  # devices, in order, whose answers the GPS sends to all other devices


@dataclass
class _Asking:
    """Hold a device's current time and its work so far, before training. The fields correspond to the fields of
    pb.Flow.
    """

    now_ns: int = 0
    down_bytes: int = 0
    up_bytes: int = 0
    examples: int = 0
    down_ns: int = 0
    compute_ns: int = 0
    up_ns: int = 0

    def answer(self, computing_ns: int, examples: int, size: int, line: Line, latency_ns: int) -> None:
        """Add the work for an answer: the training on `examples` examples, and the upload of `size` bytes."""
        start_ns = self.now_ns + computing_ns
        self.now_ns = line.carry(start_ns, 8 * size) + latency_ns
        self.compute_ns += computing_ns
        self.examples += examples
        self.up_bytes += size
        self.up_ns += self.now_ns - start_ns

    def receive(self, answers: Sequence[tuple[int, int]], line: Line, latency_ns: int) -> None:
        """Add the download of other devices' answers, one after the other. Each of `answers` has the time at which the
        answer is at the GPS, and its bytes.
        """
        ready_ns = 0
        for at_ns, size in answers:
            ready_ns = max(ready_ns, at_ns)
            begins_ns = max(ready_ns, line.free_ns)
            self.down_ns += line.carry(ready_ns, 8 * size) - begins_ns
            self.down_bytes += size
        self.down_ns += latency_ns
        self.now_ns = max(self.now_ns, line.free_ns + latency_ns)


def before_training(experiment: Experiment, asked: Sequence[Asked]) -> pb.RoundTimes:
    """Return the times of the questions before training, from the first question to the last answer. The times of
    receiving, computing and sending are sums over the devices that answered.

    A device goes on to the next question when its answer is at the GPS and the relayed answers are at the device.

    Raises:
        RunStoppedError: the questions take more than 73 years.
    """
    links, boards = device_links(experiment, to_gps=True), Boards(experiment)
    devices = {index: _Asking() for question in asked for index in sorted(question.answer_bytes)}
    for number, question in enumerate(asked):
        for index, size in question.answer_bytes.items():
            examples, line = question.examples[index], Line(links.link_of(index).rate(UP))
            latency_ns = links.latency_ns(number, index, UP, 0)
            devices[index].answer(boards.training_ns(index, examples), examples, size, line, latency_ns)
        arrived = {index: (devices[index].now_ns, size) for index, size in question.answer_bytes.items()}
        for index, device in devices.items():
            others = [arrived[other] for other in question.relayed if other != index and other in arrived]
            if others:
                line = Line(links.link_of(index).rate(DOWN), free_ns=device.now_ns)
                device.receive(others, line, links.latency_ns(number, index, DOWN, 0))
    ends_ns = max((device.now_ns for device in devices.values()), default=0)
    check_clock_at(ends_ns * len(devices))
    names = experiment.device_ids()
    slowest = next((names[index] for index, device in sorted(devices.items()) if device.now_ns == ends_ns), "")
    flows = [
        pb.Flow(child=index, **{name: at for name, at in vars(device).items() if name != "now_ns"})
        for index, device in sorted(devices.items())
    ]
    return times_of(0, ends_ns, flows, slowest)


def times_of(begins_ns: int, ends_ns: int, flows: Sequence[pb.Flow], slowest: str) -> pb.RoundTimes:
    """Return the times of a round. A child's waiting time is all time in which it does not receive, compute or send."""
    parts = {f"{part}_ns": sum(getattr(flow, f"{part}_ns") for flow in flows) for part in PARTS}
    return pb.RoundTimes(
        begins_ns=begins_ns,
        ends_ns=ends_ns,
        ready_ns=ends_ns,
        **parts,
        waiting_ns=(ends_ns - begins_ns) * len(flows) - sum(parts.values()),
        children=len(flows),
        slowest=slowest,
        flows=flows,
    )


def check_clock_at(now_ns: int) -> None:
    """Check a time or a sum of times. Raises RunStoppedError if it is 73 years or more, because the times of a longer
    run might not fit into an int64.
    """
    if now_ns >= LAST_NS:
        raise RunStoppedError(
            "the virtual clock passes 73 years, or the sum of a round's times does; raise the rates of the links, or "
            "lower compute.per_example"
        )
