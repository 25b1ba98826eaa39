"""Training of many devices at once, for dense networks: batched matrix products, with the device as the first axis."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import log_softmax

from device.evaluation import Evaluation, EvaluationJob
from device.optimisers import learning_rate
from device.stacked.corrected_steps import CorrectedSteps, Correction
from device.stacked.dense_stack import DenseStack, Forward
from device.stacked.dense_steps import DenseSteps, PlainSteps, StackedSgd
from device.stacked.stack_data import SLAB_STEPS, Batches, Inputs
from device.training import LocalResult, OneByOne, TrainingJob
from fedstrata.datasets import Examples
from fedstrata.experiment import SgdSettings
from fedstrata.models import Model
from fedstrata.process.logs import EventLog
from fedstrata.tasks import Classification
from fedstrata.tensors.processor import read

EVALUATION_ROWS = 64  # examples of a device in one product: another number could change the last bits
STACK_BYTES = 6 << 20  # weights twice, and inputs: about a core's cache (measured)
CORRECTED_STACK_BYTES = 2 * STACK_BYTES  # for stacks with a correction, whose steps make more calls
log = EventLog("training")


class Stacked:
    """Train jobs with equal dense networks together, and other jobs one by one."""

    def __init__(self, most_devices: int | None = None) -> None:
        """Put at most `most_devices` devices into a stack. By default, a stack has as many devices as fit into a core's
        cache. The number changes no bit of the results.
        """
        self._most_devices = most_devices
        self._alone = OneByOne()
        self._reasons_said: set[str] = set()

    def train(self, jobs: Sequence[TrainingJob]) -> list[LocalResult]:
        """Train the jobs, and return their results in the order of the jobs."""
        results: dict[int, LocalResult] = {}
        alike: dict[object, list[int]] = defaultdict(list)
        for place, job in enumerate(jobs):
            reason = _why_alone(job)
            if reason is None:
                alike[_alike(job)].append(place)
                continue
            if reason not in self._reasons_said:
                self._reasons_said.add(reason)
                log.info("devices_train_one_by_one", reason=reason)
            (results[place],) = self._alone.train([job])
        for places in alike.values():
            first = jobs[places[0]]
            most_bytes = STACK_BYTES if first.correct is None else CORRECTED_STACK_BYTES
            for part in self._parts(first.model, batch_rows(first), places, most_bytes):
                results.update(zip(part, train_stack([jobs[place] for place in part]), strict=True))
        return [results[place] for place in range(len(jobs))]

    def evaluate(self, jobs: Sequence[EvaluationJob]) -> list[Evaluation]:
        """Measure each job's model on its examples. Return the measurements in the order of the jobs."""
        results: dict[int, Evaluation] = {}
        alike: dict[object, list[int]] = defaultdict(list)
        for place, job in enumerate(jobs):
            if _why_not_stacked(job, [job.examples]) is None:
                alike[(job.model.dense, job.examples.scale)].append(place)
            else:
                (results[place],) = self._alone.evaluate([job])
        for places in alike.values():
            for part in self._parts(jobs[places[0]].model, EVALUATION_ROWS, places):
                results.update(zip(part, evaluate_stack([jobs[place] for place in part]), strict=True))
        return [results[place] for place in range(len(jobs))]

    def _parts(self, model: Model, rows: int, places: list[int], most_bytes: int = STACK_BYTES) -> Iterator[list[int]]:
        device_bytes = 4 * (2 * model.layout.size + rows * sum(model.dense))
        most = self._most_devices or max(1, most_bytes // device_bytes)
        return (places[start : start + most] for start in range(0, len(places), most))


def _why_alone(job: TrainingJob) -> str | None:
    """If a device must train alone, return the reason. If this module can train it together with other devices, return
    None.
    """
    reason = _why_not_stacked(job, [job.examples, job.held_out])
    if reason is not None:
        return reason
    if not job.training.optimiser.is_plain:
        return "the optimiser is not plain SGD"
    if job.targets is not None:
        return "the method replaces labels by targets"
    if job.training.last_batch != "kept":
        return "last batches have other sizes"
    return None if job.only is None else "the method trains only some of the tensors"


def _why_not_stacked(job: TrainingJob | EvaluationJob, examples: Iterable[Examples | None]) -> str | None:
    """If this module cannot compute a job, return the reason. Otherwise return None. It can compute a job if the model
    is a dense network, the task is `Classification`, and the inputs are in memory (not read again in each step).
    """
    if not job.model.dense:
        return "the model is not a plain dense network"
    if type(job.task) is not Classification:
        return "the task is not classification"
    is_drawn = any(part is not None and part.is_drawn for part in examples)
    return "inputs are read again in each step" if is_drawn else None


def batch_rows(job: TrainingJob) -> int:
    """Return the number of rows in every batch of a device. A smaller last batch is completed with examples of weight
    0.
    """
    return min(job.training.batch_size, len(job.examples))


def _alike(job: TrainingJob) -> object:
    """Return the properties that must be equal for all jobs of one stack."""
    held_out_scale = job.held_out.scale if job.held_out is not None else None
    stored = job.examples.scale, held_out_scale
    corrected = job.correct, len(job.beside)
    return job.model.dense, job.training, batch_rows(job), job.global_round, stored, corrected


@torch.inference_mode()
def train_stack(jobs: Sequence[TrainingJob]) -> list[LocalResult]:
    """Return the results of `train` for each of these jobs, computed together."""
    # For a single device and row, the library would use another kernel, with other last bits. So with batches of one
    # row, the longest training is done twice, side by side.
    company = [max(jobs, key=lambda job: job.steps)] if batch_rows(jobs[0]) == 1 else []
    jobs = [*jobs, *company]
    places = sorted(range(len(jobs)), key=lambda place: -jobs[place].steps)
    ordered = [jobs[place] for place in places]
    stack = DenseStack(ordered[0].model, [job.start for job in ordered])
    measured = _measured(stack, [job.held_out for job in ordered])
    losses = descend(stack, ordered)
    weights = stack.flats()
    results = {
        place: LocalResult(
            weights=weights[device], train_loss=losses[device], steps=job.steps, evaluation=measured[device]
        )
        for device, (place, job) in enumerate(zip(places, ordered, strict=True))
    }
    return [results[place] for place in range(len(jobs) - len(company))]


def descend(stack: DenseStack, jobs: Sequence[TrainingJob]) -> list[float]:
    """Train the stack in place. Return each device's mean loss over its examples."""
    rows = batch_rows(jobs[0])
    batches = Batches(jobs, rows, stack.widths[0])
    steps_of = _steps_of(stack, jobs, rows)
    steps = steps_of(len(jobs))
    loss_sums, seen = np.zeros(len(jobs)), np.zeros(len(jobs), np.int64)
    for start in range(0, jobs[0].steps, SLAB_STEPS):
        slab = batches.slab(min(SLAB_STEPS, jobs[0].steps - start))
        losses = stack.processor.zeros(*slab.labels.shape)
        for step, active in enumerate((slab.counts > 0).sum(1).tolist()):
            if active < steps.active:
                steps = steps_of(active)
            inputs = batches.inputs.fill([orders[step] for orders in slab.orders[:active]])
            here = (step, slice(active))
            steps.step(inputs, slab.labels[here], slab.shares[here], losses[here])
        is_example = np.arange(rows) < slab.counts[..., None]
        loss_sums -= sum_of_losses(np.where(is_example, read(losses)[..., 0], 0.0))
        seen += slab.counts.sum(0)
    return [float(total) / int(count) for total, count in zip(loss_sums, seen, strict=True)]


def _steps_of(stack: DenseStack, jobs: Sequence[TrainingJob], rows: int) -> Callable[[int], DenseSteps]:
    """Return a function that constructs the training steps of the first n devices of a stack, with n as argument. Each
    step has `rows` examples per device.
    """
    first = jobs[0]
    if first.correct is not None:
        correction = Correction(stack, first.correct, jobs)
        return lambda active: CorrectedSteps(correction, active, rows)
    settings, rate = cast(SgdSettings, first.training.optimiser), learning_rate(first.training, first.global_round)
    optimiser = StackedSgd(stack.leaves, settings, rate)
    return lambda active: PlainSteps(stack, optimiser, active, rows)


@torch.inference_mode()
def evaluate_stack(jobs: Sequence[EvaluationJob]) -> list[Evaluation]:
    """Return the results of `evaluate` for each of these jobs, computed together. All jobs have the same model."""
    stack = DenseStack(jobs[0].model, [job.weights for job in jobs])
    return [measured for measured in _measured(stack, [job.examples for job in jobs]) if measured is not None]


def _measured(stack: DenseStack, held_out: Sequence[Examples | None]) -> list[Evaluation | None]:
    """Return the measurement of each device on its held-out examples, computed `EVALUATION_ROWS` examples at a time. If
    `held_out` is None for a device, the device's measurement is None.
    """
    sizes = [0 if examples is None else len(examples) for examples in held_out]
    anything = next((examples for examples in held_out if examples), None)
    if anything is None:
        return [None if examples is None else Evaluation(0.0, (0.0,), 0) for examples in held_out]
    # A device without examples borrows some, and its sums are dropped.
    measured = [examples or anything for examples in held_out]
    inputs = Inputs(measured, EVALUATION_ROWS, stack.widths[0], stack.processor)
    forward = Forward(stack, len(measured), EVALUATION_ROWS)
    rows = range(0, max(sizes), EVALUATION_ROWS)
    places = np.arange(rows.start, rows[-1] + EVALUATION_ROWS)
    orders = [np.minimum(places, len(examples) - 1) for examples in measured]
    found = np.stack([each.labels[order] for each, order in zip(measured, orders, strict=True)])
    labels, logs, hit = stack.processor.shared(found), [], []
    for start in rows:
        here = slice(start, start + EVALUATION_ROWS)
        logits = forward.logits(inputs.fill([order[here] for order in orders]))
        logs.append(log_softmax(logits, 2).gather(2, labels[:, here, None])[..., 0])
        hit.append(logits.argmax(2) == labels[:, here])
    losses, hits = read(-torch.cat(logs, 1)), read(torch.cat(hit, 1))
    return [
        None
        if examples is None
        else Evaluation(float(losses[device, :size].sum(dtype=np.float64)), (float(hits[device, :size].sum()),), size)
        for device, (examples, size) in enumerate(zip(held_out, sizes, strict=True))
    ]


def sum_of_losses(losses: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return each device's sum of losses. `losses` has the shape (steps, devices, rows). The steps are added one after
    another, so that a device's sum does not depend on the other devices.

    NumPy's own sum would add the steps of one device in another order than the steps of two devices.
    """
    total = np.zeros(losses.shape[1])
    for step in losses.sum(2, dtype=np.float64):
        total += step
    return total
