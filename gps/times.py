"""The virtual clock of the global rounds: when each began and ended, kept in the journal."""

from dataclasses import replace

from fedstrata.experiment import Experiment
from fedstrata.rounds import RoundResult, RoundServer
from fedstrata.timeline import LpsTimeline
from fedstrata.v1 import rounds_pb2 as pb
from gps.journal import Journal


class GlobalTimes:
    """Works out when global rounds happen, where the experiment asks for it; else does nothing."""

    def __init__(self, experiment: Experiment, journal: Journal, *, first_is_fetched: bool) -> None:
        """`first_is_fetched`: whether LPSs fetch what the first global round starts from, or have it themselves."""
        self._is_on = experiment.is_timed
        self._timeline = LpsTimeline(experiment)
        self._journal = journal
        self._first_is_fetched = first_is_fetched
        self._times = {number: pb.RoundTimes.FromString(data) for number, data in journal.round_times().items()}

    def begins_ns(self, global_round: int) -> int:
        """When a global round begins: as the one before has ended."""
        before = self._times.get(global_round - 1)
        return before.ends_ns if before is not None else 0

    def all(self) -> dict[int, pb.RoundTimes]:
        """The times of the global rounds that are closed."""
        return dict(self._times)

    def of_round(self, global_round: int, server: RoundServer, gathered: RoundResult) -> pb.RoundTimes | None:
        """The times of the global round just closed; None where there is no virtual clock."""
        if not self._is_on:
            return None
        exchanged = server.exchanged(gathered)
        if not global_round and not self._first_is_fetched:
            exchanged = {name: replace(each, down_bytes=0) for name, each in exchanged.items()}
        return self._timeline.round(global_round, self.begins_ns(global_round), exchanged)

    def keep(self, global_round: int, times: pb.RoundTimes | None) -> None:
        """Note the times of a global round, in the transaction that closes it."""
        if times is not None:
            self._journal.set_round_times(global_round, times.SerializeToString(deterministic=True))
            self._times[global_round] = times
