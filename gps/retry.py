"""The repetition of a failed run. The folder with the failed run's state and record gets another name."""

import json
from pathlib import Path

from fedstrata.process.process import folder
from fedstrata.store import write_aside

WORD_FILE = "again"  # a file in a run's state that holds the last word given as --again


def state_for(path: Path, again: str) -> Path:
    """Return the folder of a run's state. If the folder is missing, create it. Raises OutputError if the folder cannot
    be created.

    `again` is a word that the operator chooses in order to repeat a failed run. The word with which a run began is
    stored in the run's folder. If the run has failed, and `again` is another word, the old folder is kept as
    NAME.failed-1, -2 and so on, and the run starts from the beginning. So a word repeats a run only once, even if the
    process starts several times.
    """
    if again and _has_failed(path) and _word(path) != again:
        number = 1
        while (aside := path.with_name(f"{path.name}.failed-{number}")).exists():
            number += 1
        path.rename(aside)
    is_new = not path.exists()
    state = folder(str(path))
    if is_new and again:
        with write_aside(state / WORD_FILE) as file:
            file.write(again.encode())
    return state


def _has_failed(path: Path) -> bool:
    summary = path / "record" / "summary.json"
    return summary.exists() and json.loads(summary.read_text(encoding="utf-8"))["status"] == "failed"


def _word(path: Path) -> str:
    token = path / WORD_FILE
    return token.read_text(encoding="utf-8") if token.exists() else ""
