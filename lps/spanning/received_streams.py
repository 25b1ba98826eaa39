"""The streams of clusters with devices at several local parameter servers (LPSs). A stream is a group of tensors that
are averaged together. Each LPS sums its own devices' updates in each stream.

All models here come from the global parameter server (GPS). If an LPS is killed, or adopts the devices of another LPS,
it fetches the models of the open global round again.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from fedstrata.errors import NotReadyError, PayloadError, StateError
from fedstrata.experiment import Experiment
from fedstrata.rounds import ReceivedModel
from fedstrata.rpc.payload import Acceptance
from fedstrata.rules import Gathering, Weighing
from fedstrata.rules.mean import exact
from fedstrata.streams.plan_checks import are_offers
from fedstrata.streams.streams import UPDATE_PART, Streams
from fedstrata.tensors import Layout
from fedstrata.tensors.codec import AnyEncoding
from fedstrata.v1 import gps_service_pb2 as gps_pb
from fedstrata.v1 import rounds_pb2 as pb
from lps.holding import Holding, Offers, SessionParts, Upward
from lps.report_files import RoundReports
from lps.spanning.stream_vector import StreamVector, changes, partial_sums


class UpdateLayouts:
    """Hold the layout of devices' updates in each LPS round. The layout changes when the method withdraws tensors,
    because these are no longer sent.
    """

    def __init__(self, encoding: AnyEncoding) -> None:
        self._encoding = encoding
        self._since: list[tuple[int, Acceptance]] = []  # (first LPS round, its layout)
        self._accepted: dict[Layout, Acceptance] = {}

    def begin(self, lps_round: int, layout: Layout) -> None:
        """Set the layout of updates from an LPS round on."""
        if layout not in self._accepted:
            self._accepted[layout] = Acceptance(layout, self._encoding, UPDATE_PART)
        accepted = self._accepted[layout]
        if not self._since or self._since[-1][1] is not accepted:
            self._since.append((lps_round, accepted))

    def of(self, lps_round: int) -> Acceptance:
        """Return the required form of updates in an LPS round.

        The GPS's models determine the form. For an LPS round before the first model that this LPS has received since it
        started, return the form of this first model.

        Raises:
            NotReadyError: this LPS has restarted, and does not know yet which tensors are sent.
        """
        if not self._since:
            raise NotReadyError("this LPS has received no model from the GPS yet; try again")
        return next((known for first, known in reversed(self._since) if first <= lps_round), self._since[0][1])


class ReceivedStreams(Holding):
    """Hold the streams of a global round, and change them by the updates of this LPS's devices."""

    def __init__(self, parts: SessionParts) -> None:
        self._parts = parts
        self._reports = RoundReports(parts.folder, parts.log)
        self._layouts = UpdateLayouts(parts.update_encoding)
        self._began_in: Mapping[str, int] = {}  # by device: its cluster at the start of the LPS round
        self._global_round = 0
        self._streams: Streams = parts.lps.streams
        self._to_devices: dict[str, Any] = {}  # fields sent with the models of the global round
        self._base: StreamVector  # as received from the GPS
        self._vector: StreamVector  # after this LPS's rounds
        self._sums: Gathering | None = None  # for the GPS, if this LPS sends sums

    # --- what the GPS sends -------------------------------------------------------------------

    async def recover(self, show: Callable[[Any], None]) -> None:
        """Do nothing, because the GPS has all streams."""

    async def begin(self) -> tuple[int, gps_pb.ReportHeader]:
        """Fetch the models of the open global round. Return the first LPS round of this global round, and the report of
        the earlier rounds.

        Raises:
            StateError: the report at the start of the global round is not on this LPS's disk, but the clock needs
                values that only this report has.
        """
        parts = self._parts
        received = await parts.gps.model()
        report = self._report_at(received.round)
        if report is not None:
            parts.notes.go_on_from(report)
            parts.log.info("cluster_resumed", global_round=received.round)
        elif received.round or parts.cluster.term:  # bytes of other clusters are not bytes of this cluster's next round
            parts.notes.go_on_from(parts.empty_report())
        report = report or parts.empty_report()
        parts.clock.received(report, received.round, received.begins_ns, received.whole_bytes)
        await self._start_from(received)
        return received.round * parts.rounds, report

    def _report_at(self, global_round: int) -> gps_pb.ReportHeader | None:
        parts, report = self._parts, self._reports.at(global_round)
        if report is None and parts.clock.kept_here and global_round:
            raise StateError(
                f"this LPS has no report of {parts.cluster.home_id} at the start of global round {global_round + 1}, "
                f"and only this report has {parts.clock.kept_here}; put the files back, or begin the run again"
            )
        return report

    async def take(self, received: ReceivedModel, report: gps_pb.ReportHeader) -> None:
        self._parts.clock.received(report, received.round, received.begins_ns, received.whole_bytes)
        await asyncio.to_thread(self._reports.save, received.round, report)
        await self._start_from(received)

    async def go_back(self, received: ReceivedModel) -> gps_pb.ReportHeader:
        report = await asyncio.to_thread(self._report_at, received.round) or self._parts.empty_report()
        self._parts.notes.complete(report)
        await self.take(received, report)
        return report

    async def _start_from(self, received: ReceivedModel) -> None:
        """Start a global round with the streams that the GPS has sent. The GPS may also say, for each cluster, which
        clusters' models its devices receive. Raises PayloadError if `are_offers` finds these lists invalid.
        """
        parts = self._parts
        await parts.gps.newest_plan.until_heard(received.plan_version)
        if not received.evaluate_only:
            parts.members.begin_global_round(received.round)
        if received.offers and not are_offers(received.offers, received.clusters):
            raise PayloadError(
                f"the GPS offers models to {len(received.offers)} of {received.clusters} clusters; expected for each "
                "cluster its own model and some others"
            )
        self._global_round = received.round
        self._to_devices = {"withdrawn": received.withdrawn, "told": received.told}
        self._streams = parts.lps.streams.without(received.withdrawn)
        self._layouts.begin(received.round * parts.rounds, self._streams.travelling)
        self._base = self._vector = StreamVector(self._streams, received.clusters, received.flat, received.offers)

    # --- an LPS round -------------------------------------------------------------------------

    def accepts_updates(self, lps_round: int) -> Acceptance:
        return self._layouts.of(lps_round)

    def offers(self, *, is_planned: bool = False) -> Offers:
        members = self._parts.members
        self._began_in = members.began_in() if is_planned else members.clusters_of()
        models = self._vector.offers(of_all=self._parts.lps.method.fetches_all, **self._to_devices)
        return Offers(models, self._began_in)

    def sums(self, children: Mapping[str, int], everybody: Mapping[str, int], weighing: Weighing) -> Gathering:
        members, folder = self._parts.members, self._parts.folder
        rule = self._parts.lps.rule.in_round(self._global_round)
        vector, examples = self._streams.vector(members.clusters), Counter[int]()
        for device_id, cluster in members.clusters_of().items():
            examples[cluster] += everybody.get(device_id, 0)
        shares, whole = members.shares(self._streams, children), vector.whole(examples)
        return Gathering(rule, shares, folder, whole=whole, counts=vector.counts, weighing=weighing)

    async def written(self) -> None:
        """Do nothing, because the GPS keeps every model that this LPS offers."""

    async def move(self, lps_round: int, sums: Gathering, report: gps_pb.ReportHeader) -> None:
        """Change the streams by the mean updates. If the GPS adds the sums of LPSs, keep the sums for the GPS
        instead.
        """
        if self._parts.lps.sends_sums:
            if self._parts.members.mixed:
                await asyncio.to_thread(self._add_bases, sums)
            self._sums = sums
        else:
            self._vector = await asyncio.to_thread(self._vector.moved, sums)

    def _add_bases(self, sums: Gathering) -> None:
        """Turn the sums of mixed streams into sums of whole values. A stream is mixed if the plan sets `weights` for
        its channel. Devices send differences, so this adds the weighted values that each device received.
        """
        vector, members, totals = self._base, self._parts.members, exact(sums.totals)
        for number, stream in enumerate(self._streams.vector(members.clusters).streams):
            if stream.channel not in members.mixed:
                continue
            times: dict[int | None, int] = {}
            for child_id, weights in sums.accepted.items():
                base = None if stream.cluster is None else self._began_in[child_id]
                times[base] = times.get(base, 0) + weights[number]
            for base, weight in times.items():
                if weight:
                    totals[number].shift(vector.flat[vector.layout.place(stream.channel, base)], weight)

    # --- the global round ---------------------------------------------------------------------

    async def upward(self, report: gps_pb.ReportHeader) -> Upward:
        """Save the report, and return this LPS's update of every stream.

        Only this LPS has the report's last row. The LPS may be restarted after its update, when the GPS has already
        closed the round. The LPS then continues with the saved report.
        """
        self._parts.members.end_global_round()
        await asyncio.to_thread(self._reports.save, self._global_round + 1, report)
        following = self._streams.vector(self._parts.members.clusters)  # of the newest plan
        if self._sums is None:
            return changes(self._vector, self._base, following.parts, self._parts.gps.uplink.link.up)
        sums, self._sums = self._sums, None
        return partial_sums(following, sums)


def accepted_model(experiment: Experiment, streams: Streams, header: pb.ModelHeader) -> Acceptance:
    """Return the required form of a model from the GPS. The model has all streams of the clusters that its header
    states.
    """
    vector = streams.without(header.withdrawn).vector(min(header.clusters, experiment.device_count))
    return Acceptance(vector.tensors, experiment.links.lps_gps.down, vector.parts)
