"""`fedstrata plan` with real trainings: what it predicts is what runs measure, and a killed search goes on."""

import csv
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from emulator.commands import main as cli
from fedstrata.experiment_file import load_experiment
from tests.support.programs import Program

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="a killed search leaves processes that end by Linux means"
)

SEARCH: dict[str, Any] = {
    "base": {
        "name": "site",
        "partition": {"kind": "iid", "devices": 6, "examples_per_device": 40},
        "model": {"name": "mlp", "hidden": [32]},
        "method": "fedavg",
        "clock": "virtual",
        "topology": {"lps": 2},
        "links": {
            "device-lps": {"up_rate": "1Mbit/s", "down_rate": "1Mbit/s", "latency": "20ms"},
            "lps-gps": {"up_rate": "4Mbit/s", "down_rate": "4Mbit/s", "latency": "5ms"},
        },
        "compute": {"per_example": "1ms"},
        "energy": {"radio": "lte", "compute": "4W"},
        "training": {"global_rounds": 5, "local_epochs": 2, "optimiser": {"learning_rate": 0.2}},
    },
    "seeds": [3],
    "vary": {
        "training.lps_rounds_per_global_round": [1, 3],
        "site": {"slow": {"compute.per_example": "9ms"}, "fast": {}},
    },
    "aim": "seconds",
    "target": 0.3,
    "trainings": 4,
    "place": {"capacity": 3, "reach": [{"devices": [0], "lps": [1]}]},
}
KEPT = ("plan.csv", "plan.svg", "index.html", "experiment.yaml")


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plan") / "site.yaml"
    path.write_text(yaml.safe_dump(SEARCH, sort_keys=False), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def done(file: Path) -> Path:
    assert cli.execute(["plan", str(file), "--out", str(file.parent / "done"), "--quiet"]) == 0
    return file.parent / "done"


def rows(folder: Path) -> list[dict[str, str]]:
    with (folder / "plan.csv").open(encoding="utf-8", newline="") as text:
        return list(csv.DictReader(text))


@pytest.mark.runs
def test_predictions_of_a_trained_candidate_are_what_its_run_measured(done: Path) -> None:
    found = rows(done)
    assert [(row["training.lps_rounds_per_global_round"], row["site"]) for row in found] == [
        ("1", "slow"), ("1", "fast"), ("3", "slow"), ("3", "fast"),
    ]  # fmt: skip
    measured = [row for row in found if row["measured_seconds"]]
    assert {row["site"] for row in measured} == {"fast"}
    for row in measured:
        for name in ("seconds", "device_bytes", "lps_gps_bytes", "joules"):
            assert float(row[f"measured_{name}"]) == pytest.approx(float(row[name]), rel=0.04), name  # headers


@pytest.mark.runs
def test_the_plan_is_the_cheapest_candidate_and_its_experiment_runs(done: Path) -> None:
    (chosen,) = [row for row in rows(done) if row["plan"] == "1"]
    assert float(chosen["seconds"]) == min(float(row["seconds"]) for row in rows(done) if row["models_trained"] == "1")
    measured = [float(row["measured_seconds"]) for row in rows(done) if row["measured_seconds"]]
    assert float(chosen["measured_seconds"]) == min(measured)
    experiment = load_experiment(done / "experiment.yaml")
    assert str(experiment.training.lps_rounds_per_global_round) == chosen["training.lps_rounds_per_global_round"]
    record = next((done / "trainings").glob(f"runs/base/*={experiment.training.lps_rounds_per_global_round},*/seed-3"))
    assert json.loads((record / "summary.json").read_text())["run_id"] == experiment.run_id
    page = (done / "index.html").read_text(encoding="utf-8")
    assert experiment.topology is not None and experiment.topology.home_of(0) == 1
    assert "time of a global round as placed: " in page
    assert "mathdefault" not in page  # ticks of a logarithmic axis
    assert (
        f"trainings/{record.relative_to(done / 'trainings').as_posix().replace('=', '%3D').replace(',', '%2C')}" in page
    )


@pytest.mark.runs
def test_the_same_call_trains_nothing_again_and_writes_the_same_bytes(file: Path, done: Path) -> None:
    before = {name: (done / name).read_bytes() for name in KEPT}
    trained = {path: path.stat().st_mtime_ns for path in done.glob("trainings/runs/*/*/*/summary.json")}
    assert len(trained) == 2
    assert cli.execute(["plan", str(file), "--out", str(done), "--quiet"]) == 0
    assert {name: (done / name).read_bytes() for name in KEPT} == before
    assert {path: path.stat().st_mtime_ns for path in trained} == trained


@pytest.mark.runs
def test_a_training_without_a_table_is_one_line_that_names_the_file(
    file: Path, done: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for name in ("waits.csv", "flows.csv", "energy.csv"):
        table = next(done.glob(f"trainings/runs/*/*/*/{name}"))
        aside = table.rename(table.with_name("aside"))
        capfd.readouterr()
        assert cli.execute(["plan", str(file), "--out", str(done), "--quiet"]) == 3
        assert f"error: {table} is missing or lacks rounds; remove the folder {table.parent}" in capfd.readouterr().err
        aside.rename(table)


@pytest.mark.runs
def test_a_killed_search_goes_on_to_the_same_plan(file: Path, done: Path) -> None:
    out = file.parent / "killed"
    with Program(
        "emulator", "plan", str(file), "--out", str(out), "--jobs", "1", "--json", log=out.with_suffix(".log")
    ) as killed:
        first = next(killed.lines())
        killed.process.kill()
        killed.end()
    assert first["event"] == "run"
    kept = {path: path.stat().st_mtime_ns for path in out.glob("trainings/runs/*/*/*/summary.json")}
    assert len(kept) == 1
    assert cli.execute(["plan", str(file), "--out", str(out), "--quiet"]) == 0
    assert {path: path.stat().st_mtime_ns for path in kept} == kept
    assert [(out / name).read_bytes() for name in KEPT] == [(done / name).read_bytes() for name in KEPT]


@pytest.mark.runs
def test_a_candidate_that_diverges_misses_the_target_and_the_search_goes_on(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path, rate = tmp_path / "rates.yaml", "training.optimiser.learning_rate"
    path.write_text(yaml.safe_dump({**SEARCH, "vary": {rate: [1e30, 0.2]}}, sort_keys=False), encoding="utf-8")
    assert cli.execute(["plan", str(path), "--out", str(tmp_path / "out"), "--quiet"]) == 0
    found = [(row[rate], row["rounds"] == "inf", row["plan"]) for row in rows(tmp_path / "out")]
    assert found == [("1e+30", True, "0"), ("0.2", False, "1")]
    path.write_text(yaml.safe_dump({**SEARCH, "vary": {rate: [1e30, 1e29]}}, sort_keys=False), encoding="utf-8")
    capfd.readouterr()
    assert cli.execute(["plan", str(path), "--out", str(tmp_path / "none"), "--quiet"]) != 0
    assert "error: all 2 trainings diverged; choose smaller learning rates\n" in capfd.readouterr().err


@pytest.mark.runs
def test_a_training_misses_the_target_if_one_seed_does(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path, vary = tmp_path / "seeds.yaml", {"site": SEARCH["vary"]["site"]}

    def told(**changes: Any) -> str:
        path.write_text(yaml.safe_dump({**SEARCH, "vary": vary, **changes}, sort_keys=False), encoding="utf-8")
        capfd.readouterr()
        assert cli.execute(["plan", str(path), "--out", str(tmp_path / "out"), "--quiet"]) == 2
        return capfd.readouterr().err

    best = sorted(
        float(told(target=0.999, seeds=[seed]).split("the best value is ")[1][:6].rstrip(";")) for seed in (3, 4)
    )
    between = sum(best) / 2
    said = told(target=between, seeds=[3, 4])
    assert f"none of 1 trainings reached the target {between:g} with every seed in 5 global rounds" in said
    assert f"the best value with every seed is {best[0]:g}; " in said


@pytest.mark.runs
@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"target": 0.999}, "none of 2 trainings reached the target 0.999 in 5 global rounds; the best value is 0."),
        ({"target": 0.999}, "; change the target, or raise training.global_rounds\n"),
        ({"target": 0.999, "trainings": 1}, "; change the target, or raise trainings or training.global_rounds\n"),
        ({"limits": {"joules": 1e-6}}, "limits.joules is 0.00\xa0mJ, but one global round needs at least"),
    ],
)
def test_a_target_or_a_limit_that_nothing_meets_is_one_line(
    file: Path, done: Path, changes: dict[str, Any], said: str, capfd: pytest.CaptureFixture[str]
) -> None:
    other = file.with_name(f"{next(iter(changes))}.yaml")
    other.write_text(yaml.safe_dump({**SEARCH, **changes}, sort_keys=False), encoding="utf-8")
    kept = {path: path.stat().st_mtime_ns for path in done.rglob("summary.json")}
    capfd.readouterr()
    assert cli.execute(["plan", str(other), "--out", str(done), "--quiet"]) != 0
    told = capfd.readouterr().err
    assert told.startswith("error: ")
    assert said in told
    assert told.count("\n") == 1
    assert {path: path.stat().st_mtime_ns for path in kept} == kept


@pytest.mark.runs
def test_a_plan_is_compared_with_a_run_of_it_on_either_clock(done: Path, capfd: pytest.CaptureFixture[str]) -> None:
    real = done.with_name("real")
    words = ["run", str(done / "experiment.yaml"), "--set", "clock=real", "--out", str(real), "--quiet"]
    assert cli.execute(words) == 0
    own = load_experiment(done / "experiment.yaml").run_id
    records = [path.parent for path in done.glob("trainings/runs/*/*/*/summary.json")]
    (virtual,) = [path for path in records if json.loads((path / "summary.json").read_text())["run_id"] == own]
    for run, names in ((virtual, ["time", "bytes of devices", "bytes LPS–GPS", "energy of devices"]), (real, ["time"])):
        capfd.readouterr()
        assert cli.execute(["compare", str(done), str(run)]) == 0
        told = capfd.readouterr().out
        ratios = {name: float(line.split()[-1]) for name in names for line in told.splitlines() if name in line[:24]}
        assert [*ratios] == names
        assert ("clock is real in the run, but virtual in the plan\n" in told) == (run == real)
        if run == virtual:
            assert all(ratio == pytest.approx(1.0, abs=0.05) for ratio in ratios.values())


@pytest.mark.runs
def test_a_plan_and_a_run_that_missed_its_target_are_one_line(
    file: Path, done: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = file.parent / "short"
    words = [
        "run",
        str(done / "experiment.yaml"),
        "--set",
        "training.global_rounds=1",
        "--set",
        "training.local_epochs=1",
    ]
    assert cli.execute([*words, "--out", str(run), "--quiet"]) == 0
    capfd.readouterr()
    assert cli.execute(["compare", str(done), str(run)]) != 0
    assert "did not reach the plan's target 0.3" in capfd.readouterr().err
    assert cli.execute(["compare", str(done)]) != 0
    assert "is a plan; give one run after it" in capfd.readouterr().err
    assert cli.execute(["compare", str(done), str(run), "--out", str(file.parent / "compared")]) == 2
    assert "which has no figure to compare; leave --out out" in capfd.readouterr().err
    assert not (file.parent / "compared").exists()
