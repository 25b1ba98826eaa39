"""Where the live page is: told however a run is shown, and opened only where somebody can see it."""

import io
import json
import sys
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from emulator.cluster import remote
from emulator.cluster.release import Release
from emulator.cluster.release_objects import GpsAccess, InstalledRelease
from emulator.commands.main import execute
from emulator.console.browser import keep_page, show_page
from emulator.runs.follow import Outcome
from emulator.runs.progress import Display, JsonLines, LiveTables, LogLines
from fedstrata.v1 import gps_service_pb2 as pb

URL = "http://127.0.0.1:8080/"


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What a browser was asked to open."""
    urls: list[str] = []
    monkeypatch.setattr(webbrowser, "open", urls.append)
    return urls


@pytest.mark.parametrize("kind", [LogLines, LiveTables])
def test_the_address_is_told_on_a_terminal_and_in_a_log(kind: Any, opened: list[str]) -> None:
    console = Console(file=io.StringIO(), width=40)
    show_page(kind(console).page, "127.0.0.1:8080")
    assert f"page {URL}" in console.file.getvalue()  # type: ignore[attr-defined]


def test_the_address_is_an_event_and_is_told_aside_where_only_the_result_is_wanted(
    capsys: pytest.CaptureFixture[str], opened: list[str]
) -> None:
    show_page(JsonLines().page, "127.0.0.1:8080")
    show_page(Display().page, "127.0.0.1:8080")
    captured = capsys.readouterr()
    assert json.loads(captured.out) == {"event": "page", "url": URL}
    assert captured.err == f"page {URL}\n"


@pytest.mark.parametrize(
    ("is_terminal", "screen", "opens"), [(True, ":0", True), (True, None, False), (False, ":0", False)]
)
def test_a_browser_is_opened_where_somebody_sits_before_a_screen(
    monkeypatch: pytest.MonkeyPatch, opened: list[str], is_terminal: bool, screen: str | None, opens: bool
) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: is_terminal, raising=False)
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    if screen is not None:
        monkeypatch.setenv("DISPLAY", screen)
    show_page(Display().page, "127.0.0.1:8080")
    assert opened == ([URL] if opens else [])


def test_a_browser_that_does_not_start_harms_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(url: str) -> None:
        raise webbrowser.Error("no browser")

    monkeypatch.setattr(webbrowser, "open", broken)
    monkeypatch.setattr("emulator.console.browser.can_show", lambda: True)
    show_page(Display().page, "127.0.0.1:8080")


def test_the_page_is_kept_for_nobody_who_could_end_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: False, raising=False)
    keep_page()  # returns


def test_a_release_is_watched_with_its_page_by_way_of_the_http_port(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, opened: list[str]
) -> None:
    told: list[str] = []

    @contextmanager
    def forwarded(_: object, port: str = "grpc") -> Iterator[str]:
        yield f"127.0.0.1:{ {'grpc': 5, 'http': 8}[port] }"

    def run(watching: Any) -> Outcome:
        watching.close()
        return Outcome(status=pb.RunStatus(phase="completed", has_record=True), failure=None)

    monkeypatch.setattr(InstalledRelease, "__init__", lambda *_: None)
    monkeypatch.setattr(GpsAccess, "__init__", lambda *_: None)
    monkeypatch.setattr(GpsAccess, "address", forwarded)
    monkeypatch.setattr(GpsAccess, "of_operator", lambda _: nullcontext())
    monkeypatch.setattr(remote, "run_interruptibly", run)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: False, raising=False)
    display: Any = SimpleNamespace(open=Display().open, show=told.append, page=told.append)
    remote.status(Release(name="lab", namespace="default"), display, once=False, shows_page=True)
    assert told == ["http://127.0.0.1:8/"]


def test_a_page_of_a_single_look_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["status", "--page", "--once"]) == 2
    assert "--page follows the run, and --once does not" in capsys.readouterr().err
