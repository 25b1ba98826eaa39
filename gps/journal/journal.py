"""The GPS's durable memory: an SQLite file (WAL) that a restarted GPS reads and goes on from.

Everything is written before it is answered, so a crash of the process loses nothing. What others build on (the
grouping, LPSs, closed rounds, reports) is flushed to the disk as well; a crash of the machine may lose enrolments,
profiles and rows noted since the last flush, and devices that are not known any more enrol again. Every row
carries a checksum of its values, and all are compared when a journal is opened.
"""

import sqlite3
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedstrata.errors import StateError, WrongRunError
from fedstrata.process.sleeping import wall_time
from gps.journal.journal_file import DeviceRow, connect, create, verify

BEFORE = -1  # the global round of what is asked and planned before training


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
                create(path)
            self._db = connect(path)
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=NORMAL")
            verify(self._db, path)
            known = self._db.execute("SELECT run_id FROM run").fetchone()
        except sqlite3.OperationalError as error:  # the disk is full, say, or the file locked: it may be whole
            raise StateError(f"cannot open {path}: {error}; free space and start again") from None
        except sqlite3.DatabaseError as error:
            raise StateError(f"{path}: {error}; move it away to begin the run anew") from None
        self.is_resumed = known is not None
        if known is None:
            self._write("INSERT INTO run (run_id, experiment) VALUES (?, ?)", run_id, experiment)
        elif known[0] != run_id:
            raise WrongRunError(f"{path} is of run {known[0]}, not {run_id}; give another --state")

    def _write(self, statement: str, *values: object, durable: bool = False) -> int:
        """Execute one statement; gives how many rows it has changed."""
        with self.together(durable=durable):
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
        self._write("INSERT OR IGNORE INTO phases (phase, began) VALUES (?, ?)", phase, wall_time())

    def phases(self) -> dict[str, float]:
        """When each phase began, in seconds since 1970."""
        return dict(self._rows("SELECT phase, began FROM phases ORDER BY began"))

    # --- devices --------------------------------------------------------------------------------

    def enroll(
        self, *, index: int, device_id: str, num_examples: int, num_held_out: int, pod_name: str, is_late: bool,
        kernel: str = "",
    ) -> None:  # fmt: skip
        """Add a device, or note where it runs now."""
        self._write(
            "INSERT INTO devices (device_index, device_id, num_examples, num_held_out, pod_name, is_late, kernel) "
            "VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (device_index) DO UPDATE SET pod_name = excluded.pod_name",
            index, device_id, num_examples, num_held_out, pod_name, is_late, kernel,
        )  # fmt: skip

    def devices(self) -> list[DeviceRow]:
        """All devices in index order."""
        rows = self._rows(
            "SELECT device_index, device_id, num_examples, num_held_out, pod_name, kernel, cluster, home, is_late, "
            "has_lost_state FROM devices ORDER BY device_index"
        )
        return [
            DeviceRow(
                device_index=index, device_id=name, num_examples=examples, num_held_out=held_out, pod_name=pod,
                kernel=kernel, cluster=cluster, home=home, is_late=bool(late), has_lost_state=bool(lost),
            )
            for index, name, examples, held_out, pod, kernel, cluster, home, late, lost in rows
        ]  # fmt: skip

    def note_late(self, index: int) -> None:
        """Note that a device comes after the first plan."""
        self._write("UPDATE devices SET is_late = 1 WHERE device_index = ?", index)

    def note_lost_state(self, index: int) -> None:
        """Note that what a device had kept for itself is gone."""
        self._write("UPDATE devices SET has_lost_state = 1 WHERE device_index = ?", index)

    # --- answers --------------------------------------------------------------------------------

    def add_answer(self, question: str, index: int, answer: bytes) -> None:
        """Keep a device's answer (an Answer message) from before training; the first counts."""
        self._add_answer(question, BEFORE, index, answer)

    def _add_answer(self, question: str, global_round: int, index: int, answer: bytes) -> None:
        self._write(
            "INSERT OR IGNORE INTO answers (question, global_round, device_index, answer) VALUES (?, ?, ?, ?)",
            question, global_round, index, answer,
        )  # fmt: skip

    def add_bundle(
        self, question: str, global_round: int, cluster_id: str, answers: Mapping[int, bytes], arrived_ns: int = 0
    ) -> None:
        """Keep what the devices of an LPS answered in a global round, and when that came, at once; the first counts."""
        with self.together(durable=True):
            if self._write("INSERT OR IGNORE INTO bundles VALUES (?, ?, NULL)", global_round, cluster_id):
                self._write("INSERT INTO bundle_times VALUES (?, ?, ?, NULL)", global_round, cluster_id, arrived_ns)
                for index, answer in answers.items():
                    self._add_answer(question, global_round, index, answer)

    def bundled(self, global_round: int) -> set[str]:
        """The LPSs whose devices' answers of a global round are there."""
        return {name for (name,) in self._rows("SELECT cluster_id FROM bundles WHERE global_round = ?", global_round)}

    def bundled_ns(self, global_round: int) -> int:
        """When the last bundle of a global round came, on the virtual clock."""
        times = self._rows("SELECT arrived_ns FROM bundle_times WHERE global_round = ?", global_round)
        return max((arrived_ns for (arrived_ns,) in times), default=0)

    def answer(self, question: str, index: int) -> bytes:
        """A device's answer from before training."""
        query = "SELECT answer FROM answers WHERE question = ? AND global_round = ? AND device_index = ?"
        ((answer,),) = self._rows(query, question, BEFORE, index)
        return bytes(answer)

    def answers(self, question: str, global_round: int = BEFORE) -> dict[int, bytes]:
        """All answers to a question, by device index in ascending order."""
        query = "SELECT device_index, answer FROM answers WHERE question = ? AND global_round = ? ORDER BY device_index"
        return {index: bytes(answer) for index, answer in self._rows(query, question, global_round)}

    def answered(self) -> list[tuple[str, int]]:
        """(question, device index) of all answers from before training."""
        return self._rows("SELECT question, device_index FROM answers WHERE global_round = ?", BEFORE)

    # --- exclusions -----------------------------------------------------------------------------

    def exclude(self, device_id: str, stage: str, reason: str) -> bool:
        """Note an exclusion; whether it is new."""
        statement = "INSERT OR IGNORE INTO exclusions (device_id, stage, reason) VALUES (?, ?, ?)"
        return self._write(statement, device_id, stage, reason) > 0

    def exclusions(self) -> list[tuple[str, str, str]]:
        """(device id, stage, reason) by device and round, whatever the order in which they were heard of."""
        order = "length(device_id), device_id, length(stage), stage, reason"
        return self._rows(f"SELECT device_id, stage, reason FROM exclusions ORDER BY {order}")  # noqa: S608  # our own

    def refused_in_training(self) -> set[str]:
        """The devices that an LPS has refused for the rest of the run."""
        return {who for who, stage, reason in self.exclusions() if stage == "training" and reason.startswith("refused")}

    # --- plans ----------------------------------------------------------------------------------

    def set_plan(
        self, global_round: int, plan: str, affinity: bytes, places: Iterable[tuple[int, int | None, int]]
    ) -> None:
        """Write the plan made in a global round or `BEFORE`, and devices' places as (cluster, home, index)."""
        with self.together(durable=True):
            self._db.executemany("UPDATE devices SET cluster = ?, home = ? WHERE device_index = ?", places)
            self._db.execute(
                "INSERT OR REPLACE INTO plans (global_round, plan, affinity) VALUES (?, ?, ?)",
                (global_round, plan, affinity),
            )

    def plans(self) -> dict[int, tuple[str, bytes]]:
        """Plans and their affinities by the global round in which they were made."""
        rows = self._rows("SELECT global_round, plan, affinity FROM plans ORDER BY global_round")
        return {made_in: (plan, bytes(affinity)) for made_in, plan, affinity in rows}

    def forget_plans_after(
        self, global_round: int, places: Iterable[tuple[int | None, int | None, int]], *, versions: int
    ) -> None:
        """Forget what was asked, planned and moved in later global rounds, and note places as (cluster, home, index).

        `versions` says by how much the plan's version would else be less in another life.
        """
        with self.together(durable=True):
            for table in ("plans", "answers", "bundles", "bundle_times", "moves"):
                self._db.execute(f"DELETE FROM {table} WHERE global_round > ?", (global_round,))  # noqa: S608  # our own
            self._db.executemany("UPDATE devices SET cluster = ?, home = ? WHERE device_index = ?", places)
            self._db.execute("INSERT INTO taken_back (global_round, versions) VALUES (?, ?)", (global_round, versions))

    def versions_taken_back(self) -> int:
        """What plans that are forgotten have added to the plan's version."""
        ((versions,),) = self._rows("SELECT COALESCE(SUM(versions), 0) FROM taken_back")
        return int(versions)

    def place(self, index: int, cluster: int, home: int) -> None:
        """Note the cluster of a late device, and the LPS that it hangs on."""
        self._write("UPDATE devices SET cluster = ?, home = ? WHERE device_index = ?", cluster, home, index)

    def move(self, global_round: int, moves: Iterable[tuple[int, int, int]]) -> None:
        """Note that devices hang on another LPS from a global round on, each as (index, LPS before, LPS then)."""
        with self.together():
            for index, came_from, home in moves:
                self._write("INSERT INTO moves VALUES (?, ?, ?, ?, NULL)", global_round, index, came_from, home)
                self._write("UPDATE devices SET home = ? WHERE device_index = ?", home, index)

    def moves(self) -> list[tuple[int, int, int, int]]:
        """(global round, device index, LPS before, LPS from then on) in the order noted."""
        return self._rows("SELECT global_round, device_index, came_from, home FROM moves ORDER BY rowid")

    # --- LPSs and rounds ------------------------------------------------------------------------

    def register_lps(self, lps_id: str, address: str) -> None:
        self._write("INSERT OR REPLACE INTO lps (lps_id, address) VALUES (?, ?)", lps_id, address, durable=True)

    def lps_addresses(self) -> dict[str, str]:
        """Address by LPS id."""
        return dict(self._rows("SELECT lps_id, address FROM lps"))

    def hand_over(self, cluster_id: str, lps_id: str, global_round: int) -> None:
        """Note that another LPS serves a cluster from now on, while that global round is open."""
        statement = "INSERT INTO handovers (cluster_id, lps_id, global_round) VALUES (?, ?, ?)"
        self._write(statement, cluster_id, lps_id, global_round, durable=True)

    def handovers(self) -> list[tuple[str, str, int]]:
        """(cluster, LPS that serves it from then on, global round then open) in the order noted."""
        return self._rows("SELECT cluster_id, lps_id, global_round FROM handovers ORDER BY rowid")

    def add_lps_rounds(self, rows: Iterable[tuple[str, int, bytes]]) -> None:
        """Keep rows given as cluster, LPS round and LpsRound message; a row of the same round replaces the old."""
        with self.together():
            statement = "INSERT OR REPLACE INTO lps_rounds (cluster_id, lps_round, row) VALUES (?, ?, ?)"
            self._db.executemany(statement, rows)

    def lps_round_keys(self) -> list[tuple[str, int]]:
        """Cluster and number of the LPS rounds that there are rows of, in the order of rounds, then clusters."""
        return self._rows("SELECT cluster_id, lps_round FROM lps_rounds ORDER BY 2, length(cluster_id), cluster_id")

    def lps_rounds(self, keys: Iterable[tuple[str, int]] | None = None) -> Iterator[bytes]:
        """Rows (LpsRound messages) of some LPS rounds, or of all; each is read as it is asked for."""
        one = "SELECT row FROM lps_rounds WHERE cluster_id = ? AND lps_round = ?"
        wanted = self.lps_round_keys() if keys is None else keys
        return (bytes(row) for key in wanted for (row,) in self._rows(one, *key))

    def lps_rounds_after(self, place: int) -> list[tuple[int, bytes]]:
        """Rows written after one, each with its place in the order of writing; a replaced row is written anew."""
        rows = self._rows("SELECT rowid, row FROM lps_rounds WHERE rowid > ? ORDER BY rowid", place)
        return [(at, bytes(row)) for at, row in rows]

    def close_global_round(self, global_round: int) -> None:
        self._write("INSERT OR IGNORE INTO global_rounds (global_round) VALUES (?)", global_round, durable=True)

    def set_round_times(self, global_round: int, times: bytes) -> None:
        """Keep when a global round began and ended on the virtual clock, a RoundTimes message."""
        self._write("INSERT OR REPLACE INTO round_times (global_round, times) VALUES (?, ?)", global_round, times)

    def round_times(self) -> dict[int, bytes]:
        """RoundTimes messages by global round."""
        rows = self._rows("SELECT global_round, times FROM round_times ORDER BY global_round")
        return {global_round: bytes(times) for global_round, times in rows}

    def global_rounds_closed(self) -> int:
        """How many global rounds are done."""
        ((closed,),) = self._rows("SELECT COUNT(*) FROM global_rounds")
        return int(closed)

    def add_report(self, cluster_id: str, report: bytes) -> None:
        self._write("INSERT OR REPLACE INTO reports VALUES (?, ?, NULL)", cluster_id, report, durable=True)

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
