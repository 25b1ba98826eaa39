"""Calculate the timeline of asynchronous rounds before a run: which updates each round takes, and when.

No event depends on a weight, so the timeline follows from the experiment file. It equals the record of the run under
three conditions: the method can tell on how many examples devices train, each LPS serves the devices that the file
says, and no encoding is int8.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from rich.console import Console

from emulator.console.units import counted, human_seconds
from emulator.estimates.check_times import expected_homes, trained_in
from fedstrata.clock.asynchronous import Calculated, asynchronous_round
from fedstrata.clock.exchanged import Exchanged
from fedstrata.clock.timeline import DeviceTimeline, LpsTimeline
from fedstrata.datasets import Dataset, dataset_info
from fedstrata.experiment import Encoding, Experiment
from fedstrata.experiment.sections import BufferedSettings, TimedSettings
from fedstrata.methods import make_method
from fedstrata.models import build_model
from fedstrata.partitions import example_counts, held_out_counts
from fedstrata.rounds import Offer
from fedstrata.rpc.payload import parts_header, payload_header
from fedstrata.rules.registry import sends_sums
from fedstrata.store import ModelInMemory
from fedstrata.store.attempts import new_attempt
from fedstrata.streams.streams import UPDATE_PART, streams_of
from fedstrata.tasks import make_task
from fedstrata.tensors import Layout, PayloadCodec
from fedstrata.v1 import gps_service_pb2 as gps_pb
from fedstrata.v1 import rounds_pb2 as pb

DIGEST = b"0" * 64
PLAN_VERSION = 1  # of the plan before training


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """Hold the timeline of all rounds: the times of each LPS's rounds, and the times of the global rounds."""

    lps_rounds: Mapping[str, Sequence[pb.RoundTimes]]
    global_rounds: Sequence[pb.RoundTimes]


class _Sizes:
    """Calculate the bytes of all messages of a run, with their headers."""

    def __init__(self, experiment: Experiment, dataset: Dataset) -> None:
        method, info = make_method(experiment), dataset_info(experiment.data)
        streams = streams_of(experiment, method, build_model(experiment.model, info))
        self._experiment, self._streams, self._task = experiment, streams, make_task(experiment)
        self._attempt_id = new_attempt(experiment.run_id)  # all attempts have ids of one size
        self._clusters = max(1, method.clusters_known)
        self.examples = example_counts(experiment, dataset)
        self._held_out = held_out_counts(experiment, dataset)
        self._to_devices, self._up = streams.travelling, streams.vector(self._clusters)
        self._is_exact = sends_sums(experiment, spans=streams.spans)
        self.spans = streams.spans
        links = experiment.links
        self._device_model = _announced(Offer(_zeros(self._to_devices)), links.device_lps.down)
        vector = (
            Offer(_zeros(self._up.tensors), clusters=self._clusters, parts=self._up.parts)
            if self.spans
            else Offer(_zeros(streams.everywhere))
        )
        self._lps_model = _announced(vector, links.lps_gps.down)

    def to_device(self, number: int) -> int:
        """Return the bytes that a device receives with the model of LPS round `number`."""
        of = number // self._experiment.training.lps_rounds_per_global_round
        header = pb.ModelHeader(run_id=self._attempt_id, round=number, global_round=of)
        return _model_bytes(self._device_model, header)

    def of_device(self, index: int, home_id: str, number: int) -> int:
        """Return the bytes of the update that device `index` sends for the model of LPS round `number`."""
        experiment, training = self._experiment, self._experiment.training
        name, held_out = experiment.device_ids()[index], self._held_out[index]
        codec = PayloadCodec(self._to_devices, experiment.links.device_lps.up)
        measured = pb.Evaluation(
            device_id=name, round=number, loss_sum=1.0, sums=[1.0] * len(self._task.sums), num_examples=held_out
        )
        is_measured = training.is_measured(number // training.lps_rounds_per_global_round)
        header = pb.UpdateHeader(
            run_id=self._attempt_id,
            child_id=name,
            home_id=home_id,
            round=number,
            payload=payload_header(codec, name=UPDATE_PART, num_examples=self.examples[index]),
            train_loss=1.0,
            evaluations=[measured] if is_measured else [],
            base_digest=DIGEST,
        )
        return Exchanged.of_update(header).up_bytes

    def to_lps(self, global_round: int, begins_ns: int) -> int:
        """Return the bytes that an LPS receives with the model of a global round. This round begins at `begins_ns`."""
        header = pb.ModelHeader(
            run_id=self._attempt_id,
            round=global_round,
            global_round=global_round,
            plan_version=PLAN_VERSION,
            begins_ns=begins_ns,
        )
        return _model_bytes(self._lps_model, header)

    def of_lps(self, name: str, global_round: int, examples: int, weight: int) -> int:
        """Return the bytes of the update that LPS `name` sends in a global round. `weight` is its weight in each
        stream. With the method `local` there is no stream.
        """
        up = self._experiment.links.lps_gps.up
        header = pb.UpdateHeader(
            run_id=self._attempt_id, child_id=name, home_id=name, round=global_round, train_loss=1.0
        )
        if self.spans:
            codec = PayloadCodec(self._up.tensors, "exact" if self._is_exact else up)
            header.payload.CopyFrom(parts_header(codec, self._up.parts, [weight] * len(self._up.parts)))
            header.num_examples = examples
        else:
            codec = PayloadCodec(self._streams.everywhere, up)
            header.payload.CopyFrom(payload_header(codec, name=UPDATE_PART, num_examples=examples))
        return Exchanged.of_update(header).up_bytes


def _zeros(layout: Layout) -> ModelInMemory:
    return ModelInMemory(layout, np.zeros(layout.size, np.float32), {"format": "fedstrata"})


def _announced(offer: Offer, encoding: Encoding) -> Offer:
    offer.announce(pb.ModelHeader(), encoding)
    return offer


def _model_bytes(offer: Offer, of_round: pb.ModelHeader) -> int:
    """Return the bytes of an offer in a round. `of_round` has the fields of the header that depend on the round."""
    header = pb.ModelHeader()
    header.CopyFrom(offer.header)
    header.MergeFrom(of_round)
    return header.ByteSize() + offer.codec.payload_bytes


class _Lps:
    """Calculate the rounds of one LPS."""

    def __init__(self, experiment: Experiment, name: str, home: Sequence[int], sizes: _Sizes) -> None:
        ids = experiment.device_ids()
        self.name, self.rounds = name, list[pb.RoundTimes]()
        self._experiment, self._sizes = experiment, sizes
        self._devices = DeviceTimeline(experiment)
        self._indexes = {ids[index]: index for index in home}
        self._whole = sum(sizes.examples[index] for index in home)
        self.report = gps_pb.ReportHeader()
        self.examples = self.weight = 0  # of the updates in the open global round

    def global_round(self, arrived_ns: int, settings: TimedSettings | BufferedSettings) -> int:
        """Calculate the LPS rounds of a global round, which begins with the arrival of its model. Return its end."""
        self.report.now_ns, self.examples, self.weight = arrived_ns, 0, 0
        for _ in range(self._experiment.training.lps_rounds_per_global_round):
            self._round(asynchronous_round(self._devices, settings, len(self.rounds), self.report, self._indexes))
        return self.report.now_ns

    def _round(self, opened: Calculated) -> None:
        sizes, number, training = self._sizes, len(self.rounds), self._experiment.training
        updated, down_bytes = dict(opened.announced), sizes.to_device(number)
        trained = trained_in(self._experiment, sizes.examples, number)
        at_rest = opened.begin(dict.fromkeys(self._indexes, Exchanged()))
        for name, index in self._indexes.items():
            if name not in updated and name not in at_rest:
                updated[name] = Exchanged(
                    down_bytes=down_bytes,
                    up_bytes=sizes.of_device(index, self.name, number),
                    work=pb.Work(examples=trained[index]),
                )
        late = opened.late_updates(updated)
        taken = [name for name in updated if name not in late]
        times = opened.times()
        self.report.now_ns = times.ends_ns
        opened.note(self.report)
        self.rounds.append(times)
        stated = sum(sizes.examples[self._indexes[name]] for name in taken)
        weighed = sum(sizes.examples[self._indexes[name]] * opened.weighing.factor(name) for name in taken)
        self.examples += stated
        is_sum = training.lps_rounds_per_global_round == 1 and training.rounds.lps.sums_examples
        self.weight += opened.weighing.divisor(stated, weighed, self._whole) if is_sum else stated


def timeline_of(experiment: Experiment, settings: TimedSettings | BufferedSettings, dataset: Dataset) -> Timeline:
    """Return the timeline of a run with asynchronous rounds. `settings` are the experiment's `training.rounds.lps`."""
    sizes, uplinks = _Sizes(experiment, dataset), LpsTimeline(experiment)
    lpss = [_Lps(experiment, f"lps-{number}", home, sizes) for number, home in enumerate(expected_homes(experiment))]
    found, begins_ns = list[pb.RoundTimes](), 0
    for number in range(experiment.training.global_rounds):
        down_bytes = sizes.to_lps(number, begins_ns)
        sent = {}
        for lps in lpss:
            is_sent = sizes.spans or number > 0
            arrived_ns = uplinks.arrival_ns(lps.name, number, begins_ns, down_bytes) if is_sent else 0
            ends_ns = lps.global_round(arrived_ns, settings)
            sent[lps.name] = Exchanged(
                down_bytes=down_bytes if is_sent else 0,
                up_bytes=sizes.of_lps(lps.name, number, lps.examples, lps.weight),
                work=pb.Work(busy_ns=ends_ns - arrived_ns),
            )
        found.append(uplinks.round(number, begins_ns).times(sent))
        begins_ns = found[-1].ends_ns
    return Timeline(lps_rounds={lps.name: lps.rounds for lps in lpss}, global_rounds=found)


def print_timeline(
    experiment: Experiment, settings: TimedSettings | BufferedSettings, dataset: Dataset, console: Console
) -> None:
    """Print when an asynchronous run ends, how stale its updates are, and who sends them."""
    timeline = timeline_of(experiment, settings, dataset)
    updates = [
        (number - each.from_round, each.child)
        for rounds in timeline.lps_rounds.values()
        for number, times in enumerate(rounds)
        for each in times.contributions
    ]
    staleness = Counter(stale for stale, _ in updates)
    by_device = Counter(child for _, child in updates)
    never = experiment.device_count - len(by_device)
    ends_s = timeline.global_rounds[-1].ends_ns / 1e9
    fresh = 100 * staleness[0] / len(updates)
    console.print(
        f"training: {human_seconds(ends_s)}, {counted(len(updates), 'update')}, {fresh:.0f} % of the newest model; "
        f"staleness {sum(stale * n for stale, n in staleness.items()) / len(updates):.1f} in the mean, at most "
        f"{max(staleness)}; {min(by_device.values())} to {max(by_device.values())} updates of a device",
        soft_wrap=True,
    )
    if never:
        console.print(f"{never} of {experiment.device_count} devices never send an update", soft_wrap=True)
    if max(staleness) == 0:
        console.print("all rounds take the updates of all devices: synchronous rounds do the same", soft_wrap=True)
