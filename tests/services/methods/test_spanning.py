"""Clusters that span LPSs: how devices hang on LPSs changes no bit of any model, whatever a method shares with whom."""

import asyncio
import shutil
import signal
from collections import Counter
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from device.agent import DeviceAgent
from device.work import DeviceProcess
from fedstrata.experiment import Experiment
from fedstrata.experiment_file import parse_experiment
from fedstrata.methods import Arrays
from fedstrata.methods.ifca import Ifca
from fedstrata.methods.registry import facts_of
from tests.support.hand_started import Processes
from tests.support.plain_pytorch import Weights, initial_weights, trained_by, weighted_mean
from tests.support.programs import events
from tests.support.records import summary_of
from tests.support.spanning_runs import KILLS, disturbed, ended, left_alone, started, text_of, weights_sha256
from tests.support.tiers import Tiers, counts, run_in_process, small

# Four streams of the whole model, each a mix of all five devices; a device trains the stream of its number modulo four.
MIXED = """
from fedstrata.methods import Method, Plan, Reach, all_layers

STREAMS = 4

def share(stream, device):
    return (1 + (3 * stream + 5 * device) % 7) / 21

class Mixed(Method):
    mixes = True

    @property
    def clusters_known(self):
        return STREAMS

    def channels(self, model):
        return all_layers(model, Reach.CLUSTER)

    def plan(self, moment, answers, before):
        devices = [device.device_index for device in answers.devices]
        return Plan(
            clusters=tuple(tuple(d for d in devices if d % STREAMS == stream) for stream in range(STREAMS)),
            rule="mixed",
            weights={"model": tuple({d: share(stream, d) for d in devices} for stream in range(STREAMS))},
        )
"""


# --- one model for all ----------------------------------------------------------------------------


@pytest.mark.runs
def test_one_two_and_three_lpss_and_one_and_three_device_processes_give_the_same_model(tmp_path: Path) -> None:
    three = disturbed(tmp_path / "three", text_of("fedavg", lps=3), [], processes=3)
    others = [left_alone(tmp_path / f"lps-{lps}", text_of("fedavg", lps=lps)) for lps in (1, 2)]
    assert [len(summary["homes"]) for summary in (*others, three)] == [1, 2, 3]
    assert list(three["model_sha256"]) == ["cluster-0"]
    assert [summary["model_sha256"] for summary in others] == [three["model_sha256"]] * 2


# --- streams that are mixes of all devices --------------------------------------------------------


@pytest.fixture
def own_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the method, where it can be imported from."""
    (tmp_path / "mixed_streams.py").write_text(MIXED)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


@pytest.mark.runs
def test_streams_mixed_of_all_devices_over_three_lpss_are_what_one_process_computes(own_code: Path) -> None:
    with ExitStack() as stack:
        text = text_of("mixed_streams:Mixed", lps=3)
        ended(started(stack, own_code / "three", text, PYTHONPATH=str(own_code)))
    records = [
        run_in_process(parse_experiment(text_of("mixed_streams:Mixed", lps=lps)), own_code / f"tiers-{lps}")
        for lps in (1, 2)
    ]
    assert [record.summary.status for record in records] == ["completed"] * 2
    hashes = [weights_sha256(folder) for folder in (own_code / "three", *(record.folder for record in records))]
    assert hashes[1:] == hashes[:1] * 2
    assert len(set(hashes[0].values())) == 4  # every stream is another model

    for stream, weights in enumerate(mixed_plainly(parse_experiment(text))):
        found = load_file(own_code / "three" / "models" / f"cluster-{stream}.safetensors")
        for name, tensor in weights.items():
            assert np.abs(found[name] - tensor).max() < 1e-6, (stream, name)


def mixed_plainly(experiment: Experiment) -> list[Weights]:
    """Every stream after all rounds, by one loop over rounds, devices and streams."""
    from mixed_streams import STREAMS, share  # the test has just written it

    devices = range(experiment.device_count)
    streams = [initial_weights(experiment)] * STREAMS
    for number in range(experiment.training.global_rounds):
        trained = [trained_by(experiment, d, streams[d % STREAMS], number, number) for d in devices]
        streams = [weighted_mean(trained, [share(stream, d) for d in devices]) for stream in range(STREAMS)]
    return streams


# --- devices that are asked in every round --------------------------------------------------------

IFCA = "{name: ifca, clusters: 2}"
CFL = "{name: cfl, first_round: 2, mean_ratio: 1.0}"  # splits in the second global round


@pytest.mark.parametrize("method", [IFCA, CFL], ids=["received", "trained"])
def test_where_devices_are_asked_in_every_round_it_does_not_matter_on_which_lps_they_hang(
    tmp_path: Path, method: str
) -> None:
    records = [run_in_process(parse_experiment(text_of(method, lps=lps)), tmp_path / f"lps-{lps}") for lps in (1, 3)]
    assert [record.summary.status for record in records] == ["completed"] * 2
    one, three = (record.summary for record in records)
    assert one.clusters == three.clusters
    assert len(one.clusters) > 1
    hashes = [weights_sha256(record.folder) for record in records]
    assert hashes[0] == hashes[1]


async def test_answers_in_rounds_are_counted_under_their_questions_name_alike_at_both_ends(tmp_path: Path) -> None:
    async with Tiers(parse_experiment(text_of(IFCA, lps=2)), tmp_path / "run") as tiers:
        await tiers.start_devices()
        assert (await tiers.ended()).summary.status == "completed"
        meters = [tiers.metrics, *(lps.metrics for lps in tiers.lps.values()), *tiers.device_metrics]
        found: Counter[tuple[str, str]] = Counter()
        for metrics in meters:
            for key, count in counts(metrics).items():
                if key.kind == "losses" and key.direction == "up":
                    found[key.link, key.end] += count
    assert set(found) == {(link, end) for link in ("device-lps", "lps-gps") for end in ("child", "parent")}
    for link in ("device-lps", "lps-gps"):
        assert found[link, "child"] == found[link, "parent"] > 3 * 5 * 16  # rounds, devices, two float64 each


class Lying(Ifca):
    """Has no number for a loss."""

    async def answer(self, *asked: Any) -> Arrays:
        return {"losses": np.full(2, np.nan)}


def test_a_device_whose_answer_in_a_round_is_none_is_refused_by_name_and_the_others_go_on(tmp_path: Path) -> None:
    experiment = parse_experiment(text_of(IFCA, lps=2), overrides=["deadlines.lps.quorum_ratio=0.5"])

    def liar(host: DeviceProcess, index: int) -> DeviceAgent:
        return DeviceAgent(replace(host, method=Lying(experiment.method, facts_of(experiment))), index)

    record = run_in_process(experiment, tmp_path / "run", liars={3: liar})
    assert record.summary.status == "completed"
    (gone,) = record.summary.excluded
    assert gone.device == "device-003"
    assert gone.reason == "refused: losses in the answer to losses has numbers that are not finite"


FOMO = "{name: fedfomo, offered: 2, explore: 0.5}"


@pytest.mark.runs
def test_whose_models_a_device_is_offered_changes_with_no_process_and_no_lps(tmp_path: Path) -> None:
    text = text_of(FOMO, lps=1, rounds=4)
    one, two = left_alone(tmp_path / "by-1", text), disturbed(tmp_path / "by-2", text, [], processes=2)
    assert len(one["model_sha256"]) == len(one["personal_sha256"]) == 5
    for key in ("model_sha256", "personal_sha256", "device_accuracy", "clusters"):
        assert one[key] == two[key]
    spanning = left_alone(tmp_path / "lps-3", text_of(FOMO, lps=3, rounds=4))
    assert spanning["model_sha256"] == one["model_sha256"]


# Groups are found in every round and their shared layers shrink, from four tensors to one.
TSDP = "{name: fedtsdp, batch: 20, hopkins: 0.01, hopkins_points: 4, divergence: 0.0008, distance: 0.12, shrink: 0.7}"
WITH_PUBLIC = "kind: tasks\n  public: {examples: 60}"


@pytest.mark.runs
def test_layers_are_withdrawn_and_groups_found_alike_whatever_the_processes_and_lpss(tmp_path: Path) -> None:
    texts = {lps: text_of(TSDP, lps=lps, rounds=4).replace("kind: tasks", WITH_PUBLIC) for lps in (1, 3)}
    one, two = left_alone(tmp_path / "by-1", texts[1]), disturbed(tmp_path / "by-2", texts[1], [], processes=2)
    for key in ("model_sha256", "personal_sha256", "device_accuracy", "clusters"):
        assert one[key] == two[key]
    assert len(one["clusters"]) > 1
    assert set(load_file(tmp_path / "by-2" / "models" / "cluster-0.safetensors")) == {"fc1.weight"}
    assert left_alone(tmp_path / "lps-3", texts[3])["model_sha256"] == one["model_sha256"]


# --- killed processes -----------------------------------------------------------------------------


@pytest.mark.kills
def test_a_gps_an_lps_and_a_device_killed_in_the_midst_of_ifca_change_no_bit(tmp_path: Path) -> None:
    text = text_of(IFCA, lps=3, rounds=5)
    undisturbed = left_alone(tmp_path / "undisturbed", text)
    killed = disturbed(tmp_path / "killed", text, KILLS, processes=2)
    assert len(killed["restarts"]) == 3
    assert killed["model_sha256"] == undisturbed["model_sha256"]
    assert (killed["clusters"], killed["excluded"]) == (undisturbed["clusters"], [])


@pytest.mark.kills
def test_an_lps_and_a_device_killed_in_a_round_whose_plan_splits_a_cluster_change_no_bit(tmp_path: Path) -> None:
    text, at = text_of(CFL, lps=3, rounds=4), {"point": "upload", "round": 1}
    faults = [{"do": "kill", "process": process, "at": at} for process in ("lps-1", "device-004")]
    undisturbed = left_alone(tmp_path / "undisturbed", text)
    killed = disturbed(tmp_path / "killed", text, faults, processes=2)
    assert len(killed["restarts"]) == 2
    assert len(killed["clusters"]) > 1
    assert killed["model_sha256"] == undisturbed["model_sha256"]


@pytest.mark.kills
def test_a_gps_an_lps_and_a_device_killed_while_layers_are_withdrawn_change_no_bit(tmp_path: Path) -> None:
    text = text_of(TSDP, lps=3, rounds=5).replace("kind: tasks", WITH_PUBLIC)
    undisturbed = left_alone(tmp_path / "undisturbed", text)
    killed = disturbed(tmp_path / "killed", text, KILLS, processes=2)
    assert len(killed["restarts"]) == 3
    for key in ("model_sha256", "personal_sha256", "clusters"):
        assert killed[key] == undisturbed[key]


@pytest.mark.kills
def test_a_gps_an_lps_and_a_device_killed_while_models_are_offered_change_no_bit(tmp_path: Path) -> None:
    text = text_of(FOMO, lps=3, rounds=5)
    undisturbed = left_alone(tmp_path / "undisturbed", text)
    killed = disturbed(tmp_path / "killed", text, KILLS, processes=2)
    assert len(killed["restarts"]) == 3
    for key in ("model_sha256", "personal_sha256"):
        assert killed[key] == undisturbed[key]


DITTO = "{name: ditto, pull: 0.5}"


@pytest.mark.kills
def test_a_device_killed_with_a_model_of_its_own_goes_on_with_the_same_bits(tmp_path: Path) -> None:
    text = text_of(DITTO, lps=2, rounds=5)
    undisturbed = left_alone(tmp_path / "undisturbed", text)
    at = [{"point": "upload", "round": 1}, {"point": "download", "round": 3}]
    killed = disturbed(
        tmp_path / "killed", text, [{"do": "kill", "process": "device-002", "at": each} for each in at], processes=2
    )
    assert len(killed["restarts"]) == 2
    assert len(undisturbed["personal_sha256"]) == 5
    for key in ("model_sha256", "personal_sha256"):
        assert killed[key] == undisturbed[key]
    assert killed.get("lost_state", []) == []


def measured_rows(folder: Path) -> list[list[str]]:
    """rounds.csv of a finished run, but for bytes and seconds, which a killed process takes along."""
    return [line.split(",")[:7] for line in (folder / "rounds.csv").read_text().splitlines()]


@pytest.mark.kills
@pytest.mark.parametrize("write", [3, 4, 5])
def test_an_lps_killed_as_it_keeps_what_a_round_measured_loses_no_row(tmp_path: Path, write: int) -> None:
    text = text_of(DITTO, lps=2, rounds=5)
    undisturbed = left_alone(tmp_path / "undisturbed", text)
    fault = {"do": "kill", "process": "lps-1", "at": {"point": "state_write", "count": write}}
    killed = disturbed(tmp_path / "killed", text, [fault], processes=2)
    assert len(killed["restarts"]) == 1
    assert killed["model_sha256"] == undisturbed["model_sha256"]
    rows = measured_rows(undisturbed["folder"])
    assert len(rows) == 1 + 5 * 2
    assert measured_rows(tmp_path / "killed") == rows


@pytest.mark.kills
def test_a_device_whose_own_model_is_gone_begins_anew_and_the_record_says_so(tmp_path: Path) -> None:
    with Processes(tmp_path / "run", text_of(DITTO, lps=1, rounds=60)) as processes:
        processes.lps(0)
        devices = processes.devices("0-1", keeps_state=True)
        processes.devices("2-4", keeps_state=True)
        processes.until_round(4)
        devices.process.send_signal(signal.SIGKILL)
        devices.process.wait()
        (run,) = (tmp_path / "run" / "devices-0-1").iterdir()
        assert {path.name for path in run.iterdir()} == {"device-000", "device-001"}
        shutil.rmtree(run)
        processes.devices("0-1", keeps_state=True)
        record = processes.record()
    summary = summary_of(record)
    assert summary["lost_state"] == ["device-000", "device-001"]
    assert (summary["status"], summary["rounds"]) == ("completed", 60)
    told = [event["event"] for event in events(tmp_path / "run" / "devices-0-1.2.log")]
    assert told.count("state_lost") == 2


@pytest.mark.parametrize("once_more", range(8))  # grouping is over in a moment: a gap shows in some tries only
async def test_from_its_first_moment_a_plan_has_a_place_for_every_device(tmp_path: Path, once_more: int) -> None:
    async with Tiers(small("method=fedavg", "topology={lps: 2}"), tmp_path) as tiers:
        await tiers.start_devices()
        while not tiers.run.plans.is_made:  # noqa: ASYNC110  # as LPSs may ask at any moment
            await asyncio.sleep(0)
        assert {name: len(devices) for name, devices in tiers.run.places.homes.items()} == {"lps-0": 3, "lps-1": 2}
