"""A cluster that hangs on one LPS: its devices' rounds, then what is shared everywhere by way of the GPS.

The LPS keeps the cluster's model: what is the cluster's own lies nowhere else.
"""

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from fedstrata.clock.clocks import clock_of
from fedstrata.clock.deadline import Deadline
from fedstrata.errors import RunStoppedError, StateError
from fedstrata.experiment import Experiment
from fedstrata.methods import Method
from fedstrata.models import Model
from fedstrata.optimisers.server import server_optimiser
from fedstrata.process.logs import EventLog
from fedstrata.process.metrics import ProcessMetrics
from fedstrata.process.sleeping import hold_s
from fedstrata.rounds import (
    Intake,
    KeyRing,
    Masked,
    Masking,
    NoKeys,
    OpenRound,
    ReceivedModel,
    RoundClient,
    RoundServer,
    RoundTerms,
    Update,
    on_time,
)
from fedstrata.rounds.mask_keys import CheckKey
from fedstrata.rpc.payload import Acceptance
from fedstrata.store import AnyModel
from fedstrata.streams.streams import UPDATE_PART, Streams
from fedstrata.tensors import Flat, Layout, MaskedSum, OneSum, Sums, taken
from fedstrata.v1 import answers_pb2
from fedstrata.v1 import gps_service_pb2 as gps_pb
from lps.closing import say_good_bye
from lps.kept.arithmetic import difference, moves, spliced
from lps.kept.state import ClusterState, RoundStart
from lps.kept.takeover import ModelSearch, check_goes_on, write_start
from lps.kept.writing import Writing
from lps.members import Members
from lps.notes import Notes
from lps.round_rows import split_rounds
from lps.uplink import exchanged

Made = TypeVar("Made")


@dataclass(frozen=True, kw_only=True)
class LpsParts:
    """What all sessions of an LPS work with."""

    experiment: Experiment
    method: Method
    streams: Streams
    model: Model
    state_folder: Path
    metrics: ProcessMetrics
    executor: Executor
    check_key: CheckKey  # under secure aggregation, of a device's key for masks


class ClusterSession:
    """Runs one cluster from its first LPS round to its report."""

    def __init__(
        self, around: LpsParts, cluster: gps_pb.Cluster, uplink: RoundClient, log: EventLog,
        told: answers_pb2.Answer | None = None,
    ) -> None:  # fmt: skip
        """`told` is what the plan tells all devices."""
        self._around = around
        self._told = told
        self._experiment = around.experiment
        self._rounds_per_global = around.experiment.training.lps_rounds_per_global_round
        self._layout: Layout = around.streams.travelling
        self._shared = around.streams.everywhere
        self._cluster_id = cluster.cluster_id
        self._uplink = uplink
        self._log = log
        self._clock = clock_of(around.experiment).lps(cluster)
        self._members = Members(around.experiment, cluster, self._clock.presence)
        self.take_members = self._members.take
        self.has_member, self.goes_on_with = self._members.has, self._members.goes_on_with
        self.term = cluster.term
        self._oldest = self._oldest_to_go_on_from(cluster.global_round)
        now = cluster.global_round * self._rounds_per_global
        self._can_be_held = range(now - self._rounds_per_global - 1, now + self._rounds_per_global)
        self._state = ClusterState(
            around.state_folder / uplink.identity.run_id / cluster.cluster_id,
            run_id=uplink.identity.run_id,
            cluster_id=cluster.cluster_id,
            layout=self._layout,
            rounds_per_global=self._rounds_per_global,
            term=cluster.term,
            optimiser=server_optimiser(around.experiment.training.lps_optimiser),
        )
        self._writing = Writing(self._state)
        secure = self._experiment.secure_aggregation
        self._keys = KeyRing(self.has_member, secure.min_devices, around.check_key) if secure is not None else None
        exchange = RoundTerms(
            run_id=uplink.identity.run_id,
            layout=self._layout,
            link=self._experiment.links.device_lps,
            wait=self._clock.wait,
            held_s=hold_s(self._experiment.device_count),
            clock=self._clock.rounds,
            keys=self._keys or NoKeys(),
        )
        self._notes = Notes(cluster.cluster_id, around.metrics, log)
        link = "exact" if self._keys is not None else exchange.link.up  # masked updates lie on the grid of sums
        updates = Acceptance(self._layout, link, UPDATE_PART)
        self.server = RoundServer(
            exchange,
            around.metrics,
            log,
            around.executor,
            accepts_updates=lambda number: updates,
            refused=self._notes.refused,
        )
        self.on_plan = _nothing

    def close(self) -> None:
        """Give the stream to the GPS up."""
        self._uplink.close()

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

    def gathering(self) -> ModelSearch:
        """What speaks to the devices before there is a round to open."""
        return ModelSearch(
            self._uplink.identity.run_id,
            layout=self._layout,
            members=self._members.ids,
            wait=self._clock.wait,
            rounds=self._can_be_held,
            log=self._log,
        )

    async def take_over(self, gathering: ModelSearch) -> None:
        """Write the state to go on from: of what the devices hold, or else of what this LPS or every LPS began with."""
        if self._state.optimiser.has_state or self._clock.keeps_time:
            keeper = "training.lps_optimiser keeps one" if self._state.optimiser.has_state else "clock: virtual a time"
            raise StateError(
                f"{self._state.folder}: no whole state of {self._cluster_id} is here, and {keeper} "
                "that devices do not have; put the files back, or begin the run anew"
            )
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
        if not isinstance(shared, ReceivedModel):
            raise RunStoppedError("the GPS ended the run")
        if self._experiment.deadlines.gps.deadline_s is None:
            check_goes_on(held_round, shared.round, self._rounds_per_global, self._cluster_id)
        places = self._layout.slices_of(self._shared)
        opened = await asyncio.to_thread(write_start, self._state, model, held_round, shared, places)
        model.close()
        self._log.info("taken_over", term=self.term, lps_round=opened, global_round=shared.round)

    def _initial(self) -> Flat:
        around = self._around
        weights = around.method.initial(around.model, int(self._cluster_id.rpartition("-")[2]))
        return taken(around.streams.with_tables(weights), around.streams.whole.slices_of(self._layout))

    # --- all of it ----------------------------------------------------------------------------

    async def run(self) -> gps_pb.ReportHeader:
        """All rounds and the final measurement; gives the report, whose model is in the file `final_model`."""
        standing = await asyncio.to_thread(self._begin)
        while standing.lps_round < self._experiment.training.lps_rounds:
            standing = await self._lps_round(standing)
        return await self._measure(standing)

    def _begin(self) -> RoundStart:
        found = self._state.newest(self._log)
        if found is not None:
            self._log.info("cluster_resumed", lps_round=found.lps_round)
            self._notes.go_on_from(found.report)
            return found
        self._state.optimiser.begin(0, self._layout)
        return self._state.save(0, iter([self._initial()]), self._state.empty_report())

    # --- an LPS round -------------------------------------------------------------------------

    async def _lps_round(self, standing: RoundStart) -> RoundStart:
        started = time.monotonic()
        number, global_round = standing.lps_round, standing.lps_round // self._rounds_per_global
        begins_ns = await self._clock.begins_ns(standing.report, global_round, self._members)
        children = self._members.in_round(global_round, number, begins_ns)
        sums = self._sums_of(children)
        try:
            deadline = self._clock.opens(standing.report, global_round, self._members)
            self._open(standing, children, sums, deadline=deadline)
        finally:
            await self._writing.done()
        gathered = await self.server.gather()
        if isinstance(sums, MaskedSum):
            await self._off_loop(sums.check_unmasked)
        seconds = time.monotonic() - started
        report = self._notes.of_round(standing.report, number, global_round, gathered, seconds)
        self._clock.of_round(report, partial(self.server.exchanged, gathered), self._members)
        pieces = await self._moved(standing, sums)
        if (number + 1) % self._rounds_per_global:
            following = await self._writing.save(number + 1, pieces, report)
        else:
            local = await self._off_loop(self._state.scratch, pieces)
            del sums  # two models large, and done with
            following = await self._global_round(standing, local, report)
        self._around.metrics.round_closed(time.monotonic() - started)
        standing.close()
        return following

    def _sums_of(self, children: Mapping[str, int]) -> OneSum:
        """What the updates of a round's children are added up in. Raises RunStoppedError."""
        if self._keys is None:
            return OneSum(self._layout.size, children)
        self._keys.check_size(len(children))
        return MaskedSum(self._layout.size, children)

    async def _moved(self, standing: RoundStart, sums: OneSum) -> Iterator[Flat]:
        """The model of the next LPS round in pieces; the state of the optimiser that moves it is on disk by then."""
        following, optimiser = standing.lps_round + 1, self._state.optimiser
        walk = partial(moves, standing.model, sums.total, optimiser, standing.lps_round)
        if optimiser.has_state:
            is_base = following % self._rounds_per_global == 0
            await asyncio.to_thread(optimiser.save, following, self._layout, walk, durable=is_base)
        return optimiser.moved(walk())

    def _open(
        self, standing: RoundStart, children: Mapping[str, int], sums: Sums | None, *, deadline: Deadline,
        evaluate_only: bool = False,
    ) -> None:  # fmt: skip
        number, keys = standing.lps_round, None if evaluate_only else self._keys
        intake = Intake(
            children=children, sums=sums, wait=self.server.exchange.wait, executor=self._around.executor,
            limits=self._members.limits(), masked_by=keys.min_devices if keys else 0,
        )  # fmt: skip
        stages = on_time(deadline)
        if keys is not None:
            stages.insert(0, Masked(Masking(keys, intake, sum(children.values()))))
        self.server.open(
            OpenRound.of_one(
                standing.model,
                told=self._told,
                number=number,
                global_round=number // self._rounds_per_global,
                intake=intake,
                evaluate_only=evaluate_only,
                stages=stages,
            )
        )

    # --- the global round ---------------------------------------------------------------------

    async def _global_round(self, standing: RoundStart, local: AnyModel, report: gps_pb.ReportHeader) -> RoundStart:
        """Send the shared layers' update up, take the average of all clusters, keep the head."""
        global_round = standing.lps_round // self._rounds_per_global
        places = self._layout.slices_of(self._shared)
        delta = await self._off_loop(difference, local, standing.base, places)
        done, rest = split_rounds(report, standing.lps_round)
        update = Update(
            round=global_round,
            num_examples=self._members.examples(report, global_round, self._rounds_per_global),
            codec=self._uplink.codec_for(delta),
            read=lambda start, stop: delta[start:stop],
            train_loss=report.lps_rounds[-1].train_loss,
            lps_rounds=tuple(done),
            exclusions=tuple(self._notes.exclusions),
            work=self._clock.work(report, global_round),
        )
        received = await exchanged(self._uplink, update)
        if received.round <= global_round:  # the GPS has lost this round's start: both go back to where it stands
            local.close()
            self._log.warning("gone_back", global_round=received.round)
            return await asyncio.to_thread(self._state.open, received.round * self._rounds_per_global)
        self._check_not_left_behind(global_round, received.round)
        self._notes.told(report, rest, update)
        self._clock.received(report, received.round, received.begins_ns, received.whole_bytes)
        await self.on_plan(received.plan_version)
        number = received.round * self._rounds_per_global
        following = await self._writing.save(number, spliced(local, received.flat, places), report)
        local.close()
        self._log.info("global_round_done", global_round=global_round)
        return following

    async def _off_loop(self, work: Callable[..., Made], *arguments: Any) -> Made:
        """Some arithmetic on the model, in a thread unless the model is small: then the way there takes longer."""
        if self._state.layout.is_small:
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

    # --- the end ------------------------------------------------------------------------------

    async def _measure(self, standing: RoundStart) -> gps_pb.ReportHeader:
        """Let the devices measure the final model, tell them that the run is over, and complete the report."""
        await self._writing.done()
        self.final_model = self._state.path_of(standing.lps_round)
        known = await asyncio.to_thread(self._state.final, self._log)
        if known is not None:  # of an earlier life; the devices may be gone
            self.server.finish()
            return known
        everybody = self._members.in_global_round(standing.lps_round // self._rounds_per_global)
        self._open(standing, everybody, None, deadline=Deadline(), evaluate_only=True)
        gathered = await self.server.gather()
        report = self._notes.of_measurement(standing.report, gathered)
        await asyncio.to_thread(self._state.save_final, report)
        self.server.finish()
        await say_good_bye(self.server, gathered, self._experiment, self._log)
        return report


async def _nothing(plan_version: int) -> None:
    """How an LPS is waited for to have heard of a plan, until it says how."""
