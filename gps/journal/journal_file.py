"""The journal's file: an SQLite file (WAL). Every row has a checksum of its values.

The GPS writes to the journal before it replies, so nothing is lost if the process crashes. Facts on which other
processes depend (the grouping, LPSs, closed rounds, reports) are also flushed to disk. If the machine crashes,
enrolments, profiles and rows since the last flush may be lost. Devices with a lost enrolment enrol again.

When a journal is opened, the checksums of all rows are checked.
"""

import hashlib
import os
import sqlite3
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedstrata.errors import StateError, WrongRunError
from fedstrata.process.private_files import only_the_owner
from fedstrata.store.attempts import new_attempt
from fedstrata.store.whole_files import sync_folder

TABLES: Mapping[str, str] = {
    "run": "run_id TEXT NOT NULL, attempt_id TEXT NOT NULL, experiment TEXT NOT NULL, version INTEGER NOT NULL",
    "phases": "phase TEXT PRIMARY KEY, began REAL NOT NULL",
    "devices": "device_index INTEGER PRIMARY KEY, device_id TEXT NOT NULL, num_examples INTEGER NOT NULL, "
    "num_held_out INTEGER NOT NULL, "
    "pod_name TEXT NOT NULL, kernel TEXT NOT NULL, is_late INTEGER NOT NULL, has_lost_state INTEGER",
    "answers": "question TEXT NOT NULL, global_round INTEGER NOT NULL, device_index INTEGER NOT NULL, "
    "answer BLOB NOT NULL",
    "bundles": "global_round INTEGER NOT NULL, home_id TEXT NOT NULL, arrived_ns INTEGER NOT NULL",
    "exclusions": "device_id TEXT NOT NULL, stage TEXT NOT NULL, reason TEXT NOT NULL",
    "plans": "global_round INTEGER PRIMARY KEY, plan TEXT NOT NULL, affinity BLOB NOT NULL",
    "placed": "device_index INTEGER PRIMARY KEY, cluster INTEGER NOT NULL, home INTEGER NOT NULL, "
    "global_round INTEGER NOT NULL",
    "moves": "global_round INTEGER NOT NULL, device_index INTEGER NOT NULL, home INTEGER NOT NULL",
    "lps": "lps_id TEXT PRIMARY KEY, address TEXT NOT NULL",
    "lps_rounds": "home_id TEXT NOT NULL, lps_round INTEGER NOT NULL, row BLOB NOT NULL",
    "global_rounds": "global_round INTEGER PRIMARY KEY",
    "round_times": "global_round INTEGER PRIMARY KEY, times BLOB NOT NULL",
    "factors": "global_round INTEGER PRIMARY KEY, factors BLOB NOT NULL",
    "handovers": "home_id TEXT NOT NULL, lps_id TEXT NOT NULL, global_round INTEGER NOT NULL",
    "refusals": "home_id TEXT NOT NULL, lps_id TEXT NOT NULL, reason TEXT NOT NULL",
    "reports": "home_id TEXT PRIMARY KEY, report BLOB NOT NULL",
    "commands": "command TEXT NOT NULL",
    "software": "tier TEXT NOT NULL, name TEXT NOT NULL, software TEXT NOT NULL",
    "link_bytes": "source TEXT PRIMARY KEY, counts BLOB NOT NULL",
}
UNIQUE = {
    "answers": "question, global_round, device_index",
    "bundles": "global_round, home_id",
    "exclusions": "device_id, stage, reason",
    "lps_rounds": "home_id, lps_round",
    "commands": "command",
    "software": "tier, name, software",
}

# Errors of SQLite with another cause than damage, and what to do
NOT_DAMAGED: Mapping[int, str] = {
    sqlite3.SQLITE_FULL: "free space",
    sqlite3.SQLITE_IOERR: "check the disk",
    sqlite3.SQLITE_CANTOPEN: "allow this process to read and write its folder",
    sqlite3.SQLITE_READONLY: "allow this process to write it",
    sqlite3.SQLITE_PERM: "allow this process to write it",
    sqlite3.SQLITE_BUSY: "stop the other process that uses it",
    sqlite3.SQLITE_LOCKED: "stop the other process that uses it",
    sqlite3.SQLITE_NOMEM: "free memory",
}


class JournalFile:
    """Read and write rows. Each call is a transaction, or a part of the surrounding transaction."""

    def __init__(self, path: Path, *, run_id: str, experiment: str) -> None:
        """Open the journal, or create it if the file is missing. Raises StateError for a damaged file, and
        WrongRunError for a file of another run.
        """
        self._path = path
        # Grouping runs in its own thread, so two threads use the journal. The lock prevents a deadlock: a write inside
        # SQLite needs Python's global lock for its seals, and a reader would hold this lock while it waits for SQLite.
        self._using = threading.RLock()
        self._is_durable: bool | None = None  # None: no transaction is open
        try:
            if not path.exists():
                create(path)
            self._db = connect(path)
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=NORMAL")
            verify(self._db, path)
            known = self._db.execute("SELECT run_id, attempt_id FROM run").fetchone()
        except (sqlite3.Error, UnicodeDecodeError) as error:  # the latter: a damaged text
            raise _state_error(path, error) from None
        self.is_resumed = known is not None
        self.attempt_id = str(known[1]) if known else new_attempt(run_id)
        if known is None:  # durable, because LPSs and devices name folders after the attempt
            statement = "INSERT INTO run VALUES (?, ?, ?, 0, NULL)"
            self.write(statement, run_id, self.attempt_id, experiment, durable=True)
        elif known[0] != run_id:
            raise WrongRunError(f"{path} belongs to run {known[0]}, not to {run_id}; give another --state")

    def write(self, statement: str, *values: object, durable: bool = False) -> int:
        """Execute one statement, and return the number of changed rows. With `durable`, also flush the statement's
        transaction to disk.
        """
        with self.together(durable=durable):
            return self._db.execute(statement, values).rowcount

    @contextmanager
    def together(self, *, durable: bool = False) -> Iterator[None]:
        """Write everything in the block as one transaction. With `durable`, flush the transaction and all earlier
        transactions to disk.

        A block inside another block belongs to the outer transaction. If the inner block is durable, the outer block
        must be durable, too.
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
            raise _state_error(self._path, error) from None

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

    def rows(self, query: str, *values: object) -> list[Any]:
        """Return all rows of a query. Raises StateError for a damaged file, and if the disk refuses to read it."""
        try:
            with self._using:
                return self._db.execute(query, values).fetchall()
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise _state_error(self._path, error) from None

    def close(self) -> None:
        with self._using:
            self._db.close()


def _state_error(path: Path, error: sqlite3.Error | UnicodeDecodeError) -> StateError:
    """Return the error for the user. It says that the file is damaged, unless the disk, the permissions, another
    process or a wrong call explain the error of SQLite.
    """
    if isinstance(error, sqlite3.ProgrammingError | sqlite3.InterfaceError):  # Python's, and not of the file
        return StateError(f"cannot use {path}: {error}")
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF  # without the extended code
    remedy = NOT_DAMAGED.get(code)
    if code == sqlite3.SQLITE_READONLY and os.access(path, os.W_OK):  # only its header forbids to write
        remedy = None
    if remedy is not None:
        return StateError(f"cannot use {path}: {error}; {remedy} and start again")
    return StateError(f"{path} is damaged: {error}; move it away to begin the run again")


def create(path: Path) -> None:
    """Create a journal: a file with all tables, which have no rows yet. One transaction writes all tables, because each
    transaction waits for the disk four times. The file gets its final name only when all tables are written. So a file
    of 0 bytes with the final name is always a damaged journal.
    """
    aside = path.with_name(f".{path.name}.aside")
    aside.unlink(missing_ok=True)
    open(aside, "xb", opener=only_the_owner).close()  # SQLite gives its log files the same permissions
    database = sqlite3.connect(aside)
    database.execute("BEGIN")
    for table in TABLES:
        database.execute(_creation(table))
    database.commit()
    database.close()
    aside.replace(path)
    sync_folder(path.parent)


def connect(path: Path) -> sqlite3.Connection:
    """Return a connection that adds a checksum to each row that it writes."""
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


def verify(database: sqlite3.Connection, path: Path) -> None:
    """Check the structure of the journal and the checksums of its rows. If they are wrong, raise StateError, which
    names the file.
    """
    if database.execute("PRAGMA integrity_check(1)").fetchone() != ("ok",):
        raise StateError(f"{path} is damaged; move it away to begin the run again")
    for table in TABLES:
        query = f"SELECT COUNT(*) FROM {table} WHERE seal IS NOT seal_of({_columns(table)})"  # noqa: S608  # our own
        (altered,) = database.execute(query).fetchone()
        if altered:
            raise StateError(f"{path}: {altered} rows of {table} were altered; move it away to begin the run again")


def _creation(table: str) -> str:
    """Return the statement that creates a table."""
    unique = f", UNIQUE ({UNIQUE[table]})" if table in UNIQUE else ""
    return f"CREATE TABLE {table} ({TABLES[table]}, seal BLOB{unique})"


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
