"""The clock of the GPS: when global rounds begin and end, and how long the questions before training take."""

from typing import Protocol

from fedstrata.clock.device_times import Homes
from fedstrata.clock.round_side import HeldBack, ParentClock
from fedstrata.clock.timeline import Asked, LpsTimeline, Sent, before_training
from fedstrata.experiment import Experiment
from fedstrata.links.tier_links import device_links, lps_links
from fedstrata.links.transfers import Transfers
from fedstrata.methods import Moment, make_method
from fedstrata.process.waiting import RealTime, since_ns
from fedstrata.v1 import answers_pb2
from fedstrata.v1 import rounds_pb2 as pb


class Journal(Protocol):
    """Define the methods of the GPS's journal that the GPS's clock uses."""

    def round_times(self) -> dict[int, bytes]:
        """Return the serialised RoundTimes messages, by global round."""

    def set_round_times(self, global_round: int, times: bytes) -> None:
        """Keep the serialised RoundTimes message of a global round."""

    def phases(self) -> dict[str, float]:
        """Return the time at which each phase of the run began, in seconds since 1970."""

    def answers(self, question: str) -> dict[int, bytes]:
        """Return all answers to a question, serialised, by device index."""


class GpsClock:
    """Represent a GPS in a run without a clock. Nothing is delayed, and no times are kept."""

    def __init__(self, experiment: Experiment, journal: Journal) -> None:
        self._experiment, self._journal = experiment, journal
        self.rounds = ParentClock()
        self.questions = ParentClock()  # for questions before training
        self.homes = Homes(experiment)
        self.before = pb.RoundTimes()  # times of the questions before training
        self.asked: dict[str, Asked] = {}
        self.closed = {number: pb.RoundTimes.FromString(data) for number, data in journal.round_times().items()}
        self._counts = self._depends_on_time()
        self._began_unix_ns = 0

    def _depends_on_time(self) -> bool:
        """Return whether anything depends on the real time since training began."""
        return self._experiment.training.rounds.asynchronous is not None

    @property
    def began_unix_ns(self) -> int:
        """The time at which training began, in nanoseconds since 1970. The value is 0 before training, and if nothing
        depends on this time.
        """
        if self._counts and not self._began_unix_ns:
            self._began_unix_ns = round(self._journal.phases().get("training", 0.0) * 1e9)
        return self._began_unix_ns

    @property
    def knows_start(self) -> bool:
        """Return whether LPSs may begin to train: either nothing depends on the time at which training began, or this
        time is already in the journal.
        """
        return not self._counts or self.began_unix_ns > 0

    def begin(self) -> None:
        """Calculate, from the answers in the journal, how long the questions before training took."""

    def resume(self, global_round: int) -> None:
        """Tell the links how long ago training began, because their rates depend on this time. A GPS calls this when it
        opens its first global round after a start or restart.
        """

    def begins_ns(self, global_round: int) -> int:
        """Return the time, since training began, at which a global round begins. This is the end of the previous global
        round.
        """
        before = self.closed.get(global_round - 1)
        return before.ends_ns if before is not None else 0

    def now_ns(self, global_round: int) -> int:
        """Return, at the start of a global round, the time that has passed since training began."""
        return self.begins_ns(global_round)

    def since_questions_ns(self, global_round: int) -> int:
        """Return the time from the first question to the beginning of a global round."""
        return self.before.ends_ns + self.begins_ns(global_round)

    def bundled_ns(self, home_id: str, global_round: int, answered_ns: int, bundle_bytes: int) -> int:
        """Return when the answers of an LPS's devices, which the LPS sends in one bundle, arrive at the GPS. If the
        clock does not calculate this time, return 0.
        """
        return 0

    def of_round(self, global_round: int, exchanged: Sent) -> pb.RoundTimes | None:
        """Return the clock's record of a global round that has just been closed: the round's times, or the bytes that
        links have carried. If the clock records nothing, return None.
        """
        return None

    def keep(self, global_round: int, times: pb.RoundTimes | None) -> None:
        """Write the times of a global round to the journal. The caller does this in the transaction that closes the
        round.
        """
        if times is not None:
            self._journal.set_round_times(global_round, times.SerializeToString(deterministic=True))
            self.closed[global_round] = times


class VirtualGpsClock(GpsClock):
    """Calculate times from the transferred bytes and from the LPSs' reports of their rounds."""

    def __init__(self, experiment: Experiment, journal: Journal) -> None:
        super().__init__(experiment, journal)
        self._timeline = LpsTimeline(experiment)
        self.rounds = ParentClock(wants_work=True)

    def _depends_on_time(self) -> bool:
        return False

    def begin(self) -> None:
        self.asked = _asked(self._experiment, self._journal)
        self.before = before_training(self._experiment, list(self.asked.values()))

    def bundled_ns(self, home_id: str, global_round: int, answered_ns: int, bundle_bytes: int) -> int:
        return self._timeline.bundled_ns(home_id, global_round, answered_ns, bundle_bytes)

    def of_round(self, global_round: int, exchanged: Sent) -> pb.RoundTimes | None:
        return self._timeline.round(global_round, self.begins_ns(global_round)).times(exchanged)


class RealGpsClock(GpsClock):
    """Delay messages between the GPS and LPSs. Before training, also delay messages between the GPS and devices."""

    def __init__(self, experiment: Experiment, journal: Journal, time: RealTime | None = None) -> None:
        super().__init__(experiment, journal)
        self.rounds = HeldBack(Transfers(lps_links(experiment), time))
        self.questions = HeldBack(Transfers(device_links(experiment, to_gps=True), time))

    def _depends_on_time(self) -> bool:
        return bool(self._experiment.schedule or self._experiment.links.has_trace) or super()._depends_on_time()

    def resume(self, global_round: int) -> None:
        if self.began_unix_ns:
            self.rounds.began(self.now_ns(global_round))

    def now_ns(self, global_round: int) -> int:
        return since_ns(self.began_unix_ns) if self._counts else super().now_ns(global_round)

    def of_round(self, global_round: int, exchanged: Sent) -> pb.RoundTimes | None:
        return pb.RoundTimes(carried=self.rounds.take(global_round))


def _asked(experiment: Experiment, journal: Journal) -> dict[str, Asked]:
    """Return, by name, the questions to devices before training. Each question has, for each device, the size of the
    answer and the number of examples used for it, from the journal. Devices that join later (newcomers) are left out.
    """
    method, asked = make_method(experiment), {}
    for question in method.questions():
        if question.moment is Moment.BEFORE:
            late = experiment.newcomer_indexes  # some newcomers may not have answered yet
            answers = {i: data for i, data in journal.answers(question.name).items() if i not in late}
            examples = {i: answers_pb2.Answer.FromString(data).trained_examples for i, data in answers.items()}
            sizes = {index: len(data) for index, data in answers.items()}
            relayed = tuple(method.relays()) if question.relayed else ()
            asked[question.name] = Asked(answer_bytes=sizes, examples=examples, relayed=relayed)
    return asked
