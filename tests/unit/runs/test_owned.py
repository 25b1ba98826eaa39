"""Processes that the emulator owns, tried on real ones: tiny Python modules written for each test."""

import asyncio
import errno
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from textwrap import dedent
from types import SimpleNamespace

import pytest

from emulator.estimates.device_processes import device_ranges
from emulator.local import processes
from emulator.local.processes import LocalBackend
from fedstrata.errors import AddressError, DataError, FedstrataError, HandshakeError, OutputError, RunStoppedError
from fedstrata.experiment_file import parse_experiment
from fedstrata.process import child_processes as module
from fedstrata.process.child_processes import OwnedProcess, ProcessSpec, Restart, Supervisor, last_error, shorten

REPOSITORY = Path(__file__).parents[3]
ENDPOINTS = {"grpc": "--listen"}
DEADLINE_S = 20.0  # of a wait that ends by an event; only a failing test sees it
FINISHED = """
    print('{"event": "finished"}', flush=True)
"""
LISTENS = """
    import json, socket, sys
    host, port = sys.argv[sys.argv.index("--listen") + 1].split(":")
    listener = socket.create_server((host, int(port)))
    print(json.dumps({"event": "listening", "grpc": f"{host}:{listener.getsockname()[1]}"}), flush=True)
"""


def write_module(name: str, *parts: str) -> None:
    Path(f"{name}.py").write_text("".join(dedent(part) for part in parts), encoding="utf-8")


def owned(name: str, *, may_finish: bool = False, restarts: list[Restart] | None = None) -> OwnedProcess:
    spec = ProcessSpec(name=name, command=(name,), endpoints=ENDPOINTS, may_finish=may_finish)
    return OwnedProcess(spec, Path("logs"), (restarts if restarts is not None else []).append)


@pytest.fixture
async def supervisor(folder: Path) -> AsyncIterator[Supervisor]:
    made = Supervisor(folder / "logs", lambda restart: None)
    yield made
    await made.stop()


def is_gone(pid: int) -> bool:
    """Whether a process that is not our child ends within the deadline."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([descriptor], [], [], DEADLINE_S)[0])
    finally:
        os.close(descriptor)


async def test_a_killed_process_comes_back_at_the_address_it_had(folder: Path) -> None:
    first_life = """
        import pathlib
        marker = pathlib.Path("lives")
        is_second = marker.exists()
        marker.touch()
    """
    rest = """
        if is_second:
            marker.write_text(sys.argv[sys.argv.index("--listen") + 1])
            print('{"event": "finished"}', flush=True)
            sys.exit(0)
        sys.stdin.read()
    """
    write_module("twice", first_life, LISTENS, rest)
    restarts: list[Restart] = []
    process = owned("twice", may_finish=True, restarts=restarts)
    job = asyncio.create_task(process.keep_alive())
    address = (await asyncio.wait_for(process.addresses(), DEADLINE_S))["grpc"]
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    await asyncio.wait_for(job, DEADLINE_S)
    assert (folder / "lives").read_text() == address
    assert restarts == [Restart(process="twice", cause="SIGKILL", count=1)]


async def test_to_kill_a_process_that_a_thread_of_asyncio_has_just_reaped_is_no_error(
    folder: Path, supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_module("waits", LISTENS, "sys.stdin.read()\n")
    process = supervisor.start(ProcessSpec(name="waits", command=("waits",), endpoints=ENDPOINTS))
    await process.addresses()
    with monkeypatch.context() as reaped:
        reaped.setattr(os, "killpg", _gone)
        assert not process.kill()


def _gone(pid: int, signum: int) -> None:
    raise ProcessLookupError


@pytest.mark.parametrize(
    ("code", "kind"),
    [(3, DataError), (4, RunStoppedError), (6, AddressError), (7, HandshakeError), (1, RunStoppedError)],
)
async def test_an_exit_code_of_its_own_fails_with_its_last_words(
    folder: Path, code: int, kind: type[FedstrataError]
) -> None:
    write_module("fails", f"import sys\nprint('error: disk \\x1b[31mgone', file=sys.stderr)\nsys.exit({code})\n")
    with pytest.raises(kind, match=r"^fails: disk  \[31mgone$") as caught:
        await owned("fails").keep_alive()
    assert caught.value.exit_code == (code if code != 1 else 4)


async def test_a_process_without_last_words_points_to_its_log(folder: Path) -> None:
    write_module("mute", "raise SystemExit(4)\n")
    with pytest.raises(RunStoppedError, match=r"mute: ended with exit code 4; its log is logs/mute\.log"):
        await owned("mute").keep_alive()


async def test_a_process_without_last_words_on_a_full_disk_says_so(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_module("mute", "raise SystemExit(4)\n")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=0))
    with pytest.raises(RunStoppedError, match=r"the disk of its log logs/mute\.log is full; free space"):
        await owned("mute").keep_alive()


async def test_words_of_an_earlier_life_are_not_its_last(folder: Path) -> None:
    Path("logs/mute.log").write_text("error: long ago\n")
    write_module("mute", "raise SystemExit(4)\n")
    with pytest.raises(RunStoppedError, match="exit code 4"):
        await owned("mute").keep_alive()


async def test_a_process_that_keeps_dying_is_given_up(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RESTARTS_MAX", 2)
    write_module("dies", "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n")
    restarts: list[Restart] = []
    with pytest.raises(RunStoppedError, match="dies died 3 times, the last time by SIGKILL"):
        await owned("dies", restarts=restarts).keep_alive()
    assert [restart.count for restart in restarts] == [1, 2]


@pytest.mark.parametrize("code", [0, 130, 143])
async def test_a_server_that_was_told_to_end_from_outside_is_started_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    monkeypatch.setattr(module, "RESTARTS_MAX", 1)
    write_module("ends", "" if code else FINISHED, f"raise SystemExit({code})\n")
    restarts: list[Restart] = []
    with pytest.raises(RunStoppedError, match=f"ends died 2 times, the last time by exit code {code}"):
        await owned("ends", restarts=restarts).keep_alive()
    assert restarts == [Restart(process="ends", cause=f"exit code {code}", count=1)]


@pytest.mark.parametrize("end", ["", "import os\nos._exit(0)\n", "raise SystemExit\n"])
@pytest.mark.parametrize("may_finish", [True, False])
async def test_a_process_that_ends_with_0_before_its_work_is_done_is_the_failure_of_the_run(
    folder: Path, end: str, may_finish: bool
) -> None:
    write_module("early", LISTENS, end)
    said = r"early ended with exit code 0 before its work was done; own code must not end its process.*early\.log$"
    with pytest.raises(RunStoppedError, match=said):
        await asyncio.wait_for(owned("early", may_finish=may_finish).keep_alive(), DEADLINE_S)


@pytest.mark.parametrize("detached", ["", ", start_new_session=True"])
async def test_a_process_that_own_code_leaves_behind_holds_nothing_up(folder: Path, detached: str) -> None:
    leaves = f"""
        import pathlib, subprocess, sys
        left = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]{detached})
        pathlib.Path("left").write_text(str(left.pid))
    """
    write_module("leaves", leaves, FINISHED)
    await asyncio.wait_for(owned("leaves", may_finish=True).keep_alive(), DEADLINE_S)
    left = int(Path("left").read_text())
    if detached:  # it wants to stay
        os.kill(left, signal.SIGKILL)
    assert is_gone(left)


async def test_devices_that_were_told_to_end_before_their_run_did_are_started_again(folder: Path) -> None:
    write_module(
        "devices",
        """
        import pathlib
        marker = pathlib.Path("lives")
        is_second = marker.exists()
        marker.touch()
        if not is_second:
            raise SystemExit(143)
        """,
        FINISHED,
    )
    restarts: list[Restart] = []
    await asyncio.wait_for(owned("devices", may_finish=True, restarts=restarts).keep_alive(), DEADLINE_S)
    assert restarts == [Restart(process="devices", cause="exit code 143", count=1)]


async def test_what_is_no_announcement_is_passed_over(folder: Path) -> None:
    noise = """
        print("x" * 300_000)
        print('["listening"]')
        print('{"event": "ready"}')
    """
    write_module("noisy", noise, LISTENS, FINISHED)
    process = owned("noisy", may_finish=True)
    await asyncio.wait_for(process.keep_alive(), DEADLINE_S)
    assert (await asyncio.wait_for(process.addresses(), DEADLINE_S))["grpc"].startswith("127.0.0.1:")


async def test_stop_leaves_nothing_not_even_what_ignores_it(
    folder: Path, supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "STOP_DEADLINE_S", 0.2)
    stubborn = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    grandchild = """
        import pathlib, subprocess
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        pathlib.Path("grandchild").write_text(str(child.pid))
    """
    write_module("stubborn", "import sys\n", stubborn, grandchild, LISTENS, "while True: signal.pause()\n")
    process = supervisor.start(ProcessSpec(name="stubborn", command=("stubborn",), endpoints=ENDPOINTS))
    await asyncio.wait_for(process.addresses(), DEADLINE_S)
    pids = [process.pid, int(Path("grandchild").read_text())]
    await supervisor.stop()
    assert process.pid is None
    assert all(is_gone(pid) for pid in pids if pid)


async def test_who_is_cancelled_while_it_stops_leaves_nothing_either(folder: Path, supervisor: Supervisor) -> None:
    told, released = Path("told"), Path("released")
    asked = "import pathlib, signal, time\nsignal.signal(signal.SIGTERM, lambda *_: pathlib.Path('told').touch())\n"
    write_module("lingers", asked, LISTENS, "while not pathlib.Path('released').exists(): time.sleep(0.01)\n")
    process = supervisor.start(ProcessSpec(name="lingers", command=("lingers",), endpoints=ENDPOINTS))
    await asyncio.wait_for(process.addresses(), DEADLINE_S)
    stopping = asyncio.create_task(supervisor.stop())
    await asyncio.wait_for(asyncio.to_thread(_until_there, told), DEADLINE_S)
    stopping.cancel()
    for _ in range(10):
        await asyncio.sleep(0)  # lets it hear of that
    assert not stopping.done()
    released.touch()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(stopping, DEADLINE_S)
    assert process.pid is None


def _until_there(path: Path) -> None:
    while not path.exists():
        time.sleep(0.01)


async def test_stop_right_after_start_leaves_nothing(folder: Path, supervisor: Supervisor) -> None:
    write_module("waits", LISTENS, "sys.stdin.read()\n")
    process = supervisor.start(ProcessSpec(name="waits", command=("waits",), endpoints=ENDPOINTS))
    await asyncio.sleep(0)  # lets the job begin, so that the process is being made when it is told to stop
    await asyncio.wait_for(supervisor.stop(), DEADLINE_S)
    assert process.pid is None


def test_children_do_not_outlive_an_emulator_that_is_killed(folder: Path) -> None:
    write_module("waits", LISTENS, "sys.stdin.read()\n")
    emulator = """
        import asyncio, pathlib
        from fedstrata.process.child_processes import ProcessSpec, Supervisor

        async def main() -> None:
            supervisor = Supervisor(pathlib.Path("logs"), print)
            specs = [ProcessSpec(name=f"w{i}", command=("waits",), endpoints={"grpc": "--listen"}) for i in (0, 1)]
            owned = [supervisor.start(spec) for spec in specs]
            for process in owned:
                await process.addresses()
            print(*(process.pid for process in owned), flush=True)
            await asyncio.Event().wait()

        asyncio.run(main())
    """
    write_module("emulator_to_kill", emulator)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (REPOSITORY, folder)))}
    command = [sys.executable, "-m", "emulator_to_kill"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as parent:
        assert parent.stdout is not None
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        parent.kill()
    assert len(pids) == 2
    assert all(is_gone(pid) for pid in pids)


def test_the_last_error_of_a_log_is_the_reason(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    log.write_bytes(b"error: first\nerror: second \xff\n{}\n")
    assert last_error(log) == "second \ufffd"
    assert last_error(log, since=log.stat().st_size) is None
    assert last_error(tmp_path / "gone.log") is None


def test_without_an_error_line_an_exception_in_the_last_line_is_the_reason(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    log.write_text('{"event": "serving"}\nTraceback (most recent call last):\nImportError: no torch\n')
    assert last_error(log) == "ImportError: no torch"
    log.write_text('{"event": "stopped"}\n')
    assert last_error(log) is None


# --- the local backend ---


EXPERIMENT = """
name: five
partition: {kind: iid, devices: 5, examples_per_device: 10}
"""
LISTENS_FOR_HTTP = """
    import json, sys
    print(json.dumps({"event": "listening", "http": "127.0.0.1:9"}), flush=True)
"""


def backend(folder: Path, device_processes: int = 2) -> LocalBackend:
    return LocalBackend(folder, device_processes=device_processes, on_restart=lambda restart: None)


async def test_a_device_process_that_fails_is_the_failure_of_the_run(folder: Path) -> None:
    write_module("gps", LISTENS, "sys.stdin.read()\n")
    write_module("device", "import sys\nprint('error: no data', file=sys.stderr)\nsys.exit(3)\n")
    async with backend(folder, device_processes=1) as running:
        await running.start(parse_experiment(EXPERIMENT))
        failure = await asyncio.wait_for(running.failure(), DEADLINE_S)
    assert isinstance(failure, DataError)
    assert str(failure) == "devices-0-4: no data"


async def test_a_gps_that_cannot_start_stops_the_start(folder: Path) -> None:
    write_module("gps", "import sys\nprint('error: port taken', file=sys.stderr)\nsys.exit(6)\n")
    async with backend(folder) as running:
        with pytest.raises(AddressError, match="gps: port taken"):
            await running.start(parse_experiment(EXPERIMENT))


async def test_a_run_whose_folder_is_gone_still_ends_its_processes(folder: Path) -> None:
    write_module(
        "gps", "import os, pathlib\npathlib.Path('pid').write_text(str(os.getpid()))\n", LISTENS, "sys.stdin.read()\n"
    )
    write_module("device", LISTENS_FOR_HTTP, "sys.stdin.read()\n")
    running = backend(folder, device_processes=1)
    await running.start(
        parse_experiment(EXPERIMENT, overrides=["faults=[{do: kill, process: gps, at: {phase: training}}]"])
    )
    shutil.rmtree(folder / "logs")
    with pytest.raises(OutputError, match=r"cannot write .*faults\.log: No such file"):
        await running.stop()
    assert is_gone(int(Path("pid").read_text()))


async def test_what_does_not_come_up_in_time_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "STARTUP_DEADLINE_S", 0.1)
    write_module("gps", "import sys\nsys.stdin.read()\n")
    async with backend(folder) as running:
        with pytest.raises(RunStoppedError, match=r"gps did not start within 0\.1 s"):
            await running.start(parse_experiment(EXPERIMENT))


async def test_lpss_are_added_up_to_the_number_wanted(folder: Path) -> None:
    write_module("gps", LISTENS, "sys.stdin.read()\n")
    write_module("device", LISTENS_FOR_HTTP, "sys.stdin.read()\n")
    tells = """
        import sys
        lps_id = sys.argv[sys.argv.index("--lps-id") + 1]
        print(f"error: {lps_id} of {sys.argv[sys.argv.index('--gps') + 1]}", file=sys.stderr)
        sys.exit(4)
    """
    write_module("lps", tells)
    async with backend(folder) as running:
        address = await running.start(parse_experiment(EXPERIMENT))
        await running.scale_lps(0)
        await running.scale_lps(1)
        failure = await asyncio.wait_for(running.failure(), DEADLINE_S)
        await running.scale_lps(1)
    assert str(failure) == f"lps-0: lps-0 of {address}"
    assert not (folder / "logs/lps-1.log").exists()


def test_device_ranges_cover_each_device_once_in_near_equal_parts() -> None:
    assert device_ranges(10, 4) == [range(3), range(3, 6), range(6, 8), range(8, 10)]
    assert device_ranges(2, 8) == [range(1), range(1, 2)]


async def test_a_process_that_cannot_be_started_is_named(folder: Path) -> None:
    (folder / "logs").rmdir()
    with pytest.raises(RunStoppedError, match="ends cannot be started"):
        await owned("ends").keep_alive()


def test_a_log_that_has_grown_long_begins_anew_and_its_process_writes_on(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LONGEST_LOG_BYTES", 10)
    log = folder / "logs" / "a.log"
    with log.open("ab", buffering=0) as own:  # as the process has it
        own.write(b"short")
        shorten(log)
        assert log.read_bytes() == b"short"
        own.write(b" and longer")
        shorten(log)
        own.write(b"error: the last")
    assert log.with_name("a.log.1").read_bytes() == b"short and longer"
    assert log.read_bytes() == b"error: the last"
    assert last_error(log, since=1000) == "the last"


async def test_a_server_whose_port_is_taken_while_it_was_away_listens_somewhere_else(supervisor: Supervisor) -> None:
    write_module("movable", LISTENS_OR_SAYS_SO)
    spec = ProcessSpec(name="movable", command=("movable",), endpoints=ENDPOINTS, may_move=True)
    async with asyncio.timeout(DEADLINE_S):
        process = supervisor.start(spec)
        host, port = (await process.addresses())["grpc"].split(":")
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        with taken(host, int(port)):
            while (now := (await process.addresses())["grpc"]) == f"{host}:{port}":  # noqa: ASYNC110  # nobody tells
                await asyncio.sleep(0)
    assert now.split(":")[0] == host


LISTENS_OR_SAYS_SO = """
    import json, socket, sys
    host, port = sys.argv[sys.argv.index("--listen") + 1].split(":")
    try:
        listener = socket.create_server((host, int(port)))
    except OSError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(6)
    print(json.dumps({"event": "listening", "grpc": f"{host}:{listener.getsockname()[1]}"}), flush=True)
    sys.stdin.read()
"""


@contextmanager
def taken(host: str, port: int) -> Iterator[None]:
    """A port that somebody else listens on, as soon as it is free."""
    while True:
        try:
            with socket.create_server((host, port)):
                yield
                return
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
