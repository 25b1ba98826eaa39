"""The groups that each run of a sweep finds before training, from the questions and plans of its methods alone.

`python -m benchmarks.grouping experiments/sweeps/grouping.yaml` prints adjusted Rand indexes, mean ± deviation over
seeds. `fedstrata sweep` on the same file sends the same questions and answers over the three tiers. With `--runs
FOLDER` of such a sweep, it prints instead how many of its runs have the same clusters and the same affinity, to the
bit.
"""

import argparse
import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, cast

from sklearn.metrics import adjusted_rand_score
from threadpoolctl import threadpool_limits

from device.stacked.training import Stacked
from device.training import LocalResult, TrainingJob, limit_threads
from emulator.sweeps.file import Sweep, load_sweep
from fedstrata.datasets import Dataset, Examples, load_dataset
from fedstrata.experiment import Experiment
from fedstrata.methods import Answers, Arrays, Candidate, Method, Moment, Plan, Question, make_method
from fedstrata.methods.work import Work
from fedstrata.models import Model, build_model
from fedstrata.noise import ResearchNoise
from fedstrata.partitions import device_data
from fedstrata.record.relevance import read_relevance
from fedstrata.tasks import CLASSIFICATION
from fedstrata.tensors import Flat


class Data:
    """Hold a device's data and results computed from them, which all cells of a sweep share."""

    def __init__(self, examples: Examples) -> None:
        self.examples = examples
        self.known: dict[str, Any] = {}


class BeforeTraining:
    """Give methods that group once the part of a device's work that they ask for before training."""

    def __init__(self, experiment: Experiment, model: Model, data: Data, device_index: int) -> None:
        self.examples = data.examples
        self.model = model
        self.device_index = device_index
        self.noise = ResearchNoise(experiment.seed, experiment.device_ids()[device_index])
        self._experiment = experiment
        self._known = data.known

    async def once(self, name: str, compute: Callable[[], Any]) -> Any:
        """Return a value that is computed once per device."""
        if name not in self._known:
            self._known[name] = compute()
        return self._known[name]

    async def train(self, start: Flat, *, epochs: int) -> LocalResult:
        """Return the result of training on the device's examples."""
        job = TrainingJob(
            task=CLASSIFICATION,
            model=self.model,
            start=start,
            examples=self.examples,
            training=self._experiment.training,
            seed=self._experiment.seed,
            device_index=self.device_index,
            lps_round=0,
            global_round=0,
            epochs=epochs,
        )
        return Stacked().train([job])[0]  # the device program does the same


async def answers_to(method: Method, question: Question, works: list[Work], given: dict[int, Arrays] | None) -> Any:
    """Return the answers by device. `given` has the answers to the last question, which are relayed to all devices."""

    async def one(work: Work) -> Arrays:
        heard = {index: await method.hear(question, work, arrays) for index, arrays in (given or {}).items()}
        return await method.answer(question, work, heard)

    return {index: await one(work) for index, work in enumerate(works)}


def data_of(experiment: Experiment, dataset: Dataset) -> list[Data]:
    """Return the data of an experiment's devices, which may answer several methods one after the other."""
    return [Data(device_data(experiment, dataset, index).train) for index in range(experiment.device_count)]


async def plan_of(experiment: Experiment, data: Sequence[Data], dataset: Dataset) -> Plan:
    """Return a method's first plan."""
    method, model = make_method(experiment), build_model(experiment.model, dataset.info)
    works = [cast("Work", BeforeTraining(experiment, model, each, index)) for index, each in enumerate(data)]
    given: dict[str, dict[int, Arrays]] = {}
    relayed: dict[int, Arrays] | None = None
    for question in method.questions():
        given[question.name] = await answers_to(method, question, works, relayed)
        relayed = given[question.name] if question.relayed else None
    candidates = [Candidate(device_index=index, num_examples=len(each.examples)) for index, each in enumerate(data)]
    return method.plan(Moment.BEFORE, Answers(candidates, given), None)


def index_of(experiment: Experiment, plan: Plan) -> float:
    """Return the adjusted Rand index of a plan with the true groups."""
    found = [plan.cluster_of(index) for index in range(experiment.device_count)]
    return float(adjusted_rand_score(experiment.task_of_devices(), found))


def is_same(experiment: Experiment, plan: Plan, run: Path) -> bool:
    """Return whether a run's first plan has the same clusters, and the same affinity to the bit."""
    ids = experiment.device_ids()
    clusters = [[ids[index] for index in cluster] for cluster in plan.clusters]
    summary: Mapping[str, Any] = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    affinity = read_relevance(run / "relevance.csv")
    return (
        list(summary["clusters"].values()) == clusters
        and affinity is not None
        and plan.affinity is not None
        and affinity.matrix.tobytes() == plan.affinity.tobytes()
    )


def compare(sweep: Sweep, dataset: Dataset, runs: Path) -> None:
    """Print how many runs of a folder have the same plans as here, and the label of each run with another plan."""
    there = [run for run in sweep.runs if (runs / run.path / "summary.json").is_file()]
    same = 0
    for run in there:
        plan = asyncio.run(plan_of(run.experiment, data_of(run.experiment, dataset), dataset))
        if is_same(run.experiment, plan, runs / run.path):
            same += 1
        else:
            print(f"another plan: {run.label}", flush=True)
    print(f"{same} of {len(there)} runs have the same clusters and the same affinity, to the bit")


def tabulate(sweep: Sweep, dataset: Dataset) -> None:
    """Print a table with a row per setting and a column per cell."""
    cells = list(dict.fromkeys(place.cell for place in sweep.places))
    print(f"| {' | '.join([', '.join(sweep.axes), *cells])} |\n|---|{'---:|' * len(cells)}")
    for setting in dict.fromkeys(place.setting for place in sweep.places):
        found: dict[str, list[float]] = {cell: [] for cell in cells}
        for seed in sweep.seeds:
            runs = [run for run in sweep.runs if run.place.setting == setting and run.seed == seed]
            data = data_of(runs[0].experiment, dataset)  # all cells have the same data
            for run in runs:
                plan = asyncio.run(plan_of(run.experiment, data, dataset))
                found[run.place.cell].append(index_of(run.experiment, plan))
        said = [f"{fmean(each):.2f} ± {stdev(each):.2f}".replace("-", "−") for each in found.values()]
        print(f"| {', '.join(choice for _, choice in setting)} | {' | '.join(said)} |", flush=True)


def main() -> None:
    """Print the table, or the comparison."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sweep", type=Path)
    parser.add_argument(
        "--runs", type=Path, help="compare with this folder, made by `fedstrata sweep` of the same file"
    )
    asked = parser.parse_args()
    sweep = load_sweep(asked.sweep)
    dataset = load_dataset(sweep.runs[0].experiment.data, sweep.runs[0].experiment.seed)
    if asked.runs is not None:
        compare(sweep, dataset, asked.runs)
    else:
        tabulate(sweep, dataset)


if __name__ == "__main__":
    limit_threads()
    with threadpool_limits(1):  # as in a device process
        main()
