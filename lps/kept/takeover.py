"""The first steps of a local parameter server (LPS) that lacks the state of a cluster, although the cluster has begun
training.

The LPS gets the layers that belong to the cluster from the cluster's devices. The shared layers come from the global
parameter server (GPS).
"""

import asyncio
from collections.abc import Callable, Sequence

from fedstrata.errors import StateError
from fedstrata.rounds import ReceivedModel
from fedstrata.store import AnyModel
from fedstrata.tensors import Flat
from lps.holding import SessionParts
from lps.kept.arithmetic import spliced
from lps.kept.model_search import ModelSearch
from lps.kept.state import ClusterState


class Takeover:
    """Find the state of a cluster, if another LPS served the cluster last, or if this LPS has lost its files of the
    cluster.
    """

    def __init__(self, parts: SessionParts, state: ClusterState, initial: Callable[[], Flat]) -> None:
        """Set `initial`, which returns the cluster's initial model. This model is used if neither a device nor this LPS
        has a later model.
        """
        self._parts = parts
        self._state = state
        self._initial = initial
        self._is_exact = parts.lps.experiment.deadlines.gps.deadline_s is None
        self._oldest = self._oldest_to_go_on_from(parts.cluster.global_round)

    def _oldest_to_go_on_from(self, global_round: int) -> int:
        """Return the earliest LPS round from which this LPS can continue. If no global round is closed yet, return -1.

        With a deadline at the GPS, the state of any LPS round is enough, because the other LPSs continue without an LPS
        that is late. Without a deadline, the LPS needs at least the state of the last LPS round of the previous global
        round. An LPS that lost no file has this state, even if it stopped before it saved the start of the open global
        round.
        """
        if not global_round:
            return -1
        return global_round * self._parts.rounds - 1 if self._is_exact else 0

    def may_be_needed(self) -> bool:
        """Return whether the LPS may have to search for the state. This method reads only the names of files, so it is
        fast.
        """
        return bool(self._parts.cluster.term) or self._state.newest_named < self._oldest

    def is_needed(self) -> bool:
        """Return whether the LPS must search for the state. This is so if the cluster may have begun training, and the
        disk has no complete and new enough state of the present term. A term is a period in which one LPS serves the
        cluster.
        """
        if not self._parts.cluster.term and self._oldest < 0:
            return False
        found = self._state.newest(self._parts.log)
        if found is None:
            return True
        found.close()
        return found.lps_round < self._oldest

    def search(self) -> ModelSearch:
        """Return the search for the cluster's latest model on its devices. The search ends before a round can open."""
        now = self._parts.cluster.global_round * self._parts.rounds
        return ModelSearch(
            self._parts.lps.experiment.run_id,
            layout=self._state.layout,
            members=self._parts.members.ids - set(self._parts.notes.refused),
            wait=self._parts.clock.wait,
            rounds=range(now - self._parts.rounds - 1, now + self._parts.rounds),
            log=self._parts.log,
        )

    async def run(self, search: ModelSearch) -> None:
        """Write the state from which to continue. The model comes from the devices.

        If no device has a model, the cluster can continue only if the GPS has a deadline. Then the model comes from the
        last term in which this LPS served the cluster. If there is no such model either, it is the initial model.

        Raises:
            StateError: the remaining state is not enough to continue with the same results.
        """
        self._check_possible()
        held = await search.model()
        earlier = await asyncio.to_thread(self._state.of_an_earlier_term, self._parts.log)
        if held is not None:
            pieces, held_round = iter([held.flat]), held.lps_round
        elif self._is_exact:
            raise self._lost("none of its devices holds a model any more")
        else:
            starts_from = "own old model" if earlier else "initial model"
            self._parts.log.warning("model_held_by_no_device", starts_from=starts_from)
            pieces, held_round = earlier.model.pieces() if earlier else iter([self._initial()]), None
        model = await asyncio.to_thread(self._state.scratch, pieces)
        del held  # free memory: the values are in `model` now
        shared = await self._parts.gps.model()
        if self._is_exact:
            check_goes_on(held_round, shared.round, self._parts.rounds, self._parts.cluster.home_id)
        places = self._state.layout.slices_of(self._parts.lps.streams.everywhere)
        opened = await asyncio.to_thread(write_start, self._state, model, held_round, shared, places)
        model.close()
        self._parts.log.info("taken_over", term=self._parts.cluster.term, lps_round=opened, global_round=shared.round)

    def _check_possible(self) -> None:
        if self._state.optimiser.has_state:
            raise self._lost("devices do not have the state of training.lps_optimiser")
        if self._parts.clock.kept_here:
            raise self._lost(f"devices do not have {self._parts.clock.kept_here}")

    def _lost(self, why: str) -> StateError:
        return StateError(
            f"{self._state.folder} has no complete state of {self._parts.cluster.home_id}, and {why}; put the "
            "files back, or begin the run again"
        )


def round_to_open(held_round: int | None, global_round: int, rounds_per_global: int) -> int:
    """Return the LPS round that this LPS must open. The devices have the model with which LPS round `held_round` began.
    The global round `global_round` is open at the GPS.

    If `held_round` belongs to this global round, it is opened again, and nothing is lost. If `held_round` is the last
    LPS round of the previous global round, it is opened again, too. The GPS has already closed that global round, so
    updates then change only the layers of the cluster. In any other case, the first LPS round of this global round is
    opened, with the present shared layers.
    """
    first = global_round * rounds_per_global
    if held_round is not None and first - 1 <= held_round < first + rounds_per_global:
        return held_round
    return first


def check_goes_on(held_round: int | None, global_round: int, rounds_per_global: int, home_id: str) -> None:
    """Check that a cluster can continue from the model of LPS round `held_round`. Only runs without deadlines need this
    check.

    Raises:
        StateError: the model is neither from an LPS round of the open global round, nor from the last LPS round of the
            previous global round.
    """
    if round_to_open(held_round, global_round, rounds_per_global) != held_round:
        raise StateError(
            f"this LPS has no complete state of {home_id}, and the newest model of the devices is of LPS round "
            f"{held_round}, while the GPS is at global round {global_round + 1}; put the files back, or begin the run "
            "again"
        )


def write_start(
    state: ClusterState, held: AnyModel, held_round: int | None, shared: ReceivedModel, places: Sequence[slice]
) -> int:
    """Write the state from which a cluster continues, and return the LPS round to open.

    The state consists of `held`, the model of LPS round `held_round`, and of `shared`, the shared layers of the open
    global round. `held_round` is None if the round is unknown. `places` has the positions of the shared layers in a
    model.
    """
    rounds = state.rounds_per_global
    opened = round_to_open(held_round, shared.round, rounds)
    base = opened - opened % rounds
    report = state.empty_report()
    is_of_now = base == shared.round * rounds
    if opened != base:  # this file first: with the base alone, a restart would continue at the base
        state.write(opened, held.pieces(), report, durable=True)
    state.save(base, spliced(held, shared.flat, places) if is_of_now else held.pieces(), report).close()
    return opened
