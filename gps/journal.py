"""The GPS's durable memory: an SQLite file (WAL) that a restarted GPS reads and goes on from.

Everything is written before it is answered. A crash of the process loses nothing; a crash of the machine may
lose the last few entries, which children send again.
"""

import sqlite3
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from fedstrata.errors import StateError, WrongRunError

SCHEMA = """
CREATE TABLE IF NOT EXISTS run (run_id TEXT NOT NULL, experiment TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS phases (phase TEXT PRIMARY KEY, began REAL NOT NULL);
CREATE TABLE IF NOT EXISTS devices (
  device_index INTEGER PRIMARY KEY, device_id TEXT NOT NULL, num_examples INTEGER NOT NULL,
  pod_name TEXT NOT NULL, profile BLOB, profile_rows INTEGER, relevance BLOB, cluster INTEGER,
  is_late INTEGER NOT NULL DEFAULT 0);
CREATE TABLE IF NOT EXISTS exclusions (device_id TEXT NOT NULL, stage TEXT NOT NULL, reason TEXT NOT NULL,
  UNIQUE (device_id, stage, reason));
CREATE TABLE IF NOT EXISTS grouping (rule TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS lps (lps_id TEXT PRIMARY KEY, address TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS lps_rounds (cluster_id TEXT NOT NULL, lps_round INTEGER NOT NULL, row BLOB NOT NULL,
  PRIMARY KEY (cluster_id, lps_round));
CREATE TABLE IF NOT EXISTS global_rounds (global_round INTEGER PRIMARY KEY);
CREATE TABLE IF NOT EXISTS reports (cluster_id TEXT PRIMARY KEY, report BLOB NOT NULL);
"""


@dataclass(frozen=True, kw_only=True)
class DeviceRow:
    """What is known of one device."""

    device_index: int
    device_id: str
    num_examples: int
    pod_name: str
    profile_rows: int | None
    has_relevance: bool
    cluster: int | None
    is_late: bool


class Journal:
    """Typed reads and writes; one statement a call, each its own transaction unless it says otherwise."""

    def __init__(self, path: Path, *, run_id: str, experiment: str) -> None:
        """Open or begin the journal. Raises StateError for a damaged file, WrongRunError for one of another run."""
        try:
            self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=NORMAL")
            if self._db.execute("PRAGMA quick_check").fetchone() != ("ok",):
                raise StateError(f"{path}: damaged; move it away to begin the run anew")
            self._db.executescript(SCHEMA)
            known = self._db.execute("SELECT run_id FROM run").fetchone()
        except sqlite3.DatabaseError as error:
            raise StateError(f"{path}: {error}; move it away to begin the run anew") from None
        self.is_resumed = known is not None
        if known is None:
            self._write("INSERT INTO run VALUES (?, ?)", run_id, experiment)
        elif known[0] != run_id:
            raise WrongRunError(f"{path} is of run {known[0]}, not {run_id}; give another --state")

    def _write(self, statement: str, *values: object) -> None:
        try:
            self._db.execute(statement, values)
        except sqlite3.Error as error:
            raise StateError(f"cannot write the journal: {error}; free space and restart the GPS") from None

    def begin_phase(self, phase: str) -> None:
        """Note when a phase began; the first time counts."""
        self._write("INSERT OR IGNORE INTO phases VALUES (?, ?)", phase, time.time())

    def phases(self) -> dict[str, float]:
        """When each phase began, in seconds since 1970."""
        return dict(self._db.execute("SELECT phase, began FROM phases ORDER BY began"))

    # --- devices --------------------------------------------------------------------------------

    def enroll(self, *, index: int, device_id: str, num_examples: int, pod_name: str, is_late: bool) -> None:
        """Add a device, or note where it runs now."""
        self._write(
            "INSERT INTO devices (device_index, device_id, num_examples, pod_name, is_late) VALUES (?, ?, ?, ?, ?) "
            "ON CONFLICT (device_index) DO UPDATE SET pod_name = excluded.pod_name",
            index, device_id, num_examples, pod_name, is_late,
        )  # fmt: skip

    def devices(self) -> list[DeviceRow]:
        """All devices in index order."""
        rows = self._db.execute(
            "SELECT device_index, device_id, num_examples, pod_name, profile_rows, relevance IS NOT NULL, cluster, "
            "is_late FROM devices ORDER BY device_index"
        )
        return [
            DeviceRow(
                device_index=index, device_id=name, num_examples=examples, pod_name=pod, profile_rows=rows_,
                has_relevance=bool(related), cluster=cluster, is_late=bool(late),
            )
            for index, name, examples, pod, rows_, related, cluster, late in rows
        ]  # fmt: skip

    def set_profile(self, index: int, rows: int, data: bytes) -> None:
        self._write("UPDATE devices SET profile = ?, profile_rows = ? WHERE device_index = ?", data, rows, index)

    def profile(self, index: int) -> bytes:
        """The bytes of a device's eigenvectors."""
        row = self._db.execute("SELECT profile FROM devices WHERE device_index = ?", (index,)).fetchone()
        return bytes(row[0])

    def set_relevance(self, index: int, data: bytes) -> None:
        self._write("UPDATE devices SET relevance = ? WHERE device_index = ?", data, index)

    def relevance(self, index: int) -> bytes:
        """A device's row as it was stored."""
        row = self._db.execute("SELECT relevance FROM devices WHERE device_index = ?", (index,)).fetchone()
        return bytes(row[0])

    def exclude(self, device_id: str, stage: str, reason: str) -> None:
        self._write("INSERT OR IGNORE INTO exclusions VALUES (?, ?, ?)", device_id, stage, reason)

    def exclusions(self) -> list[tuple[str, str, str]]:
        """(device id, stage, reason) in the order noted."""
        return list(self._db.execute("SELECT device_id, stage, reason FROM exclusions ORDER BY rowid"))

    # --- grouping -------------------------------------------------------------------------------

    def set_grouping(self, rule: str, clusters: Iterable[Iterable[int]]) -> None:
        """Write which device is in which cluster, all in one transaction."""
        places = [(number, index) for number, cluster in enumerate(clusters) for index in cluster]
        with self._db:
            self._db.execute("BEGIN")
            self._db.executemany("UPDATE devices SET cluster = ? WHERE device_index = ?", places)
            self._db.execute("INSERT INTO grouping VALUES (?)", (rule,))

    def grouping_rule(self) -> str | None:
        """The rule that chose the clusters; None before grouping."""
        row = self._db.execute("SELECT rule FROM grouping").fetchone()
        return str(row[0]) if row else None

    def place(self, index: int, cluster: int) -> None:
        """Note the cluster of a late device."""
        self._write("UPDATE devices SET cluster = ? WHERE device_index = ?", cluster, index)

    # --- LPSs and rounds ------------------------------------------------------------------------

    def register_lps(self, lps_id: str, address: str) -> None:
        self._write("INSERT OR REPLACE INTO lps VALUES (?, ?)", lps_id, address)

    def lps_addresses(self) -> dict[str, str]:
        """Address by LPS id."""
        return dict(self._db.execute("SELECT lps_id, address FROM lps"))

    def add_lps_round(self, cluster_id: str, lps_round: int, row: bytes) -> None:
        self._write("INSERT OR REPLACE INTO lps_rounds VALUES (?, ?, ?)", cluster_id, lps_round, row)

    def lps_rounds(self) -> list[bytes]:
        """Rows (LpsRound messages) in the order of rounds, then clusters."""
        rows = self._db.execute("SELECT row FROM lps_rounds ORDER BY lps_round, length(cluster_id), cluster_id")
        return [bytes(row) for (row,) in rows]

    def close_global_round(self, global_round: int) -> None:
        self._write("INSERT OR IGNORE INTO global_rounds VALUES (?)", global_round)

    def global_rounds_closed(self) -> int:
        """How many global rounds are done."""
        return int(self._db.execute("SELECT COUNT(*) FROM global_rounds").fetchone()[0])

    def add_report(self, cluster_id: str, report: bytes) -> None:
        self._write("INSERT OR REPLACE INTO reports VALUES (?, ?)", cluster_id, report)

    def reports(self) -> dict[str, bytes]:
        """Final reports (ReportHeader messages) by cluster."""
        return dict(self._db.execute("SELECT cluster_id, report FROM reports"))

    def close(self) -> None:
        self._db.close()
