"""FedTSDP (Federated Two-Stage Decoupling With Adaptive Personalization Layers; `docs/methods.md`).

In each round every trained device computes the outputs of its model on a batch of public examples. If the Hopkins
statistic (Eq. 6) shows that these outputs form groups, DBSCAN groups the devices by the Jensen-Shannon divergences
between outputs (Eq. 5). DBSCAN then divides each group by the distances between weights (Eq. 9). The first layers are
averaged in each group, and the other layers stay on devices. Each new grouping reduces the number of shared layers (Eq.
11). The batch that led to the grouping becomes more likely to be drawn again (Eq. 7, 8).

Departures: in the paper the server computes the outputs from whole models. Here each device computes its own outputs.
In place of its weights it sends a sketch, which is a short vector. Distances between sketches approximate distances
between weights, so the server never needs a device's whole model. The option `growth` decides how much more likely a
batch becomes.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from pydantic import Field

from fedstrata.errors import ExperimentError, PayloadError
from fedstrata.methods.base import (
    Answers,
    Arrays,
    Candidate,
    Channel,
    Matrix,
    Method,
    MethodSettings,
    Moment,
    Plan,
    Question,
    Reach,
    Work,
)
from fedstrata.methods.sketch import check_sketch, sketch_of
from fedstrata.methods.two_stages import groups_within, hopkins, jensen_shannon, softmax
from fedstrata.models import Model

OUTPUTS = "outputs"
SHARED = "shared"
BATCH_ADDRESS, HOPKINS_ADDRESS = 0x7D_BA_7C, 0x7D_40_9C  # addresses that only these draws use


class FedTsdp(Method):
    """Average the first layers in groups. New groups form when outputs on public examples form clusters."""

    class Options(MethodSettings):
        """Hold the options of both stages of grouping. The defaults are the paper's values, except for `growth`."""

        batch: int = Field(default=100, ge=1)
        """Number B of public examples that devices are asked about per round."""
        hopkins: float = Field(default=0.65, gt=0, lt=1)
        """Devices are grouped again if the Hopkins statistic of their outputs is above this value."""
        hopkins_points: int = Field(default=10, ge=1)
        """Number of points from which the Hopkins statistic is computed; at most the number of devices minus one is
        used.
        """
        divergence: float = Field(default=0.15, gt=0)
        """Jensen-Shannon divergence ε₁ in nats below which devices are neighbours in the first stage."""
        distance: float = Field(default=3.5, gt=0)
        """Distance ε₂ between weights below which devices are neighbours; it depends on the model's size."""
        neighbours: int = Field(default=2, ge=1)
        """Fewest neighbours of a device in a group, in both stages; the device itself is included."""
        layers: float | None = Field(default=None, ge=0.5)
        """Number L_s of shared layers at the start, with two tensors per layer; without this key all layers."""
        shrink: float = Field(default=0.98, gt=0, le=1)
        """Factor ψ by which each grouping multiplies L_s; with 1 all these layers stay shared."""
        rounding: Literal["up", "down"] = "up"
        """Rounding of 2 · L_s to a whole number of tensors: up, or down to at least one."""
        growth: Literal["even", "literal"] = "even"
        """Growth of the probability that a batch that led to groups is drawn again: `even`, to one half, or `literal`,
        as printed.
        """
        sketch: int = Field(default=1024, ge=16, le=1 << 16)
        """Length of the sketch of a device's weights."""

    mixes = True
    withdraws = True
    has_personal_state = True  # layers that are shared at first later belong to a device

    @property
    def needs_labels(self) -> bool:
        """True, because devices compare outputs per label."""
        return True

    def check(self) -> None:
        """Raise ExperimentError unless there are enough public examples."""
        batch, there = self.options.batch, self.facts.public_examples
        if not there:
            raise ExperimentError(
                "method fedtsdp needs public examples, and the partition has none; set their number in "
                "partition.public.examples"
            )
        if batch > there:
            raise ExperimentError(f"method.batch is {batch}, more than partition.public.examples, {there}; lower it")

    def refuses(self) -> Mapping[str, str]:
        """Refuse `training.participation`, because each device that is not asked in a round would become a group of its
        own. Also refuse `architectures`, because sketches of models of different sizes have no meaningful distance.
        """
        return {
            "training.participation": "the method groups all devices again in every round",
            "architectures": "the method compares devices by all weights of one model",
        }

    @property
    def clusters_known(self) -> int:
        """Return 0, because the devices' outputs decide the number of groups."""
        return 0

    def channels(self, model: Model) -> tuple[Channel, ...]:
        """Return two channels: the first layers are averaged in each group, and the other layers stay on the device."""
        first, rest = self._split(model.layout.names, self._layers(model.layout.names))
        return (
            Channel(name=SHARED, tensors=model.layout.select(first), reach=Reach.CLUSTER),
            Channel(name="own", tensors=model.layout.select(rest), reach=Reach.DEVICE),
        )

    def _layers(self, names: Sequence[str]) -> float:
        """Return L_s, the number of shared layers at the start. Two tensors count as one layer."""
        return min(self.options.layers or len(names), len(names) / 2)

    def _split(self, names: Sequence[str], layers: float) -> tuple[Sequence[str], Sequence[str]]:
        """Return the tensors that are shared if L_s is `layers`, and the other tensors. The option `rounding` decides
        whether 2 · L_s is rounded up or down to a whole number of tensors. For example, let L_s be 4 at first, and let
        each grouping multiply it by 0.98. If 2 · L_s is rounded up, it is 7 after seven groupings. If it is rounded
        down, it is 7 after the first grouping.
        """
        count = math.ceil(2 * layers) if self.options.rounding == "up" else max(1, math.floor(2 * layers))
        return names[:count], names[count:]

    # --- questions ------------------------------------------------------------------------------

    def tells(self) -> Mapping[str, tuple[str, tuple[int, ...]]]:
        """Declare the array that the GPS sends to all devices: the indexes of a round's public examples (its batch)."""
        return {"batch": ("int64", (self.options.batch,))}

    def questions(self) -> Sequence[Question]:
        """Return the question that asks each device for its trained model's outputs on the batch, and for a sketch of
        the model's weights.
        """
        outputs = ("float32", (self.options.batch, self.facts.num_classes))
        arrays = {"outputs": outputs, "weights": ("float64", (self.options.sketch,))}
        return (Question(name=OUTPUTS, moment=Moment.TRAINED, arrays=arrays),)

    async def answer(self, question: Question, work: Work, heard: Mapping[int, Any]) -> Arrays:
        """Return softmax outputs, shape (batch, classes), and the sketch of the weights minus the initial weights,
        shape (sketch,).
        """
        inputs, batch = work.public.inputs, work.told["batch"]
        if not len(batch) or batch.min() < 0 or batch.max() >= len(inputs):
            raise PayloadError(
                f"the GPS sent {len(batch)} indexes of public examples; expected at least one, each from 0 to "
                f"{len(inputs) - 1}"
            )
        logits = await work.outputs(work.trained, inputs[batch])
        beyond = work.trained - self.initial(work.model, 0)  # equal on all devices, so distances do not change
        beyond = beyond[: work.model.trainable.size]  # without statistics, which are not trained
        return {
            "outputs": softmax(logits).astype(np.float32),
            "weights": sketch_of(beyond, self.options.sketch, work.seed),
        }

    def check_answer(self, question: Question, arrays: Arrays, relayed_by: Iterable[int]) -> None:
        """Raise PayloadError unless the answer has a distribution over the classes for each example of the batch, and a
        possible sketch.
        """
        check_sketch(arrays["weights"])
        outputs = arrays["outputs"]
        if outputs.min() < 0 or np.abs(outputs.sum(axis=1, dtype=np.float64) - 1).max() > 1e-3:
            raise PayloadError("each row of outputs in the answer must have shares of 0 or more with the sum 1")

    # --- the plan -------------------------------------------------------------------------------

    def plan(self, moment: Moment, answers: Answers, before: Plan | None) -> Plan:
        """Return a plan with the batch for the next round. If the outputs of this round form clusters, the plan has new
        groups; otherwise it keeps the present groups.
        """
        indexes = tuple(device.device_index for device in answers.devices)
        if before is None:
            even = np.full(self.facts.public_examples, 1 / self.facts.public_examples)
            return self._made(answers, [indexes], "one group", even, self._layers(self.facts.layout.names))
        sampling, layers = np.array(before.memory["sampling"]), before.memory["layers"]
        given = answers.of(OUTPUTS)
        statistic = self._hopkins(given, answers.global_round)
        if statistic <= self.options.hopkins:
            rule = f"{len(before.clusters)} kept, Hopkins {statistic:.3f}"
            parents = tuple(range(len(before.clusters)))
            return replace(self._made(answers, before.clusters, rule, sampling, layers), parents=parents)
        silent = [(index,) for index in indexes if index not in given]
        groups = sorted([*self._groups(given), *silent])
        sampling = grown(sampling, before.memory["batch"], self.options.growth)
        rule = f"{len(groups)} by two stages, Hopkins {statistic:.3f}"
        parents = tuple(before.cluster_of(group[0]) for group in groups)
        return replace(self._made(answers, groups, rule, sampling, layers * self.options.shrink), parents=parents)

    def _made(
        self, answers: Answers, groups: Sequence[tuple[int, ...]], rule: str, sampling: Matrix, layers: float
    ) -> Plan:
        """Return a plan with these groups. A group averages the shared layers of its devices, weighted by examples."""
        next_round, names = answers.global_round + 1, self.facts.layout.names
        rng = np.random.default_rng([self.facts.seed, BATCH_ADDRESS, next_round])
        batch = np.sort(rng.choice(len(sampling), self.options.batch, replace=False, p=sampling)).astype(np.int64)
        first, _ = self._split(names, self._layers(names))
        return Plan(
            clusters=tuple(groups),
            rule=rule,
            weights={SHARED: tuple(shares_within(group, answers.devices) for group in groups)},
            withdrawn=tuple(self._split(first, layers)[1]),
            told={"batch": batch},
            memory={"sampling": sampling.tolist(), "batch": batch.tolist(), "layers": layers},
        )

    def _hopkins(self, given: Mapping[int, Arrays], global_round: int) -> float:
        """Return the Hopkins statistic of the devices' outputs; 0 if there are too few devices."""
        if len(given) < 2:
            return 0.0
        points = np.stack([arrays["outputs"].reshape(-1).astype(np.float64) for arrays in given.values()])
        rng = np.random.default_rng([self.facts.seed, HOPKINS_ADDRESS, global_round])
        return hopkins(points, min(self.options.hopkins_points, len(points) - 1), rng)

    def _groups(self, given: Mapping[int, Arrays]) -> list[tuple[int, ...]]:
        """Group devices by their outputs, then divide each group by the devices' weights. Return the groups."""
        indexes = np.array(list(given))
        outputs = np.stack([arrays["outputs"].astype(np.float64) for arrays in given.values()])
        weights = np.stack([arrays["weights"] for arrays in given.values()])
        options = self.options
        found: list[tuple[int, ...]] = []
        for places in groups_within(jensen_shannon(outputs), options.divergence, options.neighbours):
            between = np.linalg.norm(weights[places][:, None] - weights[places][None], axis=2)
            parts = groups_within(between, options.distance, options.neighbours)
            found.extend(tuple(indexes[places][part].tolist()) for part in parts)
        return found


def shares_within(group: Sequence[int], devices: Sequence[Candidate]) -> dict[int, float]:
    """Return, for each device of a group, its fraction of the group's examples."""
    examples = {device.device_index: device.num_examples for device in devices if device.device_index in group}
    return {index: examples[index] / sum(examples.values()) for index in group}


def grown(sampling: Matrix, batch: Sequence[int], growth: str) -> Matrix:
    """Increase the sampling weights of a batch's examples (Eq. 7), scale all weights to sum 1 (Eq. 8), and return them.

    B is the number of examples in the batch, and |D_pub| the number of all public examples. If `growth` is `literal`,
    |D_pub| / B is added to each weight of the batch, as printed in the paper. All other weights are then nearly 0, and
    the same batch is drawn again and again. If it is `even`, 1 / B is added. Because all weights together were 1
    before, the next example then comes from the batch with a probability of at least one half.
    """
    after = sampling.copy()
    after[list(batch)] += (len(sampling) if growth == "literal" else 1) / len(batch)
    shares: Matrix = after / after.sum()
    return shares
