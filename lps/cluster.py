"""One cluster at its LPS: FedAvg over its devices for the LPS rounds, then the shared layers by way of the GPS."""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from fedstrata.errors import RunStoppedError, StateError
from fedstrata.experiment import Experiment
from fedstrata.logs import EventLog
from fedstrata.metrics import ProcessMetrics
from fedstrata.models import Model
from fedstrata.rounds import Exchange, Gathered, Intake, OpenRound, RoundClient, RoundServer, Update
from fedstrata.rounds import Model as Received
from fedstrata.rpc.messages import link_bytes_to_proto
from fedstrata.store import AnyModel
from fedstrata.tensors import ExactSum, Flat, Layout
from fedstrata.v1 import gps_service_pb2 as gps_pb
from fedstrata.v1 import rounds_pb2 as pb
from lps.pieces import difference, moved, spliced
from lps.rows import add_evaluations, split_rows
from lps.state import ClusterState, Standing
from lps.takeover import Gathering, check_goes_on, write_start
from lps.writing import Writing

Made = TypeVar("Made")
TELL_S = 10.0  # how long devices that have been measured may take to hear that the run is over


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """What a cluster's session works with."""

    experiment: Experiment
    model: Model
    sum_name: str
    state_folder: Path
    metrics: ProcessMetrics
    executor: Executor


class ClusterSession:
    """Runs one cluster from its first LPS round to its report."""

    def __init__(self, around: Surroundings, cluster: gps_pb.Cluster, uplink: RoundClient, log: EventLog) -> None:
        self._around = around
        self._experiment = around.experiment
        self._rounds_per_global = around.experiment.training.lps_rounds_per_global_round
        self._layout: Layout = around.model.layout
        self._shared = self._layout.select(around.model.shared)
        self._cluster_id = cluster.cluster_id
        self._uplink = uplink
        self._log = log
        self.take_members(cluster)
        self.term = cluster.term
        self._oldest = self._oldest_to_go_on_from(cluster.global_round)
        self._state = ClusterState(
            around.state_folder / uplink.identity.run_id / cluster.cluster_id,
            run_id=uplink.identity.run_id,
            cluster_id=cluster.cluster_id,
            layout=self._layout,
            rounds_per_global=self._rounds_per_global,
            term=cluster.term,
        )
        self._writing = Writing(self._state)
        exchange = Exchange(
            run_id=uplink.identity.run_id,
            layout=self._layout,
            part=around.sum_name,
            link=self._experiment.links.device_lps,
            wait=self._experiment.deadlines.lps,
        )
        self.server = RoundServer(exchange, around.metrics, log, around.executor)
        self.server.on_ban = self._note_ban
        self._exclusions: list[pb.Exclusion] = []
        self._bytes_before = (0, 0)
        self.on_plan = _nothing

    def close(self) -> None:
        """Give the stream to the GPS up."""
        self._uplink.close()

    def take_members(self, cluster: gps_pb.Cluster) -> None:
        """Take who belongs to the cluster; each device from its first global round on."""
        self._members = list(cluster.members)

    def _children(self, global_round: int) -> dict[str, int]:
        """The devices of a global round, with the examples they stand for."""
        return {m.device_id: m.num_examples for m in self._members if m.from_global_round <= global_round}

    # --- a cluster that has begun, and whose state is not here --------------------------------

    def may_lack_state(self) -> bool:
        """Whether another LPS served the cluster last, or this one in a life that left no files, or old ones."""
        return bool(self.term) or self._state.newest_named < self._oldest

    def _oldest_to_go_on_from(self, global_round: int) -> int:
        """The LPS round that this LPS must have a state of, or a later one; -1 where none is needed.

        While the GPS has a global round open, nobody can be further back than in the last LPS round of the one before:
        its aggregate is in, and the next start not written. With deadlines others go on without this LPS.
        """
        if not global_round:
            return -1
        is_exact = self._experiment.deadlines.gps.deadline_s is None
        return global_round * self._rounds_per_global - 1 if is_exact else 0

    def needs_takeover(self) -> bool:
        """Whether the cluster has begun and nothing whole of this term, or nothing new enough, is on disk."""
        if not self.term and self._oldest < 0:
            return False
        found = self._state.newest(self._log)
        if found is None:
            return True
        found.close()
        return found.lps_round < self._oldest

    def gathering(self) -> Gathering:
        """What speaks to the devices before there is a round to open."""
        return Gathering(
            self._uplink.identity.run_id,
            layout=self._layout,
            members={member.device_id for member in self._members},
            wait=self._experiment.deadlines.lps,
            log=self._log,
        )

    async def take_over(self, gathering: Gathering) -> None:
        """Write the state to go on from: of what the devices hold, or else of what this LPS or every LPS began with."""
        held = await gathering.model()
        earlier = await asyncio.to_thread(self._state.of_an_earlier_term, self._log)
        if held is not None:
            pieces, held_round = iter([held.flat]), held.lps_round
        elif self._experiment.deadlines.gps.deadline_s is None:
            raise StateError(
                f"{self._state.folder}: no whole state of {self._cluster_id} is here, and none of its devices holds a "
                "model any more; put the files back, or begin the run anew"
            )
        else:
            self._log.warning("model_held_by_no_device", starts_from="own old model" if earlier else "initial model")
            pieces, held_round = earlier.model.pieces() if earlier else iter([self._initial()]), None
        model = await asyncio.to_thread(self._state.scratch, pieces)
        del held  # `model` has it now
        shared = await self._uplink.fetch(-1)
        if not isinstance(shared, Received):
            raise RunStoppedError("the GPS ended the run")
        if self._experiment.deadlines.gps.deadline_s is None:
            check_goes_on(held_round, shared.round, self._rounds_per_global, self._cluster_id)
        places = self._layout.slices_of(self._shared)
        opened = await asyncio.to_thread(write_start, self._state, model, held_round, shared, places)
        model.close()
        self._log.info("taken_over", term=self.term, lps_round=opened, global_round=shared.round)

    def _initial(self) -> Flat:
        return self._around.model.initial(self._experiment.seed)

    # --- all of it ----------------------------------------------------------------------------

    async def run(self) -> gps_pb.ReportHeader:
        """All rounds and the final measurement; gives the report, whose model is in the file `final_model`."""
        standing = await asyncio.to_thread(self._begin)
        while standing.lps_round < self._experiment.training.lps_rounds:
            standing = await self._lps_round(standing)
        return await self._measure(standing)

    def _begin(self) -> Standing:
        found = self._state.newest(self._log)
        if found is not None:
            self._log.info("cluster_resumed", lps_round=found.lps_round)
            self._exclusions = list(found.report.exclusions)
            self._bytes_before = self._bytes_now()
            return found
        return self._state.save(0, iter([self._initial()]), self._state.empty_report())

    # --- an LPS round -------------------------------------------------------------------------

    async def _lps_round(self, standing: Standing) -> Standing:
        started = time.monotonic()
        number = standing.lps_round
        total = ExactSum(self._layout.size, sum(self._children(number // self._rounds_per_global).values()))
        try:
            self._open(standing, total)
        finally:
            await self._writing.done()
        gathered = await self.server.gather()
        report = self._noted(standing, gathered, time.monotonic() - started)
        pieces = moved(standing.model, total)
        if (number + 1) % self._rounds_per_global:
            following = await self._writing.save(number + 1, pieces, report)
        else:
            local = await self._off_loop(self._state.scratch, pieces)
            del total  # two models large, and done with
            following = await self._global_round(standing, local, report, gathered.num_examples)
        self._around.metrics.round_closed(time.monotonic() - started)
        standing.close()
        return following

    def _open(self, standing: Standing, total: ExactSum, *, evaluate_only: bool = False) -> None:
        number = standing.lps_round
        intake = Intake(
            children=self._children(number // self._rounds_per_global),
            total=total,
            wait=self._experiment.deadlines.lps,
            executor=self._around.executor,
        )
        self.server.open(
            OpenRound(
                number=number,
                global_round=number // self._rounds_per_global,
                model=standing.model,
                intake=intake,
                evaluate_only=evaluate_only,
            )
        )

    def _noted(self, standing: Standing, gathered: Gathered, seconds: float) -> gps_pb.ReportHeader:
        """The report so far with the row of the round just closed."""
        report = gps_pb.ReportHeader()
        report.CopyFrom(standing.report)
        add_evaluations(report, gathered.evaluations)
        up, down = self._bytes_now()
        number = standing.lps_round
        row = report.lps_rounds.add(
            cluster_id=self._cluster_id,
            global_round=number // self._rounds_per_global,
            lps_round=number,
            devices=gathered.children,
            num_examples=gathered.num_examples,
            seconds=seconds,
            bytes_up=up - self._bytes_before[0],
            bytes_down=down - self._bytes_before[1],
            train_loss=gathered.train_loss,
        )
        self._bytes_before = (up, down)
        for device_id in gathered.missing:
            if not self.server.has_refused(device_id):
                self._exclude(device_id, f"round {number + 1}", "missed the deadline")
        self._complete(report)
        self._log.info(
            "lps_round_closed",
            lps_round=number,
            devices=row.devices,
            train_loss=round(row.train_loss, 6),
            seconds=round(seconds, 4),
            missing=list(gathered.missing),
        )
        return report

    def _bytes_now(self) -> tuple[int, int]:
        """Bytes up and down between this LPS and its devices, so far."""
        links = self._around.metrics.links
        return links.total("device-lps", "up", "parent"), links.total("device-lps", "down", "parent")

    def _complete(self, report: gps_pb.ReportHeader) -> None:
        """Put what this LPS has to say at any time into a report."""
        del report.exclusions[:]
        report.exclusions.extend(self._exclusions)
        del report.link_bytes[:]
        report.link_bytes.extend(link_bytes_to_proto(self._around.metrics.links.snapshot()))

    def _note_ban(self, device_id: str, reason: str) -> None:
        self._exclude(device_id, "training", f"refused: {reason}")

    def _exclude(self, device_id: str, stage: str, reason: str) -> None:
        self._exclusions.append(pb.Exclusion(device_id=device_id, stage=stage, reason=reason))

    # --- the global round ---------------------------------------------------------------------

    async def _global_round(
        self, standing: Standing, local: AnyModel, report: gps_pb.ReportHeader, num_examples: int
    ) -> Standing:
        """Send the shared layers' update up, take the average of all clusters, keep the head."""
        global_round = standing.lps_round // self._rounds_per_global
        places = self._layout.slices_of(self._shared)
        delta = await self._off_loop(difference, local, standing.base, places)
        done, rest = split_rows(report, standing.lps_round)
        update = Update(
            round=global_round,
            num_examples=num_examples,
            codec=self._uplink.codec_for(delta),
            read=lambda start, stop: delta[start:stop],
            train_loss=report.lps_rounds[-1].train_loss,
            lps_rounds=tuple(done),
            exclusions=tuple(self._exclusions),
        )
        received = await self._exchange(update)
        if received.round <= global_round:  # the GPS has lost this round's start: both go back to where it stands
            local.close()
            self._log.warning("gone_back", global_round=received.round)
            return await asyncio.to_thread(self._state.open, received.round * self._rounds_per_global)
        self._check_not_left_behind(global_round, received.round)
        del report.lps_rounds[:]
        report.lps_rounds.extend(rest)
        del self._exclusions[: len(update.exclusions)]
        self._complete(report)
        await self.on_plan(received.plan_version)
        number = received.round * self._rounds_per_global
        following = await self._writing.save(number, spliced(local, received.flat, places), report)
        local.close()
        self._log.info("global_round_done", global_round=global_round)
        return following

    async def _off_loop(self, work: Callable[..., Made], *arguments: Any) -> Made:
        """Some arithmetic on the model, in a thread unless the model is small: then the way there takes longer."""
        if self._state.is_small:
            return work(*arguments)
        return await asyncio.to_thread(work, *arguments)

    def _check_not_left_behind(self, global_round: int, now: int) -> None:
        """Without deadlines nobody goes on without this cluster: if they have, its state is not what it was."""
        if now == global_round + 1:
            return
        self._log.warning("rounds_missed", sent=global_round, now=now)
        if self._experiment.deadlines.gps.deadline_s is None:
            raise StateError(
                f"{self._state.folder}: the newest whole state of {self._cluster_id} is of global round "
                f"{global_round + 1}, and the GPS is at {now + 1}; put the newer files back, or begin the run anew"
            )

    async def _exchange(self, update: Update) -> Received:
        while True:
            match await self._uplink.exchange(update):
                case pb.SendAgain():
                    pass
                case Received() as received:
                    return received
                case answer:
                    raise RunStoppedError(getattr(answer, "reason", "") or "the GPS ended the run")

    # --- the end ------------------------------------------------------------------------------

    async def _measure(self, standing: Standing) -> gps_pb.ReportHeader:
        """Let the devices measure the final model, tell them that the run is over, and complete the report."""
        await self._writing.done()
        self.final_model = self._state.path_of(standing.lps_round)
        known = await asyncio.to_thread(self._state.final, self._log)
        if known is not None:  # of an earlier life; the devices may be gone
            self.server.finish()
            return known
        self._open(standing, ExactSum(0, 1), evaluate_only=True)
        gathered = await self.server.gather()
        report = gps_pb.ReportHeader()
        report.CopyFrom(standing.report)
        add_evaluations(report, gathered.evaluations)
        report.evaluations.extend(gathered.evaluations)
        for device_id in gathered.missing:
            if not self.server.has_refused(device_id):
                self._exclude(device_id, "evaluation", "missed the deadline")
        self._complete(report)
        await asyncio.to_thread(self._state.save_final, report)
        self.server.finish()
        measured = {evaluation.device_id for evaluation in gathered.evaluations}
        deadline_s = self._experiment.deadlines.gps.deadline_s
        tell_s = TELL_S if deadline_s is None else min(TELL_S, deadline_s / 3)  # the report has a deadline, too
        if not await self.server.wait_all_told(measured, tell_s):
            self._log.warning("devices_not_told", reason=f"not all asked again within {tell_s:g} s")
        return report


async def _nothing(plan_version: int) -> None:
    """How an LPS is waited for to have heard of a plan, until it says how."""
