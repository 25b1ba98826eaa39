"""Give an FL method what it can use on a device: data, models, training and measurement."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from device.channels import Channels
from device.compute_thread import ComputeThread
from device.evaluation import EvaluationJob, features, outputs
from device.personal import KeptInMemory, PersonalStore
from device.steps import LocalSteps, trained_of
from device.training import TrainingJob
from fedstrata.attacks import Entry, attacks_of
from fedstrata.clock.device_side import DeviceClock
from fedstrata.datasets import Dataset, Examples
from fedstrata.errors import ExperimentError, PluginError
from fedstrata.experiment import Experiment
from fedstrata.methods import Arrays, Measurement, Method, Question, Trained
from fedstrata.models import Model
from fedstrata.noise import Noise, ResearchNoise, SealedNoise
from fedstrata.partitions import DeviceData, PublicData, public_data
from fedstrata.privacy.updates import UpdateBudget, budget_of
from fedstrata.process.metrics import ProcessMetrics
from fedstrata.rounds import ReceivedModel, Shield
from fedstrata.rpc.answer_messages import answer_to_proto
from fedstrata.streams.architectures import Architectures
from fedstrata.streams.streams import Streams
from fedstrata.tasks import Task
from fedstrata.tensors import Flat
from fedstrata.v1 import answers_pb2

Made = TypeVar("Made")


@dataclass(frozen=True, kw_only=True)
class DeviceProcess:
    """Hold the objects that all devices of one process use."""

    experiment: Experiment
    dataset: Dataset
    architectures: Architectures
    method: Method
    compute_thread: ComputeThread
    channels: Channels
    task: Task
    metrics: ProcessMetrics
    process_id: str
    pod_name: str
    shield_of: Callable[[str], Shield]  # the object that prepares a device's updates, by device
    state: Path | None = None  # folder of the devices' personal state; None: kept in memory
    clock: DeviceClock = field(default_factory=DeviceClock)
    # The last received model by LPS and cluster. An LPS that has lost the cluster's model asks for it.
    held: dict[str, ReceivedModel] = field(default_factory=dict)

    @property
    def model(self) -> Model:
        """The model of the experiment's section `model`. Some devices may have other models."""
        return self.architectures.main.model

    @property
    def streams(self) -> Streams:
        """The channels of the experiment's model: which tensors are averaged over which devices, and which tensors stay
        on their device. All devices send the same tensors.
        """
        return self.architectures.main.streams

    @cached_property
    def public(self) -> PublicData:
        """The public examples, which no device owns."""
        return public_data(self.experiment, self.dataset)

    @cached_property
    def update_budget(self) -> UpdateBudget | None:
        """The amount of noise that is added to updates. None if updates get no noise."""
        return budget_of(self.experiment)

    @cached_property
    def attacks(self) -> tuple[Entry, ...]:
        """The attacks of the experiment."""
        return attacks_of(self.experiment)

    def attacks_by(self, device_index: int) -> list[Entry]:
        """Return the attacks of one device."""
        return [entry for entry in self.attacks if device_index in entry.devices]

    @property
    def keeps_state(self) -> bool:
        """Return whether devices keep, from round to round, a state that never leaves them."""
        keeps_own = self.method.has_personal_state or any(each.streams.own.size for each in self.architectures.all)
        return keeps_own or self.experiment.training.optimiser.state == "kept"

    def store_of(self, device_id: str) -> PersonalStore | KeptInMemory:
        """Return the store in which a device keeps its state."""
        if self.state is None:
            return KeptInMemory()
        run_id = self.experiment.run_id
        return PersonalStore(self.state / run_id / device_id, run_id, device_id)


def noise_of(experiment: Experiment, device_id: str, state: Path | None) -> Noise:
    """Return the source of a device's noise.

    Raises:
        ExperimentError: the experiment has no noise, or the noise needs a `--state` folder, which the process
            does not have.
    """
    if experiment.privacy is None:
        raise ExperimentError("the method asks for noise, but the experiment has no section privacy; add it")
    if experiment.privacy.noise == "research":
        return ResearchNoise(experiment.seed, device_id)
    if state is None:
        raise ExperimentError(
            "privacy.noise is protection, but this device has no folder for the secret of its noise. After a restart "
            "it would draw other noise, and noise averages out; give --state"
        )
    return SealedNoise(state / experiment.run_id / device_id / "noise", experiment.run_id, device_id)


async def answered(
    method: Method, question: Question, work: "DeviceWork", heard: Mapping[int, Any]
) -> answers_pb2.Answer:
    """Ask the method for a device's answer to a question, and return the answer.

    Raises:
        PluginError: the user's own method fails, or returns an answer that the question does not allow.
    """
    arrays: Any = await method.answer(question, work, heard)
    if not (
        isinstance(arrays, Mapping) and all(isinstance(array, np.ndarray | np.generic) for array in arrays.values())
    ):
        raise PluginError(
            f"method {method.options.name}: answer must return arrays by name, such as {{'norms': array}}, not "
            f"{arrays!r:.80}"
        )
    return answer_to_proto(question, arrays)


@dataclass(frozen=True, kw_only=True)
class Beginning:
    """Hold the models and the state with which a device begins an LPS round. The defaults describe a device before
    training.
    """

    lps_round: int = -1
    global_round: int = 0
    cluster: int = 0
    received: Sequence[Flat] = ()  # complete models: of its own cluster, or of those in `offered`
    offered: Sequence[int] = ()  # empty: all clusters
    tables: Sequence[Arrays] = ()  # the tables of each received model
    personal: Arrays = field(default_factory=dict)  # what the method has kept on this device
    optimisers: Mapping[int, Arrays] = field(default_factory=dict)  # by number of the training: the kept state
    told: Arrays = field(default_factory=dict)  # what the GPS tells all devices


class DeviceWork:
    """Implement `fedstrata.methods.Work` for one device in one LPS round, or before training."""

    def __init__(
        self,
        host: DeviceProcess,
        data: DeviceData,
        device_index: int,
        *,
        group: str = "",
        made: dict[str, Any] | None = None,
        begins: Beginning | None = None,
    ) -> None:
        """Prepare the work of one device.

        Devices with the same `group` train at about the same time, so they may be trained together. `made` has the
        earlier results of `DeviceWork.once`, by their names. `begins` has what the device received for the LPS round;
        before training it is None.
        """
        begins = begins or Beginning()
        self._host = host
        self._group = group
        self._made = made if made is not None else {}
        self.model = host.architectures.at(device_index, begins.global_round).model
        self.examples: Examples = data.train
        self.held_out: Examples = data.test
        self.device_index = device_index
        self.seed = host.experiment.seed
        self.lps_round = begins.lps_round
        self.global_round = begins.global_round
        self.received = begins.received
        self.offered = begins.offered or range(len(begins.received))
        self.noted: dict[str, Any] = {}
        self.cluster = begins.cluster
        self.told = begins.told
        self.trained: Flat = np.empty(0, np.float32)
        self.update: Flat = np.empty(0, np.float32)
        self.personal = begins.personal
        self._optimisers = begins.optimisers
        self._after: dict[int, Arrays] = {}  # by number of the training: the optimiser's state
        self._tables = begins.tables
        self._counted = 0  # examples used in trainings and in own arithmetic
        self._steps: list[LocalSteps] = []  # trainings whose steps the method takes itself

    def go_on(self, cluster: int) -> None:
        """Continue the round in this cluster. The plan of the round has chosen the cluster for this device."""
        self.cluster = cluster

    def note_training(self, weights: Flat, update: Flat) -> None:
        """Keep the trained weights and the update. The device needs them to answer a question after training."""
        self.trained, self.update = weights, update

    @property
    def start(self) -> Flat:
        """The received model of the device's cluster. Before training, the initial weights."""
        if not self.received:
            return self._host.method.initial(self.model, 0)
        return self.received[self.own_place]

    @property
    def tables(self) -> Arrays:
        """The received tables of the device's cluster, and the device's own tables. Tables are additional tensors of
        the method. Before training, there are none.
        """
        return self._tables[self.own_place] if self._tables else {}

    @property
    def own_place(self) -> int:
        """The position of the device's own cluster among the received models."""
        return self.offered.index(self.cluster) if len(self.received) > 1 else 0

    @property
    def trained_examples(self) -> int:
        """The number of examples in all trainings so far. Trainings with a discarded result are not counted."""
        kept = (steps for steps in self._steps if steps.number not in self._host.method.discarded)
        return self._counted + sum(steps.losses.examples for steps in kept)

    @property
    def optimisers(self) -> dict[int, Arrays]:
        """The newest states of the optimiser by the number of a training within its LPS round. The next round begins
        with these states.
        """
        taken = {steps.number: state for steps in self._steps if steps.moves and (state := steps.state())}
        return {**self._optimisers, **self._after, **taken}

    async def train(
        self,
        start: Flat,
        *,
        correct: Callable[..., torch.Tensor] | None = None,
        beside: tuple[Flat, ...] = (),
        number: int = 0,
        epochs: int | None = None,
        on: Examples | None = None,
        targets: NDArray[np.float32] | None = None,
        only: Sequence[str] | None = None,
    ) -> Trained:
        """Train from the weights `start` on the device's examples, or on the examples `on`, and return the result.
        `fedstrata.methods.Work` describes the other arguments.
        """
        job = self._job(
            start,
            examples=self.examples if on is None else on,
            correct=correct,
            beside=beside,
            number=number,
            epochs=epochs,
            targets=targets,
            only=None if only is None else tuple(only),
        )
        result = await self._host.compute_thread.train(job, self._group)
        if number not in self._host.method.discarded:
            self._counted += job.trained_examples
            if result.optimiser_state:
                self._after[number] = result.optimiser_state
        return trained_of(result, job)

    def steps(self, start: Flat, *, number: int = 0) -> LocalSteps:
        """Begin a training in which the method takes each local step itself (see `fedstrata.methods.Work`). Return the
        object with which the method takes the steps.
        """
        steps = LocalSteps(self._job(start, examples=self.examples, number=number))
        self._steps.append(steps)
        return steps

    def _job(self, start: Flat, *, number: int, **rest: Any) -> TrainingJob:
        """Return the job of a training in this round. `rest` gives the other fields of the job."""
        training = self._host.experiment.training
        is_measured = self.lps_round >= 0 and training.is_measured(self.global_round)
        return TrainingJob(
            model=self.model,
            start=start,
            training=training,
            seed=self.seed,
            device_index=self.device_index,
            lps_round=max(0, self.lps_round),
            global_round=self.global_round,
            held_out=self.held_out if is_measured else None,
            number=number,
            optimiser_state=self._optimisers.get(number, {}),
            task=self._host.task,
            **rest,
        )

    async def measure(self, weights: Flat, *, on_own: bool = False, on: Examples | None = None) -> Measurement:
        """Measure weights on the examples `on`, and return the measurement. Without `on`, use the held-out examples or,
        with `on_own`, the device's training examples.
        """
        examples = (self.examples if on_own else self.held_out) if on is None else on
        job = EvaluationJob(model=self.model, weights=weights, examples=examples, task=self._host.task)
        return Measurement(**(await self._host.compute_thread.evaluate(job, self._group))._asdict())

    @cached_property
    def noise(self) -> Noise:
        """The source of noise for the values that a device sends. Raises ExperimentError if the experiment has no
        noise.
        """
        experiment = self._host.experiment
        return noise_of(experiment, experiment.device_ids()[self.device_index], self._host.state)

    @property
    def public(self) -> PublicData:
        """The public examples, which no device owns. Raises ExperimentError if the experiment has no public
        examples.
        """
        return self._host.public

    async def outputs(self, weights: Flat, inputs: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the model's outputs for these inputs, with these weights. They are values before the softmax, shape
        (n, num_classes).
        """
        return await self._host.compute_thread.compute(lambda: outputs(self.model, weights, inputs))

    async def features(self, weights: Flat, inputs: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the inputs of the model's last layer for these inputs, with these weights, shape (n, width)."""
        return await self._host.compute_thread.compute(lambda: features(self.model, weights, inputs))

    async def compute(self, arithmetic: Callable[[], Made], *, trained_examples: int = 0) -> Made:
        """Run a computation, and return its result. The devices of a process compute one after another, as
        `fedstrata.methods.Work` says.
        """
        if trained_examples < 0:
            raise PluginError(f"trained_examples is {trained_examples}; give the number of examples used, 0 or more")
        self._counted += trained_examples
        return await self._host.compute_thread.compute(arithmetic)

    async def once(self, name: str, make: Callable[[], Made]) -> Made:
        """Return the result of a computation. The first call with this name computes the result. Later calls return the
        same result.
        """
        if name not in self._made:
            self._made[name] = asyncio.ensure_future(self._host.compute_thread.compute(make))
        made: Made = await self._made[name]
        return made


def put_together(streams: Streams, travelling: Flat, own: Flat | None) -> Flat:
    """Return one vector with all tensors of a device's model. `travelling` has the tensors that are sent, and `own` the
    tensors that stay on the device. If `own` is None, all tensors are sent.
    """
    if own is None:
        return travelling
    whole = np.empty(streams.whole.size, np.float32)
    put_into(whole, streams.whole.slices_of(streams.travelling), travelling)
    put_into(whole, streams.whole.slices_of(streams.own), own)
    return whole


def put_into(whole: Flat, places: Sequence[slice], values: Flat) -> None:
    """Write consecutive values into several ranges (`places`) of a vector, one range after another."""
    start = 0
    for place in places:
        whole[place] = values[start : start + place.stop - place.start]
        start += place.stop - place.start
