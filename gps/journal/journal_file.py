"""The journal's file: its tables, whose every row carries a checksum of its values, and how it is opened."""

import hashlib
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fedstrata.errors import StateError
from fedstrata.process.private_files import only_the_owner
from fedstrata.store.files import sync_folder


@dataclass(frozen=True, kw_only=True)
class DeviceRow:
    """What is known of one device."""

    device_index: int
    device_id: str
    num_examples: int
    num_held_out: int
    pod_name: str
    kernel: str
    cluster: int | None
    home: int | None
    is_late: bool
    has_lost_state: bool


TABLES: Mapping[str, str] = {
    "run": "run_id TEXT NOT NULL, experiment TEXT NOT NULL",
    "phases": "phase TEXT PRIMARY KEY, began REAL NOT NULL",
    "devices": "device_index INTEGER PRIMARY KEY, device_id TEXT NOT NULL, num_examples INTEGER NOT NULL, "
    "num_held_out INTEGER NOT NULL, "
    "pod_name TEXT NOT NULL, kernel TEXT NOT NULL, is_late INTEGER NOT NULL, cluster INTEGER, home INTEGER, "
    "has_lost_state INTEGER",
    "answers": "question TEXT NOT NULL, global_round INTEGER NOT NULL, device_index INTEGER NOT NULL, "
    "answer BLOB NOT NULL",
    "bundles": "global_round INTEGER NOT NULL, cluster_id TEXT NOT NULL",
    "bundle_times": "global_round INTEGER NOT NULL, cluster_id TEXT NOT NULL, arrived_ns INTEGER NOT NULL",
    "exclusions": "device_id TEXT NOT NULL, stage TEXT NOT NULL, reason TEXT NOT NULL",
    "plans": "global_round INTEGER PRIMARY KEY, plan TEXT NOT NULL, affinity BLOB NOT NULL",
    "taken_back": "global_round INTEGER NOT NULL, versions INTEGER NOT NULL",
    "moves": "global_round INTEGER NOT NULL, device_index INTEGER NOT NULL, came_from INTEGER NOT NULL, "
    "home INTEGER NOT NULL",
    "lps": "lps_id TEXT PRIMARY KEY, address TEXT NOT NULL",
    "lps_rounds": "cluster_id TEXT NOT NULL, lps_round INTEGER NOT NULL, row BLOB NOT NULL",
    "global_rounds": "global_round INTEGER PRIMARY KEY",
    "round_times": "global_round INTEGER PRIMARY KEY, times BLOB NOT NULL",
    "handovers": "cluster_id TEXT NOT NULL, lps_id TEXT NOT NULL, global_round INTEGER NOT NULL",
    "reports": "cluster_id TEXT PRIMARY KEY, report BLOB NOT NULL",
    "link_bytes": "source TEXT PRIMARY KEY, counts BLOB NOT NULL",
}
UNIQUE = {
    "answers": "question, global_round, device_index",
    "bundles": "global_round, cluster_id",
    "bundle_times": "global_round, cluster_id",
    "exclusions": "device_id, stage, reason",
    "lps_rounds": "cluster_id, lps_round",
}


def create(path: Path) -> None:
    """An empty journal, which takes its name only when it is whole: a file that is there and empty is damaged."""
    aside = path.with_name(f".{path.name}.aside")
    aside.unlink(missing_ok=True)
    open(aside, "xb", opener=only_the_owner).close()  # its logs are opened to as many
    database = sqlite3.connect(aside)
    for table in TABLES:
        database.execute(_creation(table))
    database.commit()
    database.close()
    aside.replace(path)
    sync_folder(path.parent)


def connect(path: Path) -> sqlite3.Connection:
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


def verify(database: sqlite3.Connection, path: Path) -> None:
    """Check structure and seals. Raises StateError, naming the file, when something was altered."""
    if database.execute("PRAGMA integrity_check(1)").fetchone() != ("ok",):
        raise StateError(f"{path}: damaged; move it away to begin the run anew")
    for table in TABLES:
        query = f"SELECT COUNT(*) FROM {table} WHERE seal IS NOT seal_of({_columns(table)})"  # noqa: S608  # our own
        (altered,) = database.execute(query).fetchone()
        if altered:
            raise StateError(f"{path}: {altered} rows of {table} were altered; move it away to begin the run anew")


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
