"""Who finds which groups before training, of every run of a sweep: by the questions and plans of its methods alone.

`python -m benchmarks.grouping experiments/sweeps/grouping.yaml` prints adjusted Rand indexes, mean ± deviation over
seeds. `fedstrata sweep` on the same file has the three tiers carry them.
"""

import argparse
import asyncio
from collections.abc import Callable
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, cast

from sklearn.metrics import adjusted_rand_score
from threadpoolctl import threadpool_limits

from emulator.sweeps.file import load_sweep
from fedstrata.datasets import Dataset, Examples, load_dataset
from fedstrata.experiment import Experiment
from fedstrata.methods import Answers, Arrays, Candidate, Method, Moment, Question, make_method
from fedstrata.methods.work import Work
from fedstrata.noise import Noise, ResearchNoise
from fedstrata.partitions import device_data


class DataOnly:
    """What a device has before training, as far as methods ask for it that group by data alone."""

    def __init__(self, examples: Examples, noise: Noise) -> None:
        self.examples = examples
        self.noise = noise
        self._known: dict[str, Any] = {}

    async def once(self, name: str, compute: Callable[[], Any]) -> Any:
        """What is computed but once for a device."""
        if name not in self._known:
            self._known[name] = compute()
        return self._known[name]


async def answers_to(method: Method, question: Question, works: list[Work], given: dict[int, Arrays] | None) -> Any:
    """By device, with what it heard of all where the question before is relayed."""

    async def one(work: Work) -> Arrays:
        heard = {index: await method.hear(question, work, arrays) for index, arrays in (given or {}).items()}
        return await method.answer(question, work, heard)

    return {index: await one(work) for index, work in enumerate(works)}


def works_of(experiment: Experiment, dataset: Dataset) -> list[Work]:
    """The devices of an experiment; they may answer several methods one after the other."""
    return [
        cast("Work", DataOnly(device_data(experiment, dataset, index).train, ResearchNoise(experiment.seed, device_id)))
        for index, device_id in enumerate(experiment.device_ids())
    ]


async def index_of(experiment: Experiment, works: list[Work]) -> float:
    """The adjusted Rand index of a method's first plan with the true groups."""
    method = make_method(experiment)
    count = experiment.device_count
    given: dict[str, dict[int, Arrays]] = {}
    relayed: dict[int, Arrays] | None = None
    for question in method.questions():
        given[question.name] = await answers_to(method, question, works, relayed)
        relayed = given[question.name] if question.relayed else None
    candidates = [Candidate(device_index=index, num_examples=len(works[index].examples)) for index in range(count)]
    plan = method.plan(Moment.BEFORE, Answers(candidates, given), None)
    return float(adjusted_rand_score(experiment.task_of_devices(), [plan.cluster_of(index) for index in range(count)]))


def main() -> None:
    """Print a row a setting, a column a cell."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sweep", type=Path)
    sweep = load_sweep(parser.parse_args().sweep)
    dataset = load_dataset(sweep.runs[0].experiment.data)
    cells = list(dict.fromkeys(place.cell for place in sweep.places))
    print(f"| {' | '.join([', '.join(sweep.axes), *cells])} |\n|---|{'---:|' * len(cells)}")
    for setting in dict.fromkeys(place.setting for place in sweep.places):
        found: dict[str, list[float]] = {cell: [] for cell in cells}
        for seed in sweep.seeds:
            runs = [run for run in sweep.runs if run.place.setting == setting and run.seed == seed]
            works = works_of(runs[0].experiment, dataset)  # which all cells have in common
            for run in runs:
                found[run.place.cell].append(asyncio.run(index_of(run.experiment, works)))
        said = [f"{fmean(each):.2f} ± {stdev(each):.2f}".replace("-", "−") for each in found.values()]
        print(f"| {', '.join(choice for _, choice in setting)} | {' | '.join(said)} |", flush=True)


if __name__ == "__main__":
    with threadpool_limits(1):  # as at a device
        main()
