"""Calculate how long a finished run would take on other links and boards. The record has the transfers and the training
of the run.
"""

import shutil
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from emulator.results.read_record import RunRecord, load_record
from emulator.results.weights import check_models
from fedstrata.clock.clocks import clock_of
from fedstrata.clock.exchanged import Exchanged
from fedstrata.clock.timeline import Asked, Driver, before_training
from fedstrata.errors import DataError, ExperimentError, OutputError
from fedstrata.experiment import Experiment
from fedstrata.experiment.schedule import changes_who_trains
from fedstrata.experiment_file import parse_experiment
from fedstrata.methods import make_method
from fedstrata.record.summary import Summary
from fedstrata.record.timeline import FLOWS, FlowRow, RunTimes
from fedstrata.record.timing import Timing
from fedstrata.streams.homes import asks_in_training
from fedstrata.v1 import rounds_pb2 as pb

COPIED = ("rounds.csv", "relevance.csv", "factors.csv", "flows.csv", "models/*.safetensors")  # independent of times


@dataclass
class Flows:
    """Hold the transfers of a run: of each question, of each LPS round at each LPS, and of each global round. Rounds
    are numbered from 0.
    """

    asked: dict[str, list[FlowRow]] = field(default_factory=lambda: defaultdict(list))
    lps: dict[int, dict[str, list[FlowRow]]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(list)))
    gps: dict[int, dict[str, FlowRow]] = field(default_factory=lambda: defaultdict(dict))

    @classmethod
    def of(cls, rows: Sequence[FlowRow], prefix: str) -> "Flows":
        """Return the transfers in these rows, grouped by question and by round. The name of an LPS is `prefix` followed
        by its number.
        """
        flows = cls()
        for row in rows:
            if row.tier == "before":
                flows.asked[row.lps_id or ""].append(row)
            elif row.tier == "lps" and row.lps_round is not None and row.lps_id is not None:
                flows.lps[row.lps_round - 1][row.lps_id].append(row)
            elif row.tier == "gps" and row.global_round is not None:
                flows.gps[row.global_round - 1][f"{prefix}{row.child}"] = row
        return flows


@dataclass(frozen=True, kw_only=True)
class Retimed:
    """Hold the new times of a run, and the record from which they were calculated."""

    experiment: Experiment
    record: RunRecord
    timing: Timing

    @property
    def summary(self) -> Summary:
        """Return the run's summary with the new times."""
        run_id, digest = self.experiment.run_id, self.experiment.digest
        return replace(self.record.summary, run_id=run_id, experiment_sha256=digest, **self.timing.summary())


def retime(folder: Path, changes: Sequence[str]) -> Retimed:
    """Return the times that a finished run would have with changed links, boards and radios. `changes` are KEY=VALUE
    texts, as for `--set`.

    Raises:
        DataError: the record is missing, damaged, or of a run without a virtual clock.
        ExperimentError: a change is not allowed, or would change the result of the run.
    """
    record = load_record(folder)
    check_models(record)
    path = folder / "flows.csv"
    if record.summary.status != "completed" or not path.exists():
        raise DataError(f"{folder} has no completed run on the virtual clock; do a run with clock: virtual first")
    experiment = parse_experiment(record.experiment_yaml, overrides=changes, where=str(folder / "experiment.yaml"))
    _check_is_what_was_run(record, experiment, changes)
    rows = FLOWS.read(path)
    try:
        _check_children(rows, record, experiment)
        flows = Flows.of(rows, record.lps_prefix)
        return Retimed(experiment=experiment, record=record, timing=Retiming(experiment, flows).timing())
    except (KeyError, IndexError, ValueError) as error:
        raise DataError(f"{path} has other rounds or children than the run: {error}; fetch the record again") from None


def _check_is_what_was_run(record: RunRecord, experiment: Experiment, changes: Sequence[str]) -> None:
    """Check that the changes affect only times. Raises ExperimentError if they could change the models of the run."""
    if not clock_of(experiment).has_timeline:
        raise ExperimentError(
            f"clock: {experiment.clock} gives no timeline; do not change the clock, only links, boards or radios"
        )
    if experiment.deadlines.lps.deadline_s is not None:
        raise ExperimentError(
            "deadlines.lps.deadline_s: on other links other devices are late, and models differ; do a new run"
        )
    if experiment.training.rounds.asynchronous is not None:
        raise ExperimentError(
            "training.rounds: on other links rounds take other updates, and models differ; do a new run"
        )
    schedules = experiment.schedule, parse_experiment(record.experiment_yaml).schedule
    if any(map(changes_who_trains, schedules)):
        raise ExperimentError(
            "schedule: on other links other devices are away or have moved, so models differ; run the experiment again"
        )
    was, now = map(without_times, (record.experiment_yaml, experiment.to_yaml()))
    are_masked = [each.secure_aggregation is not None for each in (was, now)]  # masked updates have more bytes
    if was.digest != now.digest or are_masked[0] != are_masked[1]:
        raise ExperimentError(
            f"--set {' --set '.join(changes)} changes the models or their bytes, not only the times; "
            "run the experiment again"
        )


def _check_children(rows: Sequence[FlowRow], record: RunRecord, experiment: Experiment) -> None:
    """Check that flows.csv has the same children as waits.csv in each round of training. Raises KeyError with the first
    round and child that only one of them has.
    """
    ids, last = experiment.device_ids(), experiment.training.global_rounds
    flows = {
        (row.global_round, row.lps_round, row.lps_id, ids[row.child] if row.tier == "lps" else f"lps-{row.child}")
        for row in rows
        if row.global_round is not None and row.global_round <= last  # a later row has the final model
    }
    waits = {(row.global_round, row.lps_round, row.lps_id, row.child) for row in record.waits}
    for global_round, _, _, child in sorted(flows ^ waits, key=str):
        raise KeyError(f"{child} in global round {global_round}")


def without_times(text: str, *changes: str) -> Experiment:
    """Return the experiment that `text`, the content of a file, describes, but with these changes and without a clock.
    Its digest does not depend on links or boards.
    """
    return parse_experiment(text, overrides=[*changes, "clock=none"])


def write_retimed(retimed: Retimed, out: Path) -> None:
    """Write the record with its new times to a folder. Clusters, models and accuracy stay as in the finished run.

    Raises:
        OutputError: the folder cannot be written.
    """
    folder = retimed.record.folder
    copied = [path for name in COPIED for path in sorted(folder.glob(name))]
    try:
        out.mkdir(parents=True, exist_ok=True)
        (out / "models").mkdir()  # fails if another command writes to the same folder
        for name, lines in retimed.timing.tables().items():
            with (out / name).open("w", encoding="utf-8", newline="") as file:
                file.writelines(lines)
        for path in copied:
            shutil.copyfile(path, out / path.relative_to(folder))
        (out / "experiment.yaml").write_text(retimed.experiment.to_yaml(), encoding="utf-8")
        (out / "summary.json").write_text(retimed.summary.text(), encoding="utf-8")
    except OSError as error:
        raise OutputError(f"cannot write {out}: {error.strerror}; choose another folder") from None


class Retiming:
    """Calculate the times of a run round by round, in the same way as the GPS and the LPSs."""

    def __init__(self, experiment: Experiment, flows: Flows) -> None:
        self._experiment = experiment
        self._flows = flows
        self._driver = Driver(experiment)
        self._ids = experiment.device_ids()
        self._rows: list[pb.LpsRound] = []
        self._are_asked = asks_in_training(make_method(experiment)) is not None

    def timing(self) -> Timing:
        """Return the times of the whole run. Raises KeyError if the flows lack a round of the run."""
        asked = self._asked()
        begins, closed = 0, {}
        for global_round in range(self._experiment.training.global_rounds):
            closed[global_round] = self._global_round(global_round, begins)
            begins = closed[global_round].ends_ns
        self._rows.sort(key=lambda row: (row.lps_round, len(row.home_id), row.home_id))
        before = before_training(self._experiment, list(asked.values()))
        times = RunTimes(before=before, global_rounds=closed, asked=asked)
        return Timing(experiment=self._experiment, rows=self._rows, times=times)

    def _asked(self) -> Mapping[str, Asked]:
        method = make_method(self._experiment)
        relayed = {question.name for question in method.questions() if question.relayed}
        return {
            name: Asked(
                answer_bytes={row.child: row.up_bytes for row in rows},
                examples={row.child: row.examples for row in rows},
                relayed=tuple(method.relays()) if name in relayed else (),
            )
            for name, rows in self._flows.asked.items()
        }

    def _global_round(self, global_round: int, begins: int) -> pb.RoundTimes:
        """Return the times of a global round. Also store the times of its LPS rounds in this object."""
        per_global, flows = self._experiment.training.lps_rounds_per_global_round, self._flows.gps
        first = global_round * per_global
        arrived = {name: self._arrival(name, global_round, begins) for name in flows[global_round]}
        sent = {name: [self._children(first + at, name) for at in range(per_global)] for name in arrived}
        rounds = self._driver.lps_rounds(global_round, first, arrived, sent, is_asking=self._are_asked)
        rows = {
            name: [
                pb.LpsRound(home_id=name, global_round=global_round, lps_round=number, times=times)
                for number, times in enumerate(each, first)
            ]
            for name, each in rounds.items()
        }
        self._rows += [row for each in rows.values() for row in each]
        exchanged = {
            name: flow.exchanged(rows[name][-1].times.ends_ns - arrived[name])
            for name, flow in flows[global_round].items()
        }
        times = self._driver.uplinks.round(global_round, begins).times(exchanged)
        for name, (*_, last) in rows.items():
            last.times.ready_ns = self._arrival(name, global_round + 1, times.ends_ns)
            last.times.next_bytes = flows[global_round + 1][name].down_bytes
        return times

    def _children(self, number: int, name: str) -> dict[str, Exchanged]:
        """Return the transfers between an LPS and its devices in an LPS round."""
        rows = self._flows.lps[number][name]
        if not rows:
            raise KeyError(f"LPS round {number + 1} of {name}")
        return {self._ids[row.child]: row.exchanged() for row in rows}

    def _arrival(self, name: str, global_round: int, begins: int) -> int:
        """Return the time at which an LPS has the model of a global round. If the LPS can compute the model itself, the
        GPS does not send it. Then the time is the beginning of the round.
        """
        size = self._flows.gps[global_round][name].down_bytes
        return self._driver.uplinks.arrival_ns(name, global_round, begins, size) if size else begins
