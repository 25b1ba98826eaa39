"""The journal's table of devices' answers, from before training and from global rounds."""

from collections.abc import Mapping

from gps.journal.journal_file import JournalFile

BEFORE = -1  # stands for a global round in rows of questions and plans before training


class AnswerTable:
    """Hold answers by question, global round and device. In global rounds, each LPS sends the answers of its devices
    together (a bundle).
    """

    def __init__(self, file: JournalFile) -> None:
        self._file = file

    def add(self, question: str, index: int, answer: bytes) -> None:
        """Keep a device's answer (an Answer message) from before training. Only the first answer is kept."""
        self._add(question, BEFORE, index, answer)

    def _add(self, question: str, global_round: int, index: int, answer: bytes) -> None:
        self._file.write(
            "INSERT OR IGNORE INTO answers (question, global_round, device_index, answer) VALUES (?, ?, ?, ?)",
            question, global_round, index, answer,
        )  # fmt: skip

    def add_bundle(
        self, question: str, global_round: int, home_id: str, answers: Mapping[int, bytes], arrived_ns: int = 0
    ) -> None:
        """Keep the answers of an LPS's devices in a global round, and their arrival time, in one transaction. Only the
        first bundle of an LPS in a global round is kept.
        """
        with self._file.together(durable=True):
            if self._file.write(
                "INSERT OR IGNORE INTO bundles VALUES (?, ?, ?, NULL)", global_round, home_id, arrived_ns
            ):
                for index, answer in answers.items():
                    self._add(question, global_round, index, answer)

    def bundled(self, global_round: int) -> set[str]:
        """Return the LPSs that have sent the answers of their devices in a global round."""
        return {name for (name,) in self._file.rows("SELECT home_id FROM bundles WHERE global_round = ?", global_round)}

    def bundled_ns(self, global_round: int) -> int:
        """Return the time at which the last bundle of a global round arrived, on the run's clock."""
        times = self._file.rows("SELECT arrived_ns FROM bundles WHERE global_round = ?", global_round)
        return max((arrived_ns for (arrived_ns,) in times), default=0)

    def one(self, question: str, index: int) -> bytes:
        """Return a device's answer to a question before training."""
        query = "SELECT answer FROM answers WHERE question = ? AND global_round = ? AND device_index = ?"
        ((answer,),) = self._file.rows(query, question, BEFORE, index)
        return bytes(answer)

    def all(self, question: str, global_round: int = BEFORE) -> dict[int, bytes]:
        """Return all answers to a question, by device index in ascending order."""
        query = "SELECT device_index, answer FROM answers WHERE question = ? AND global_round = ? ORDER BY device_index"
        return {index: bytes(answer) for index, answer in self._file.rows(query, question, global_round)}

    def given(self) -> list[tuple[str, int]]:
        """Return the question and the device index of each answer from before training."""
        return self._file.rows("SELECT question, device_index FROM answers WHERE global_round = ?", BEFORE)
