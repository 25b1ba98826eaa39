"""Pairs of features that were refused once and go together: each runs to a record."""

import csv
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from emulator.commands.main import execute
from emulator.results.read_record import RunRecord
from fedstrata.experiment_file import load_experiment
from tests.support.tiers import run_in_process

pytestmark = pytest.mark.runs
TASKS = """
name: pairs
partition:
  kind: tasks
  minority_ratio: 0.1
  tasks:
    - {name: low, labels: [0, 1, 2, 3, 4], devices: 3, examples_per_device: 60}
    - {name: high, labels: [5, 6, 7, 8, 9], devices: 3, examples_per_device: 50}
model: {name: mlp, hidden: [16]}
method: {name: one_shot, clusters: 2}
training: {global_rounds: 2, lps_rounds_per_global_round: 1, batch_size: 16}
"""
BOARDS = """
name: boards
partition: {kind: local, names: [a, b, c]}
data: {name: folder, folder: data, input_shape: [4], num_classes: 2}
method: fedavg
training: {global_rounds: 2, lps_rounds_per_global_round: 1}
"""
OWN = """
from dataclasses import replace

from fedstrata.methods.random_clusters import RandomClusters


class Fetching(RandomClusters):
    fetches_all = True

    async def local(self, work):
        assert len(work.received) == 2
        return await super().local(work)


class Withdrawing(RandomClusters):
    withdraws = True

    def plan(self, moment, answers, before):
        return replace(super().plan(moment, answers, before), withdrawn=("fc2.bias",))
"""
NEWCOMER = "newcomers={devices: [4], from_global_round: 2}"
LINK = ["links.device-lps.preset=wifi", "compute={per_example: 1ms}"]


def ran(folder: Path, text: str, overrides: Sequence[str], name: str = "out") -> RunRecord:
    (folder / "file.yaml").write_text(text)
    return run_in_process(load_experiment(folder / "file.yaml", overrides), folder / name)


def rows(record: RunRecord, table: str) -> list[dict[str, str]]:
    with (record.folder / table).open(newline="") as file:
        return list(csv.DictReader(file))


def test_newcomers_join_on_the_virtual_clock_and_take_no_time_before_their_round(tmp_path: Path) -> None:
    plain = ran(tmp_path, TASKS, [NEWCOMER], "plain")
    timed = [ran(tmp_path, TASKS, [NEWCOMER, "clock=virtual", *LINK], f"timed{number}") for number in range(2)]
    flows = [[(row["tier"], row["global_round"], row["child"]) for row in rows(each, "flows.csv")] for each in timed]
    began = [number for tier, number, child in flows[0] if (tier, child) == ("lps", "4")]
    assert began == ["2"]
    assert ("before", "", "4") not in flows[0]
    assert flows[0] == flows[1]
    assert rows(timed[0], "timeline.csv") == rows(timed[1], "timeline.csv")
    assert all(each.summary.model_sha256 == plain.summary.model_sha256 for each in timed)


def test_newcomers_join_on_the_real_clock(tmp_path: Path) -> None:
    plain, paced = (ran(tmp_path, TASKS, [NEWCOMER, *more], str(len(more))) for more in ([], ["clock=real", *LINK]))
    assert paced.summary.newcomers == ("device-004",)
    assert paced.summary.model_sha256 == plain.summary.model_sha256


@pytest.mark.parametrize("method", ["Fetching", "Withdrawing"])
def test_methods_whose_plans_need_every_cluster_run_without_a_topology(
    tmp_path: Path, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "need_every_cluster.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))
    record = ran(tmp_path, TASKS, [f"method={{name: need_every_cluster:{method}, clusters: 2}}"])
    assert sorted(record.summary.clusters) == ["cluster-0", "cluster-1"]
    assert record.summary.excluded == ()


def test_two_rounds_of_the_one_lps_are_two_rounds_of_feddyns_server(tmp_path: Path) -> None:
    four = ["method=feddyn", "training.global_rounds=4"]
    two = ["method=feddyn", "training.lps_rounds_per_global_round=2"]
    models = [
        load_file(ran(tmp_path, TASKS, each, name).folder / "models" / "lps-0.safetensors")
        for name, each in (("four", four), ("two", two))
    ]
    for name in models[0]:
        np.testing.assert_allclose(models[0][name], models[1][name], rtol=0, atol=1e-7)


def test_boards_with_data_of_their_own_have_a_virtual_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    inputs = np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32)
    for part in ("train", "test"):
        np.savez(tmp_path / "data" / f"{part}.npz", x=inputs, y=(inputs[:, 0] > 0).astype(np.int64))
    record = ran(tmp_path, BOARDS, ["clock=virtual", *LINK])
    of_lps = [row for row in rows(record, "timeline.csv") if row["tier"] == "lps"]
    assert [row["compute_s"] for row in of_lps] == ["0.060000000"] * 2  # 60 examples of 1 ms each
    capsys.readouterr()
    changes = ("--set", "clock=virtual", "--set", "links.device-lps.preset=wifi")
    assert execute(["check", "file.yaml", *changes]) == 0
    assert capsys.readouterr().err == ""
