"""The tables that a clock adds to a record, and the keys that it adds to summary.json."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import Any

from fedstrata.clock.energy import counts_energy
from fedstrata.experiment import Experiment
from fedstrata.record.contributions import asynchronous_summary, contributions_csv
from fedstrata.record.energy import Spent, energy_csv, energy_summary, spent_by
from fedstrata.record.links import LinkRow, link_rows, links_csv, real_summary
from fedstrata.record.timeline import RunTimes, flows_csv, timeline_csv, virtual_summary
from fedstrata.record.waits import waits_csv
from fedstrata.v1 import rounds_pb2 as pb

UNKNOWN: Mapping[str, Any] = {"virtual": None, "real": None}  # keys of the summary if the times of a run are not read


@dataclass(frozen=True, kw_only=True)
class Timing:
    """Hold the known times of a run, and write the record's tables and keys about these times."""

    experiment: Experiment
    rows: Iterable[pb.LpsRound]  # must allow several iterations
    times: RunTimes = field(default_factory=RunTimes)
    carried_before: Sequence[pb.Carried] = ()  # transfers of answers before training, on the real clock

    def tables(self) -> dict[str, Iterator[str]]:
        """Return the lines of each table that a clock adds, by file name. Without a clock, there are no such tables."""
        found, ids = {}, self.experiment.device_ids()
        if self.experiment.clock == "virtual":
            found["timeline.csv"] = timeline_csv(self.rows, self.times)
            found["flows.csv"] = flows_csv(self.rows, self.times)
        if self.experiment.training.rounds.asynchronous is not None:
            found["contributions.csv"] = contributions_csv(self.rows, ids)
        if self.experiment.clock != "none":
            found["waits.csv"] = waits_csv(self.rows, self.times, ids)
        if self.experiment.clock == "real":
            found["links.csv"] = links_csv(self._links)
        if counts_energy(self.experiment):
            found["energy.csv"] = energy_csv(self._spent, ids)
        return found

    def summary(self) -> dict[str, Any]:
        """Return the keys that a clock adds to the summary. If the run does not need a key, the key's value is None."""
        experiment, ids = self.experiment, self.experiment.device_ids()
        is_asynchronous = experiment.training.rounds.asynchronous is not None
        return {
            "virtual": virtual_summary(self.rows, self.times) if experiment.clock == "virtual" else None,
            "real": real_summary(self._links) if experiment.clock == "real" else None,
            "asynchronous": asynchronous_summary(self.rows, ids) if is_asynchronous else None,
            "energy": energy_summary(self._spent, ids) if counts_energy(experiment) else None,
        }

    @cached_property
    def _spent(self) -> list[Spent]:
        return spent_by(self.experiment, self.rows, self.times, self.carried_before)

    @cached_property
    def _links(self) -> list[LinkRow]:
        times = chain((row.times for row in self.rows), self.times.global_rounds.values())
        carried = chain([self.carried_before], (each.carried for each in times))
        return link_rows(carried, self.experiment.device_ids())
