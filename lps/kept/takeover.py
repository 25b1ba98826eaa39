"""The takeover of a cluster by a local parameter server (LPS) that lacks the cluster's state, although the cluster has
begun training. Another LPS served the cluster last, or this LPS has lost its files.

The layers that belong to the cluster come from the cluster's devices. The shared layers come from the global parameter
server (GPS).
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import closing

from fedstrata.errors import StateError
from fedstrata.rounds import ReceivedModel
from fedstrata.store import GLOBAL_ROUNDS_KEPT, AnyModel
from fedstrata.tensors import Flat
from fedstrata.v1 import gps_service_pb2 as pb
from lps.holding import SessionParts
from lps.kept.model_search import Held, ModelSearch
from lps.kept.piecewise import spliced
from lps.kept.state import ClusterState, RoundStart, state_of


class Takeover:
    """Write the state from which a cluster continues, if the state on this LPS's disk is missing or too old."""

    def __init__(self, parts: SessionParts, state: ClusterState, initial: Callable[[], Flat]) -> None:
        """Set `initial`, which returns the cluster's initial model. This model is used if neither a device nor this LPS
        has a later model.
        """
        self._parts = parts
        self._state = state
        self._initial = initial
        # Without a deadline at the GPS, a takeover must not change any model.
        self._is_exact = parts.lps.experiment.deadlines.gps.deadline_s is None
        cluster = parts.cluster
        self._oldest = oldest_usable(cluster.term, cluster.global_round, parts.rounds, is_exact=self._is_exact)

    @property
    def may_be_needed(self) -> bool:
        """Return whether a takeover may be needed, judged by the names of files alone. So this is fast."""
        return self._state.newest_named < self._oldest

    def _is_needed(self) -> bool:
        """Return whether a takeover is needed. This reads the files, because a file that `may_be_needed` finds by its
        name may be damaged.
        """
        if self._oldest < 0:
            return False
        found = self._state.newest(self._parts.log)
        if found is None:
            return True
        found.close()
        return found.lps_round < self._oldest

    async def run_if_needed(self, show: Callable[[ModelSearch], None]) -> None:
        """If a takeover is needed, search for the model on the devices, and write the state from which to continue.
        `show` receives the search, which answers the devices' calls.

        Raises:
            StateError: the remaining state is not enough to continue with the same results.
        """
        if not await asyncio.to_thread(self._is_needed):
            return
        self._check_possible()
        search = self._search()
        show(search)
        model, held_round = await asyncio.to_thread(self._model, await search.model())
        shared = await self._parts.gps.model()
        opened = round_to_open(held_round, shared.round, self._parts.rounds)
        if self._is_exact and opened != held_round:
            raise self._lost(
                f"the newest model of the devices is of LPS round {held_round}, while the GPS is at global round "
                f"{shared.round + 1}"
            )
        places = self._state.layout.slices_of(self._parts.lps.streams.everywhere)
        report = self._parts.empty_report()
        await asyncio.to_thread(write_start, self._state, opened, model, shared, places=places, report=report)
        model.close()
        self._parts.log.info("taken_over", term=self._parts.cluster.term, lps_round=opened, global_round=shared.round)
        search.release()

    def _search(self) -> ModelSearch:
        """Return the search for the cluster's latest model on its devices.

        Devices probably have models of the open or previous global round, or of the last LPS round before these.
        """
        now = self._parts.cluster.global_round * self._parts.rounds
        return ModelSearch(
            self._parts.gps.attempt_id,
            layout=self._state.layout,
            members=self._parts.members.ids - set(self._parts.notes.refused),
            wait=self._parts.clock.wait,
            likely_rounds=range(now - self._parts.rounds - 1, now + self._parts.rounds),
            refused=self._parts.notes.refused,
            log=self._parts.log,
        )

    def _model(self, held: Held | None) -> tuple[AnyModel, int | None]:
        """Return the model from which the cluster continues (from `ClusterState.scratch`), and the LPS round that began
        with this model. The LPS round is None if the model does not come from a device.

        `held` is the model of the devices. If no device has a model, the cluster can continue only if the GPS has a
        deadline. Then the model comes from the last term in which this LPS served the cluster and from which a complete
        state is on its disk. Without such a state, it is the initial model.
        """
        if held is not None:
            return self._state.scratch(iter([held.flat])), held.lps_round
        if self._is_exact:
            raise self._lost("none of its devices holds a model any more")
        earlier = self._of_an_earlier_term()
        starts_from = "own old model" if earlier else "initial model"
        self._parts.log.warning("model_held_by_no_device", starts_from=starts_from)
        if earlier is None:
            return self._state.scratch(iter([self._initial()])), None
        with closing(earlier):
            return self._state.scratch(earlier.model.pieces()), None

    def _of_an_earlier_term(self) -> RoundStart | None:
        """Return the newest complete state from an earlier term in which this LPS served the cluster. If there is no
        such state, return None.
        """
        for term in reversed(range(self._parts.cluster.term)):
            if self._parts.folder_of(term).exists():
                found = state_of(self._parts, term).newest(self._parts.log)
                if found is not None:
                    return found
        return None

    def _check_possible(self) -> None:
        if self._state.optimiser.has_state:
            raise self._lost("devices do not have the state of the optimiser of this LPS")
        if self._parts.clock.kept_here:
            raise self._lost(f"devices do not have {self._parts.clock.kept_here}")

    def _lost(self, why: str) -> StateError:
        found, newer = self._state.newest(self._parts.log), ""
        if found is not None:
            found.close()
            newer = f" newer than the start of LPS round {found.lps_round + 1}, which is too old"
        return StateError(
            f"{self._state.folder} has no complete state of {self._parts.cluster.home_id}{newer}, and {why}; put the "
            "files back, or begin the run again"
        )


def oldest_usable(term: int, global_round: int, rounds_per_global: int, *, is_exact: bool) -> int:
    """Return the earliest LPS round from which an LPS can continue by itself, or -1 if it can begin with the initial
    model. The global round `global_round` is open at the GPS. `is_exact` says that the LPS's restart must not change
    the values of any model.

    Without `is_exact`, a state of any LPS round is enough, because the other LPSs continue without an LPS that is late.

    With `is_exact`, the LPS trains again from its state, and the GPS has the vectors of the open global round and of
    the previous one. So a state of the two previous global rounds is enough. If one file of an LPS is damaged, the LPS
    has such a state, even if it was killed before it saved the start of the open global round.

    The LPS can begin with the initial model only in term 0: with `is_exact` up to global round 2, otherwise only in
    global round 0.

    With 3 LPS rounds per global round, LPS rounds 9 to 11 belong to global round 3:

    >>> oldest_usable(0, 3, 3, is_exact=True), oldest_usable(0, 3, 3, is_exact=False)
    (3, 0)
    """
    oldest = max(0, global_round - GLOBAL_ROUNDS_KEPT) * rounds_per_global if is_exact else 0
    can_begin = not term and not oldest and (is_exact or not global_round)
    return -1 if can_begin else oldest


def round_to_open(held_round: int | None, global_round: int, rounds_per_global: int) -> int:
    """Return the LPS round that an LPS opens after a takeover. Its devices have the model with which LPS round
    `held_round` began. The global round `global_round` is open at the GPS.

    - If `held_round` belongs to this global round, it is opened again, and nothing is lost.
    - If `held_round` is the last LPS round of the previous global round, it is opened again, too. The GPS has already
      closed that global round, so updates then change only the layers of the cluster.
    - In any other case, the first LPS round of this global round is opened, with the present shared layers.

    With 3 LPS rounds per global round, LPS rounds 6 to 8 belong to global round 2:

    >>> [round_to_open(held_round, 2, 3) for held_round in (4, 5, 6, 7, 8, 9)]
    [6, 5, 6, 7, 8, 6]
    """
    first = global_round * rounds_per_global
    if held_round is not None and first - 1 <= held_round < first + rounds_per_global:
        return held_round
    return first


def write_start(
    state: ClusterState,
    opened: int,
    held: AnyModel,
    shared: ReceivedModel,
    *,
    places: Sequence[slice],
    report: pb.ReportHeader,
) -> None:
    """Write the state from which a cluster continues: the files of LPS round `opened` and of its base.

    `held` is the devices' model, and `shared` the shared layers of the open global round. `places` has the positions of
    the shared layers in a model. If `opened` belongs to the previous global round, the model of its base is lost. Then
    `held` is written as the base, because the GPS no longer uses the difference from this base.
    """
    base = opened - opened % state.rounds_per_global
    if opened != base:  # this file first: with the base alone, a restart would continue at the base
        state.write(opened, held.pieces(), report, durable=True)
    is_of_now = base == shared.round * state.rounds_per_global
    state.write(base, spliced(held, shared.flat, places) if is_of_now else held.pieces(), report)
