"""Place devices at LPSs that share their uplinks, beside simple placements and a lower bound.

    python -m benchmarks.placement [--devices 1000] [--lps 10] [--seed 3] [--draws 20]

Boards and links differ. Each device may be at three LPSs, and LPSs with small numbers are near to more devices. Each
LPS has room for 30 % more devices than its share. The cost is the time of the slowest LPS in an LPS round, calculated
by the clock. `random` is the best of some random placements with enough room. HiGHS proves the bound for a linear model
of the links. No placement can be faster than the bound, because times here have no random part and rounds ask all
devices. If there are few devices, all placements are compared, too.
"""

import argparse
import itertools
import random
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from emulator.planner.group_costs import GroupCosts
from emulator.planner.place import PlaceSettings, placed
from emulator.planner.placement import Placement, Rooms, modelled
from emulator.planner.resources import Resource
from fedstrata.errors import ExperimentError
from fedstrata.experiment_file import checked

FEW = 50_000  # placements that are all compared
SLOW_LINK, SLOW_BOARD = 0.3, 0.2  # shares of the devices


def site(devices: int, lps: int, seed: int) -> tuple[dict[str, Any], PlaceSettings]:
    """Return an experiment file, and which placements are possible."""
    drawn = random.Random(seed)
    near = [1 / (number + 1) ** 0.5 for number in range(lps)]
    reach = []
    for index in range(devices):
        found: list[int] = []
        while len(found) < min(3, lps):
            (number,) = drawn.choices(range(lps), near)
            found += [number] if number not in found else []
        reach.append({"devices": [index], "lps": found})
    slow = {what: [index for index in range(devices) if drawn.random() < share] or [0] for what, share in
            (("link", SLOW_LINK), ("board", SLOW_BOARD))}  # fmt: skip
    experiment = {
        "name": "placement",
        "seed": seed,
        "partition": {"kind": "iid", "devices": devices, "examples_per_device": 1},
        "model": {"name": "mlp", "hidden": [64]},
        "method": "fedavg",
        "clock": "virtual",
        "topology": {"lps": lps},
        "links": {
            "device-lps": {"preset": "lte"},
            "overrides": [{"devices": slow["link"], "up_rate": "1Mbit/s"}],
            "shared": {"device-lps": {"up_rate": f"{20 * devices // lps}kbit/s"}},
        },
        "compute": {"per_example": "400ms", "spread": {"lognormal": 0.4}, "devices": {"pi5": slow["board"]}},
    }
    return experiment, PlaceSettings.model_validate({"capacity": -(-13 * devices // (10 * lps)), "reach": reach})


def at_random(rooms: Rooms, drawn: random.Random) -> Placement:
    """Return a random placement. In random order, each device goes to one of its LPSs with room."""
    while True:
        groups: list[list[int]] = [[] for _ in rooms.capacities]
        for index in drawn.sample(range(len(rooms.allowed)), len(rooms.allowed)):
            free = [number for number in rooms.allowed[index] if len(groups[number]) < rooms.capacities[number]]
            if not free:
                break
            groups[drawn.choice(free)].append(index)
        if rooms.permits(groups) and sum(map(len, groups)) == len(rooms.allowed):
            return tuple(map(tuple, groups))


def every(rooms: Rooms) -> Iterator[Placement]:
    """Yield all placements that are possible."""
    for homes in itertools.product(*rooms.allowed):
        groups = [tuple(i for i, home in enumerate(homes) if home == number) for number in range(len(rooms.capacities))]
        if rooms.permits(groups):
            yield tuple(groups)


def main() -> None:
    """Place devices, and print a row for each placement."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", type=int, default=1000)
    parser.add_argument("--lps", type=int, default=10)
    parser.add_argument("--seed", type=int, default=3)
    parser.add_argument("--draws", type=int, default=20)
    given = parser.parse_args()
    document, settings = site(given.devices, given.lps, given.seed)
    experiment = checked(document, Path(), None)
    began = time.perf_counter()
    try:
        found = placed(experiment, settings, Resource.SECONDS)
    except ExperimentError as error:
        raise SystemExit(f"{error}, or choose another seed") from None
    took_s = time.perf_counter() - began
    rooms, costs, drawn = settings.rooms(experiment), GroupCosts(experiment), random.Random(given.seed)

    def slowest_s(placement: Sequence[Sequence[int]]) -> float:
        return max(costs.of(group).seconds for group in placement if group)

    model = modelled(rooms, costs.loads, costs.alone_s)
    if model is None:
        raise SystemExit("HiGHS found no placement for the linear model; choose another seed")
    rows = {
        "placed": slowest_s((found.topology and found.topology.devices) or rooms.numbered()),
        "linear model": slowest_s(model.placement),
        "random": min(slowest_s(at_random(rooms, drawn)) for _ in range(given.draws)),
        "nearest": slowest_s(rooms.nearest()),
        "in turn, also beyond reach": slowest_s(rooms.numbered()),
    }
    if min(3, given.lps) ** given.devices <= FEW:
        rows["best of all"] = min(map(slowest_s, every(rooms)))
    print(f"{given.devices} devices at {given.lps} LPSs, seed {given.seed}: placed in {took_s:.1f} s\n")
    print("| placement | LPS round, s | above the bound, % |")
    print("|---|---:|---:|")
    for name, seconds in {**rows, "bound": model.bound}.items():
        print(f"| {name} | {seconds:.3f} | {100 * (seconds / model.bound - 1):.1f} |")


if __name__ == "__main__":
    main()
