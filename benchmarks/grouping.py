"""The groups that each run of a sweep finds before training, from the questions and plans of its methods alone.

`python -m benchmarks.grouping experiments/sweeps/grouping.yaml` prints adjusted Rand indexes, mean ± deviation over
seeds. `fedstrata sweep` on the same file sends the same questions and answers over the three tiers.
"""

import argparse
import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, cast

from sklearn.metrics import adjusted_rand_score
from threadpoolctl import threadpool_limits

from device.compute_thread import ComputeThread
from device.stacked.training import Stacked
from device.training import limit_threads
from device.work import DeviceProcess, DeviceWork
from emulator.sweeps.file import Sweep, load_sweep
from fedstrata.datasets import Dataset, load_dataset
from fedstrata.experiment import Experiment
from fedstrata.methods import Answers, Arrays, Candidate, Method, Moment, Plan, Question, make_method
from fedstrata.partitions import DeviceData, device_data
from fedstrata.streams.architectures import Architectures
from fedstrata.tasks import make_task


@dataclass(frozen=True)
class Data:
    """Hold a device's data, and the results that methods compute from the data only once. All cells of a sweep share
    both.
    """

    examples: DeviceData
    known: dict[str, Any] = field(default_factory=dict)


def host_of(experiment: Experiment, dataset: Dataset) -> DeviceProcess:
    """Return the process of all devices. It trains as the device program does, but sends nothing."""
    method, nothing = make_method(experiment), cast("Any", None)
    return DeviceProcess(
        experiment=experiment, dataset=dataset, architectures=Architectures(experiment, method), method=method,
        compute_thread=ComputeThread(Stacked()), task=make_task(experiment), process_id="", pod_name="",
        channels=nothing, metrics=nothing, shield_of=nothing,
    )  # fmt: skip


async def answer_to(question: Question, method: Method, work: DeviceWork, given: dict[int, Arrays]) -> Arrays:
    """Return a device's answer. If the answers to the previous question were relayed to all devices, `given` has these
    answers. Otherwise it is empty.
    """
    heard = {index: await method.hear(question, work, arrays) for index, arrays in given.items()}
    return await method.answer(question, work, heard)


def data_of(experiment: Experiment, dataset: Dataset) -> list[Data]:
    """Return the data of each device of an experiment. Several methods may use the result, one after the other."""
    return [Data(device_data(experiment, dataset, index)) for index in range(experiment.device_count)]


async def plan_of(experiment: Experiment, data: Sequence[Data], dataset: Dataset) -> Plan:
    """Return a method's first plan."""
    host = host_of(experiment, dataset)
    method = host.method
    works = [DeviceWork(host, each.examples, index, made=each.known) for index, each in enumerate(data)]
    given: dict[str, dict[int, Arrays]] = {}
    relayed: dict[int, Arrays] = {}
    for question in method.questions():
        answers = {index: await answer_to(question, method, work, relayed) for index, work in enumerate(works)}
        given[question.name] = answers
        relayed = answers if question.relayed else {}
    candidates = [Candidate(device_index=index, num_examples=len(work.examples)) for index, work in enumerate(works)]
    return method.plan(Moment.BEFORE, Answers(candidates, given), None)


def index_of(experiment: Experiment, plan: Plan) -> float:
    """Return the adjusted Rand index of a plan with the true groups."""
    found = [plan.cluster_of(index) for index in range(experiment.device_count)]
    return float(adjusted_rand_score(experiment.task_of_devices(), found))


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
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sweep", type=Path)
    sweep = load_sweep(parser.parse_args().sweep)
    tabulate(sweep, load_dataset(sweep.runs[0].experiment.data, sweep.runs[0].experiment.seed))


if __name__ == "__main__":
    limit_threads()
    with threadpool_limits(1):  # as in a device process
        main()
