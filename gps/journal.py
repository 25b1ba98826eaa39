"""The GPS's durable memory: an SQLite file (WAL) that a restarted GPS reads and goes on from.

Everything is written before it is answered, so a crash of the process loses nothing. What others build on (the
grouping, LPSs, closed rounds, reports) is flushed to the disk as well; a crash of the machine may lose enrolments,
profiles and rows noted since the last flush, and devices that are not known any more enrol again. Every row
carries a checksum of its values, and all are compared when a journal is opened.
"""

import hashlib
import sqlite3
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedstrata.errors import StateError, WrongRunError
from fedstrata.store.files import sync_folder

TABLES: Mapping[str, str] = {
    "run": "run_id TEXT NOT NULL, experiment TEXT NOT NULL",
    "phases": "phase TEXT PRIMARY KEY, began REAL NOT NULL",
    "devices": "device_index INTEGER PRIMARY KEY, device_id TEXT NOT NULL, num_examples INTEGER NOT NULL, "
    "pod_name TEXT NOT NULL, is_late INTEGER NOT NULL, profile BLOB, profile_rows INTEGER, relevance BLOB, "
    "cluster INTEGER",
    "exclusions": "device_id TEXT NOT NULL, stage TEXT NOT NULL, reason TEXT NOT NULL",
    "grouping": "rule TEXT NOT NULL",
    "lps": "lps_id TEXT PRIMARY KEY, address TEXT NOT NULL",
    "lps_rounds": "cluster_id TEXT NOT NULL, lps_round INTEGER NOT NULL, row BLOB NOT NULL",
    "global_rounds": "global_round INTEGER PRIMARY KEY",
    "handovers": "cluster_id TEXT NOT NULL, lps_id TEXT NOT NULL, global_round INTEGER NOT NULL",
    "reports": "cluster_id TEXT PRIMARY KEY, report BLOB NOT NULL",
    "link_bytes": "source TEXT PRIMARY KEY, counts BLOB NOT NULL",
}
UNIQUE = {"exclusions": "device_id, stage, reason", "lps_rounds": "cluster_id, lps_round"}


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
    """Typed reads and writes; each call is a transaction of its own, or part of the one it is called in."""

    def __init__(self, path: Path, *, run_id: str, experiment: str) -> None:
        """Open or begin the journal. Raises StateError for a damaged file, WrongRunError for one of another run."""
        self._path = path
        # Grouping works in a thread of its own, and one thread at a time is in SQLite: a write waits there for Python
        # to compute its seals, and a reader beside it would wait for SQLite while it keeps Python for itself.
        self._using = threading.RLock()
        self._is_durable: bool | None = None  # the transaction under way, if there is one
        try:
            if not path.exists():
                _create(path)
            self._db = _connect(path)
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=NORMAL")
            _verify(self._db, path)
            known = self._db.execute("SELECT run_id FROM run").fetchone()
        except sqlite3.DatabaseError as error:
            raise StateError(f"{path}: {error}; move it away to begin the run anew") from None
        self.is_resumed = known is not None
        if known is None:
            self._write("INSERT INTO run (run_id, experiment) VALUES (?, ?)", run_id, experiment)
        elif known[0] != run_id:
            raise WrongRunError(f"{path} is of run {known[0]}, not {run_id}; give another --state")

    def _write(self, statement: str, *values: object) -> int:
        """Execute one statement; gives how many rows it has changed."""
        with self.together():
            return self._db.execute(statement, values).rowcount

    @contextmanager
    def together(self, *, durable: bool = False) -> Iterator[None]:
        """All writes of the block or none; with `durable`, flushed to disk with all that came before.

        A block inside another is part of that one; then it is the outer one that has to be durable.
        """
        try:
            with self._using:
                if self._is_durable is None:
                    self._is_durable = durable
                    try:
                        with self._transaction(durable=durable):
                            yield
                    finally:
                        self._is_durable = None
                elif durable and not self._is_durable:
                    raise RuntimeError("a durable write inside a transaction that is not durable")
                else:
                    yield
        except sqlite3.Error as error:
            raise StateError(f"cannot write {self._path}: {error}; free space and start again") from None

    @contextmanager
    def _transaction(self, *, durable: bool) -> Iterator[None]:
        if durable:
            self._db.execute("PRAGMA synchronous=FULL")
        try:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise
        finally:
            if durable:
                self._db.execute("PRAGMA synchronous=NORMAL")

    def _rows(self, query: str, *values: object) -> list[Any]:
        """All that a query finds."""
        with self._using:
            return self._db.execute(query, values).fetchall()

    def begin_phase(self, phase: str) -> None:
        """Note when a phase began; the first time counts."""
        self._write("INSERT OR IGNORE INTO phases (phase, began) VALUES (?, ?)", phase, time.time())

    def phases(self) -> dict[str, float]:
        """When each phase began, in seconds since 1970."""
        return dict(self._rows("SELECT phase, began FROM phases ORDER BY began"))

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
        rows = self._rows(
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
        ((profile,),) = self._rows("SELECT profile FROM devices WHERE device_index = ?", index)
        return bytes(profile)

    def set_relevance(self, index: int, data: bytes) -> None:
        self._write("UPDATE devices SET relevance = ? WHERE device_index = ?", data, index)

    def relevance(self, index: int) -> bytes:
        """A device's row as it was stored."""
        ((relevance,),) = self._rows("SELECT relevance FROM devices WHERE device_index = ?", index)
        return bytes(relevance)

    def exclude(self, device_id: str, stage: str, reason: str) -> bool:
        """Note an exclusion; whether it is new."""
        statement = "INSERT OR IGNORE INTO exclusions (device_id, stage, reason) VALUES (?, ?, ?)"
        return self._write(statement, device_id, stage, reason) > 0

    def exclusions(self) -> list[tuple[str, str, str]]:
        """(device id, stage, reason) in the order noted."""
        return self._rows("SELECT device_id, stage, reason FROM exclusions ORDER BY rowid")

    # --- grouping -------------------------------------------------------------------------------

    def set_grouping(self, rule: str, clusters: Iterable[Iterable[int]]) -> None:
        """Write which device is in which cluster, all in one transaction."""
        places = [(number, index) for number, cluster in enumerate(clusters) for index in cluster]
        with self.together(durable=True):
            self._db.executemany("UPDATE devices SET cluster = ? WHERE device_index = ?", places)
            self._db.execute("INSERT INTO grouping (rule) VALUES (?)", (rule,))

    def grouping_rule(self) -> str | None:
        """The rule that chose the clusters; None before grouping."""
        rules = self._rows("SELECT rule FROM grouping")
        return str(rules[0][0]) if rules else None

    def place(self, index: int, cluster: int) -> None:
        """Note the cluster of a late device."""
        self._write("UPDATE devices SET cluster = ? WHERE device_index = ?", cluster, index)

    # --- LPSs and rounds ------------------------------------------------------------------------

    def register_lps(self, lps_id: str, address: str) -> None:
        with self.together(durable=True):
            self._db.execute("INSERT OR REPLACE INTO lps (lps_id, address) VALUES (?, ?)", (lps_id, address))

    def lps_addresses(self) -> dict[str, str]:
        """Address by LPS id."""
        return dict(self._rows("SELECT lps_id, address FROM lps"))

    def hand_over(self, cluster_id: str, lps_id: str, global_round: int) -> None:
        """Note that another LPS serves a cluster from now on, while that global round is open."""
        with self.together(durable=True):
            self._db.execute(
                "INSERT INTO handovers (cluster_id, lps_id, global_round) VALUES (?, ?, ?)",
                (cluster_id, lps_id, global_round),
            )

    def handovers(self) -> list[tuple[str, str, int]]:
        """(cluster, LPS that serves it from then on, global round then open) in the order noted."""
        return self._rows("SELECT cluster_id, lps_id, global_round FROM handovers ORDER BY rowid")

    def add_lps_rounds(self, rows: Iterable[tuple[str, int, bytes]]) -> None:
        """Keep rows given as cluster, LPS round and LpsRound message; a row of the same round replaces the old."""
        with self.together():
            self._db.executemany(
                "INSERT OR REPLACE INTO lps_rounds (cluster_id, lps_round, row) VALUES (?, ?, ?)", rows
            )

    def lps_rounds(self) -> list[bytes]:
        """Rows (LpsRound messages) in the order of rounds, then clusters."""
        rows = self._rows("SELECT row FROM lps_rounds ORDER BY lps_round, length(cluster_id), cluster_id")
        return [bytes(row) for (row,) in rows]

    def close_global_round(self, global_round: int) -> None:
        with self.together(durable=True):
            self._db.execute("INSERT OR IGNORE INTO global_rounds (global_round) VALUES (?)", (global_round,))

    def global_rounds_closed(self) -> int:
        """How many global rounds are done."""
        ((closed,),) = self._rows("SELECT COUNT(*) FROM global_rounds")
        return int(closed)

    def add_report(self, cluster_id: str, report: bytes) -> None:
        with self.together(durable=True):
            self._db.execute("INSERT OR REPLACE INTO reports (cluster_id, report) VALUES (?, ?)", (cluster_id, report))

    def reports(self) -> dict[str, bytes]:
        """Final reports (ReportHeader messages) by cluster."""
        return dict(self._rows("SELECT cluster_id, report FROM reports"))

    def reported(self) -> set[str]:
        """The clusters that have reported."""
        return {cluster_id for (cluster_id,) in self._rows("SELECT cluster_id FROM reports")}

    # --- bytes ----------------------------------------------------------------------------------

    def set_link_bytes(self, source: str, counts: bytes) -> None:
        """Keep what the GPS (source "") or an LPS, for one of its clusters, has counted so far."""
        self._write("INSERT OR REPLACE INTO link_bytes (source, counts) VALUES (?, ?)", source, counts)

    def link_bytes(self) -> dict[str, bytes]:
        """The counts last kept, by source."""
        return dict(self._rows("SELECT source, counts FROM link_bytes"))

    def close(self) -> None:
        with self._using:
            self._db.close()


def _create(path: Path) -> None:
    """An empty journal, which takes its name only when it is whole: a file that is there and empty is damaged."""
    aside = path.with_name(f".{path.name}.aside")
    aside.unlink(missing_ok=True)
    database = sqlite3.connect(aside)
    for table, columns in TABLES.items():
        unique = f", UNIQUE ({UNIQUE[table]})" if table in UNIQUE else ""
        database.execute(f"CREATE TABLE {table} ({columns}, seal BLOB{unique})")
    database.commit()
    database.close()
    aside.replace(path)
    sync_folder(path.parent)


def _connect(path: Path) -> sqlite3.Connection:
    """A connection whose writes seal the rows they touch."""
    if not path.stat().st_size:
        raise sqlite3.DatabaseError("the file is empty")
    database = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    database.create_function("seal_of", -1, _seal_of, deterministic=True)
    for table in TABLES:
        columns = _columns(table)
        for event in ("INSERT", f"UPDATE OF {columns}"):
            name = f"seal_{table}_{event[:6].lower()}"
            database.execute(
                f"CREATE TEMP TRIGGER {name} AFTER {event} ON main.{table} BEGIN "  # noqa: S608  # our own names
                f"UPDATE {table} SET seal = seal_of({columns}) WHERE rowid = NEW.rowid; END"
            )
    return database


def _verify(database: sqlite3.Connection, path: Path) -> None:
    """Check structure and seals. Raises StateError, naming the file, when something was altered."""
    if database.execute("PRAGMA integrity_check(1)").fetchone() != ("ok",):
        raise StateError(f"{path}: damaged; move it away to begin the run anew")
    for table in TABLES:
        query = f"SELECT COUNT(*) FROM {table} WHERE seal IS NOT seal_of({_columns(table)})"  # noqa: S608  # our own
        (altered,) = database.execute(query).fetchone()
        if altered:
            raise StateError(f"{path}: {altered} rows of {table} were altered; move it away to begin the run anew")


def _columns(table: str) -> str:
    return ", ".join(column.split()[0] for column in TABLES[table].split(", "))


def _seal_of(*values: object) -> bytes:
    digest = hashlib.sha256()
    for value in values:
        digest.update(
            f"{type(value).__name__}:".encode() + (value if isinstance(value, bytes) else repr(value).encode())
        )
        digest.update(b"\0")
    return digest.digest()
