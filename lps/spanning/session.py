"""The devices that hang on an LPS where clusters span LPSs: the GPS keeps all streams, an LPS sums up its part of each.

What an LPS holds here is what the GPS gave it: killed, or with the devices of another LPS adopted, it fetches the open
global round again.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any

from fedstrata.clock.clocks import clock_of
from fedstrata.clock.deadline import Deadline
from fedstrata.clock.presence import Homes
from fedstrata.errors import NotReadyError, PayloadError, StateError
from fedstrata.methods import Moment
from fedstrata.process.logs import EventLog
from fedstrata.process.sleeping import hold_s
from fedstrata.rounds import (
    Asking,
    Intake,
    OpenRound,
    ReceivedModel,
    RoundClient,
    RoundServer,
    RoundTerms,
    Stage,
    Update,
    on_time,
)
from fedstrata.rpc.payload import Acceptance
from fedstrata.streams.streams import UPDATE_PART, are_offers
from fedstrata.tensors import Layout, RoutedSums
from fedstrata.v1 import answers_pb2
from fedstrata.v1 import gps_service_pb2 as gps_pb
from fedstrata.v1 import rounds_pb2 as pb
from lps.closing import say_good_bye
from lps.kept.cluster import LpsParts
from lps.members import Members
from lps.notes import Notes
from lps.round_rows import split_rounds
from lps.spanning.report_files import ReportFiles
from lps.spanning.stream_vector import StreamVector, Upward, UpwardChanges, UpwardSums
from lps.uplink import exchanged, model_of


class SpanningSession:
    """Runs the devices of one LPS from their first round to its report."""

    final_model = None  # the GPS has them all

    def __init__(self, around: LpsParts, home: gps_pb.Cluster, uplink: RoundClient, log: EventLog) -> None:
        self._around = around
        self._experiment = around.experiment
        self._streams = around.streams
        self._rounds = around.experiment.training.lps_rounds_per_global_round
        self._question = next((q for q in around.method.questions() if q.moment is not Moment.BEFORE), None)
        self._home = home.cluster_id
        self._uplink = uplink
        self._log = log
        self.term = home.term
        self._clock = clock_of(around.experiment).lps(home)
        self._members = Members(around.experiment, home, self._clock.presence)
        self._began_in: Mapping[str, int] = {}  # by device, its cluster as the open LPS round began
        self.has_member, self.goes_on_with = self._members.has, self._members.goes_on_with
        run_id = uplink.identity.run_id
        name = f"{home.cluster_id}.{home.term}" if home.term else home.cluster_id
        self._files = ReportFiles(around.state_folder / run_id / name, log)
        exchange = RoundTerms(
            run_id=run_id,
            layout=self._streams.travelling,
            link=self._experiment.links.device_lps,
            wait=self._clock.wait,
            held_s=hold_s(self._experiment.device_count),
            clock=self._clock.rounds,
        )
        self._notes = Notes(home.cluster_id, around.metrics, log)
        self.server = RoundServer(
            exchange,
            around.metrics,
            log,
            around.executor,
            accepts_updates=self._accepts_updates,
            serves=self._members.has if Homes(self._experiment.schedule).moving else None,
            refused=self._notes.refused,
        )
        self._updates: list[tuple[int, Layout]] = []  # of updates, from which LPS round on
        self._accepted: dict[Layout, Acceptance] = {}
        self._to_devices: dict[str, Any] = {}  # what goes with the models of the open global round
        self._report = gps_pb.ReportHeader(run_id=run_id, cluster_id=home.cluster_id)
        self.on_plan: Callable[[int], Awaitable[None]] = _nothing
        self.on_planned: Callable[[int], Awaitable[None]] = _nothing
        self.planned_rounds: Callable[[], int] = lambda: 0
        self.planned_ns: Callable[[], int] = lambda: 0
        self.submit_answers: Callable[[int, Mapping[int, answers_pb2.Answer], int], Awaitable[None]] = _no_answers

    def take_members(self, home: gps_pb.Cluster) -> None:
        """Take who belongs here from now on; who does no more is told so."""
        self._members.take(home)
        self.server.look_again()

    def _vector(self, received: ReceivedModel) -> StreamVector:
        """All streams of a global round as the GPS has sent them. Raises PayloadError for offers that do not fit."""
        if received.offers and not are_offers(received.offers, received.clusters):
            raise PayloadError(
                f"offers to {len(received.offers)} of {received.clusters} clusters; each has its own and some others"
            )
        self._to_devices = {"withdrawn": received.withdrawn, "told": received.told}
        self._streams = self._around.streams.without(received.withdrawn)
        if not self._updates or self._updates[-1][1] is not self._streams.travelling:
            self._updates.append((received.round * self._rounds, self._streams.travelling))
        return StreamVector(self._streams, received.clusters, received.flat, received.offers)

    def _accepts_updates(self, number: int) -> Acceptance:
        """What devices send in an LPS round; of rounds before the first that is known here, as in that one.

        Raises:
            NotReadyError: this LPS is back, and has not heard from the GPS yet what travels.
        """
        if not self._updates:
            raise NotReadyError("no model has come from the GPS yet; ask again")
        layout = next((layout for first, layout in reversed(self._updates) if first <= number), self._updates[0][1])
        if layout not in self._accepted:
            self._accepted[layout] = Acceptance(layout, self._experiment.links.device_lps.up, UPDATE_PART)
        return self._accepted[layout]

    def close(self) -> None:
        """Give the stream to the GPS up."""
        self._uplink.close()

    def may_lack_state(self) -> bool:
        """No: all of it is at the GPS."""
        return False

    # --- all of it ----------------------------------------------------------------------------

    async def run(self) -> gps_pb.ReportHeader:
        """All rounds and the final measurement; gives the report.

        Raises:
            StateError: on the virtual clock what had been noted here, or by the LPS before, is lost.
        """
        received = model_of(await self._uplink.fetch(-1))
        kept = self._files.at(received.round)
        if kept is not None:
            self._report = kept
            self._notes.go_on_from(kept)
            self._log.info("cluster_resumed", global_round=received.round)
        elif self._clock.keeps_time and received.round:
            raise StateError(
                f"no report of {self._home} at the start of global round {received.round + 1}: on clock: virtual it "
                "has times that nobody else knows; put the files back, or begin the run anew"
            )
        self._heard(received)
        while not received.evaluate_only:
            following = await self._global_round(received)
            if following.round <= received.round:
                await self._go_back(following)
            await asyncio.to_thread(self._files.save, following.round, self._report)
            received = following
        return await self._measure(received)

    def _heard(self, received: ReceivedModel) -> None:
        """Let the clock know that the model of a global round is here."""
        self._clock.received(self._report, received.round, received.begins_ns, received.whole_bytes)

    async def _go_back(self, received: ReceivedModel) -> None:
        """Take up the report as it was when a global round began that the GPS has to do again."""
        self._log.warning("gone_back", global_round=received.round)
        kept = await asyncio.to_thread(self._files.at, received.round)
        self._report = kept or gps_pb.ReportHeader(run_id=self._report.run_id, cluster_id=self._home)
        self._notes.complete(self._report)
        self._heard(received)

    async def _global_round(self, received: ReceivedModel) -> ReceivedModel:
        """The LPS rounds of a global round, and the exchange with the GPS; gives what the next one starts from."""
        await self.on_plan(received.plan_version)
        self._members.under_way = received.round
        base = self._vector(received)
        first = received.round * self._rounds
        if self._rounds == 1:
            sums = await self._gather(first, received.round, base)
            await asyncio.to_thread(self._add_bases, base, sums)
            return await self._exchange(received, UpwardSums(self._of_plan(base), sums))
        vector = base
        for number in range(first, first + self._rounds):
            vector = await self._move(number, received.round, vector)
        changes = UpwardChanges(vector, base)
        del vector  # where the next one comes, this one is in the way
        return await self._exchange(received, changes)

    async def _move(self, number: int, global_round: int, vector: StreamVector) -> StreamVector:
        """One LPS round; gives what the streams have moved to. The sums are let go of."""
        return await asyncio.to_thread(vector.moved, await self._gather(number, global_round, vector))

    def _of_plan(self, vector: StreamVector) -> StreamVector:
        """A vector laid out for as many clusters as the plan has now; its values count for nothing."""
        clusters = self._members.clusters
        return vector if clusters == vector.clusters else StreamVector(self._streams, clusters, vector.flat)

    # --- an LPS round -------------------------------------------------------------------------

    async def _gather(self, number: int, global_round: int, vector: StreamVector) -> RoutedSums:
        """One LPS round, with its question if there is one."""
        started = time.monotonic()
        begins_ns = await self._clock.begins_ns(self._report, global_round, self._members)
        children = self._members.in_round(global_round, number, begins_ns)
        deadline = self._clock.opens(self._report, global_round, self._members)
        asking = self._asking(number, deadline)
        is_planned = self.planned_rounds() > global_round
        # of an LPS that begins again in a round whose plan is made, devices hold models by the plan before
        is_late = bool(asking) and is_planned
        self._began_in = self._members.began_in() if is_late else self._members.clusters_of()
        self._open(number, global_round, vector, children, [*asking, *on_time(deadline)])
        for question in asking:
            await self._ask(global_round, question, is_planned=is_planned)
            self._clock.goes_on(global_round, self.planned_ns())
        sums = self._sums(children)
        self.server.go_on(self._members.clusters_of(), sums)
        gathered = await self.server.gather()
        seconds = time.monotonic() - started
        self._around.metrics.round_closed(seconds)
        self._report = self._notes.of_round(self._report, number, global_round, gathered, seconds)
        self._clock.of_round(self._report, partial(self.server.exchanged, gathered), self._members)
        return sums

    async def _ask(self, global_round: int, asking: Asking, *, is_planned: bool) -> None:
        """Have the devices of the open round answer its question and wait for the plan, unless it is made."""
        deadline = asking.deadline
        if is_planned:
            if deadline.can_be_missed:
                deadline.found(self._files.late(global_round))
            return
        answers = await asking.gathered()
        if deadline.can_be_missed:
            await asyncio.to_thread(self._files.save_late, global_round, deadline.late_flows)
        indexes = {self._members.index_of(child_id): answer for child_id, answer in answers.items()}
        lps_round, asked = global_round * self._rounds, partial(asking.exchanged, answers)
        answered_ns = self._clock.answered_ns(self._report, lps_round, asked, self._members)
        await self.submit_answers(global_round, indexes, answered_ns)
        await self.on_planned(global_round)
        await self._clock.plan_came(global_round)

    def _asking(self, number: int, deadline: Deadline) -> list[Asking]:
        """Return the stage in which devices are asked: the first LPS round of a global round can have one."""
        if self._question is None or number % self._rounds:
            return []
        return [Asking(self._question, self._around.method.check_answer, deadline)]

    def _sums(self, children: Mapping[str, int]) -> RoutedSums:
        sizes = [stream.tensors.size for stream in self._streams.streams(self._members.clusters)]
        return RoutedSums(sizes, self._members.routes(self._streams, children), children)

    def _open(
        self,
        number: int,
        global_round: int,
        vector: StreamVector,
        children: Mapping[str, int],
        stages: Sequence[Stage],
        *,
        evaluate_only: bool = False,
    ) -> None:
        intake = Intake(
            children=children, wait=self.server.exchange.wait, executor=self._around.executor,
            limits=self._members.limits(),
        )  # fmt: skip
        self.server.open(
            OpenRound(
                number=number,
                global_round=global_round,
                offers=vector.offers(of_all=self._around.method.fetches_all, **self._to_devices),
                clusters=self._began_in,
                intake=intake,
                evaluate_only=evaluate_only,
                stages=stages,
            )
        )

    def _add_bases(self, vector: StreamVector, sums: RoutedSums) -> None:
        """Of streams that are mixed, add what each device's update is relative to: the sum is then of whole values."""
        own = {
            (stream.channel, stream.cluster): place
            for stream, place in zip(self._streams.streams(vector.clusters), vector.places, strict=True)
        }
        for number, stream in enumerate(self._streams.streams(self._members.clusters)):
            if stream.channel not in self._members.mixed:
                continue
            times: dict[int | None, int] = {}
            for child_id in sums.counted:
                base = None if stream.cluster is None else self._began_in[child_id]
                times[base] = times.get(base, 0) + sums.weight(child_id, number)
            for base, weight in times.items():
                if weight:
                    sums.streams[number].shift(vector.flat[own[stream.channel, base]], weight)

    # --- the global round ---------------------------------------------------------------------

    async def _exchange(self, received: ReceivedModel, streams: Upward) -> ReceivedModel:
        """Send this LPS's part of every stream up, and wait for the next global round."""
        global_round, self._members.under_way = received.round, None
        codec = streams.codec(self._uplink.link.up)
        done, rest = split_rounds(self._report, (global_round + 1) * self._rounds - 1)
        update = Update(
            round=global_round,
            num_examples=self._members.examples(self._report, global_round, self._rounds),
            codec=codec,
            read=streams.read,
            train_loss=self._report.lps_rounds[-1].train_loss,
            lps_rounds=tuple(done),
            exclusions=tuple(self._notes.exclusions),
            payload=streams.header(codec, self._streams.parts(self._members.clusters)),
            work=self._clock.work(self._report, global_round),
        )
        # the GPS may close the round while this LPS is away, and its last row is here alone
        await asyncio.to_thread(self._files.save, global_round + 1, self._report)
        following = await exchanged(self._uplink, update)
        if following.round > global_round:  # else the GPS has lost this round's start
            self._notes.told(self._report, rest, update)
            self._heard(following)
        self._log.info("global_round_done", global_round=global_round, now=following.round)
        return following

    # --- the end ------------------------------------------------------------------------------

    async def _measure(self, received: ReceivedModel) -> gps_pb.ReportHeader:
        """Let the devices measure the final models, tell them that the run is over, and complete the report."""
        known = await asyncio.to_thread(self._files.final)
        if known is not None:  # of an earlier life; the devices may be gone
            self.server.finish()
            return known
        await self.on_plan(received.plan_version)
        vector = self._vector(received)
        self._began_in = self._members.clusters_of()
        children = self._members.in_global_round(received.round)
        self._open(received.round * self._rounds, received.round, vector, children, (), evaluate_only=True)
        gathered = await self.server.gather()
        report = self._notes.of_measurement(self._report, gathered)
        await asyncio.to_thread(self._files.save_final, report)
        self.server.finish()
        await say_good_bye(self.server, gathered, self._experiment, self._log)
        return report


def model_of_plan(around: LpsParts, header: pb.ModelHeader) -> Acceptance:
    """Return what a model from the GPS has to be: all streams of as many clusters as its plan has."""
    streams = around.streams.without(header.withdrawn)
    clusters = min(header.clusters, around.experiment.device_count)
    return Acceptance(streams.layout(clusters), around.experiment.links.lps_gps.down, streams.parts(clusters))


async def _nothing(number: int) -> None:
    """How an LPS waits to have heard of a plan, until it says how."""


async def _no_answers(global_round: int, answers: Mapping[int, answers_pb2.Answer], answered_ns: int) -> None:
    """How answers go up, until the LPS says how."""
