"""The journal's tables of commands and of the software of devices and LPSs, with which the run was made."""

import json
from collections.abc import Mapping

from gps.journal.journal_file import JournalFile

LARGEST = 2_000  # characters of the software of one process, and of a command
MOST_OF_ONE = 8  # the largest number of different software that one device or LPS can have during a run


class MadeWithTable:
    """Hold the commands that started the run, and the software of each device and LPS. A process that starts again with
    other software has several rows.
    """

    def __init__(self, file: JournalFile) -> None:
        self._file = file

    def note_command(self, command: str) -> None:
        """Note a command that started the GPS. An empty command, or one that is known already, changes nothing."""
        if command:
            self._file.write("INSERT OR IGNORE INTO commands (command) VALUES (?)", command[:LARGEST])

    def commands(self) -> list[str]:
        """Return the different commands in the order of their first use."""
        return [command for (command,) in self._file.rows("SELECT command FROM commands ORDER BY rowid")]

    def note(self, tier: str, name: str, software: Mapping[str, str]) -> None:
        """Note the software of a process. Software that is too long, or changes too often, is not noted."""
        text = json.dumps(dict(sorted(software.items())))
        if not software or len(text) > LARGEST:
            return
        self._file.write(
            "INSERT OR IGNORE INTO software (tier, name, software) SELECT ?, ?, ? "
            "WHERE (SELECT COUNT(*) FROM software WHERE tier = ? AND name = ?) < ?",
            tier, name, text, tier, name, MOST_OF_ONE,
        )  # fmt: skip

    def by_tier(self) -> dict[str, list[tuple[int, dict[str, str]]]]:
        """Return, by tier, each combination of software with the number of processes that ran it. The most frequent
        comes first.
        """
        found = dict[str, list[tuple[int, dict[str, str]]]]()
        query = "SELECT tier, COUNT(*), software FROM software GROUP BY tier, software ORDER BY 2 DESC, 3"
        for tier, count, text in self._file.rows(query):
            found.setdefault(tier, []).append((count, json.loads(text)))
        return found
