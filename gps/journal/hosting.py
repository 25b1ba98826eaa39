"""The journal's tables of LPSs and of the clusters that they serve."""

from gps.journal.journal_file import JournalFile
from gps.journal.plans import PlanTable


class HostingTable:
    """Hold the addresses of LPSs, each change of the LPS that serves a cluster, and the refused LPSs."""

    def __init__(self, file: JournalFile, plans: PlanTable) -> None:
        self._file = file
        self._plans = plans

    def register(self, lps_id: str, address: str) -> None:
        """Keep the address of an LPS."""
        self._file.write("INSERT OR REPLACE INTO lps (lps_id, address) VALUES (?, ?)", lps_id, address, durable=True)

    def addresses(self) -> dict[str, str]:
        """Return addresses by LPS id."""
        return dict(self._file.rows("SELECT lps_id, address FROM lps"))

    def hand_over(self, home_id: str, lps_id: str, global_round: int) -> None:
        """Note that another LPS now serves a cluster, and which global round is open."""
        statement = "INSERT INTO handovers (home_id, lps_id, global_round) VALUES (?, ?, ?)"
        with self._file.together(durable=True):
            self._file.write(statement, home_id, lps_id, global_round)
            self._plans.count_change()

    def handovers(self) -> list[tuple[str, str, int]]:
        """Return each change as (cluster, new LPS, number of the open global round), in the order of the changes."""
        return self._file.rows("SELECT home_id, lps_id, global_round FROM handovers ORDER BY rowid")

    def refuse(self, home_id: str, lps_id: str, reason: str) -> None:
        """Note that the GPS has refused the LPS that serves a cluster."""
        self._file.write("INSERT INTO refusals (home_id, lps_id, reason) VALUES (?, ?, ?)", home_id, lps_id, reason)

    def refusals(self) -> list[tuple[str, str, str]]:
        """Return (cluster, refused LPS, reason) of each refusal, in the order of the refusals."""
        return self._file.rows("SELECT home_id, lps_id, reason FROM refusals ORDER BY rowid")

    def forget_refusals(self) -> None:
        """Let all refused LPSs try again, because a failed run is continued."""
        self._file.write("DELETE FROM refusals")
