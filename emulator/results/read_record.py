"""Read the folder of a finished run as Python values: summary, tables and relevance. Reports and figures use these
values.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from fedstrata.errors import DataError
from fedstrata.experiment.yaml_files import read_yaml
from fedstrata.record.contributions import CONTRIBUTIONS, ContributionRow
from fedstrata.record.links import LINK_ROWS, LinkRow
from fedstrata.record.relevance import Relevance, read_relevance
from fedstrata.record.rounds import RoundRow, RoundsTable
from fedstrata.record.summary import Summary, read_summary
from fedstrata.record.tables import read_text
from fedstrata.record.timeline import TIMELINE, TimelineRow
from fedstrata.record.waits import WAITS, WaitRow
from fedstrata.tasks import Metric


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """Hold the record of a run. `relevance` is None if the method computes no relevance matrix."""

    folder: Path
    experiment: Mapping[str, Any]  # every key with its value
    experiment_yaml: str
    summary: Summary
    rounds: tuple[RoundRow, ...]
    relevance: Relevance | None
    timeline: tuple[TimelineRow, ...] = ()  # rows of timeline.csv; empty if the run has no such file
    links: tuple[LinkRow, ...] = ()  # rows of links.csv; empty if the run has no such file

    def __post_init__(self) -> None:
        for row in self.rounds:
            if row.lps_id not in self.summary.by_lps:
                raise DataError(
                    f"rounds.csv names {row.lps_id!r}, which is neither a cluster nor an LPS of summary.json"
                )

    @property
    def name(self) -> str:
        """The name of the experiment."""
        return self.summary.name

    @property
    def headline(self) -> Metric:
        """The main metric, by which devices and runs are compared."""
        return self.summary.headline

    @property
    def lps_rounds_per_global_round(self) -> int:
        """The number of LPS rounds in a global round."""
        return int(self.experiment["training"]["lps_rounds_per_global_round"])

    @property
    def lps_prefix(self) -> str:
        """The names of LPSs without their numbers."""
        return next(iter(self.summary.by_lps), "lps-0").rpartition("-")[0] + "-"

    @property
    def global_models(self) -> list[RoundRow]:
        """The rows of rounds.csv about models after global rounds. The other rows are about models between the LPS
        rounds of a global round, which differ from LPS to LPS.
        """
        return [row for row in self.rounds if row.lps_round % self.lps_rounds_per_global_round == 0]

    @cached_property
    def waits(self) -> tuple[WaitRow, ...]:
        """The rows of waits.csv. Without a clock there are no rows. Raises DataError if the file is malformed."""
        return WAITS.read_if_there(self.folder / "waits.csv")

    @cached_property
    def contributions(self) -> tuple[ContributionRow, ...]:
        """The rows of contributions.csv. Without asynchronous rounds there are no rows. Raises DataError if the file is
        malformed.
        """
        return CONTRIBUTIONS.read_if_there(self.folder / "contributions.csv")


def load_record(folder: Path) -> RunRecord:
    """Return the record that a run wrote to `folder`.

    Raises:
        DataError: a file is missing or malformed. The message is one line and names the file.
    """
    summary = read_summary(folder / "summary.json")
    text = read_text(folder / "experiment.yaml")
    return RunRecord(
        folder=folder,
        experiment=_parse_experiment(text, folder / "experiment.yaml"),
        experiment_yaml=text,
        summary=summary,
        rounds=RoundsTable(summary.metrics).read(folder / "rounds.csv"),
        relevance=read_relevance(folder / "relevance.csv"),
        timeline=TIMELINE.read_if_there(folder / "timeline.csv"),
        links=LINK_ROWS.read_if_there(folder / "links.csv"),
    )


def _parse_experiment(text: str, path: Path) -> Mapping[str, Any]:
    try:
        document = read_yaml(text)
    except ValueError as error:
        raise DataError(f"{path} {error}") from None
    if not isinstance(document, dict):
        raise DataError(f"{path} must be a mapping of keys to values, not {type(document).__name__}")
    return document
