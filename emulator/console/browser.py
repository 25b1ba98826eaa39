"""Show a run's live page in the user's browser."""

import os
import sys
import webbrowser
from collections.abc import Callable
from contextlib import suppress
from threading import Event


def show_page(tell: Callable[[str], None], address: str) -> None:
    """Print the URL of a run's live page, which the GPS serves at `address`. If the user can see a browser, open the
    page in it.
    """
    url = f"http://{address}/"
    tell(url)
    if can_show():
        with suppress(webbrowser.Error):
            webbrowser.open(url)


def can_show() -> bool:
    """Return whether the user can see a browser. This needs a terminal on a machine with a screen."""
    has_screen = sys.platform in {"darwin", "win32"} or bool({"DISPLAY", "WAYLAND_DISPLAY"} & set(os.environ))
    return sys.stdout.isatty() and has_screen


def keep_page() -> None:
    """Wait until the user presses Ctrl-C, so that the live page stays available. Without a terminal, return at once,
    because no user could press Ctrl-C.
    """
    if sys.stdout.isatty():
        print("the run is over; its page stays until Ctrl-C", file=sys.stderr, flush=True)
        with suppress(KeyboardInterrupt):
            Event().wait()
