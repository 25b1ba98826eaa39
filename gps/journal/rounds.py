"""The rounds of a run and what LPSs report of them, as the journal keeps it."""

from collections.abc import Iterable, Iterator

from fedstrata.v1 import rounds_pb2
from gps.journal.journal_file import JournalFile


class RoundTable:
    """Global rounds that are done, rows of LPS rounds, final reports, and bytes counted so far."""

    def __init__(self, file: JournalFile) -> None:
        self._file = file

    def add(self, rows: Iterable[tuple[str, int, bytes]]) -> None:
        """Keep rows given as cluster, LPS round and LpsRound message; a row of the same round replaces the old."""
        with self._file.together():
            statement = "INSERT OR REPLACE INTO lps_rounds (home_id, lps_round, row) VALUES (?, ?, ?)"
            for row in rows:
                self._file.write(statement, *row)

    def keys(self) -> list[tuple[str, int]]:
        """Cluster and number of the LPS rounds that there are rows of, in the order of rounds, then clusters."""
        return self._file.rows("SELECT home_id, lps_round FROM lps_rounds ORDER BY 2, length(home_id), home_id")

    def rows(self, keys: Iterable[tuple[str, int]] | None = None) -> Iterator[bytes]:
        """Return the rows (LpsRound messages) of some LPS rounds, or of all; each is read as it is asked for."""
        one = "SELECT row FROM lps_rounds WHERE home_id = ? AND lps_round = ?"
        wanted = self.keys() if keys is None else keys
        return (bytes(row) for key in wanted for (row,) in self._file.rows(one, *key))

    def rows_after(self, place: int) -> list[tuple[int, bytes]]:
        """Return the rows written after one, each with its place in the order of writing; a replaced row is written
        anew.
        """
        rows = self._file.rows("SELECT rowid, row FROM lps_rounds WHERE rowid > ? ORDER BY rowid", place)
        return [(at, bytes(row)) for at, row in rows]

    def close(self, global_round: int) -> None:
        """Note that a global round is done."""
        self._file.write("INSERT OR IGNORE INTO global_rounds (global_round) VALUES (?)", global_round, durable=True)

    def closed(self) -> int:
        """Return the number of closed global rounds."""
        ((closed,),) = self._file.rows("SELECT COUNT(*) FROM global_rounds")
        return int(closed)

    def add_report(self, home_id: str, report: bytes) -> None:
        """Keep a cluster's final report."""
        self._file.write("INSERT OR REPLACE INTO reports VALUES (?, ?, NULL)", home_id, report, durable=True)

    def reports(self) -> dict[str, bytes]:
        """Final reports (ReportHeader messages) by cluster."""
        return dict(self._file.rows("SELECT home_id, report FROM reports"))

    def reported(self) -> set[str]:
        """Return the clusters that have reported."""
        return {home_id for (home_id,) in self._file.rows("SELECT home_id FROM reports")}

    def set_link_bytes(self, source: str, counts: bytes) -> None:
        """Keep what the GPS (source "") or an LPS, for one of its clusters, has counted so far."""
        self._file.write("INSERT OR REPLACE INTO link_bytes (source, counts) VALUES (?, ?)", source, counts)

    def link_bytes(self) -> dict[str, bytes]:
        """Return the counts last kept, by source."""
        return dict(self._file.rows("SELECT source, counts FROM link_bytes"))


class LpsRounds:
    """The rows of LPS rounds that there are now, in the order of rounds, then clusters.

    Each is read from the journal as it is asked for: rows of a long run on a clock are more than memory should hold.
    """

    def __init__(self, table: RoundTable) -> None:
        self._table = table
        self._keys = table.keys()  # the same each time: a file's lines and their sum are of one state

    def __iter__(self) -> Iterator[rounds_pb2.LpsRound]:
        for row in self._table.rows(self._keys):
            yield rounds_pb2.LpsRound.FromString(row)
