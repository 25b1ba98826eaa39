"""Repeat a failed run: the folder with its state and its record gets another name."""

import json
from pathlib import Path

from fedstrata.process.process import folder
from fedstrata.store import write_aside

WORD_FILE = "again"  # file in the state of a run: the word that it was begun with


def state_for(path: Path, again: str) -> Path:
    """Return the folder of a run's state. A missing folder is made.

    `again` is a token of the present start. If the run has failed, and began with another token, it starts again from
    the beginning, and the old state is kept as NAME.failed-1, -2 and so on. So one token starts a run again only once,
    even if the process starts several times. Raises OutputError if the folder cannot be made.
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
