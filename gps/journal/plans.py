"""The journal's tables of plans, and of later changes: late devices that got a cluster, and devices that moved."""

from collections.abc import Iterable

from gps.journal.journal_file import JournalFile


class PlanTable:
    """Hold the plans, by the global round in which they were made. Also hold the clusters of late devices, and the
    moves of devices to other LPSs.

    The plans have a version number, from which LPSs see that something has changed. Each such change and the increased
    version are written in one transaction.
    """

    def __init__(self, file: JournalFile) -> None:
        self._file = file

    def version(self) -> int:
        """Return the version of the plans, which is the number of changes so far that LPSs must learn of."""
        ((version,),) = self._file.rows("SELECT version FROM run")
        return int(version)

    def count_change(self) -> None:
        """Increase the version of the plans by one. Call this method in the transaction that writes the change."""
        self._file.write("UPDATE run SET version = version + 1")

    def make(self, global_round: int, plan: str, affinity: bytes) -> None:
        """Write the plan that was made in a global round, or before training."""
        with self._file.together(durable=True):
            self._file.write("INSERT OR REPLACE INTO plans VALUES (?, ?, ?, NULL)", global_round, plan, affinity)
            self.count_change()

    def made(self) -> dict[int, tuple[str, bytes]]:
        """Return each plan and its affinity (the similarities of devices), by the global round in which the plan was
        made.
        """
        rows = self._file.rows("SELECT global_round, plan, affinity FROM plans ORDER BY global_round")
        return {made_in: (plan, bytes(affinity)) for made_in, plan, affinity in rows}

    def forget_after(self, global_round: int) -> None:
        """Delete the answers, plans and moves of all global rounds after `global_round`."""
        with self._file.together(durable=True):
            for table in ("plans", "answers", "bundles", "moves"):
                self._file.write(f"DELETE FROM {table} WHERE global_round > ?", global_round)  # noqa: S608  # our own
            self.count_change()

    def place(self, index: int, *, cluster: int, home: int, global_round: int) -> None:
        """Note a late device's cluster, LPS and first global round."""
        with self._file.together():
            self._file.write(
                "INSERT OR REPLACE INTO placed VALUES (?, ?, ?, ?, NULL)", index, cluster, home, global_round
            )
            self.count_change()

    def placed(self) -> list[tuple[int, int, int, int]]:
        """Return (device index, cluster, LPS, first global round) of each late device."""
        return self._file.rows("SELECT device_index, cluster, home, global_round FROM placed ORDER BY device_index")

    def move(self, global_round: int, moves: Iterable[tuple[int, int]]) -> None:
        """Note that devices belong to another LPS from a global round on. Each move has a device index and the number
        of the new LPS.
        """
        with self._file.together():
            for index, home in moves:
                self._file.write("INSERT INTO moves VALUES (?, ?, ?, NULL)", global_round, index, home)
            self.count_change()

    def moves(self) -> list[tuple[int, int, int]]:
        """Return (global round, device index, new LPS) of all moves in the order in which they were written."""
        return self._file.rows("SELECT global_round, device_index, home FROM moves ORDER BY rowid")
