"""The rounds of a cluster, or of all devices of a local parameter server (LPS), from the first round to the final
report.
"""

import asyncio
import time
from collections.abc import Mapping

from fedstrata.clock.device_times import Homes
from fedstrata.errors import RunStoppedError
from fedstrata.process.logs import EventLog
from fedstrata.process.time_limits import hold_s
from fedstrata.rounds import (
    Intake,
    OpenRound,
    PlainUpdates,
    RoundResult,
    RoundServer,
    RoundTerms,
    Stage,
    Update,
    on_time,
)
from fedstrata.rules import Gathering, Weighing
from fedstrata.v1 import gps_service_pb2 as pb
from lps.earlier_models import earlier_models
from lps.holding import Holding, LpsParts, Offers, SessionParts
from lps.kept.kept_model import KeptModel
from lps.members import Members
from lps.notes import Notes, split_rounds
from lps.question import RoundQuestion
from lps.report_files import FINAL, RefusedDevices, report_if_whole, write_report
from lps.spanning.received_streams import ReceivedStreams
from lps.to_gps import SessionClient

TELL_S = 10.0  # the longest wait until devices have learned that the run is over


class Session:
    """Run the rounds of one cluster or, if clusters span LPSs, of all devices of an LPS."""

    def __init__(self, lps: LpsParts, cluster: pb.Cluster, gps: SessionClient, log: EventLog) -> None:
        experiment, clock = lps.experiment, lps.clock_of(cluster)
        self.members = members = Members(experiment, cluster, clock.presence)
        self._refused = RefusedDevices(lps.state_folder / gps.attempt_id, cluster.home_id, log, cluster.refused)
        notes = Notes(cluster.home_id, lps.task, lps.metrics, log, self._refused, has_member=members.has)
        self._updates = lps.updates_of(members.has)
        self._parts = parts = SessionParts(
            lps=lps, cluster=cluster, gps=gps, clock=clock, members=members, updates=self._updates, notes=notes, log=log
        )
        self.term = cluster.term
        self.gps = gps
        self.holding: Holding = ReceivedStreams(parts) if lps.streams.spans else KeptModel(parts)
        self.server = _round_server(parts, self.holding)
        self._question, self._earlier = RoundQuestion(parts), earlier_models(parts)
        self._report = parts.empty_report()

    def take_members(self, cluster: pb.Cluster) -> None:
        """Use the newest list of devices. If this LPS no longer serves a device, the device's waiting call ends with
        NotServedError.
        """
        self.members.take(cluster)
        self.server.look_again()

    async def run(self) -> None:
        """Run all rounds and the final measurement, and send the report to the GPS."""
        try:
            await self._rounds()
        except RunStoppedError:
            self._refused.forget()
            raise

    async def _rounds(self) -> None:
        number, self._report = await self.holding.begin()
        try:
            while number < self._parts.lps.experiment.training.lps_rounds:
                if self._is_measured_by_all(number):
                    await self._measure_between_rounds(number)
                await self._lps_round(number)
                number += 1
                if number % self._parts.rounds == 0:
                    number = await self._end_global_round(number // self._parts.rounds - 1)
        finally:
            await self.holding.written()
        report = await self._measure(number)
        await self.gps.submit_report(report, self.holding.final_model)

    # --- an LPS round -------------------------------------------------------------------------

    async def _lps_round(self, number: int) -> None:
        started = time.monotonic()
        members, clock, holding = self.members, self._parts.clock, self.holding
        global_round = number // self._parts.rounds
        begins_ns = await clock.begins_ns(self._report, global_round, members)
        children = members.in_round(global_round, number, begins_ns)
        deadline = clock.opens(self._report, global_round, number, members)
        asking = self._question.stage(number, deadline)
        is_planned = asking is not None and self.gps.newest_plan.is_planned(global_round)
        offers = holding.offers(is_planned=is_planned)
        if asking is None:
            sums = self._sums(children, global_round, deadline.weighing)
            offers = await self._earlier.beside(offers, self._report, number)
            self._open(number, children, offers, on_time(deadline), sums=sums)
            await holding.written()
        else:
            self._open(number, children, offers, [asking, *on_time(deadline)])
            await holding.written()
            await self._question.settle(asking, global_round, is_planned=is_planned)
            sums = self._sums(children, global_round, deadline.weighing)
            self.server.go_on(members.clusters_of(), sums)
        gathered = await self.server.gather()
        seconds = time.monotonic() - started
        self._parts.lps.metrics.round_closed(seconds)
        everybody = members.in_global_round(global_round)
        self._report = self._parts.notes.of_round(
            self._report, number, gathered, global_round=global_round, seconds=seconds, everybody=everybody
        )
        clock.of_round(self._report, gathered.exchanged, members)
        await sums.settle()
        self._parts.notes.of_taken(self._report, {members.index_of(name): f for name, f in sums.factors.items()})
        await holding.move(number, sums, self._report)

    def _sums(self, children: Mapping[str, int], global_round: int, weighing: Weighing) -> Gathering:
        """Return an object that gathers updates. Raises RunStoppedError if a round cannot have this many devices."""
        self._updates.check_size(len(children))
        return self.holding.sums(children, self.members.in_global_round(global_round), weighing)

    def _open(
        self,
        number: int,
        children: Mapping[str, int],
        offers: Offers,
        stages: list[Stage],
        *,
        sums: Gathering | None = None,
        evaluate_only: bool = False,
    ) -> None:
        updates = PlainUpdates() if evaluate_only else self._updates
        intake = Intake(
            children=children,
            sums=sums,
            wait=self.server.terms.wait,
            executor=self._parts.lps.executor,
            limits=self.members.limits(self._parts.lps.task),
            enough=updates.enough,
        )
        self.server.open(
            OpenRound(
                number=number,
                global_round=number // self._parts.rounds,
                offers=offers.models,
                clusters=offers.of_devices,
                earlier=offers.earlier,
                intake=intake,
                evaluate_only=evaluate_only,
                stages=[*updates.stages(intake, sum(children.values())), *stages],
            )
        )

    # --- the global round ---------------------------------------------------------------------

    async def _end_global_round(self, global_round: int) -> int:
        """Send this LPS's update of a global round to the GPS. Return the LPS round with which to continue. It belongs
        to the next global round or, if the GPS goes back, to a repeated one.
        """
        notes, log, rounds = self._parts.notes, self._parts.log, self._parts.rounds
        upward = await self.holding.upward(self._report)
        done, rest = split_rounds(self._report, (global_round + 1) * rounds - 1)
        update = Update(
            round=global_round,
            num_examples=self.members.examples(self._report, global_round, rounds),
            codec=upward.codec,
            read=upward.read,
            train_loss=self._report.lps_rounds[-1].train_loss,
            lps_rounds=tuple(done),
            exclusions=tuple(notes.exclusions),
            payload=upward.payload,
            work=self._parts.clock.work(self._report, global_round),
        )
        received = await self.gps.exchange(update)
        if received.round > global_round:
            notes.drop_received(self._report, rest, update)
            await self.holding.take(received, self._report)
            log.info("global_round_done", global_round=global_round, now=received.round)
        else:  # the GPS has lost the start of this round: go back to the GPS's round
            log.warning("gone_back", global_round=received.round)
            self._report = await self.holding.go_back(received)
        return received.round * rounds

    # --- measurements by all devices ----------------------------------------------------------

    def _is_measured_by_all(self, number: int) -> bool:
        """Return whether all devices measure the model with which LPS round `number` begins."""
        global_rounds, lps_rounds = divmod(number, self._parts.rounds)
        return not lps_rounds and self._parts.lps.experiment.training.is_measured_by_all(global_rounds)

    async def _measured_by_all(self, number: int) -> RoundResult:
        """Let all devices measure the model with which LPS round `number` would begin. Return their measurements."""
        global_round = number // self._parts.rounds
        everybody = self.members.in_global_round(global_round)
        offers = self.holding.offers(is_planned=self.gps.newest_plan.is_planned(global_round))
        self._open(number, everybody, offers, [], evaluate_only=True)
        await self.holding.written()
        return await self.server.gather()

    async def _measure_between_rounds(self, number: int) -> None:
        """Let all devices measure the model after a global round, and note the result. On the virtual clock this takes
        no time. An LPS that restarts in the next LPS round repeats the measurement, with the same result.
        """
        gathered = await self._measured_by_all(number)
        everybody = self.members.in_global_round(number // self._parts.rounds)
        self._report = self._parts.notes.of_measurement_between_rounds(self._report, gathered, everybody)
        self._parts.clock.rounds.take(number)  # these transfers belong to no LPS round

    async def _measure(self, number: int) -> pb.ReportHeader:
        """Let the devices measure the final model, inform them that the run is over, and return the complete report. If
        the devices measured the model before a restart, return the saved report.
        """
        path = self._parts.folder / FINAL
        known = await asyncio.to_thread(report_if_whole, path, self._parts.log)
        if known is not None:  # saved before a restart; the devices may have ended
            self.server.finish()
            return known
        gathered = await self._measured_by_all(number)
        everybody = self.members.in_global_round(number // self._parts.rounds)
        report = self._parts.notes.of_measurement(self._report, gathered, everybody)
        # Devices end when they learn that the run is over. They could not measure again for an LPS without the report.
        await asyncio.to_thread(write_report, path, report)
        self.server.finish()
        await self._tell_the_end({evaluation.device_id for evaluation in gathered.evaluations})
        return report

    async def _tell_the_end(self, measured: set[str]) -> None:
        """Wait, for a limited time, until the devices that have measured the model know that the run is over."""
        deadline_s = self._parts.lps.experiment.deadlines.gps.deadline_s
        tell_s = TELL_S if deadline_s is None else min(TELL_S, deadline_s / 3)  # the report must meet the deadline
        if not await self.server.wait_all_told(measured, tell_s):
            self._parts.log.warning("devices_not_told", reason=f"not all devices called again within {tell_s:g} s")


def _round_server(parts: SessionParts, holding: Holding) -> RoundServer:
    lps, clock, members = parts.lps, parts.clock, parts.members
    terms = RoundTerms(
        run_id=parts.gps.attempt_id,
        link=lps.experiment.links.device_lps,
        wait=clock.wait,
        held_s=hold_s(lps.experiment.device_count),
        clock=clock.rounds,
    )
    return RoundServer(
        terms,
        lps.metrics,
        parts.log,
        accepts_updates=holding.accepts_updates,
        serves=members.has if Homes(lps.experiment).moving else None,
        refused=parts.notes.refused,
        hear=parts.updates.hear,
    )
