"""Runs whose updates are noised: everybody counts as one, masks and deaths change no bit, ε in progress and record."""

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from emulator.results.read_record import RunRecord
from emulator.results.report.run_page import document_of
from fedstrata.datasets import dataset_info
from fedstrata.errors import ExcludedError
from fedstrata.experiment import Experiment
from fedstrata.experiment_file import parse_experiment
from fedstrata.models import Model, build_model
from fedstrata.privacy.report import EpsilonSpent
from fedstrata.privacy.updates import budget_of
from fedstrata.rounds import Update
from fedstrata.store import ModelFile
from fedstrata.tensors import ExactSum, Flat
from gps.status import status_of
from tests.support.programs import run_to_the_end, summary_with_restarts
from tests.support.records import summary_of
from tests.support.tiers import SMALL, Tiers, open_device, whole_run

FILE = (
    SMALL.replace("method: {name: one_shot, clusters: 2}", "method: fedavg")
    + """
privacy: {noise: research, updates: {clip: 2, noise_multiplier: 0.01}}
"""
)
MASKS = "secure_aggregation={min_devices: 5}"


def experiment(*overrides: str) -> Experiment:
    return parse_experiment(FILE, overrides=overrides)


def tensors(record: RunRecord) -> dict[str, bytes]:
    """The models without their headers, which name the run."""
    folder = record.folder / "models"
    return {path.name: path.read_bytes().partition(b"}}")[2] for path in sorted(folder.iterdir())}


async def watched(asked: Experiment, folder: Path) -> tuple[RunRecord, list[list[Flat]]]:
    """A run, and by device what its updates were."""

    updates: dict[str, list[Update]] = {name: [] for name in asked.device_ids()}
    seen = open_device(lambda name, update: updates[name].append(update))

    record = await whole_run(asked, folder, liars=dict.fromkeys(range(asked.device_count), seen))
    assert record.summary.status == "completed", record.summary.reason
    return record, [[each.read(0, each.codec.layout.size) for each in sent] for sent in updates.values()]


def model_of(asked: Experiment) -> Model:
    return build_model(asked.model, dataset_info(asked.data))


def trained_in(record: RunRecord, asked: Experiment) -> Flat:
    """The one model of a run."""
    (path,) = (record.folder / "models").iterdir()
    layout = model_of(asked).layout
    return ModelFile(path, layout).read(0, layout.size).copy()


def mean_of(sent: list[list[Flat]]) -> Flat:
    """The plain mean of one update of each device."""
    total = ExactSum(len(sent[0][0]), len(sent))
    for (update,) in sent:
        total.add(update, 1)
    return total.mean()


@pytest.mark.parametrize(
    "overrides", [(), ("topology={lps: 2}",), ("method={name: random, clusters: 1}",)], ids=["one", "two LPSs", "heads"]
)
async def test_devices_with_more_examples_count_no_more(tmp_path: Path, overrides: tuple[str, ...]) -> None:
    asked = experiment("training.lps_rounds_per_global_round=1", *overrides)

    record, sent = await watched(asked, tmp_path)
    assert np.array_equal(trained_in(record, asked), model_of(asked).initial(0) + mean_of(sent))
    rows = (record.folder / "rounds.csv").read_text().splitlines()[1:]
    assert sum(int(row.split(",")[4]) for row in rows) == 5


async def test_masks_change_no_bit_of_a_noised_model(tmp_path: Path) -> None:
    plain = await whole_run(experiment(), tmp_path / "plain")
    masked = await whole_run(experiment(MASKS), tmp_path / "masked")
    assert tensors(plain) == tensors(masked)
    assert plain.summary.model_sha256 == masked.summary.model_sha256
    silent = await whole_run(experiment("privacy=null"), tmp_path / "silent")
    assert tensors(silent) != tensors(plain)


async def test_under_masks_sums_of_updates_have_the_noise_of_all(tmp_path: Path) -> None:
    asked = experiment(MASKS, "privacy.updates.covers=sum", "training.lps_rounds_per_global_round=1")
    record, sent = await watched(asked, tmp_path)
    assert np.array_equal(trained_in(record, asked), model_of(asked).initial(0) + mean_of(sent))


@pytest.mark.parametrize(
    "overrides",
    [
        ("training.participation=3",),
        ("links.device-lps.up=int8", "training.lps_optimiser={name: momentum}"),
        ("bounds={max_update_norm: 3}", "deadlines.lps={deadline_s: 60, quorum_ratio: 0.6}"),
        ("clock=virtual", "links.device-lps.preset=lte"),
        ("privacy.updates={clip: 2, epsilon: 1000}", "method=ditto"),
    ],
    ids=["participation", "int8", "bounds and deadlines", "virtual clock", "ditto"],
)
async def test_it_goes_with_the_rest_of_an_experiment(tmp_path: Path, overrides: tuple[str, ...]) -> None:
    record = await whole_run(experiment(*overrides), tmp_path)
    assert (record.summary.status, record.summary.excluded) == ("completed", ()), record.summary.reason


async def test_epsilon_is_in_progress_and_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = experiment("privacy.updates={clip: 2, epsilon: 8}", "training.global_rounds=3")

    async with Tiers(asked, tmp_path) as tiers:
        status = partial(status_of, tiers.run, EpsilonSpent(asked))
        before = status()
        await tiers.start_devices()
        await tiers.until(lambda: tiers.run.rounds.global_round >= 1)
        under_way = status().epsilon_spent
        record = await tiers.ended()
        after = status()
        monkeypatch.setattr("fedstrata.privacy.updates.epsilon_of", None)  # a status works nothing out that it has
        assert status().epsilon_spent == after.epsilon_spent
    assert before.HasField("epsilon_spent")
    assert before.epsilon_spent == 0 < under_way <= after.epsilon_spent == 8
    said = summary_of(record.folder)["privacy"]["updates"]
    assert (said["epsilon"], said["epsilon_spent"], said["releases"]) == (8, 8, 6)
    shown = document_of(record)["parts"]["summary/privacy"]
    assert shown["updates"] == said
    assert (said["covers"], said["delta"], shown["is_protection"]) == ("update", 1e-5, False)


async def test_a_run_that_failed_says_how_much_was_spent(tmp_path: Path) -> None:
    asked = experiment("privacy.updates={clip: 2, epsilon: 8}", "training.global_rounds=9")

    def leave(device_id: str, update: Update) -> None:
        if update.round == 4:
            raise ExcludedError("a test")

    async with Tiers(asked, tmp_path) as tiers:
        host = await tiers.host()
        for index in range(asked.device_count):
            tiers.start_device(host, index, open_device(leave))
        await tiers.until(lambda: tiers.run.rounds.global_round == 2)
        tiers.run.stop("a test has seen enough")
        record = await tiers.ended()
    said = summary_of(record.folder)["privacy"]["updates"]

    budget = budget_of(asked)
    assert budget is not None
    assert record.summary.status == "failed"
    assert said["epsilon_spent"] == pytest.approx(budget.epsilon_after(6))
    assert said["epsilon_spent"] < said["epsilon"] == 8


def run_by_programs(file: Path, out: Path, *words: str) -> Mapping[str, Any]:
    """The summary of a run of processes."""
    return summary_with_restarts(run_to_the_end(file, out, *words))


FAULTS = [
    {"do": "kill", "process": "device-000", "at": {"point": "upload", "round": 1}},
    {"do": "kill", "process": "lps-0", "at": {"point": "upload", "round": 2}},
    {"do": "kill", "process": "gps", "at": {"global_round": 2}},
]


@pytest.mark.kills
def test_killed_processes_say_the_same_noised_updates_again(tmp_path: Path) -> None:
    file = tmp_path / "noised.yaml"
    file.write_text(FILE.replace("global_rounds: 1", "global_rounds: 3"))
    faults = ("--set", f"faults={json.dumps(FAULTS)}")
    alone = run_by_programs(file, tmp_path / "alone")
    disturbed = run_by_programs(file, tmp_path / "disturbed", *faults)
    assert len(disturbed["restarts"]) == 3
    assert disturbed["model_sha256"] == alone["model_sha256"]
    protected = run_by_programs(file, tmp_path / "protected", "--set", "privacy.noise=protection", *faults)
    assert len(protected["restarts"]) == 3  # and nothing was released twice, which would have stopped the run
    assert protected["privacy"]["is_protection"]
    assert protected["model_sha256"] != alone["model_sha256"]
