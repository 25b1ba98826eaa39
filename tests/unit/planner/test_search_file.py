"""Search files: their keys, their candidates, and what the planner predicts for each."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from emulator.planner.costs import costs_of_round
from emulator.planner.learning import models_digest
from emulator.planner.resources import Resource
from emulator.planner.search_file import load_search
from emulator.sweeps.file import load_sweep
from fedstrata.datasets import load_dataset
from fedstrata.errors import ExperimentError
from fedstrata.experiment import Experiment
from fedstrata.experiment_file import checked, overridden, override_of
from tests.support.programs import REPOSITORY

BASE: dict[str, Any] = {
    "name": "site",
    "partition": {"kind": "iid", "devices": 6, "examples_per_device": 20},
    "model": {"name": "mlp", "hidden": [8]},
    "method": "fedavg",
    "clock": "virtual",
    "topology": {"lps": 2},
    "links": {
        "device-lps": {"up_rate": "1Mbit/s", "down_rate": "2Mbit/s", "latency": "10ms"},
        "lps-gps": {"up_rate": "4Mbit/s", "down_rate": "4Mbit/s", "latency": "5ms"},
    },
    "compute": {"per_example": "1ms"},
    "training": {"global_rounds": 4, "lps_rounds_per_global_round": 2, "local_epochs": 1},
}
SEARCH: dict[str, Any] = {
    "base": BASE,
    "seeds": [3],
    "vary": {
        "training.lps_rounds_per_global_round": [1, 2],
        "site": {"slow": {}, "fast": {"links.device-lps.up_rate": "8Mbit/s"}},
    },
    "aim": "seconds",
    "target": 0.5,
}


def written(tmp_path: Path, **changes: Any) -> Path:
    path = tmp_path / "search.yaml"
    path.write_text(yaml.safe_dump({**SEARCH, **changes}, sort_keys=False), encoding="utf-8")
    return path


def experiment(**changes: Any) -> Experiment:
    changed = [override_of(key.replace("__", "."), value) for key, value in changes.items()]
    return checked(overridden(BASE, changed), Path(), None)


def test_a_search_has_a_candidate_for_each_combination(tmp_path: Path) -> None:
    search = load_search(written(tmp_path))
    assert [dict(place.setting) for place in search.sweep.places] == [
        {"training.lps_rounds_per_global_round": rounds, "site": site} for rounds in "12" for site in ("slow", "fast")
    ]
    assert yaml.safe_load(search.text)["target"] == 0.5


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"aim": "money"}, "aim: "),
        (
            {"goal": 1},
            "a search has base, vary, seeds, aim, target, trainings, limits, place (docs/tutorial",
        ),
        ({"seeds": [1, 1]}, "seeds has a seed twice"),
        ({"vary": {}}, "vary: "),
        ({"limits": {"bytes": 3}}, "limits.bytes: "),
        ({"vary": {"training.global_rounds": [1, 2]}}, "not a choice; set it only in the base"),
        ({"vary": {"rounds": {"few": {}, "many": {"topology.lps": 3}}}}, "an axis cannot be called rounds"),
        (
            {"vary": {"deadlines": {"none": {}, "soon": {"deadlines.lps": {"deadline_s": 5, "quorum_ratio": 0.5}}}}},
            "leave deadlines out",
        ),
        ({"vary": {"when": {"never": {}, "soon": {"schedule": [{"at": "1s", "leave": [0]}]}}}}, "when=soon: "),
        ({"vary": {"method": ["fedavg", "fedala"]}}, "method fedala cannot say on how many examples"),
        ({"vary": {"method": ["fedavg", "one_shot"]}}, "one_shot finds the number of clusters in the run, and bytes"),
        ({"vary": {"method": ["fedavg", "cfl"]}}, "method=cfl: "),
        ({"vary": {"clock": ["none", "virtual"]}}, "only the virtual clock predicts times"),
        ({"vary": {"training.participation": [0.5, 1.0]}}, "set training.evaluate_all_every, such as 1"),
        ({"vary": {"links.device-lps.up": ["float32", "float3"]}}, "links.device-lps.up=float3"),
        ({"vary": {f"training.{n}": list(range(30)) for n in range(3)}}, "27,000 combinations are more than 2,000"),
    ],
)
def test_a_wrong_search_file_is_one_line(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ExperimentError) as raised:
        load_search(written(tmp_path, **changes))
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)


def test_candidates_that_differ_in_links_boards_or_radios_train_the_same_models() -> None:
    digest = models_digest(experiment())
    same = [
        {"links__device-lps__up_rate": "9Mbit/s"},
        {"links__device-lps__preset": "nb-iot"},
        {"compute__per_example": "5ms"},
        {"energy": {"radio": "lte", "compute": "4W"}},
        {"name": "another"},
    ]
    assert {models_digest(experiment(**each)) for each in same} == {digest}
    others = [{"links__device-lps__up": "int8"}, {"training__local_epochs": 2}, {"topology__lps": 3}, {"seed": 4}]
    assert digest not in {models_digest(experiment(**each)) for each in others}


def test_in_asynchronous_rounds_models_depend_on_links() -> None:
    timed = {"training__rounds": {"lps": {"kind": "timed"}}}
    slower = {"links__device-lps__up_rate": "0.5Mbit/s"}
    assert models_digest(experiment(**timed)) != models_digest(experiment(**timed, **slower))


def test_the_costs_of_a_round_are_those_of_its_transfers() -> None:
    """Weights: 64 x 8 + 8 + 8 x 10 + 10 = 610, so 2,440 bytes a model; each LPS sends means of float32."""
    found = experiment()
    costs = costs_of_round(found, load_dataset(found.data, found.seed))
    assert costs[Resource.DEVICE_BYTES] == 2 * 6 * 2 * 2440
    assert costs[Resource.LPS_GPS_BYTES] == 2 * 2 * 2440
    lps_round = 2440 * 8 / 2e6 + 0.010 + 20 * 0.001 + 2440 * 8 / 1e6 + 0.010
    assert costs[Resource.SECONDS] == pytest.approx(2 * lps_round + 2 * (2440 * 8 / 4e6 + 0.005))
    assert Resource.JOULES not in costs


def test_energy_is_counted_if_the_experiment_has_it() -> None:
    """Each device computes 20 ms in each of 2 LPS rounds at 4 W; without a radio transfers use no energy."""
    found = experiment(energy={"compute": "4W"})
    costs = costs_of_round(found, load_dataset(found.data, found.seed))
    assert costs[Resource.JOULES] == pytest.approx(6 * 2 * 0.020 * 4)


def test_the_shipped_search_has_two_hundred_candidates() -> None:
    search = load_search(REPOSITORY / "experiments" / "searches" / "forty_devices.yaml")
    assert len(search.sweep.places) == 200
    assert {run.experiment.device_count for run in search.sweep.runs} == {40}


def test_a_command_for_sweeps_says_that_a_search_file_is_for_plan(tmp_path: Path) -> None:
    with pytest.raises(ExperimentError, match="is a search file; give it to fedstrata plan"):
        load_sweep(written(tmp_path))
