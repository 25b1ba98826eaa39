"""The GPS's journal: a file from which a restarted GPS continues."""

from pathlib import Path

from fedstrata.process.waiting import wall_time
from gps.journal.answers import AnswerTable
from gps.journal.devices import DeviceTable
from gps.journal.hosting import HostingTable
from gps.journal.journal_file import JournalFile
from gps.journal.made_with import MadeWithTable
from gps.journal.plans import PlanTable
from gps.journal.round_tables import RoundTable


class Journal(JournalFile):
    """Hold the journal of a run: its tables, phases and exclusions."""

    def __init__(self, path: Path, *, run_id: str, experiment: str) -> None:
        """Open the journal, or create it if the file is missing. Raises StateError for a damaged file, and
        WrongRunError for a file of another run.
        """
        super().__init__(path, run_id=run_id, experiment=experiment)
        self.devices = DeviceTable(self)
        self.answers = AnswerTable(self)
        self.plans = PlanTable(self)
        self.hosting = HostingTable(self, self.plans)
        self.rounds = RoundTable(self)
        self.clock = ClockTable(self)
        self.made_with = MadeWithTable(self)

    def begin_phase(self, phase: str) -> None:
        """Note when a phase begins. A second note of the same phase changes nothing."""
        self.write("INSERT OR IGNORE INTO phases (phase, began) VALUES (?, ?)", phase, wall_time())

    def continue_failed(self) -> None:
        """If the run has failed, delete this fact and all refusals of LPSs from the journal, so that the run can
        continue. Otherwise do nothing.
        """
        with self.together():
            if self.write("DELETE FROM phases WHERE phase = 'failed'"):
                self.hosting.forget_refusals()

    def phases(self) -> dict[str, float]:
        """Return the time at which each phase began, in seconds since 1970."""
        return dict(self.rows("SELECT phase, began FROM phases ORDER BY began"))

    def exclude(self, device_id: str, stage: str, reason: str) -> bool:
        """Note an exclusion. Return whether the exclusion is new."""
        statement = "INSERT OR IGNORE INTO exclusions (device_id, stage, reason) VALUES (?, ?, ?)"
        return self.write(statement, device_id, stage, reason) > 0

    def exclusions(self) -> list[tuple[str, str, str]]:
        """Return (device id, phase or round, reason) of all exclusions, sorted by device and round."""
        order = "length(device_id), device_id, length(stage), stage, reason"
        return self.rows(f"SELECT device_id, stage, reason FROM exclusions ORDER BY {order}")  # noqa: S608  # our own

    def refused_in_training(self) -> dict[str, str]:
        """Return the devices that an LPS has refused until the end of the run, with the reasons."""
        return {who: why for who, stage, why in self.exclusions() if stage == "training" and why.startswith("refused")}


class ClockTable:
    """Keep the times of a run in the journal, so that the clock of a restarted GPS can continue."""

    def __init__(self, journal: Journal) -> None:
        self._file = journal
        self.phases = journal.phases
        self.answers = journal.answers.all

    def set_round_times(self, global_round: int, times: bytes) -> None:
        """Write the times of a global round to the journal, as a serialised RoundTimes message. The times are read from
        the run's clock.
        """
        self._file.write("INSERT OR REPLACE INTO round_times (global_round, times) VALUES (?, ?)", global_round, times)

    def round_times(self) -> dict[int, bytes]:
        """Return the RoundTimes messages by global round."""
        rows = self._file.rows("SELECT global_round, times FROM round_times ORDER BY global_round")
        return {global_round: bytes(times) for global_round, times in rows}
