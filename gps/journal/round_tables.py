"""The journal's tables of rounds, and of the reports of LPSs about the rounds."""

from collections.abc import Iterable, Iterator

from fedstrata.v1 import rounds_pb2
from gps.journal.journal_file import JournalFile


class RoundTable:
    """Hold closed global rounds, rows of LPS rounds, final reports, and counts of bytes."""

    def __init__(self, file: JournalFile) -> None:
        self._file = file

    def add(self, rows: Iterable[tuple[str, int, bytes]]) -> None:
        """Keep rows, each given as cluster, LPS round and LpsRound message. A row replaces an earlier row of the same
        round.
        """
        with self._file.together():
            statement = "INSERT OR REPLACE INTO lps_rounds (home_id, lps_round, row) VALUES (?, ?, ?)"
            for row in rows:
                self._file.write(statement, *row)

    def keys(self) -> list[tuple[str, int]]:
        """Return (cluster, number of the LPS round) for each LPS round that has a row, sorted by number, then by
        cluster.
        """
        return self._file.rows("SELECT home_id, lps_round FROM lps_rounds ORDER BY 2, length(home_id), home_id")

    def rows(self, keys: Iterable[tuple[str, int]] | None = None) -> Iterator[bytes]:
        """Yield the rows (LpsRound messages) of the LPS rounds in `keys`. By default, yield the rows of all LPS rounds.
        Each row is read when it is needed.
        """
        one = "SELECT row FROM lps_rounds WHERE home_id = ? AND lps_round = ?"
        wanted = self.keys() if keys is None else keys
        return (bytes(row) for key in wanted for (row,) in self._file.rows(one, *key))

    def rows_after(self, place: int) -> list[tuple[int, bytes]]:
        """Return the rows with a position after `place`, each with its position. Rows have positions in the order in
        which they were written. A row that replaces another row has a new position.
        """
        rows = self._file.rows("SELECT rowid, row FROM lps_rounds WHERE rowid > ? ORDER BY rowid", place)
        return [(at, bytes(row)) for at, row in rows]

    def close(self, global_round: int) -> None:
        """Note that a global round is closed."""
        self._file.write("INSERT OR IGNORE INTO global_rounds (global_round) VALUES (?)", global_round, durable=True)

    def set_factors(self, global_round: int, factors: bytes) -> None:
        """Keep the factor of each LPS's update in the combined update of a global round, as a serialised Factors
        message. The GPS's rule has chosen the factors.
        """
        self._file.write("INSERT OR REPLACE INTO factors (global_round, factors) VALUES (?, ?)", global_round, factors)

    def factors(self) -> dict[int, bytes]:
        """Return the Factors messages by global round."""
        rows = self._file.rows("SELECT global_round, factors FROM factors ORDER BY global_round")
        return {global_round: bytes(factors) for global_round, factors in rows}

    def closed(self) -> int:
        """Return the number of closed global rounds."""
        ((closed,),) = self._file.rows("SELECT COUNT(*) FROM global_rounds")
        return int(closed)

    def add_report(self, home_id: str, report: bytes) -> None:
        """Keep a cluster's final report."""
        self._file.write("INSERT OR REPLACE INTO reports VALUES (?, ?, NULL)", home_id, report, durable=True)

    def reports(self) -> dict[str, bytes]:
        """Return the final reports (ReportHeader messages) by cluster."""
        return dict(self._file.rows("SELECT home_id, report FROM reports"))

    def reported(self) -> set[str]:
        """Return the clusters with a report."""
        return {home_id for (home_id,) in self._file.rows("SELECT home_id FROM reports")}

    def set_link_bytes(self, source: str, counts: bytes) -> None:
        """Keep the byte counts so far of a source. The source is the id of an LPS, or "" for the GPS."""
        self._file.write("INSERT OR REPLACE INTO link_bytes (source, counts) VALUES (?, ?)", source, counts)

    def link_bytes(self) -> dict[str, bytes]:
        """Return the newest byte counts by source: the id of an LPS, or "" for the GPS."""
        return dict(self._file.rows("SELECT source, counts FROM link_bytes"))


class LpsRounds:
    """Iterate over the rows of LPS rounds, sorted by round, then by cluster.

    Each row is read from the journal when it is needed, because a long run with a clock has many rows.
    """

    def __init__(self, table: RoundTable) -> None:
        self._table = table
        self._keys = table.keys()  # fixed, so that every iteration yields the same rows

    def __iter__(self) -> Iterator[rounds_pb2.LpsRound]:
        for row in self._table.rows(self._keys):
            yield rounds_pb2.LpsRound.FromString(row)
