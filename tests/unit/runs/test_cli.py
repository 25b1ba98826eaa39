"""The command line: what it says and how it ends, for good input and bad."""

import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent

import pytest
from rich.console import Console

from emulator.commands import main as cli
from emulator.runs.progress import JsonLines, LiveTables, LogLines, drawn, progress_line, traffic
from fedstrata.datasets import fashion_mnist
from fedstrata.experiment_file import parse_experiment
from fedstrata.process.child_processes import Restart
from fedstrata.v1 import gps_service_pb2 as pb
from fedstrata.v1 import rounds_pb2
from tests.support.two_tasks import TWO_TASKS

REPOSITORY = Path(__file__).parents[3]


@pytest.fixture
def experiment(tmp_path: Path) -> Path:
    path = tmp_path / "good.yaml"
    path.write_text(TWO_TASKS, encoding="utf-8")
    return path


Fails = Callable[..., str]


@pytest.fixture
def fails(capsys: pytest.CaptureFixture[str]) -> Fails:
    """Runs a command that must end with an exit code, and gives the one line it leaves on standard error."""

    def execute(*arguments: object, code: int) -> str:
        assert cli.execute([str(argument) for argument in arguments]) == code
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err.startswith("error: ")
        assert captured.err.count("\n") == 1
        return captured.err

    return execute


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("trainings.global_rounds=3", "trainings"),
        ("training.global_rounds=none", "global_rounds"),
        ("training.global_rounds", "key=value"),
        ("=3", "key=value"),
        ("training.global_rounds=[", "not YAML"),
        ("method.clusters=5", "more than the 4 devices"),
        ("seed=-1", "seed"),
        ("name=Good Name", "name"),
    ],
)
def test_nonsense_in_the_experiment_is_a_usage_error(
    fails: Fails, experiment: Path, tmp_path: Path, override: str, said: str
) -> None:
    assert said in fails("run", experiment, "--out", tmp_path / "out", "--set", override, code=2)
    assert not (tmp_path / "out").exists()


def test_an_unknown_key_is_named(fails: Fails, experiment: Path, tmp_path: Path) -> None:
    experiment.write_text(TWO_TASKS + "sed: 1\n")
    assert "sed: unknown key" in fails("run", experiment, "--out", tmp_path / "out", code=2)


@pytest.mark.parametrize("text", ["", "- a\n", "name: [\n", "name: \x00\n"])
def test_a_file_that_is_no_experiment_is_a_usage_error(fails: Fails, experiment: Path, text: str) -> None:
    experiment.write_text(text)
    fails("check", experiment, code=2)


def test_a_missing_experiment_is_a_usage_error(fails: Fails, tmp_path: Path) -> None:
    assert "nowhere.yaml" in fails("run", tmp_path / "nowhere.yaml", "--out", tmp_path / "out", code=2)
    assert "good" in fails("run", tmp_path / "good", "--out", tmp_path / "out", code=2)


@pytest.mark.parametrize(
    "arguments", [["check"], ["verify"], ["certs", "init", "run", "--folder"], ["run", "--resume"]]
)
def test_a_path_that_no_file_can_have_is_no_bug_of_fedstrata(fails: Fails, arguments: list[str]) -> None:
    assert fails(*arguments, "x" * 300, code=2).endswith("x: File name too long; give another path\n")


@pytest.mark.parametrize(
    "arguments",
    [
        ["reproduce", "permfl", "--seeds", "9" * 5000],
        ["reproduce", "permfl", "--cells", ""],
        ["run"],
        ["run", "--out", "o"],
        ["walk"],
        ["run", "x.yaml", "--out", "o", "--speed", "9"],
        ["check", "x", "--seed", "a"],
    ],
)
def test_wrong_arguments_are_a_usage_error(fails: Fails, arguments: list[str]) -> None:
    assert "See fedstrata --help" in fails(*arguments, code=2)


def test_a_folder_in_use_is_refused_and_left_alone(fails: Fails, experiment: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "precious").touch()
    assert "not empty" in fails("run", experiment, "--out", out, code=5)
    assert [path.name for path in out.iterdir()] == ["precious"]


def test_a_folder_that_cannot_be_is_refused(fails: Fails, experiment: Path) -> None:
    assert "not a folder" in fails("run", experiment, "--out", experiment, code=5)
    assert "cannot write" in fails("run", experiment, "--out", experiment / "out", code=5)


@pytest.mark.parametrize("command", ["run", "check"])
def test_a_partition_that_asks_for_more_than_there_is_fails_before_anything_starts(
    fails: Fails, experiment: Path, tmp_path: Path, command: str
) -> None:
    out = tmp_path / "out"
    more = ["--set", "partition.tasks.0.examples_per_device=100000"]
    fails(command, experiment, *(["--out", out] if command == "run" else []), *more, code=3)
    assert not out.exists()


PAIR = "{name: a, devices: 4, examples_per_device: 9"


@pytest.mark.parametrize(
    ("override", "code", "said"),
    [
        (f"partition={{kind: groups, groups: [{PAIR}, labels: [10]}}]}}", 2, "the data set has no label 10"),
        (f"partition={{kind: groups, groups: [{PAIR}, label_permutation: [1, 0]}}]}}", 2, "lists 2 labels"),
        ("partition.public={examples: 1, labels: [10]}", 2, "partition.public.labels"),
        ("partition.public={examples: 5000}", 3, "partition.public needs 5000 examples, but devices leave"),
        ("partition.test_share=0.001", 3, "partition.test_share 0.001 of the 20 examples"),
    ],
)
def test_a_partition_that_the_data_cannot_serve_is_told_in_one_line(
    fails: Fails, experiment: Path, override: str, code: int, said: str
) -> None:
    assert said in fails("check", experiment, "--set", override, code=code)


def test_a_missing_data_set_fails_before_anything_starts(
    fails: Fails, experiment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fashion_mnist, "DEBIAN", tmp_path / "nowhere")
    monkeypatch.setenv("FEDSTRATA_DATA", str(tmp_path / "nowhere"))
    message = fails("run", experiment, "--out", tmp_path / "out", "--set", "data.name=fashion-mnist", code=3)
    assert "fedstrata data fashion-mnist fetches it" in message
    assert "apt-get install" in message
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("command", ["report", "compare"])
def test_a_folder_without_a_record_is_a_data_error(fails: Fails, tmp_path: Path, command: str) -> None:
    assert "summary.json" in fails(command, tmp_path, code=3)


def test_a_fault_of_our_own_is_one_line_and_a_log(
    fails: Fails, experiment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(request: object, **_: object) -> None:
        raise ZeroDivisionError("by\nzero")

    monkeypatch.setattr("emulator.runs.run.run", broken)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    line = fails("run", experiment, "--out", tmp_path / "out", code=1)
    assert "ZeroDivisionError: by zero" in line
    assert "Traceback" in Path(line.split()[-1]).read_text()


def test_check_prints_the_resolved_run(experiment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.execute(["check", str(experiment), "--seed", "3", "--set", "model.hidden=[16]"]) == 0
    out = capsys.readouterr().out
    assert parse_experiment(TWO_TASKS, overrides=["model.hidden=[16]"], seed=3).run_id in out
    assert "1×8×8, 10 classes" in out
    # 64·16 + 16 + 16·10 + 10 weights
    assert "1\u202f210 weights" in out


def test_the_command_line_starts_without_what_only_commands_need() -> None:
    heavy = ["grpc", "numpy", "pydantic", "matplotlib", "torch", "asyncio", "yaml"]
    code = f"import sys, emulator.commands.main; print([name for name in {heavy} if name in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=REPOSITORY)
    assert found.stdout.strip() == "[]"


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.execute(["--version"]) == 0
    assert capsys.readouterr().out.startswith("fedstrata ")


# --- Ctrl-C and SIGTERM, on processes ---


GPS_THAT_WAITS = """
    import json, os, socket, sys
    if __name__ == "__main__":  # a process that imports programs before they start runs nothing of them
        listener = socket.create_server(("127.0.0.1", 0))
        if {listens}:
            address = "127.0.0.1:%d" % listener.getsockname()[1]
            print(json.dumps({{"event": "listening", "grpc": address, "http": address}}), flush=True)
        else:
            with open("pids", "w") as fifo:
                fifo.write(str(os.getpid()))
        sys.stdin.read()
"""
DEVICE_THAT_WAITS = """
    import os, sys
    if __name__ == "__main__":
        with open("pids", "w") as fifo:
            fifo.write(str(os.getpid()))
        sys.stdin.read()
"""


@pytest.mark.parametrize(
    ("number", "listens"),
    [(signal.SIGINT, True), (signal.SIGTERM, False)],
    ids=["while devices start", "while the GPS starts"],
)
def test_an_interrupted_run_leaves_its_folder_and_no_process(
    experiment: Path, tmp_path: Path, number: signal.Signals, listens: bool
) -> None:
    fakes = tmp_path / "fakes"  # a folder of its own, because the current folder hides no program
    fakes.mkdir()
    (fakes / "gps.py").write_text(dedent(GPS_THAT_WAITS.format(listens=listens)))
    (fakes / "device.py").write_text(dedent(DEVICE_THAT_WAITS))
    os.mkfifo(tmp_path / "pids")
    command = [sys.executable, "-m", "emulator", "run", experiment.name, "--out", "out", "--json"]
    command += ["--device-processes", "1"]
    environment = os.environ | {"PYTHONPATH": f"{fakes}:{REPOSITORY}"}
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as emulator:
        child = int((tmp_path / "pids").read_text())  # waits for the child to write it
        emulator.send_signal(number)
        out, err = emulator.communicate(timeout=60)
    assert (emulator.returncode, out, err) == (130, "", "interrupted\n")
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["experiment.yaml", "logs", "state"]


# --- what a run tells ---


def status() -> pb.RunStatus:
    counted = [
        rounds_pb2.LinkBytes(link="device-lps", direction="up", kind="update", end="parent", bytes=1000),
        rounds_pb2.LinkBytes(link="device-lps", direction="up", kind="control", end="parent", bytes=500),
        rounds_pb2.LinkBytes(link="device-lps", direction="up", kind="update", end="child", bytes=1000),
        rounds_pb2.LinkBytes(link="lps-gps", direction="down", kind="shared", end="parent", bytes=7),
    ]
    clusters = [
        pb.ClusterStatus(
            home_id="lps-0", devices=3, lps_round=4, loss=0.5, headline=0.75, is_evaluated=True, measured_round=1
        ),
        pb.ClusterStatus(home_id="lps-1", devices=1, lps_round=4, loss=float("nan"), headline=float("nan")),
    ]
    return pb.RunStatus(
        run_id="r", phase="training", global_round=2, global_rounds=8, clusters=clusters, link_bytes=counted
    )


def test_bytes_are_those_that_parents_counted() -> None:
    totals = traffic(status())
    assert (totals["device-lps"].up, totals["device-lps"].down) == (1500, 0)
    assert totals["lps-gps"].down == 7
    assert totals["device-gps"].up == 0


def test_a_status_in_one_line_names_round_and_accuracy_of_what_was_measured() -> None:
    assert (
        progress_line(status())
        == "training: global round 2/8, mean accuracy 75.0\u00a0% after round 1 in 1 of 2\u00a0clusters"
    )


@pytest.mark.parametrize(("other", "said"), [(1, "round 1"), (2, "rounds 1 to 2")])
def test_a_status_in_one_line_names_the_global_rounds_that_were_measured(other: int, said: str) -> None:
    told = status()
    told.clusters[1].MergeFrom(pb.ClusterStatus(is_evaluated=True, headline=0.25, measured_round=other))
    assert progress_line(told) == f"training: global round 2/8, mean accuracy 50.0\u00a0% after {said}"


def test_a_drawn_status_shows_clusters_bytes_and_restarts() -> None:
    console = Console(record=True, width=100, file=io.StringIO())
    console.print(drawn(status(), [Restart(process="lps-1", cause="SIGKILL", count=2)], seconds=3))
    text = console.export_text()
    assert "global round 2/8" in text
    assert "lps-0" in text
    assert "75.0\u00a0%" in text
    assert "1.50\u00a0kB" in text
    assert "lps-1 died by SIGKILL and is started again (restart 2)" in text


def test_a_terminal_shows_the_newest_status() -> None:
    screen = io.StringIO()
    display = LiveTables(Console(file=screen, force_terminal=True, width=100))
    with display.open():
        display.restarted(Restart(process="gps", cause="SIGKILL", count=1))
        display.show(status())
    assert "lps-0" in screen.getvalue()
    assert "gps died by SIGKILL" in screen.getvalue()


def test_log_lines_come_once_a_change(capsys: pytest.CaptureFixture[str]) -> None:
    lines = LogLines(Console(highlight=False))
    for _ in range(2):
        lines.show(status())
    assert capsys.readouterr().out.count("\n") == 1


def test_json_lines_hold_null_for_what_is_not_measured(capsys: pytest.CaptureFixture[str]) -> None:
    JsonLines().show(status())
    told = json.loads(capsys.readouterr().out)
    assert (told["event"], told["phase"]) == ("status", "training")
    assert told["clusters"][0]["accuracy"] == 0.75
    assert told["clusters"][1]["accuracy"] is None
    assert told["bytes"]["device-lps"] == {"up": 1500, "down": 0}
