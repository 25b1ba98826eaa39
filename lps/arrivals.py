"""The option --arrivals of an LPS: repeat asynchronous rounds with the updates that an earlier run has recorded."""

import csv
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from fedstrata.clock.clocks import check_repeatable, clock_of
from fedstrata.clock.lps_side import LpsClock
from fedstrata.errors import ExperimentError
from fedstrata.experiment import Experiment
from fedstrata.v1 import gps_service_pb2 as pb

Taken = Mapping[int, Collection[str]]  # devices with an update in each LPS round


def clocks(experiment: Experiment, arrivals: Path | None) -> Callable[[pb.Cluster], LpsClock]:
    """Return a function that makes the clock of a cluster. `arrivals` is the file contributions.csv of an earlier run,
    which this run repeats. If `arrivals` is None, no run is repeated.

    Raises:
        ExperimentError: the file cannot be read, or the rounds of the experiment do not differ from run to run.
    """
    clock = clock_of(experiment)
    if arrivals is None:
        return clock.lps
    check_repeatable(experiment)
    taken = _read(arrivals)

    def repeating(cluster: pb.Cluster) -> LpsClock:
        made = clock.lps(cluster)
        made.repeat(taken.get(cluster.home_id, {}))
        return made

    return repeating


def _read(path: Path) -> Mapping[str, Taken]:
    """Read from a file the devices with an update in each LPS round. The result has them by the name of the LPS or
    cluster, and then by LPS round, counted from 0.
    """
    found: dict[str, dict[int, set[str]]] = {}
    try:
        with path.open(encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file):
                rounds = found.setdefault(row["lps_id"], {})
                rounds.setdefault(int(row["lps_round"]) - 1, set()).add(row["device"])
    except (OSError, ValueError, KeyError, csv.Error) as error:
        raise ExperimentError(f"cannot read {path}: {error}; give the contributions.csv of a record") from None
    return found
