"""Placements of devices at LPSs that share links: beside all placements, by hand, and their keys in search files."""

import itertools
import random
from pathlib import Path
from typing import Any

import pytest

from emulator.estimates.check import model_size, payloads_of
from emulator.planner import place as place_module
from emulator.planner import placement as placement_module
from emulator.planner.costs import costs_of_round
from emulator.planner.group_costs import GroupCosts
from emulator.planner.place import PlaceSettings, gains, placed
from emulator.planner.placement import Placement, Rooms, modelled
from emulator.planner.resources import Resource
from emulator.planner.search_file import load_search
from emulator.sweeps.file import load_sweep
from fedstrata.datasets import dataset_info, load_dataset
from fedstrata.errors import ExperimentError
from fedstrata.experiment import Experiment
from fedstrata.experiment_file import checked
from fedstrata.methods.cohort import cohort
from tests.unit.planner.test_search_file import BASE, written

UP = 100_000  # bits per second of the shared uplinks
SHARED: dict[str, Any] = {"shared": {"device-lps": {"up_rate": f"{UP}bit/s"}}}


def experiment(devices: int, lps: int, **sections: Any) -> Experiment:
    partition = {"kind": "iid", "devices": devices, "examples_per_device": 20}
    return checked({**BASE, "partition": partition, "topology": {"lps": lps}, **sections}, Path(), None)


def random_site(
    seed: int, devices: int, lps: int, down_rate: str | None = "200kbit/s"
) -> tuple[Experiment, PlaceSettings]:
    """Return a site with random links and boards. Odd seeds let each device be at any LPS."""
    drawn = random.Random(seed)
    own = [
        {"devices": [index], "up_rate": f"{drawn.choice([50, 100, 400])}kbit/s", "latency": f"{drawn.randint(5, 80)}ms"}
        for index in range(devices)
    ]
    links = {"overrides": own, "shared": {"device-lps": {"up_rate": "50kbit/s", "down_rate": down_rate}}}
    compute = {"per_example": "20ms", "spread": {"lognormal": 0.78}}
    near = [drawn.sample(range(lps), drawn.randint(2, lps)) for _ in range(devices)]
    reach = [] if seed % 2 else [{"devices": [index], "lps": numbers} for index, numbers in enumerate(near)]
    settings = PlaceSettings.model_validate({"capacity": -(-devices // lps) + 1, "reach": reach})
    return experiment(
        devices, lps, seed=seed, links=links, compute=compute, energy={"radio": "lte", "compute": "4W"}
    ), settings


def every(rooms: Rooms) -> list[Placement]:
    devices, lps = range(len(rooms.allowed)), range(len(rooms.capacities))
    found = [
        tuple(tuple(index for index in devices if homes[index] == number) for number in lps)
        for homes in itertools.product(*rooms.allowed)
    ]
    return [placement for placement in found if rooms.permits(placement)]


def devices_of(chosen: Experiment, rooms: Rooms) -> Placement:
    assert chosen.topology is not None
    return chosen.topology.devices or rooms.numbered()


@pytest.mark.parametrize(("devices", "lps"), [(6, 2), (7, 3), (8, 3)])
@pytest.mark.parametrize("seed", [1, 2, 3, 4])
def test_no_placement_is_much_better_than_the_chosen_one(seed: int, devices: int, lps: int) -> None:
    site, settings = random_site(seed, devices, lps)
    rooms, costs = settings.rooms(site), GroupCosts(site)

    def slowest_s(placement: Placement) -> float:
        return max(costs.of(group).seconds for group in placement)

    best = min(map(slowest_s, every(rooms)))
    chosen = devices_of(placed(site, settings, Resource.SECONDS), rooms)
    assert rooms.permits(chosen)
    assert slowest_s(chosen) <= 1.01 * best
    model = modelled(rooms, costs.loads, costs.alone_s)
    assert model is not None and model.bound <= best + 1e-9
    assert rooms.permits(model.placement)


@pytest.mark.parametrize("seed", [1, 2])
def test_the_aim_energy_has_a_placement_of_its_own(seed: int) -> None:
    site, settings = random_site(seed, 7, 3)
    rooms, costs = settings.rooms(site), GroupCosts(site)

    def joules(placement: Placement) -> float:
        return sum(costs.of(group).joules for group in placement)

    best = min(map(joules, every(rooms)))
    assert joules(devices_of(placed(site, settings, Resource.JOULES), rooms)) <= 1.01 * best


def two_slow_boards() -> Experiment:
    """Return a site with four devices. In index order, the boards 1 and 3, which are slow, are at the same LPS."""
    compute = {"per_example": "1ms", "profiles": {"slow": 50}, "devices": {"slow": [1, 3]}}
    return experiment(4, 2, links=SHARED, compute=compute)


def test_boards_that_are_equally_slow_are_apart() -> None:
    """In index order, two updates of slow boards share a link at the end of a round. Apart, one update has the link."""
    site, settings = two_slow_boards(), PlaceSettings(capacity=2)
    chosen = placed(site, settings, Resource.SECONDS)
    assert chosen.topology is not None and chosen.topology.devices is not None
    assert {len({1, 3}.intersection(group)) for group in chosen.topology.devices} == {1}
    one_update_s = 8 * payloads_of(site, model_size(site, dataset_info(site.data))).device_up / UP
    rounds = site.training.lps_rounds_per_global_round
    dataset = load_dataset(site.data, site.seed)
    before, after = (costs_of_round(each, dataset)[Resource.SECONDS] for each in (site, chosen))
    assert before - after == pytest.approx(rounds * one_update_s, rel=1e-6)
    assert placed(site, settings, Resource.SECONDS).digest == chosen.digest
    said = gains(chosen, settings, Resource.SECONDS)
    assert said.count(Resource.SECONDS.said(before)) == 2, said  # in index order, which is nearest without `reach`
    assert said.count(Resource.SECONDS.said(after)) == 1, said


def test_devices_stay_in_index_order_if_no_placement_saves_anything() -> None:
    site = experiment(4, 2, links=SHARED)
    assert placed(site, PlaceSettings(capacity=3), Resource.SECONDS) is site


def test_each_device_is_where_it_may_be() -> None:
    reach = [{"devices": ["0-1"], "lps": [1]}, {"devices": [2], "lps": [0, 1]}]
    settings = PlaceSettings.model_validate({"capacity": [3, 2], "reach": reach})
    chosen = placed(experiment(5, 2), settings, Resource.SECONDS)
    assert chosen.topology is not None and chosen.topology.devices == ((2, 3, 4), (0, 1))


def test_a_candidate_is_placed_once_for_all_seeds(tmp_path: Path) -> None:
    base = {**BASE, "links": SHARED}
    place = {"capacity": 4, "reach": [{"devices": [0, 2], "lps": [1]}]}
    search = load_search(written(tmp_path, base=base, vary={"x": {"a": {}}}, seeds=[3, 4], place=place))
    first, second = (run.experiment.topology for run in search.sweep.runs)
    assert first == second
    assert first is not None and first.devices is not None and {0, 2} <= {*first.devices[1]}


def test_the_trainings_are_a_sweep_with_the_same_placed_experiments(tmp_path: Path) -> None:
    place = {"capacity": 5, "reach": [{"devices": [0], "lps": [1]}]}
    search = load_search(written(tmp_path, seeds=[3, 4], place=place))
    again = tmp_path / "sweep.yaml"
    again.write_text(search.sweep.text, encoding="utf-8")
    digests = [run.experiment.digest for run in search.sweep.runs]
    assert [run.experiment.digest for run in load_sweep(again).runs] == digests
    place["reach"] = [{"devices": [2], "lps": [1]}]
    other = load_search(written(tmp_path, seeds=[3, 4], place=place))
    assert other.sweep.text != search.sweep.text


@pytest.mark.parametrize(
    ("sums", "groups"),
    [({}, ((0, 1, 2, 3), (4, 5))), ({"secure_aggregation": {"min_devices": 3}}, ((0, 1, 2), (3, 4, 5)))],
)
def test_each_lps_has_as_many_devices_as_a_sum_needs(sums: dict[str, Any], groups: Placement) -> None:
    """The boards 3, 4 and 5 are slow. With all three, LPS 1 receives three updates at the end; without board 3, two."""
    compute = {"per_example": "1ms", "profiles": {"slow": 500}, "devices": {"slow": [3, 4, 5]}}
    near = [{"devices": ["0-2"], "lps": [0]}, {"devices": [3], "lps": [0, 1]}, {"devices": [4, 5], "lps": [1]}]
    settings = PlaceSettings.model_validate({"capacity": 5, "reach": near})
    site = experiment(6, 2, links=SHARED, compute=compute, **sums)
    assert devices_of(placed(site, settings, Resource.SECONDS), settings.rooms(site)) == groups


def test_a_share_of_the_devices_of_each_lps_is_enough_for_a_sum() -> None:
    half = experiment(12, 2, secure_aggregation={"min_devices": 3}, training={**BASE["training"], "participation": 0.5})
    assert PlaceSettings(capacity=7).rooms(half).least == 5  # half of 4 are only 2


def crossed() -> tuple[Experiment, PlaceSettings]:
    """Return a site where neither index order nor the nearest LPS with room is possible: device 0 must leave LPS 0."""
    reach = [{"devices": [0], "lps": [0, 1]}, {"devices": [1], "lps": [0]}]
    return experiment(2, 2), PlaceSettings.model_validate({"capacity": 1, "reach": reach})


def test_the_linear_model_finds_a_placement_where_simple_rules_do_not() -> None:
    chosen = placed(*crossed(), Resource.SECONDS)
    assert chosen.topology is not None and chosen.topology.devices == ((1,), (0,))


def test_simple_rules_place_devices_where_the_linear_model_finds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(place_module, "modelled", lambda *_: None)
    site, settings = two_slow_boards(), PlaceSettings(capacity=2)
    chosen = devices_of(placed(site, settings, Resource.SECONDS), settings.rooms(site))
    assert {len({1, 3}.intersection(group)) for group in chosen} == {1}
    with pytest.raises(ExperimentError, match="no placement was found"):
        placed(*crossed(), Resource.SECONDS)


@pytest.mark.parametrize(("direction", "slow", "others"), [("up", [1, 2, 3, 5], 1), ("down", ["0-5"], 2)])
def test_the_bound_counts_what_a_shared_link_carries(direction: str, slow: list[Any], others: int) -> None:
    """At some LPS, at least as many slow boards as at the other use a link at once. The last one waits for `others`."""
    compute = {"per_example": "1ms", "profiles": {"slow": 50}, "devices": {"slow": slow}}
    links = {"shared": {"device-lps": {f"{direction}_rate": f"{UP}bit/s"}}}
    site, settings = experiment(6, 2, links=links, compute=compute), PlaceSettings(capacity=5)
    costs, payloads = GroupCosts(site), payloads_of(site, model_size(site, dataset_info(site.data)))
    transfer_s = 8 * getattr(payloads, f"device_{direction}") / UP
    rooms = settings.rooms(site)
    model = modelled(rooms, costs.loads, costs.alone_s)
    assert model is not None
    assert model.bound == pytest.approx(costs.alone_s + others * transfer_s, rel=2 * placement_module.GAP)
    assert 0.1 * model.bound < transfer_s, "the bound without the link would be as good"
    best = min(max(costs.of(group).seconds for group in each) for each in every(rooms))
    assert 0.9 * best <= model.bound <= best + 1e-9


@pytest.mark.parametrize("seed", [1, pytest.param(3, marks=pytest.mark.runs)])
def test_forty_devices_are_placed_close_to_the_bound(seed: int) -> None:
    site, settings = random_site(seed, 40, 4, down_rate=None)
    costs, rooms = GroupCosts(site), settings.rooms(site)
    model = modelled(rooms, costs.loads, costs.alone_s)
    chosen = devices_of(placed(site, settings, Resource.SECONDS), rooms)
    assert model is not None
    assert model.bound <= max(costs.of(group).seconds for group in chosen) <= 1.02 * model.bound


def test_the_cost_is_a_mean_of_rounds_if_each_asks_other_devices() -> None:
    compute = {"per_example": "1ms", "profiles": {"slow": 50}, "devices": {"slow": [1]}}
    site = experiment(4, 2, compute=compute, training={**BASE["training"], "participation": 1})
    costs, group = GroupCosts(site), (0, 1)
    asked = [cohort(group, 1, site.seed, number)[0] for number in range(4)]
    assert set(asked) == {0, 1}
    mean_s = sum(costs.parts[device].ended_ns for device in asked) / 4e9
    assert costs.of(group).seconds == pytest.approx(mean_s, rel=1e-6)


@pytest.mark.parametrize(
    ("place", "changes", "said"),
    [
        ({"capacity": 2}, {}, "site=slow: place.capacity has room for 4 of 6 devices; raise it"),
        ({"capacity": [3, 3, 3]}, {}, "place.capacity has 3 values for 2 LPSs; give one for each LPS"),
        ({"capacity": 0}, {}, "place.capacity"),
        ({"capacity": 3, "reach": [{"devices": [6], "lps": [0]}]}, {}, "place.reach: there is no device 6"),
        ({"capacity": 3, "reach": [{"devices": [1], "lps": [2]}]}, {}, "place.reach: there is no LPS 2; there are"),
        ({"capacity": 3, "reach": [{"devices": ["0-3"], "lps": [1]}]}, {}, "no placement was found that has room"),
        (
            {"capacity": 3, "reach": [{"devices": [1], "lps": [0]}, {"devices": [1], "lps": [1]}]}, {},
            "device 1 is in two entries",
        ),
        ({"capacity": 6}, {"topology": None}, "place has no effect without topology, because each cluster"),
        ({"capacity": 6}, {"topology": {"lps": 2, "devices": [[0, 1, 2], [3, 4, 5]]}}, "decides topology.devices"),
        (
            {"capacity": 6},
            {"training": {"global_rounds": 4, "rounds": {"lps": {"kind": "buffered", "buffer": 2}}}},
            "place does not know when asynchronous rounds end; remove training.rounds",
        ),
        ({"capacity": 6}, {"method": "ifca"}, "LPSs wait for each other in rounds of ifca"),
        (
            {"capacity": [5, 2]}, {"secure_aggregation": {"min_devices": 3}},
            "search.yaml: site=slow: place: no placement was found that has room for every device, and at least 3 at",
        ),
        (
            {"capacity": 6}, {"newcomers": {"devices": [5], "from_global_round": 3}},
            "place does not know that devices join later; remove newcomers",
        ),
    ],
)  # fmt: skip
def test_a_place_that_is_not_possible_is_one_line(
    tmp_path: Path, place: dict[str, Any], changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(ExperimentError) as error:
        load_search(written(tmp_path, base={**BASE, **changes}, vary={"site": {"slow": {}}}, place=place))
    assert said in str(error.value) and "\n" not in str(error.value)
