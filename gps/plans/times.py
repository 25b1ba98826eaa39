"""The virtual clock at the GPS: the questions before training, and when each global round began and ended."""

from dataclasses import replace

from fedstrata.clock.before import Asked, before_training
from fedstrata.clock.presence import counts_real_time
from fedstrata.clock.timeline import LpsTimeline
from fedstrata.experiment import Experiment
from fedstrata.methods import Moment, make_method
from fedstrata.process.sleeping import since_ns
from fedstrata.rounds import RoundResult, RoundServer
from fedstrata.v1 import answers_pb2
from fedstrata.v1 import rounds_pb2 as pb
from gps.journal.journal import Journal
from gps.record.timeline_record import RunTimes


class GlobalTimes:
    """Works out when global rounds happen, where the experiment asks for it; else does nothing."""

    def __init__(self, experiment: Experiment, journal: Journal, *, first_is_fetched: bool) -> None:
        """`first_is_fetched`: whether LPSs fetch what the first global round starts from, or have it themselves."""
        self._is_on = experiment.is_timed
        self._counts, self._began_unix_ns = counts_real_time(experiment), 0
        self._timeline = LpsTimeline(experiment)
        self._journal = journal
        self._first_is_fetched = first_is_fetched
        self._experiment = experiment
        self._asked: dict[str, Asked] = {}
        self._before: pb.RoundTimes | None = None
        self._times = {number: pb.RoundTimes.FromString(data) for number, data in journal.round_times().items()}

    def begins_ns(self, global_round: int) -> int:
        """When a global round begins: as the one before has ended."""
        before = self._times.get(global_round - 1)
        return before.ends_ns if before is not None else 0

    @property
    def began_unix_ns(self) -> int:
        """On the real clock, where something happens by it, when training began; 0 before, and else."""
        if self._counts and not self._began_unix_ns:
            self._began_unix_ns = round(self._journal.phases().get("training", 0.0) * 1e9)
        return self._began_unix_ns

    @property
    def knows_start(self) -> bool:
        """Whether LPSs can be told all that they need of the time."""
        return not self._counts or self.began_unix_ns > 0

    def now_ns(self, global_round: int) -> int:
        """As a global round begins, how long ago training began."""
        return since_ns(self.began_unix_ns) if self._counts else self.begins_ns(global_round)

    def begin(self) -> None:
        """Work out what happened before training, of the answers in the journal."""
        if self._is_on:
            self._asked = _asked(self._experiment, self._journal)
            self._before = before_training(self._experiment, list(self._asked.values()))

    def since_questions_ns(self, global_round: int) -> int:
        """When a global round begins, from the first question on."""
        return (self._before.ends_ns if self._before is not None else 0) + self.begins_ns(global_round)

    def all(self) -> RunTimes:
        """The times of the questions, and of the global rounds that are closed."""
        before = self._before or pb.RoundTimes()
        return RunTimes(before=before, global_rounds=dict(self._times), asked=self._asked)

    def of_round(self, global_round: int, server: RoundServer, gathered: RoundResult) -> pb.RoundTimes | None:
        """The times of the global round just closed, or on the real clock what links have carried; without one None."""
        transfers = server.exchange.transfers
        if transfers is not None:
            return pb.RoundTimes(carried=transfers.take(global_round))
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


def _asked(experiment: Experiment, journal: Journal) -> dict[str, Asked]:
    """The questions before training by name, of what devices have answered."""
    method, asked = make_method(experiment), {}
    for question in method.questions():
        if question.moment is Moment.BEFORE:
            late = experiment.newcomer_indexes  # of which some may not have answered yet
            answers = {i: data for i, data in journal.answers(question.name).items() if i not in late}
            examples = {i: answers_pb2.Answer.FromString(data).trained_examples for i, data in answers.items()}
            sizes = {index: len(data) for index, data in answers.items()}
            relayed = tuple(method.relays()) if question.relayed else ()
            asked[question.name] = Asked(answer_bytes=sizes, examples=examples, relayed=relayed)
    return asked
