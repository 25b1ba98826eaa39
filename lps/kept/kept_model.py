"""The model of a cluster at the cluster's own local parameter server (LPS). Only this LPS has the layers that belong to
the cluster.

In a global round only the layers that all clusters share go to the global parameter server (GPS).
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from fedstrata.errors import StateError
from fedstrata.rounds import Offer, ReceivedModel
from fedstrata.rpc.payload import Acceptance
from fedstrata.rules import Gathering, Weighing, of_parts
from fedstrata.store import AnyModel
from fedstrata.streams.streams import UPDATE_PART
from fedstrata.tensors import Flat, taken
from fedstrata.v1 import gps_service_pb2 as gps_pb
from lps.holding import Holding, Offers, SessionParts, Upward
from lps.kept.model_search import ModelSearch
from lps.kept.piecewise import difference, moves, spliced
from lps.kept.state import RoundStart, Writing, state_of
from lps.kept.takeover import Takeover

Made = TypeVar("Made")


class KeptModel(Holding):
    """Hold the model of one cluster, and keep the model at the start of each LPS round on disk."""

    def __init__(self, parts: SessionParts) -> None:
        self._parts = parts
        self._layout = parts.lps.streams.travelling
        self._shared = self._layout.slices_of(parts.lps.streams.everywhere)
        self._state = state_of(parts, parts.cluster.term)
        self._writing = Writing(self._state)
        self._updates = Acceptance(self._layout, parts.update_encoding, UPDATE_PART)
        self._told = parts.gps.newest_plan.told
        self._takeover = Takeover(parts, self._state, self._initial)
        self._start: RoundStart  # of the open LPS round
        self._local: AnyModel  # the model at the end of a global round, until new shared layers arrive

    @property
    def final_model(self) -> Path:
        return self._state.path_of(self._start.lps_round)

    def may_recover(self) -> bool:
        return self._takeover.may_be_needed

    async def recover(self, show: Callable[[ModelSearch], None]) -> None:
        await self._takeover.run_if_needed(show)

    async def begin(self) -> tuple[int, gps_pb.ReportHeader]:
        """Continue from the newest complete state, or begin with the initial model."""
        self._start = await asyncio.to_thread(self._newest_or_first)
        return self._start.lps_round, self._start.report

    def _newest_or_first(self) -> RoundStart:
        found = self._state.newest(self._parts.log)
        if found is not None:
            self._parts.log.info("cluster_resumed", lps_round=found.lps_round)
            self._parts.notes.go_on_from(found.report)
            return found
        self._state.optimiser.begin(0, self._layout)
        return self._state.save(0, iter([self._initial()]), self._parts.empty_report())

    def _initial(self) -> Flat:
        lps = self._parts.lps
        weights = lps.method.initial(lps.model, int(self._parts.cluster.home_id.rpartition("-")[2]))
        return taken(lps.streams.with_tables(weights), lps.streams.whole.slices_of(self._layout))

    # --- an LPS round -------------------------------------------------------------------------

    def accepts_updates(self, lps_round: int) -> Acceptance:
        return self._updates

    def offers(self, *, is_planned: bool = False) -> Offers:
        return Offers({0: Offer(self._start.model, told=self._told)}, {})

    def sums(self, children: Mapping[str, int], everybody: Mapping[str, int], weighing: Weighing) -> Gathering:
        lps, weight = self._parts.lps, sum(everybody.values())
        rule = lps.rule.in_round(self._start.lps_round // self._parts.rounds)
        sizes, counts = zip(*lps.streams.runs, strict=True)
        whole = [weight] * len(sizes)
        return of_parts(rule, sizes, children, self._parts.folder, whole=whole, counts=counts, weighing=weighing)

    async def written(self) -> None:
        await self._writing.done()

    async def move(self, lps_round: int, sums: Gathering, report: gps_pb.ReportHeader) -> None:
        """Change the model by the mean update of an LPS round. Save the changed model, unless the global round ends
        with this LPS round.
        """
        following, optimiser = lps_round + 1, self._state.optimiser
        ends_global_round = following % self._parts.rounds == 0
        walk = partial(moves, self._start.model, sums, optimiser, lps_round)
        if optimiser.has_state:  # its state must be on disk before the model
            await asyncio.to_thread(optimiser.save, following, self._layout, walk, durable=ends_global_round)
        pieces = optimiser.moved(walk())
        if ends_global_round:
            self._local = await self._off_loop(self._state.scratch, pieces)
        else:
            await self._save(following, pieces, report)

    async def _save(self, lps_round: int, pieces: Iterator[Flat], report: gps_pb.ReportHeader) -> None:
        """Save a model, given in pieces, as the start of the next LPS round."""
        before, self._start = self._start, await self._writing.save(lps_round, pieces, report)
        before.close()

    async def _off_loop(self, work: Callable[..., Made], *arguments: Any) -> Made:
        """Run `work`, which computes with the model, in a thread. For a small model, run `work` directly, because the
        change to another thread takes longer than the work.
        """
        if self._layout.is_small:
            return work(*arguments)
        return await asyncio.to_thread(work, *arguments)

    # --- the global round ---------------------------------------------------------------------

    async def upward(self, report: gps_pb.ReportHeader) -> Upward:
        """Return how the shared layers have changed in the global round."""
        moved = await self._off_loop(difference, self._local, self._start.base, self._shared)
        return Upward(codec=self._parts.gps.uplink.codec_for(moved), read=lambda start, stop: moved[start:stop])

    async def take(self, received: ReceivedModel, report: gps_pb.ReportHeader) -> None:
        """Replace the shared layers by the layers that the GPS has sent, and keep the layers of this cluster.

        Raises:
            StateError: the GPS has continued without this cluster, although the run has no deadlines.
        """
        self._check_not_left_behind(self._start.lps_round // self._parts.rounds, received.round)
        self._parts.clock.received(report, received.round, received.begins_ns, received.whole_bytes)
        await self._parts.gps.newest_plan.until_heard(received.plan_version)
        pieces = spliced(self._local, received.flat, self._shared)
        before, opened = self._start.lps_round + 1, received.round * self._parts.rounds
        if opened != before:  # the optimiser's state must be on disk before the model
            await asyncio.to_thread(self._state.optimiser.skip, before, opened, self._layout)
        await self._save(opened, pieces, report)
        self._local.close()

    async def go_back(self, received: ReceivedModel) -> gps_pb.ReportHeader:
        self._local.close()
        before, lps_round = self._start, received.round * self._parts.rounds
        self._start = await asyncio.to_thread(self._state.open, lps_round)
        before.close()
        return self._start.report

    def _check_not_left_behind(self, global_round: int, now: int) -> None:
        """Check that the GPS has not continued without this cluster. If it has, and the run has no deadlines, raise
        StateError, because the state here is outdated. With deadlines this is normal, so it is only logged.
        """
        if now == global_round + 1:
            return
        self._parts.log.warning("rounds_missed", sent=global_round, now=now)
        if self._parts.lps.experiment.deadlines.gps.deadline_s is None:
            raise StateError(
                f"{self._state.folder}: the newest complete state of {self._parts.cluster.home_id} is of global round "
                f"{global_round + 1}, but the GPS is at {now + 1}; put the newer files back, or begin the run again"
            )
