"""Compare plans with the best candidate of a search: all candidates are trained, and the planner trains some of them.

    python -m benchmarks.planner SEARCH DIR [--targets 0.8] [--trainings 20] [--seeds 2 3] [--default AXIS=CHOICE ...]

First all candidates are trained in `DIR`, a sweep's folder, with some seeds, by default those of the search file. The
same call continues an interrupted one. Then the search is repeated on these records for each target and each aim. What
a candidate needs is the mean over the seeds.
Regret is what the plan measured above the best candidate, as a share of the best. Random choices and a genetic search
(uniform crossover, mutation 0.2, a population of 8) get the same number of trainings. Over 200 draws of each, the table
has the median regret, and the share of draws within 5 % of the best.

Two choices need no training. The default is the candidate with the choices of `--default`, and with the first choice on
each other axis. The cheapest round has the least time plus energy of a global round, each as a share of the mean over
all candidates. HFEL (Luo et al. 2020) also compares topologies by a weighted sum of time and energy.
"""

import argparse
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, median

from scipy.stats import kendalltau

from emulator.planner.plan import first_state, reached_by, used_by
from emulator.planner.resources import Resource
from emulator.planner.search import Candidate, Reached, SearchState, trained_until_found
from emulator.planner.search_file import load_search
from emulator.results.read_record import RunRecord
from emulator.sweeps.file import Place
from emulator.sweeps.store import SharedFolder
from emulator.sweeps.sweep import SweepRequest, sweep
from emulator.sweeps.sweep_progress import SweepDisplay

DRAWS, POPULATION, PARENTS, MUTATION, NEAR = 200, 8, 6, 0.2, 0.05
Records = Mapping[Place, Sequence[RunRecord]]  # a record per seed
Needs = Mapping[Place, float]  # what each candidate measured; infinite if it missed the target
Draw = Callable[[Sequence[Candidate], Needs, int, random.Random], float]


@dataclass(frozen=True, kw_only=True)
class Replayed:
    """Hold a repeated search: its plan's regret, its trainings, and Kendall's tau of predicted and measured needs."""

    regret: float
    trainings: int
    tau: float


def replayed(start: SearchState, records: Records, needs: Needs, *, target: float, most: int) -> Replayed:
    """Repeat a search on the records of all candidates."""

    def known(wanted: Sequence[Candidate]) -> dict[str, Reached]:
        return {each.models: reached_by(records[each.place], target) for each in wanted}

    now, trained = trained_until_found(start, most, known)
    pairs = [
        (each.costs[now.aim] * now.rounds[each.models].number, needs[each.place])
        for each in now.candidates
        if math.isfinite(needs[each.place]) and math.isfinite(now.rounds[each.models].number)
    ]
    return Replayed(
        regret=needs[now.best.place] / min(needs.values()) - 1 if now.best is not None else math.inf,
        trainings=len(trained),
        tau=float(kendalltau(*zip(*pairs, strict=True)).statistic) if pairs else math.nan,
    )


def at_random(candidates: Sequence[Candidate], needs: Needs, most: int, drawn: random.Random) -> float:
    """Return what the best of randomly chosen candidates needs."""
    return min(needs[each.place] for each in drawn.sample(candidates, min(most, len(candidates))))


def genetic(candidates: Sequence[Candidate], needs: Needs, most: int, drawn: random.Random) -> float:
    """Return what the best candidate of a genetic search needs."""
    axes = list(candidates[0].choices)
    choices = {axis: sorted({each.choices[axis] for each in candidates}) for axis in axes}
    known = {tuple(each.choices.values()): needs[each.place] for each in candidates}
    seen = {genes: known[genes] for genes in drawn.choices(sorted(known), k=POPULATION)}
    for _ in range(10 * most):
        if len(seen) >= min(most, len(known)):
            break
        mother, father = drawn.choices(sorted(seen, key=lambda genes: (seen[genes], genes))[:PARENTS], k=2)
        child = tuple(
            drawn.choice(choices[axis]) if drawn.random() < MUTATION else drawn.choice(pair)
            for axis, *pair in zip(axes, mother, father, strict=True)
        )
        seen[child] = known[child]
    return min(seen.values())


def regrets(draw: Draw, candidates: Sequence[Candidate], needs: Needs, most: int) -> str:
    """Return the median regret over draws, and the share of draws that are near the best."""
    best = min(needs.values())
    found = [draw(candidates, needs, most, random.Random(seed)) / best - 1 for seed in range(DRAWS)]
    return f"{median(found):.3f} ({sum(each <= NEAR for each in found) / DRAWS:.0%})"


def default_of(candidates: Sequence[Candidate], given: Mapping[str, str]) -> Candidate:
    """Return the first candidate with some choices."""
    return next(each for each in candidates if given.items() <= each.choices.items())


def cheapest_round(candidates: Sequence[Candidate]) -> Candidate:
    """Return the candidate with the least time plus energy of a global round, each as a share of its mean."""
    counted = [name for name in (Resource.SECONDS, Resource.JOULES) if all(name in each.costs for each in candidates)]
    means = {name: fmean(each.costs[name] for each in candidates) for name in counted}
    return min(candidates, key=lambda each: sum(each.costs[name] / mean for name, mean in means.items()))


def regret_of(chosen: Candidate, needs: Needs) -> str:
    """Return the regret of one candidate as text."""
    regret = needs[chosen.place] / min(needs.values()) - 1
    return f"{regret:.3f}" if math.isfinite(regret) else "missed"


def needs_of(candidates: Sequence[Candidate], records: Records, target: float) -> dict[Resource, dict[Place, float]]:
    """Return what each candidate measured until the target, by resource."""
    found = {each.place: used_by(each, records[each.place], target) for each in candidates}
    used = {place: amounts for place, amounts in found.items() if amounts is not None}
    there = [name for name in Resource if all(name in each for each in used.values())]
    return {name: {place: used[place][name] if place in used else math.inf for place in records} for name in there}


def main() -> None:
    """Train all candidates, and print a row for each target and aim."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("search", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--targets", type=float, nargs="+")
    parser.add_argument("--trainings", type=int)
    parser.add_argument("--seeds", type=int, nargs="+")
    parser.add_argument("--default", nargs="+", default=[], metavar="AXIS=CHOICE")
    given = parser.parse_args()
    search = load_search(given.search)
    seeds = given.seeds or search.file.seeds
    if not set(seeds) <= set(search.file.seeds):
        parser.error(f"--seeds: the search has only the seeds {', '.join(map(str, search.file.seeds))}")
    start, most = first_state(search, given.search), given.trainings or search.file.trainings
    untrained = [
        default_of(start.candidates, dict(each.split("=", 1) for each in given.default)),
        cheapest_round(start.candidates),
    ]
    whole = search.sweep.only(run for run in search.sweep.runs if run.seed in seeds)
    done = sweep(SweepRequest(sweep=whole, store=SharedFolder(given.folder), jobs=None), SweepDisplay())
    if done.failure is not None:
        raise done.failure
    records = {each.place: [done.results.records[each.place, seed] for seed in seeds] for each in start.candidates}
    of = f"{len(start.candidates)} candidates, {len(start.by_models)} different models"
    print(f"{of}, seeds {', '.join(map(str, seeds))}\n")
    print("| target | aim | reach it | trainings | regret | tau | random | genetic | default | cheapest round |")
    print("|---:|---|---:|---:|---:|---:|---:|---:|---:|---:|")
    for target in given.targets or [search.file.target]:
        for aim, needs in needs_of(start.candidates, records, target).items():
            found = replayed(replace(start, aim=aim), records, needs, target=target, most=most)
            others = [regrets(draw, start.candidates, needs, most) for draw in (at_random, genetic)]
            others += [regret_of(each, needs) for each in untrained]
            reach = sum(map(math.isfinite, needs.values()))
            print(
                f"| {target:g} | {aim.value} | {reach} | {found.trainings} | {found.regret:.3f} | {found.tau:.2f} | "
                f"{' | '.join(others)} |"
            )


if __name__ == "__main__":
    main()
