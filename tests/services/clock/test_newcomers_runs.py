"""Runs in which devices join once the others are grouped: whenever they come, and whoever is killed, it is one run."""

from pathlib import Path

import pytest

from emulator.results.measures import NEWCOMERS as OF_NEWCOMERS
from emulator.results.measures import Measures
from emulator.results.read_record import RunRecord
from fedstrata.tasks import CLASSIFICATION
from tests.support.records import rows_of
from tests.support.spanning_runs import disturbed
from tests.support.tiers import Clock, Tiers, outcome, run_in_process, small, whole_run

FOUR = ("partition.tasks.0.devices=4", "partition.tasks.1.devices=3", "training.global_rounds=3")
EXPERIMENT = small(*FOUR, "newcomers={devices: [1, 6], from_global_round: 3}")
NEWCOMERS = ["device-001", "device-006"]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> RunRecord:
    return run_in_process(EXPERIMENT, tmp_path_factory.mktemp("plain") / "run")


def devices_by_round(record: RunRecord) -> dict[str, list[int]]:
    """How many devices each cluster had in each of its LPS rounds."""
    rows = rows_of(record.folder, "rounds.csv")
    return {name: [int(row["devices"]) for row in rows if row["lps_id"] == name] for name in record.summary.clusters}


def test_newcomers_are_placed_by_relevance_and_train_from_their_round_on(plain: RunRecord) -> None:
    summary = plain.summary
    assert summary.newcomers == tuple(NEWCOMERS)
    assert summary.adjusted_rand_index == 1.0
    assert devices_by_round(plain) == {"lps-0": [3, 3, 3, 3, 4, 4], "lps-1": [2, 2, 2, 2, 3, 3]}
    assert plain.relevance is not None
    assert not set(NEWCOMERS) & set(plain.relevance.ids)
    assert all(summary.of_headline.devices[device] is not None for device in NEWCOMERS)
    assert summary.excluded == ()


async def test_whenever_they_come_the_run_is_the_same(plain: RunRecord, tmp_path: Path) -> None:
    async with Tiers(EXPERIMENT, tmp_path / "run") as tiers:
        host = await tiers.host()
        tiers.start_device(host, 6)  # before anybody
        for index in (5, 4, 3, 2, 0):
            tiers.start_device(host, index)
        await tiers.until(lambda: tiers.run.rounds.global_round == 2)  # where the run waits for them
        assert not tiers.run.is_over
        tiers.start_device(host, 1)
        record = await tiers.ended()
    assert outcome(record.folder) == outcome(plain.folder)


@pytest.mark.kills
@pytest.mark.parametrize("who", ["gps", "lps-1", "device-001"])
def test_whoever_is_killed_as_they_join_the_run_is_the_same(plain: RunRecord, tmp_path: Path, who: str) -> None:
    text = EXPERIMENT.to_yaml().replace("faults: []\n", "")
    fault = {"do": "kill", "process": who, "at": {"global_round": 3}}
    killed = disturbed(tmp_path / "killed", text, [fault], processes=2)
    assert len(killed["restarts"]) == 1
    assert outcome(tmp_path / "killed") == outcome(plain.folder)


# --- those who come when training is over -------------------------------------------------------------------

ONLY_USE = (*FOUR, "newcomers={devices: [1, 6], from_global_round: 4}", "deadlines.enrolment.deadline_s=300")


@pytest.mark.parametrize("method", ["oracle", "fedavg"])
async def test_who_comes_when_training_is_over_uses_what_others_have_trained(tmp_path: Path, method: str) -> None:
    experiment = small(*ONLY_USE, f"method={method}", "deadlines.enrolment.quorum_ratio=1")
    came = await whole_run(experiment, tmp_path / "came")
    clock = Clock()
    async with Tiers(experiment, tmp_path / "away") as tiers:
        await tiers.start_devices([index for index in range(experiment.device_count) if index not in (1, 6)])
        await tiers.until(lambda: tiers.run.roster.awaits_newcomers)
        await clock.advance(300)
        away = await tiers.ended()
    assert came.summary.model_sha256 == away.summary.model_sha256
    assert [gone.device for gone in away.summary.excluded] == NEWCOMERS
    accuracies = Measures(CLASSIFICATION.headline).named(OF_NEWCOMERS).of
    assert accuracies(away) is None
    used = accuracies(came)
    assert used is not None
    assert used > 0.2  # of ten labels


def test_a_newcomer_of_local_training_begins_with_what_nobody_has_trained(tmp_path: Path) -> None:
    record = run_in_process(small(*ONLY_USE, "method=local"), tmp_path / "run")
    measured = record.summary.of_headline.devices
    joined, founders = (
        [value or 0.0 for device, value in measured.items() if (device in NEWCOMERS) is new] for new in (True, False)
    )
    assert max(joined) < min(founders)
