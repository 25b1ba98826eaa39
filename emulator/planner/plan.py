"""Do a search: predict all candidates, train some of them as runs of a sweep, and find the plan."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from emulator.planner.costs import TABLES, costs_of_round, used_until, work_of_round
from emulator.planner.learning import models_digest
from emulator.planner.resources import Amounts
from emulator.planner.search import SHARES, Candidate, Reached, SearchState, trained_until_found
from emulator.planner.search_file import Search, load_search
from emulator.results.best_round import best_round, measured_rounds
from emulator.results.output import check_unused
from emulator.results.read_record import RunRecord
from emulator.sweeps.check_runs import check_runs
from emulator.sweeps.file import Place, Sweep, SweepRun
from emulator.sweeps.store import SharedFolder
from emulator.sweeps.sweep import SweepRequest, sweep, written_results
from emulator.sweeps.sweep_folder import SWEEP
from emulator.sweeps.sweep_progress import SweepDisplay
from fedstrata.datasets import load_dataset
from fedstrata.errors import DataError, ExperimentError, RunStoppedError
from fedstrata.experiment import Experiment

TRAININGS = "trainings"  # the folder of the trained candidates, which is a sweep's folder


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Hold the result of a search: the chosen candidate (the plan), the trained candidates, and measured amounts."""

    search: Search
    state: SearchState
    best: Candidate
    trained: Sequence[Candidate]  # in the order of training
    measured: Mapping[Place, Amounts]  # what trained candidates used until the target, if all their runs reached it

    def run_of(self, candidate: Candidate) -> SweepRun:
        """Return the run of a candidate with the first seed."""
        return next(run for run in self.search.sweep.runs if run.place == candidate.place)

    @property
    def experiment(self) -> Experiment:
        """The chosen experiment, with the first seed."""
        return self.run_of(self.best).experiment


def plan(path: Path, out: Path, jobs: int | None, display: SweepDisplay) -> Plan:
    """Do the search of the search file `path`, and return the plan. Trainings are kept in the folder `out`, so the same
    call continues an interrupted search.

    Raises:
        FedstrataError: a value is not allowed, the folder has other content, no candidate keeps the limits, a training
            failed for another reason than divergence, or no training reached the target.
    """
    search = load_search(path)
    if not (out / TRAININGS / SWEEP).exists():
        check_unused(out, besides=(TRAININGS,))
    state = first_state(search, path)
    _check_limits(state, path)
    records: dict[Place, list[RunRecord]] = {}

    def train(wanted: Sequence[Candidate]) -> dict[str, Reached]:
        found = _trained(search, wanted, out, jobs, display)
        records.update(found)
        return {
            each.models: reached_by(found[each.place], search.file.target) if each.place in found else Reached.nothing()
            for each in wanted
        }

    state, trained = trained_until_found(state, search.file.trainings, train)
    part = _part(search, trained)
    written_results(part, out / TRAININGS, part.runs)
    if state.best is None:
        raise ExperimentError(_unreached(state, records, search.file.target))
    known = [each for each in trained if each.place in records]
    used = {each.place: used_by(each, records[each.place], search.file.target) for each in known}
    measured = {place: amounts for place, amounts in used.items() if amounts is not None}
    return Plan(search=search, state=state, best=state.best, trained=trained, measured=measured)


def _trained(
    search: Search, wanted: Sequence[Candidate], out: Path, jobs: int | None, display: SweepDisplay
) -> dict[Place, list[RunRecord]]:
    """Do the runs of some candidates, and return their records. Candidates with a diverged run are left out.

    Raises:
        RunStoppedError: a run failed for another reason.
    """
    part = _part(search, wanted)
    outcome = sweep(SweepRequest(sweep=part, store=SharedFolder(out / TRAININGS), jobs=jobs), display)
    if outcome.fault is not None:
        raise RunStoppedError(f"a training failed: {outcome.fault}")
    records, diverged = outcome.results.records, {run.place for run, _ in outcome.failures}
    places = [each.place for each in wanted if each.place not in diverged]
    return {place: [records[place, seed] for seed in search.file.seeds] for place in places}


def _part(search: Search, candidates: Sequence[Candidate]) -> Sweep:
    places = {each.place for each in candidates}
    return search.sweep.only(run for run in search.sweep.runs if run.place in places)


def first_state(search: Search, path: Path) -> SearchState:
    """Return the state of a search before its first training. Raises FedstrataError if a candidate is not possible."""
    first = [run for run in search.sweep.runs if run.seed == search.file.seeds[0]]
    check_runs(first)
    candidates = [_candidate(run) for run in first]
    for each in candidates:
        if lacking := [name for name in (search.file.aim, *search.file.limits.given) if name not in each.costs]:
            raise ExperimentError(f"{path}: {each.label} counts no {lacking[0].value}; add the section energy")
        if not each.costs[search.file.aim]:
            raise ExperimentError(
                f"{path}: {each.label} needs no {search.file.aim.label}, so there is nothing to save; choose another "
                "aim, or give links and compute"
            )
    return SearchState(
        candidates=candidates,
        aim=search.file.aim,
        limits=search.file.limits.given,
        most_rounds=first[0].experiment.training.global_rounds,
    )


def _candidate(run: SweepRun) -> Candidate:
    experiment = run.experiment
    dataset = load_dataset(experiment.data, experiment.seed)
    return Candidate(
        place=run.place,
        models=models_digest(experiment),
        costs=costs_of_round(experiment, dataset),
        work=work_of_round(experiment, dataset),
    )


def _check_limits(state: SearchState, path: Path) -> None:
    """Raise ExperimentError if no candidate keeps all limits for one global round. The message names a limit."""
    if any(state.keeps_limits(each, 1.0) for each in state.candidates):
        return
    for name, most in state.limits.items():
        least = min(each.costs[name] for each in state.candidates)
        if least > most:
            raise ExperimentError(
                f"{path}: limits.{name.value} is {name.said(most)}, but one global round needs at least "
                f"{name.said(least)}; raise the limit"
            )
    raise ExperimentError(f"{path}: no candidate keeps all limits for one global round; raise one of them")


def reached_by(records: Sequence[RunRecord], target: float) -> Reached:
    """Return when the runs of a candidate reached the target."""
    return Reached(
        rounds=fmean(reached_at(record, target) or math.inf for record in records),
        moments=[fmean(moment_of(record, target, share) for record in records) for share in SHARES],
    )


def reached_at(record: RunRecord, target: float) -> int | None:
    """Return the first global round after which the metric over all devices reaches the target. If the run never
    reaches the target, return None.
    """
    rounds, metric = measured_rounds(record), record.headline
    return next((number for number, value in rounds.items() if metric.is_reached(value, target, 1.0)), None)


def moment_of(record: RunRecord, target: float, share: float) -> float:
    """Return the moment between two measured global rounds at which the metric reaches a part of the target, if it
    changes evenly between them. If it is reached in the first measured round, return the middle of this round. If the
    run never reaches this part, return infinity.
    """
    metric, before = record.headline, None
    for number, value in measured_rounds(record).items():
        if metric.is_reached(value, target, share):
            if before is None:
                return number / 2
            last, known = before
            return last + (number - last) * (metric.part_of(target, share) - known) / (value - known)
        before = number, value
    return math.inf


def used_by(candidate: Candidate, records: Sequence[RunRecord], target: float) -> Amounts | None:
    """Return the mean of what the runs of a candidate used until the target. If one missed the target, return None.

    Raises:
        DataError: a record lacks a resource that the candidate's rounds use.
    """
    reached = [(record, number) for record in records if (number := reached_at(record, target)) is not None]
    if len(reached) < len(records):
        return None
    used = [used_until(record, number) for record, number in reached]
    for (record, _), amounts in zip(reached, used, strict=True):
        if lacking := [name for name, cost in candidate.costs.items() if cost and name not in amounts]:
            raise DataError(
                f"{record.folder / TABLES[lacking[0]]} is missing or lacks rounds; remove the folder {record.folder}, "
                "and give the same command"
            )
    return {name: fmean(each.get(name, 0.0) for each in used) for name in used[0]}


def _unreached(state: SearchState, records: Mapping[Place, Sequence[RunRecord]], target: float) -> str:
    """Return why there is no plan: no training reached the target, or none within the limits."""
    until = {name: each.rounds for name, each in state.trained.items() if math.isfinite(each.rounds)}
    if reached := [each for each in state.candidates if each.models in until]:
        least = min(reached, key=lambda each: until[each.models] * each.costs[state.aim])
        needs = least.needs(until[least.models])
        beyond = next(name for name, most in state.limits.items() if needs[name] > most)
        return (
            f"no plan keeps the limits: {least.label} reaches the target with {beyond.said(needs[beyond])}, but "
            f"limits.{beyond.value} is {beyond.said(state.limits[beyond])}; raise the limit, or lower the target"
        )
    if not records:
        return f"all {len(state.trained)} trainings diverged; choose smaller learning rates"
    best = [value for of_place in records.values() if (value := _best_of(of_place)) is not None]
    if not best:
        return "no training measured a model, because a cluster has no test examples; change the partition"
    first, *others = next(iter(records.values()))
    closest = max(best) if first.headline.higher_is_better else min(best)
    several = " with every seed" if others else ""
    more = "trainings or " if state.next(1) else ""
    return (
        f"none of {len(state.trained)} trainings reached the target {target:g}{several} in {state.most_rounds} global "
        f"rounds; the best value{several} is {closest:.4g}; change the target, or raise {more}training.global_rounds"
    )


def _best_of(records: Sequence[RunRecord]) -> float | None:
    """Return the best value that each of a candidate's runs has reached. If a run measured nothing, return None."""
    measured = [(record, rounds) for record in records if (rounds := measured_rounds(record))]
    if len(measured) < len(records):
        return None
    best = [rounds[best_round(record, rounds)] for record, rounds in measured]
    return min(best) if records[0].headline.higher_is_better else max(best)
