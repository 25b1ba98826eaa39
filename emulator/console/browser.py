"""The live page in the user's browser."""

import os
import sys
import webbrowser
from collections.abc import Callable
from contextlib import suppress
from threading import Event


def show_page(tell: Callable[[str], None], address: str) -> None:
    """Tell the address of the page of a GPS by its HTTP address, and open it if a browser can be seen."""
    url = f"http://{address}/"
    tell(url)
    if can_show():
        with suppress(webbrowser.Error):
            webbrowser.open(url)


def can_show() -> bool:
    """Return whether a user could see a browser's window: at a terminal of a machine with a screen."""
    has_screen = sys.platform in {"darwin", "win32"} or bool({"DISPLAY", "WAYLAND_DISPLAY"} & set(os.environ))
    return sys.stdout.isatty() and has_screen


def keep_page() -> None:
    """Leave the page where it is until Ctrl-C, at a terminal; elsewhere nobody could say when."""
    if sys.stdout.isatty():
        print("the run is over; its page stays until Ctrl-C", file=sys.stderr, flush=True)
        with suppress(KeyboardInterrupt):
            Event().wait()
