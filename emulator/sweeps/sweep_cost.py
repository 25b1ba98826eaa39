"""Say what a sweep costs before it starts: its runs, seconds of training, bytes and memory."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.text import Text

from emulator.console.console_tables import plain_table
from emulator.console.units import counted, human_bytes, human_seconds
from emulator.estimates.round_cost import round_cost
from emulator.estimates.sizing import device_memory
from emulator.sweeps.check_runs import check_runs
from emulator.sweeps.file import Sweep
from fedstrata.datasets import Dataset, load_dataset
from fedstrata.experiment import Experiment

Measure = Callable[[Experiment, Dataset], float]  # returns seconds in which one core trains an example
OF_A_RUN = (
    "Rows are of one run: training on one core, bytes between devices and LPSs, memory of the process with its devices."
)
BASIS = (
    "Seconds are those of plain training steps, as measured here. Methods that train more than once per round take as "
    "many times longer, and starts, questions, measurements and messages take more time. Asynchronous rounds train "
    "less. Memory is that of processes with devices; the GPS and LPSs need more."
)
UNMEASURED = "Add --try to measure seconds of training."


@dataclass(frozen=True, kw_only=True)
class RowCost:
    """Hold what the runs of a row of the sweep's table cost. All seeds of a row cost about the same."""

    label: str
    runs: int
    training_s: float  # seconds in which one core does the training of one run; 0 if not measured
    sent_bytes: int  # payload bytes between devices and LPSs in the training of one run
    memory_bytes: int  # memory of one run's process with all devices


def row_costs(sweep: Sweep, measure: Measure | None) -> list[RowCost]:
    """Check the runs of the first seed, and return the cost of each row. Rows with the same data, model, task,
    optimiser, batch size and processor share a measurement.

    Raises:
        FedstrataError: a run of the first seed is not possible, or its data are not on this machine.
    """
    runs = [run for run in sweep.runs if run.seed == sweep.seeds[0]]
    check_runs(runs)
    paces: dict[str, float] = {}
    return [_row(run.place.label, run.experiment, len(sweep.seeds), measure, paces) for run in runs]


def print_costs(parts: Sequence[tuple[str, Sequence[RowCost]]], *, cores: int, console: Console) -> None:
    """Print a table per part, such as the candidates of `tune`, and a line with the total cost of all parts."""
    for title, rows in parts:
        table = plain_table(title, numbers=["runs", "training", "sent", "memory"])
        for row in rows:
            seconds = human_seconds(row.training_s or None)
            table.add_row(row.label, str(row.runs), seconds, human_bytes(row.sent_bytes), human_bytes(row.memory_bytes))
        console.print(table)
    console.print(Text(total_of([row for _, rows in parts for row in rows], cores=cores)), soft_wrap=True)


def total_of(rows: Sequence[RowCost], *, cores: int) -> str:
    """Return lines about the cost of all runs. `fedstrata sweep` does `cores` + 1 runs at a time."""
    runs, at_once = sum(row.runs for row in rows), cores + 1
    seconds = sum(row.runs * row.training_s for row in rows) / cores
    sent = sum(row.runs * row.sent_bytes for row in rows)
    largest = sorted((row.memory_bytes for row in rows for _ in range(row.runs)), reverse=True)[:at_once]
    training = f"about {human_seconds(seconds)} of training on {counted(cores, 'core')}, " if seconds else ""
    return (
        f"{counted(runs, 'run')}: {training}{human_bytes(sent)} between devices and LPSs, and up to "
        f"{human_bytes(sum(largest))} of memory for {counted(len(largest), 'run')} at once\n"
        f"{OF_A_RUN} {BASIS if seconds else UNMEASURED}"
    )


def _row(label: str, experiment: Experiment, runs: int, measure: Measure | None, paces: dict[str, float]) -> RowCost:
    training = experiment.training
    key = (
        f"{experiment.data!r} {experiment.model!r} {experiment.task!r} {training.optimiser.name} {training.batch_size} "
        f"{experiment.devices.processor}"
    )
    dataset = load_dataset(experiment.data, experiment.seed)
    if measure is not None and key not in paces:
        paces[key] = measure(experiment, dataset)
    cost = round_cost(experiment, dataset, per_example_s=paces.get(key, 0.0), cores=1)
    memory = device_memory(experiment, dataset)
    return RowCost(
        label=label,
        runs=runs,
        training_s=cost.lps_rounds * cost.training_s,
        sent_bytes=cost.lps_rounds * (cost.bytes_up + cost.bytes_down),
        memory_bytes=memory.of(experiment.device_count),
    )
