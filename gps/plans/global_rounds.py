"""The global rounds. LPSs send their updates. From the updates, the GPS computes the vector for the next global round,
and sends this vector to the LPSs.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import closing
from dataclasses import dataclass, replace

from fedstrata.clock.exchanged import Exchanged
from fedstrata.clock.gps_side import GpsClock
from fedstrata.experiment import Experiment
from fedstrata.rounds import Intake, OpenRound, RoundResult, RoundServer
from fedstrata.store import AnyModel
from fedstrata.v1 import rounds_pb2 as pb
from gps.journal.journal import Journal
from gps.plans.places import Places
from gps.plans.vector_files import VectorFiles


@dataclass(frozen=True, kw_only=True)
class ClosedRound:
    """Describe a closed global round."""

    done: int  # the number of closed global rounds, including this one
    gathered: RoundResult
    seconds: float
    moved: Sequence[str]  # the devices that change their LPS before the next round


class GlobalRounds:
    """Open each global round for the LPSs, and apply the LPSs' aggregates to the vector that the GPS keeps."""

    def __init__(
        self,
        experiment: Experiment,
        *,
        files: VectorFiles,
        places: Places,
        plan_round: Callable[[int, float | None], Awaitable[bool]],
        journal: Journal,
        clock: GpsClock,
        server: RoundServer,
        executor: Executor,
    ) -> None:
        """Set the objects that the rounds use. `plan_round` makes the plan of a global round, and returns whether it
        has made one. One thread of `executor` adds updates to the sums.
        """
        self._experiment = experiment
        self._files = files
        self._keeper = files.keeper
        self._places = places
        self._plan_round = plan_round
        self._journal = journal
        self._clock = clock
        self._executor = executor
        self.server = server
        self.global_round = journal.rounds.closed()

    async def closed(
        self, joined: Callable[[int], Awaitable[None]], opened: Callable[[], None], closing: Callable[[], None]
    ) -> AsyncIterator[ClosedRound]:
        """Conduct the remaining global rounds. Yield each global round when it is closed, before the next global round
        is opened.

        `joined` is called before each round and before the final measurement, and waits for newcomers that join then.
        `opened` is called whenever a round or its plan becomes available. `closing` is called in the transaction that
        closes a round.
        """
        model = await self._begin()
        await asyncio.to_thread(self._clock.begin)
        self._clock.resume(self.global_round)
        while self.global_round < self._experiment.training.global_rounds:
            started = time.monotonic()
            await joined(self.global_round)
            children = self._places.examples(self.global_round)
            self.server.open(self._round(self.global_round, model, children))
            opened()  # after the LPSs, because the round waits for them
            if await self._plan_round(self.global_round, self._experiment.deadlines.gps.deadline_s):
                opened()
            sums = self._keeper.sums(children, self.global_round)
            self.server.go_on({}, sums)
            gathered = await self.server.gather()
            await sums.settle()
            times = self._clock.of_round(self.global_round, self._exchanged(gathered))
            following = await asyncio.to_thread(self._files.following, model, sums, self.global_round)
            model.close()
            model = following
            with self._journal.together(durable=True):  # no `await` in this block
                self._journal.rounds.close(self.global_round)
                self._clock.keep(self.global_round, times)
                self._keep_factors(sums.factors)
                closing()
                moved = self._move(self.global_round + 1)
            self.global_round += 1
            seconds = time.monotonic() - started
            yield ClosedRound(done=self.global_round, gathered=gathered, seconds=seconds, moved=moved)
        self.final = model
        await joined(self.global_round)
        children = self._places.examples(self.global_round)
        self.server.open(self._round(self.global_round, model, children, evaluate_only=True))
        opened()

    def _keep_factors(self, factors: Mapping[str, float]) -> None:
        """Write to the journal the factors that the GPS's rule has chosen for the updates of LPSs, by the names of the
        LPSs. If `factors` is empty, the rule has chosen none, and nothing is written.
        """
        if factors:
            numbers = [int(name.removeprefix("lps-")) for name in factors]
            found = pb.Factors(children=numbers, factors=factors.values())
            self._journal.rounds.set_factors(self.global_round, found.SerializeToString(deterministic=True))

    async def _begin(self) -> AnyModel:
        """Return the vector at the start of the open global round. If the file with this vector is damaged, go back by
        one round.
        """
        model, begun = await asyncio.to_thread(self._files.begin, self.global_round)
        if begun < self.global_round:
            self.global_round = begun
            self._places.go_back_to(begun)
        return model

    def _move(self, global_round: int) -> list[str]:
        """Move devices to other LPSs, as the experiment's schedule requires at the beginning of a global round. Return
        the ids of the moved devices.
        """
        if global_round == self._experiment.training.global_rounds:
            return []
        return self._places.move(global_round, self._clock.homes.at(self._clock.now_ns(global_round)))

    def _exchanged(self, gathered: RoundResult) -> Mapping[str, Exchanged]:
        """Return the bytes that the GPS and each LPS have exchanged in a global round. If LPSs compute the first vector
        themselves, the GPS has sent no bytes in the first global round.
        """
        if self.global_round or self._keeper.is_fetched_first:
            return gathered.exchanged
        return {name: replace(each, down_bytes=0) for name, each in gathered.exchanged.items()}

    def final_models(self) -> dict[str, AnyModel]:
        """Return, by cluster name, the models that the GPS has after training."""
        return self._keeper.models(self.final, self.global_round)

    def _round(
        self, global_round: int, model: AnyModel, children: Mapping[str, int], *, evaluate_only: bool = False
    ) -> OpenRound:
        return OpenRound(
            number=global_round,
            global_round=global_round,
            offers={0: self._keeper.offer(model, global_round)},
            intake=Intake(children=children, wait=self._experiment.deadlines.gps, executor=self._executor),
            evaluate_only=evaluate_only,
            plan_version=self._places.version,
            begins_ns=self._clock.begins_ns(global_round),
        )

    # --- what LPSs ask ------------------------------------------------------------------------

    async def fetch(self, request: pb.FetchModelRequest) -> AsyncIterator[pb.ModelPart | bytes]:
        """Yield the reply to an LPS's request for the vector of the open global round.

        Without deadlines, an LPS with a damaged file may repeat the two global rounds before the open global round.
        After the first of these two, the LPS gets the vector with which the second began.
        """
        is_repeated = self._is_repeated_by(request)
        closed = await asyncio.to_thread(self._files.earlier, request.sent_round + 1) if is_repeated else None
        if closed is None:
            async for part in self.server.fetch(request):
                yield part
                del part  # releases the memory of this chunk while the next one is awaited
            return
        with closing(closed):
            opened = self._round(request.sent_round + 1, closed, {})
            async for part in self.server.fetch_closed(opened, request):
                yield part
                del part

    def _is_repeated_by(self, request: pb.FetchModelRequest) -> bool:
        """Return whether an LPS must repeat a closed global round next."""
        has_deadline = self._experiment.deadlines.gps.deadline_s is not None
        return not has_deadline and 0 <= request.sent_round == self.global_round - 2
