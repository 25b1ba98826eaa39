"""Records that differ from their replays, and bundles that contradict themselves. No run is replayed here."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from emulator.commands import main as cli
from emulator.reproduce.differences import differences
from emulator.results.read_record import load_record
from emulator.results.report import write_report
from emulator.sweeps.file import load_sweep
from emulator.sweeps.results import SweepResults
from emulator.sweeps.sweep_folder import SWEEP, records_of
from emulator.sweeps.sweep_page import write_results
from fedstrata.errors import IncomparableError
from tests.support.record_files import ROUNDS, relevance_rows, write_models, write_record
from tests.support.tiny_sweeps import BASE, write_run

BYTES = {"device-lps": {"update": {"up": 1000, "down": 0}, "control": {"up": 50, "down": 70}}}
EXCLUDED = {"device": "device-001", "from": "training", "reason": "NaN"}
MOVE = {"device": "device-000", "from": "lps-1", "to": "lps-0", "global_round": 1}


def found(tmp_path: Path, **changes: Any) -> list[str]:
    """The differences between a record and its replay, if the record has these changes."""
    theirs = write_record(tmp_path / "theirs", **{"bytes_by_kind": BYTES, "kernels": {"SkylakeX-1": 5}, **changes})
    ours = write_record(tmp_path / "ours", bytes_by_kind=BYTES, kernels={"SkylakeX-1": 5})
    return list(differences(load_record(theirs), load_record(ours)))


def test_times_and_waiting_calls_are_no_differences(tmp_path: Path) -> None:
    slower = [[*row[:7], 9 * row[7], *row[8:]] for row in ROUNDS]
    more = {"device-lps": {"update": {"up": 1100, "down": 0}, "control": {"up": 10, "down": 900}}}
    assert found(tmp_path, rounds=slower, wall_seconds={"total": 1.0}, bytes_by_kind=more) == []


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"excluded": [EXCLUDED]}, "excluded is ["),
        ({"lost_state": ["device-001"]}, "lost_state is ['device-001'], but [] in the replay"),
        ({"clusters_rule": "2"}, "clusters_rule is 2, but 2, as method.clusters says in the replay"),
        ({"newcomers": ["device-001"]}, "newcomers is"),
        ({"moves": [MOVE]}, "moves is"),
        ({"adoptions": [{"cluster": "lps-0", "by": "lps-1", "from": "2"}]}, "adoptions is"),
        ({"replanned": [{"global_round": 1, "clusters": 2, "moved": 1}]}, "replanned is"),
        ({"reason": "because"}, "reason is because, but none"),
        ({"personal_sha256": {"device-001": "ab"}}, "personal_sha256.device-001 is ab, but none"),
        ({"model_sha256": {"lps-0": "12" * 32}}, "model_sha256.lps-1 is none, but 3434"),
        ({"accuracy": {"lps-0": 0.9, "lps-1": 0.8, "mean": 0.87}}, "accuracy.mean is 0.87, but 0.86"),
        ({"task_accuracy": {"clothes": 0.9}}, "task_accuracy.bags is none, but 0.8"),
        ({"device_accuracy": {"device-001": 1.0}}, "device_accuracy.device-001 is 1.0, but none"),
        ({"homes": {"lps-0": ["device-001"], "lps-1": []}}, "homes.lps-0 is"),
        ({"bytes_by_kind": {"device-lps": {"update": {"up": 900, "down": 0}}}}, "has 900 bytes up on device-lps"),
        ({"bytes_by_kind": {}}, "has 0 bytes up on device-lps, but 1000 in the replay"),
    ],
)
def test_a_changed_key_is_named(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    assert any(each.startswith(said) or said in each for each in found(tmp_path, **changes))


BEFORE = {"relevance": {"up": 1000, "down": 500}, "control": {"up": 100, "down": 100}}


@pytest.mark.parametrize(
    ("total", "repeated", "said"),
    [
        ((1100, 600), None, []),  # a calm run
        ((1600, 900), (500, 300), []),  # a run with a killed device
        ((1100, 600), (150, 125), []),  # the bytes of waiting calls, and the tolerance of 5 %
        ((1600, 900), (651, 300), ["651 bytes up, which leaves 949 bytes up"]),
        ((1100, 600), (0, 126), ["126 bytes down, which leaves 474 bytes down"]),
        ((1100, 600), (1100, 600), ["600 bytes down, which leaves 0 bytes", "1100 bytes up, which leaves 0 bytes"]),
    ],
)  # fmt: skip
def test_repeated_bytes_cannot_hide_bytes_that_the_replay_needed(
    tmp_path: Path, total: tuple[int, int], repeated: tuple[int, int] | None, said: list[str]
) -> None:
    both = ("up", "down")
    kinds = {"relevance": dict(zip(both, total, strict=True))}
    changes = {} if repeated is None else {"repeated_bytes": dict(zip(both, repeated, strict=True))}
    changes |= {"bytes": {"device-gps": kinds["relevance"]}, "bytes_by_kind": {"device-gps": kinds}}
    calm = {"bytes": {"device-gps": {"up": 1100, "down": 600}}, "bytes_by_kind": {"device-gps": BEFORE}}
    theirs = write_record(tmp_path / "theirs", kernels={"SkylakeX-1": 5}, **changes)
    ours = write_record(tmp_path / "ours", kernels={"SkylakeX-1": 5}, **calm)
    told = list(differences(load_record(theirs), load_record(ours)))
    assert len(told) == len(said)
    assert all(part in each for part, each in zip(said, told, strict=True))


@pytest.mark.parametrize(
    ("row", "place", "value", "said"),
    [
        (1, 6, 0.75, "rounds.csv, line 3: accuracy is 0.75, but 0.5 in the replay"),
        (2, 5, 0.25, "rounds.csv, line 4: loss is 0.25, but 0.75 in the replay"),
        (3, 3, 1, "rounds.csv, line 5: devices is 1, but 2 in the replay"),
        (3, 4, 1000, "rounds.csv, line 5: num_examples is 1000, but 100 in the replay"),
    ],
)
def test_a_changed_round_is_named(tmp_path: Path, row: int, place: int, value: float, said: str) -> None:
    rounds = [list(each) for each in ROUNDS]
    rounds[row][place] = value
    assert found(tmp_path, rounds=rounds) == [said]


def test_a_changed_number_of_rounds_is_named(tmp_path: Path) -> None:
    assert found(tmp_path) == []
    with_key("rounds", 200)(tmp_path / "theirs")
    told = differences(load_record(tmp_path / "theirs"), load_record(tmp_path / "ours"))
    assert list(told) == ["rounds is 200, but 2 in the replay"]


def test_a_missing_round_and_a_changed_relevance_are_named(tmp_path: Path) -> None:
    relevance = relevance_rows()
    relevance[1][2] = relevance[2][1] = 0.5
    assert found(tmp_path, rounds=ROUNDS[:-1], relevance=relevance) == [
        "relevance.csv, line 2: device-001 is 0.5, but 0.9 in the replay",
        "rounds.csv, line 5: global_round is none, but 2 in the replay",
    ]
    (tmp_path / "theirs" / "relevance.csv").unlink()
    theirs, ours = load_record(tmp_path / "theirs"), load_record(tmp_path / "ours")
    assert "relevance.csv is missing" in list(differences(theirs, ours))
    assert "relevance.csv is not part of the replay" in list(differences(ours, theirs))


# --- without a replay ---------------------------------------------------------------------------------------


def test_bytes_that_another_round_is_said_to_have_carried_are_named(tmp_path: Path) -> None:
    moved = [list(row) for row in ROUNDS]
    moved[0][8], moved[2][8] = 100, moved[0][8] + moved[2][8] - 100
    assert found(tmp_path, rounds=moved) == [
        f"rounds.csv has 100 bytes_up in LPS round 1 of lps-0, but {ROUNDS[0][8]} in the replay"
    ]


def test_an_empty_column_that_an_earlier_release_lacked_is_no_difference(tmp_path: Path) -> None:
    assert found(tmp_path) == []
    path = tmp_path / "theirs" / "rounds.csv"
    header, *rows = path.read_text("utf-8").splitlines()
    assert header.endswith(",cohort_accuracy,measured_examples")
    shorter = [line.rsplit(",", 2)[0] for line in (header, *rows)]
    path.write_text("\n".join(shorter) + "\n", encoding="utf-8")
    assert list(differences(load_record(tmp_path / "theirs"), load_record(tmp_path / "ours"))) == []


def made_with(torch: str) -> dict[str, Any]:
    versions = {"fedstrata": "0.3.0", "torch": torch}
    device = {"count": 5, "versions": versions, "platform": "Linux", "processor": "Abacus"}
    times = {"started": "2026-01-01T00:00:00Z", "ended": f"2026-01-01T00:00:0{len(torch)}Z"}
    return {"commands": [], "commit": None, "software": {"device": [device]}, **times}


def with_software(tmp_path: Path, theirs: dict[str, Any], ours: dict[str, Any]) -> list[str]:
    folders = [write_record(tmp_path / "theirs", **theirs), write_record(tmp_path / "ours", **ours)]
    return list(differences(*map(load_record, folders)))


def test_other_software_is_no_difference_and_is_named_beside_one(tmp_path: Path) -> None:
    ours, theirs = ({"made_by": made_with(torch), "kernels": {"SkylakeX-1": 5}} for torch in ("2.5.1", "2.10.0"))
    assert with_software(tmp_path / "equal", theirs, ours) == []
    assert with_software(tmp_path / "other", {**theirs, "newcomers": ["device-001"]}, ours) == [
        "newcomers is ['device-001'], but [] in the replay",
        "device torch was 2.10.0 for the record and 2.5.1 for the replay",
    ]


def test_records_of_other_kernels_cannot_be_compared_and_the_software_that_differs_is_named(tmp_path: Path) -> None:
    ours, theirs = ({"made_by": made_with(torch), "kernels": {f"SkylakeX-{torch}": 5}} for torch in ("2.5.1", "2.6.0"))
    with pytest.raises(IncomparableError, match=r"device torch was 2\.6\.0 for the record and 2\.5\.1 for the replay"):
        with_software(tmp_path, theirs, ours)


def test_records_of_updates_as_they_arrived_cannot_be_compared(tmp_path: Path) -> None:
    arrived = {"updates": 4, "staleness": {0: 4}, "fewest": 1, "most": 3, "never": []}
    with pytest.raises(IncomparableError, match="repeat the record by fedstrata run --arrivals"):
        with_software(tmp_path, {"asynchronous": arrived}, {"asynchronous": arrived})


def test_a_changed_number_of_kernels_is_named(tmp_path: Path) -> None:
    assert found(tmp_path, kernels={"SkylakeX-1": 4}) == ["kernels.SkylakeX-1 is 4, but 5 in the replay"]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sweep of two seeds with the records of both runs, their models, reports and tables."""
    place = tmp_path_factory.mktemp("made")
    (place / SWEEP).write_text(yaml.safe_dump({"base": BASE, "seeds": [3, 4]}), encoding="utf-8")
    ids = ["device-000", "device-001"]
    for run in load_sweep(place / SWEEP).runs:
        folder = write_run(
            place, run, name="tiny", method="random", devices=2, device_tasks=None, task_accuracy=None,
            clusters={"lps-0": ids}, accuracy={"lps-0": 0.9, "mean": 0.9}, run_id=run.experiment.run_id,
            experiment_sha256=run.experiment.digest, rounds=ROUNDS[::2], model_sha256={}, bytes={},
        )  # fmt: skip
        write_models(folder, {"lps-0": {"w": np.float32([run.seed])}})
    return agreeing(place)


@pytest.fixture
def bundle(made: Path, tmp_path: Path) -> Path:
    """A copy of the sweep's folder, which a test may change."""
    return shutil.copytree(made, tmp_path / "bundle")


def agreeing(bundle: Path) -> Path:
    """The bundle with tables and reports that agree with its records."""
    sweep = load_sweep(bundle / SWEEP)
    records = records_of(bundle, sweep)
    write_results(SweepResults(sweep=sweep, records=records), bundle)
    for record in records.values():
        write_report(record.folder)
    return bundle


def verified(bundle: Path, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    capsys.readouterr()
    code = cli.execute(["verify", str(bundle), "--cells", "0", "--quiet", *words])
    told = capsys.readouterr()
    assert told.err.count("\n") <= 1
    return code, told.out + told.err


def with_key(key: str, value: Any) -> Callable[[Path], object]:
    def change(run: Path) -> None:
        path = run / "summary.json"
        path.write_text(json.dumps({**json.loads(path.read_text("utf-8")), key: value}), encoding="utf-8")

    return change


def twice(key: str, value: Any) -> Callable[[Path], object]:
    """A second value of a key, before the value that a reader takes."""

    def change(run: Path) -> None:
        path = run / "summary.json"
        entry = json.dumps({key: value}).removesuffix("}")
        path.write_text(f"{entry}, {path.read_text('utf-8').removeprefix('{')}", encoding="utf-8")

    return change


def best_of_two(run: Path) -> None:
    """A better accuracy in a column of its own, before the column that a reader takes."""
    path = run / "rounds.csv"
    header, *rows = path.read_text("utf-8").splitlines()
    path.write_text("\n".join([f"accuracy,{header}", *(f"0.99,{row}" for row in rows)]) + "\n", encoding="utf-8")


def moved_away(name: str) -> Callable[[Path], object]:
    """A link where a file or folder of the run was."""

    def change(run: Path) -> None:
        shutil.move(run / name, run.parents[3] / "elsewhere")
        (run / name).symlink_to(run.parents[3] / "elsewhere")

    return change


def test_an_unchanged_bundle_is_confirmed(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, told = verified(bundle, capsys)
    assert (code, "the tables follow from the records of 2 of 2" in told) == (0, True), told


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (with_key("seed", 9), "base, seed 3: seed of summary.json is 9, but the experiment gives 3"),
        (with_key("method", "one_shot"), "method of summary.json is one_shot, but the experiment gives random"),
        (with_key("name", "huge"), "name of summary.json is huge, but the experiment gives tiny"),
        (with_key("run_id", "tiny-0"), "run_id of summary.json is tiny-0"),
        (with_key("devices", 200), "devices of summary.json is 200, but the experiment gives 2"),
        (with_key("device_tasks", {"device-000": "a"}), "device_tasks of summary.json is {'device-000': 'a'}, but"),
        (with_key("best_accuracy", 0.99), "'best_accuracy' of summary.json is unknown, there twice"),
        (with_key("training_bytes", {"up": 1, "down": 1}), "training_bytes of summary.json are not the sums of rounds"),
        (twice("accuracy", {"lps-0": 0.99, "mean": 0.99}), "'accuracy' of summary.json is unknown, there twice"),
        (lambda run: (run.parent / "old-5").mkdir(), "runs/base/old-5 is not a run of sweep.yaml"),
        (lambda run: (run.parents[1] / "bad" / "seed-3").mkdir(parents=True), "runs/bad is not a run of sweep.yaml"),
        (with_key("experiment_sha256", "ab"), "experiment_sha256 of summary.json is ab"),
        (lambda run: shutil.rmtree(run / "models"), "models/lps-0.safetensors is missing"),
        (lambda run: (run / "models" / "lps-1.safetensors").touch(), "lps-1.safetensors is not in model_sha256"),
        (lambda run: (run / "report.html").write_text("99.9 %"), "report.html is not the page of this record"),
        (lambda run: shutil.copytree(run, run.with_name("seed-5")), "runs/base/seed-5 is not a run of sweep.yaml"),
    ],
)  # fmt: skip
def test_a_bundle_that_contradicts_itself_is_refused(
    bundle: Path, capsys: pytest.CaptureFixture[str], change: Callable[[Path], object], said: str
) -> None:
    change(bundle / "runs" / "base" / "seed-3")
    code, told = verified(bundle, capsys)
    assert (code, said in told) == (8, True), told


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (best_of_two, "rounds.csv has the column 'accuracy' twice; remove one"),
        (lambda run: (run / "summary.json").write_text("{"), "summary.json is not JSON"),
        (lambda run: (run / "rounds.csv").unlink(), "rounds.csv is missing"),
        (moved_away("models"), "models is a link, a pipe or a device"),
        (moved_away("summary.json"), "summary.json is a link"),
        (lambda run: os.mkfifo(run / "waits.csv"), "waits.csv is a link, a pipe or a device"),
    ],
)  # fmt: skip
def test_a_bundle_with_a_damaged_record_cannot_be_read(
    bundle: Path, capsys: pytest.CaptureFixture[str], change: Callable[[Path], object], said: str
) -> None:
    change(bundle / "runs" / "base" / "seed-3")
    code, told = verified(bundle, capsys)
    assert (code, said in told) == (3, True), told


@pytest.mark.parametrize("name", ["summary.json", "rounds.csv", "relevance.csv", "experiment.yaml", "links.csv"])
@pytest.mark.parametrize("target", [None, "/dev/zero"])
def test_a_pipe_or_a_device_in_a_record_is_named(
    bundle: Path, capsys: pytest.CaptureFixture[str], name: str, target: str | None
) -> None:
    run = bundle / "runs" / "base" / "seed-3"
    (run / name).unlink(missing_ok=True)
    os.mkfifo(run / name) if target is None else (run / name).symlink_to(target)
    assert cli.execute(["report", str(run)]) == 3
    assert f"{name}: it is a pipe or a device, not a regular file" in capsys.readouterr().err


def test_a_run_folder_that_is_a_link_is_refused(
    bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = bundle / "runs" / "base" / "seed-3"
    shutil.move(run, tmp_path / "elsewhere")
    run.symlink_to(tmp_path / "elsewhere")
    code, told = verified(bundle, capsys)
    assert (code, "seed-3 is a link" in told) == (3, True), told


@pytest.mark.parametrize("change", [shutil.rmtree, with_key("status", "failed")])
def test_a_run_without_a_completed_record_is_a_fault_unless_a_part_was_asked_for(
    bundle: Path, capsys: pytest.CaptureFixture[str], change: Callable[[Path], object]
) -> None:
    change(bundle / "runs" / "base" / "seed-3")
    agreeing(bundle)
    for words, expected in (((), 3), (("--partial",), 0)):
        code, told = verified(bundle, capsys, *words)
        assert code == expected, told
        assert "the tables follow from the records of 1 of 2" in told
        assert "without a completed record: (base, seed 3)" in told
        assert ("1 of 2 runs without a completed record; ask for" in " ".join(told.split())) == (expected == 3)


def test_bytes_are_the_sum_of_their_kinds(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = bundle / "runs" / "base" / "seed-3"
    with_key("bytes_by_kind", BYTES)(run)
    with_key("bytes", {"device-lps": {"up": 900, "down": 70}})(run)
    code, told = verified(agreeing(bundle), capsys)
    assert (code, "bytes of device-lps in summary.json are not the sums of bytes_by_kind" in told) == (8, True), told
