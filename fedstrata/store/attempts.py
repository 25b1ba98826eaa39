"""The attempts of a run. A run begins another attempt if the GPS has lost its state, or if a failed run is repeated.

The id of an attempt is the id of the run, a slash and a random word: `digits-0123456789ab/5f3a9c01`. The GPS draws the
word. LPSs and devices state the id in their calls, and keep their state in folders with the word. So an attempt uses
nothing of an earlier one, and the GPS refuses calls of processes that have not noticed the change.
"""

import re
import secrets

from fedstrata.errors import PayloadError
from fedstrata.process.quoting import quoted

WORD_BYTES = 4
WORD = re.compile(f"[0-9a-f]{{{2 * WORD_BYTES}}}")


def new_attempt(run_id: str) -> str:
    """Return the id of a new attempt of a run."""
    return f"{run_id}/{secrets.token_hex(WORD_BYTES)}"


def run_of(attempt_id: str) -> str:
    """Return the id of the run of an attempt."""
    return attempt_id.partition("/")[0]


def word_of(attempt_id: str) -> str:
    """Return the random word of an attempt."""
    return attempt_id.partition("/")[2]


def check_attempt(attempt_id: str, run_id: str) -> None:
    """Check that a text from the GPS is the id of an attempt of this run, because it becomes the name of a folder.
    Raises PayloadError otherwise.
    """
    if run_of(attempt_id) != run_id or not WORD.fullmatch(word_of(attempt_id)):
        raise PayloadError(
            f"the GPS names the attempt {quoted(attempt_id)}; expected {run_id}/ and {2 * WORD_BYTES} hex digits"
        )
