"""What `fedstrata check` says of a run: its tiers, and the bytes that it should take."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from emulator.commands import main as cli
from emulator.console.console_tables import make_console
from emulator.estimates.check import ModelSize, check_data, cluster_count, payloads_of, question_bytes, round_bytes
from emulator.runs.progress import LogLines
from fedstrata.datasets import load_dataset
from fedstrata.errors import ExperimentError
from fedstrata.experiment_file import load_experiment, parse_experiment
from fedstrata.methods import Moment, make_method
from fedstrata.partitions import label_drift
from tests.support.two_tasks import TWO_TASKS

SIZE = ModelSize(
    elements=100,
    frozen_elements=0,
    travelling_elements=90,
    stream_elements=60,
    fetched_elements=0,
    shared_layers=("fc1",),
    own_layers=("fc3",),
    is_exact=False,
)


def test_expected_bytes_are_those_of_the_formulas() -> None:
    experiment = parse_experiment(TWO_TASKS, overrides=["method.eigenvectors=5", "links.device-lps.up=int8"])
    profile, relevance = question_bytes(experiment)
    assert (profile.name, profile.moment, relevance.name) == ("profile", Moment.BEFORE, "relevance")
    assert profile.up == 4 * 5 * 64 * 4
    assert profile.down == 4 * 3 * 5 * 64 * 4
    assert (relevance.up, relevance.down) == (4 * 4 * (8 + 8), 0)  # an index and a value for each of four
    per_round = round_bytes(experiment, SIZE)
    assert (per_round.device_lps_down, per_round.device_lps_up) == (4 * 4 * 90, 4 * 90)
    assert (per_round.lps_gps_down, per_round.lps_gps_up) == (4 * 60, 4 * 60)


@pytest.mark.parametrize("dtype", [np.int8, np.int16, np.uint16, np.int64])
def test_whole_numbers_are_refused_for_a_built_in_model_before_the_run(tmp_path: Path, dtype: type[np.integer]) -> None:
    np.savez(tmp_path / "train.npz", x=np.zeros((8, 3), dtype), y=np.arange(8) % 2)
    experiment = parse_experiment(
        f"name: a\ndata: {{name: folder, folder: {tmp_path}, input_shape: [3], num_classes: 2}}\nmodel: {{name: mlp}}\n"
        "partition: {kind: iid, devices: 2, examples_per_device: 4, test_share: 0.5}\n"
    )
    with pytest.raises(
        ExperimentError, match="have inputs of whole numbers; store float32, or pixels as uint8, or name"
    ):
        check_data(experiment)


def test_with_participation_only_the_devices_that_are_asked_count() -> None:
    some = ["method={name: ifca, clusters: 3}", "topology={lps: 2}", "training={participation: 1}"]
    experiment = parse_experiment(TWO_TASKS, overrides=some)
    per_round, (losses,) = round_bytes(experiment, SIZE), question_bytes(experiment)
    assert (per_round.device_lps_up, losses.up) == (2 * 4 * 90, 2 * 3 * 8)  # one device of each LPS
    assert payloads_of(experiment, SIZE).device_up == 4 * 90


def test_above_the_stated_number_only_landmarks_are_relayed() -> None:
    few = ["method={name: one_shot, exact_up_to: 3, landmarks: 2, clusters: 2, eigenvectors: 1}"]
    profile, _ = question_bytes(parse_experiment(TWO_TASKS, overrides=few))
    assert (profile.up, profile.down) == (4 * 64 * 4, 2 * 3 * 64 * 4)


def test_where_clusters_span_lpss_exact_sums_go_up_and_devices_that_compare_models_receive_all() -> None:
    overrides = ["method={name: ifca, clusters: 3}", "training.lps_rounds_per_global_round=1"]
    experiment = parse_experiment(TWO_TASKS, overrides=overrides)
    (losses,) = question_bytes(experiment)
    assert (losses.name, losses.moment, losses.up, losses.down) == ("losses", Moment.RECEIVED, 4 * 3 * 8, 0)
    per_round = round_bytes(experiment, replace(SIZE, stream_elements=270, fetched_elements=270, is_exact=True))
    assert (per_round.device_lps_down, per_round.device_lps_up) == (4 * 4 * 270, 4 * 4 * 90)
    assert (per_round.lps_gps_down, per_round.lps_gps_up) == (4 * 270, 8 * 270)


def test_masked_updates_take_eight_bytes_a_weight_whatever_the_link_says() -> None:
    masked = ["links.device-lps.up=int8", "secure_aggregation={min_devices: 3}"]
    per_round = round_bytes(parse_experiment(TWO_TASKS, overrides=masked), SIZE)
    assert (per_round.device_lps_down, per_round.device_lps_up) == (4 * 4 * 90, 4 * 8 * 90)


def test_a_method_without_questions_exchanges_no_answers() -> None:
    experiment = parse_experiment(TWO_TASKS, overrides=["method=random"])
    assert question_bytes(experiment) == []
    assert cluster_count(make_method(experiment)) == "2"


@pytest.mark.parametrize(
    ("overrides", "shown"),
    [
        (
            ["method=oracle"],
            ["clusters 2", "LPS 2, one per cluster", "method oracle", "shared by all fc1.weight, fc1.bias"],
        ),
        (
            [],
            [
                "clusters as many as the method finds",
                "LPS as many as the method finds, one per cluster",
                "profile, once",
            ],
        ),
        (["method=fedavg"], ["clusters 1", "shared by all fc1.weight, fc1.bias, fc2.weight, fc2.bias"]),
        (
            ["method=local"],
            ["method local", "shared by all nothing", "stays on devices fc1.weight, fc1.bias, fc2.weight"],
        ),
        (["method=fedper"], ["shared by all fc1.weight, fc1.bias", "stays on devices fc2.weight, fc2.bias"]),
        (["method=fedprox"], ["method fedprox: mu 0.01", "stays on devices no layer"]),
        (
            ["method={name: ifca, clusters: 3}", "topology={lps: 2}"],
            ["clusters 3", "LPS 2, which clusters span", "losses, per global round"],
        ),
        (
            ["method=fedavg", "topology={lps: 2}", "aggregation={lps: median, gps: mean}"],
            [
                "combined by LPS median (0 of 2 devices may lie), GPS mean",
                "liars 1 or more can be too many (1 under each of 1 LPS);",
            ],
        ),
        (
            [
                "method=fedavg",
                "partition={kind: iid, devices: 40, examples_per_device: 10}",
                "topology={lps: 4}",
                "aggregation={lps: multi_krum, gps: geometric_median}",
            ],
            [
                "LPS multi_krum (2 of 10 devices may lie), GPS geometric_median (1 of 4 LPSs may lie)",
                "liars 6 or more can be too many (3 under each of 2 LPSs); a device with data unlike all others",
                "updates on disk 96.4 kB at an LPS and 38.6 kB at the GPS, until the round ends",
            ],
        ),
        (
            ["method=fedavg", "topology={lps: 2}", "attacks=[{name: sign_flip, lps: [0]}]"],
            ["attack 0 sign_flip by LPSs 0", "updates on disk 19.3 kB at the GPS, until the round ends"],
        ),
        (
            ["aggregation.lps=clipped_mean"],
            ["combined by LPS clipped_mean, GPS mean", "liars a device with data unlike all others'"],
        ),
        (["training.participation=1"], ["measured the final model, by all devices; for earlier models, set training."]),
        (
            ["attacks=[{name: scale, devices: [0, 2, 3]}, {name: noise, share: 1.0}]"],
            ["attack 0 scale by devices 0, 2, 3", "attack 1 noise by devices 0-3"],
        ),
        (
            ["training={participation: 1, evaluate_all_every: 5}"],
            ["measured the model after each 5 global rounds, and the final model, by all devices"],
        ),
    ],
)
def test_check_says_what_a_method_makes_of_the_tiers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], overrides: list[str], shown: list[str]
) -> None:
    path = tmp_path / "good.yaml"
    path.write_text(TWO_TASKS, encoding="utf-8")
    assert cli.execute(["check", str(path), *(word for said in overrides for word in ("--set", said))]) == 0
    told = " ".join(capsys.readouterr().out.split())
    for text in shown:
        assert text in told, told


@pytest.mark.parametrize(("lps_rounds", "is_said"), [(1, True), (2, False)])
def test_check_says_why_an_lps_sends_eight_bytes_a_weight_and_what_avoids_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], lps_rounds: int, is_said: bool
) -> None:
    path = tmp_path / "spanning.yaml"
    path.write_text(TWO_TASKS, encoding="utf-8")
    changes = ("method=fedavg", "topology={lps: 2}", f"training.lps_rounds_per_global_round={lps_rounds}")
    assert cli.execute(["check", str(path), *(word for said in changes for word in ("--set", said))]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert ("An LPS sends 8 bytes a weight to the GPS, because" in told) == is_said, told
    assert ("training.lps_rounds_per_global_round of 2 or more" in told) == is_said


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        ([], "ends the run, so each device can end it; with deadlines.lps.quorum_ratio 0.75 the run goes on"),
        (["deadlines.lps.quorum_ratio=0.75"], "does not end the run, if 75 % of the devices of each LPS report"),
        (["deadlines.lps.quorum_ratio=0.76"], "ends the run, so each device can end it; with"),
        (["deadlines.lps={deadline_s: 9, quorum_ratio: 0.5}"], "does not end the run, if 50 %"),
        (["deadlines.lps.deadline_s=9"], "ends the run, so each device can end it; with"),
        (["topology={lps: 2}", "deadlines.lps.quorum_ratio=0.5"], "does not end the run, if 50 %"),
        (["topology={lps: 2}", "deadlines.lps.quorum_ratio=0.75"], "with deadlines.lps.quorum_ratio 0.5 the run"),
        (["training.participation=3"], "with deadlines.lps.quorum_ratio 0.66 the run goes on"),
        (["training.participation=1"], "ends the run, so each device can end it memory of devices"),
        (["method=scaffold"], "ends the run, so each device can end it memory of devices"),
    ],
)
def test_check_says_whether_one_refused_device_ends_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], overrides: list[str], says: str
) -> None:
    path = tmp_path / "good.yaml"
    path.write_text(TWO_TASKS, encoding="utf-8")
    changes = [word for said in ("method=fedavg", *overrides) for word in ("--set", said)]
    assert cli.execute(["check", str(path), *changes]) == 0
    assert says in " ".join(capsys.readouterr().out.split()).partition("a refused device ")[2]


def test_check_says_the_columns_of_a_folder_and_the_rows_of_its_devices(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, rows in (("mill", 4), ("quarry", 3)):
        (tmp_path / f"{name}.csv").write_text("heat,load,site,price\n" + "1,2,n,3.5\n" * rows)
    path = tmp_path / "folder.yaml"
    path.write_text(
        "name: prices\nmethod: fedavg\ntask: regression\n"
        f"data: {{name: folder, folder: {tmp_path}, input_shape: [2], target: [price], columns: [site]}}\n"
        "partition: {kind: natural, names: [mill, quarry], test_share: 0.25, test_from: end}\n"
    )
    assert cli.execute(["check", str(path)]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert (
        "input heat, load target price rows to train on mill 3, quarry 2 tests each device's own tests method" in told
    )


def test_a_column_cannot_control_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "train.csv").write_text("heat\x1b[2J\x07,load,y\n" + "1,2,0\n3,4,1\n" * 5, encoding="utf-8")
    path = tmp_path / "run.yaml"
    path.write_text(
        "name: x\nmethod: fedavg\npartition: {kind: iid, devices: 1, examples_per_device: 2, test_share: 0.5}\n"
        f"data: {{name: folder, folder: {tmp_path}, input_shape: [2], num_classes: 2, target: y}}\n",
        encoding="utf-8",
    )
    assert cli.execute(["check", str(path)]) == 0
    told = capsys.readouterr().out
    assert "heat [2J , load" in told
    assert not {"\x1b", "\x07"} & set(told)


@pytest.mark.parametrize(("number", "has_leftovers"), [(20, False), (89, True)])
def test_check_says_how_far_devices_are_from_their_drawn_label_shares(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], number: int, has_leftovers: bool
) -> None:
    """digits has 1,437 training examples. 16 devices with 89 take 1,424 of them."""
    path = tmp_path / "dirichlet.yaml"
    partition = f"{{kind: dirichlet, devices: 16, examples_per_device: {number}, concentration: 0.1}}"
    path.write_text(f"name: a\nmethod: fedavg\npartition: {partition}\n")
    assert cli.execute(["check", str(path)]) == 0
    told = " ".join(capsys.readouterr().out.split())
    experiment = load_experiment(path)
    drift = label_drift(experiment, load_dataset(experiment.data, 0))
    assert f"{drift[-1]:.2f} for the last tenth" in told
    assert ("got what others left: lower examples_per_device" in told) == has_leftovers


# 50 examples of 10 ms are 0.5 s; 1,210 float32 at 100 kbit/s are 0.3872 s, down and up; twice 10 ms: 1.2944 s together
TIMED = """
name: timed
data: {name: digits}
partition: {kind: iid, devices: 4, examples_per_device: 50}
model: {name: mlp, hidden: [16]}
method: fedavg
clock: virtual
compute: {per_example: 10ms}
links: {device-lps: {up_rate: 100kbit/s, down_rate: 100kbit/s, latency: 10ms}}
training: {global_rounds: 1, lps_rounds_per_global_round: 1}
"""
SLOW = "links.overrides=[{devices: [3], latency: 2s}]"  # 5.2744 s


def deadline(seconds: float, quorum: float = 1.0) -> str:
    return f"deadlines.lps={{deadline_s: {seconds}, quorum_ratio: {quorum}}}"


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ([deadline(1.29, 0.5)], "only 0 of 4 devices of lps-0 can meet it in the first round, and 2 are needed"),
        ([deadline(1.29), "clock=real"], "device-003 takes 1.294 s; raise the deadline"),
        ([deadline(2), SLOW], "in the first round, and 4 are needed: device-003 takes 5.274 s"),
        ([deadline(2), SLOW, "topology={lps: 2}"], "only 1 of 2 devices of lps-1"),
        ([deadline(1.29, 0.1), "method=one_shot"], "only 0 of 4 devices of all LPSs"),
        ([deadline(2), "links.shared={device-lps: {up_rate: 20kbit/s}}"], "device-003 takes 2.843 s"),  # alone on it
        ([deadline(0.4, 0.5), "method={name: ifca, clusters: 2}"], "device-001 takes 0.7"),  # two models down
    ],
)
def test_a_deadline_that_is_certain_to_be_missed_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], overrides: list[str], said: str
) -> None:
    path = tmp_path / "timed.yaml"
    path.write_text(TIMED, encoding="utf-8")
    words = [str(path), *(word for override in overrides for word in ("--set", override))]
    for command in (["check", *words], ["run", *words, "--out", str(tmp_path / "run")]):
        assert cli.execute(command) == 2
        error = capsys.readouterr().err
        assert said in error
        assert error.startswith("error: deadlines.lps.deadline_s is ")
        assert error.count("\n") == 1
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "overrides",
    [
        [deadline(1.3)],
        [deadline(1.3), "clock=real"],
        [deadline(2, 0.75), SLOW],
        [deadline(2), SLOW, "method=one_shot"],  # by itself, or with others: nobody knows yet
        [deadline(2), SLOW, "schedule=[{at: 0s, leave: {devices: [3]}}]"],
        [deadline(2), SLOW, "newcomers={devices: [3], from_global_round: 2}"],  # which only measures the final model
        [deadline(2), "links.lps-gps.down_rate=1kbit/s", "schedule=[{at: 2s, set: {up_rate: 1kbit/s}}]"],
        [deadline(0.001), "clock=none"],
    ],
)
def test_a_deadline_that_may_be_made_is_not_refused(tmp_path: Path, overrides: list[str]) -> None:
    path = tmp_path / "timed.yaml"
    path.write_text(TIMED, encoding="utf-8")
    assert cli.execute(["check", str(path), *(word for said in overrides for word in ("--set", said))]) == 0


def test_a_rule_that_names_no_number_of_liars_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "good.yaml"
    path.write_text(TWO_TASKS, encoding="utf-8")
    sets = ["--set", "method=fedavg", "--set", "aggregation.lps=tests.support.medians:Words"]
    assert cli.execute(["check", str(path), *sets]) != 0
    assert "medians:Words: withstands must return a whole number, not 'all'" in " ".join(
        capsys.readouterr().err.split()
    )


@pytest.mark.parametrize(
    ("method", "said"), [("", "one_shot (the default, because the file names none)"), ("local", "local")]
)
def test_check_says_whether_the_method_is_the_default(
    method: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "some.yaml"
    path.write_text("name: some\npartition: {kind: iid, devices: 2, examples_per_device: 40}\n")
    assert cli.execute(["check", str(path), *(["--set", f"method={method}"] if method else [])]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("method ")]
    assert line.split(":")[0].split(maxsplit=1)[1].strip() == said


@pytest.mark.parametrize(("method", "said"), [("", True), ("\nmethod: one_shot", False)])
def test_a_run_that_begins_says_whether_the_method_is_the_default(
    method: str, said: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    LogLines(make_console()).begins(
        parse_experiment(f"name: some\npartition: {{kind: iid, devices: 2, examples_per_device: 40}}{method}")
    )
    line = "method one_shot: the default, because the experiment names none\n"
    assert capsys.readouterr().out == (line if said else "")
