"""Scores of public examples: a whole run of the method by plain NumPy and PyTorch, its options, and what it refuses."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from device.training import limit_threads
from fedstrata.errors import ExperimentError, PayloadError
from fedstrata.experiment import Experiment
from fedstrata.experiment_file import parse_experiment
from fedstrata.methods import Answers, Arrays, Candidate, Moment, Outcome, Plan
from fedstrata.methods.scores import LABELS, PORTION, TABLE, WEIGHTS, DeviceTable
from fedstrata.partitions import device_data, public_data
from tests.support.device_work import Devices
from tests.support.training_jobs import descend, trained_weights

CLASSES, PUBLIC, RATE = 10, 40, 0.1
OWNED = [{1, 2}, {2, 3}, {3, 4}]
FILE = """
name: scores
seed: 3
data: {name: digits}
partition:
  kind: groups
  groups:
    - {name: user-1, devices: 1, examples_per_device: 60, labels: [1, 2]}
    - {name: user-2, devices: 1, examples_per_device: 70, labels: [2, 3]}
    - {name: user-3, devices: 1, examples_per_device: 80, labels: [3, 4]}
  public: {examples: 40, labels: [1, 2, 3, 4], source: test, labelled: true, tests: true}
model: {name: mlp, hidden: [6]}
method: {name: scores, distil_epochs: 2, examples_a_label: 20, least_share: 0.2, most_share: 0.8}
training: {global_rounds: 3, lps_rounds_per_global_round: 1, batch_size: 8, optimiser: {learning_rate: 0.1}}
"""
Table = NDArray[np.float64]


@pytest.fixture(autouse=True)
def one_thread() -> None:
    limit_threads()


def experiment(*overrides: str) -> Experiment:
    return parse_experiment(FILE, overrides=overrides)


# --- the method, round by round, as its tiers have it do ------------------------------------------------


class Rounds:
    """The devices' own local work, and between rounds the plain mean that a plan's shares ask for."""

    def __init__(self, found: Experiment) -> None:
        self.devices = Devices(found)
        self.method = self.devices.method
        self.indexes = range(found.device_count)
        self.number = 0
        self.models = [self.devices.model.initial(found.seed)] * len(self.indexes)
        layout = self.devices.host.streams.tables
        self.tables: list[Arrays] = [{t.name: np.zeros(t.shape, np.float32) for t in layout.tensors}] * len(
            self.indexes
        )

    async def planned(self) -> Plan:
        asked = self.method.questions()
        given = {i: await self.method.answer(asked[0], self.devices.work(i), {}) for i in self.indexes} if asked else {}
        devices = [Candidate(device_index=i, num_examples=60 + 10 * i) for i in self.indexes]
        return self.method.plan(Moment.BEFORE, Answers(devices, {LABELS: given}), None)

    def work(self, index: int, plan: Plan) -> Any:
        return self.devices.work(
            index, lps_round=self.number, global_round=self.number, received=[self.models[index]],
            tables=[self.tables[index]], told=dict(plan.told),
        )  # fmt: skip

    async def one(self, plan: Plan) -> list[Outcome]:
        outcomes = [await self.method.local(self.work(i, plan)) for i in self.indexes]
        self.models = [outcome.weights for outcome in outcomes]
        self.tables = [outcome.tables for outcome in outcomes]
        if plan.weights:
            mean = {n: np.mean([o.tables[n] for o in outcomes], axis=0).astype(np.float32) for n in (TABLE, WEIGHTS)}
            self.tables = [mean] * len(outcomes)
        self.number += 1
        return outcomes


# --- the same by formulas ---------------------------------------------------------------------------------


class Plainly:
    """Algorithm 1 of the poster with torch.nn and loops over devices and labels."""

    def __init__(self, found: Experiment, start: NDArray[np.float32]) -> None:
        dataset = Devices(found).dataset
        self.found = found
        self.own = [device_data(found, dataset, index).train for index in range(3)]
        public = public_data(found, dataset)
        assert public.labels is not None
        self.inputs, self.labels = public.inputs, public.labels
        self.models = [start] * 3
        self.table = np.zeros((PUBLIC, CLASSES))  # f_G
        self.options = found.method.model_dump()

    def module(self, flat: NDArray[np.float32]) -> torch.nn.Module:
        module = torch.nn.Sequential(
            torch.nn.Flatten(), torch.nn.Linear(64, 6), torch.nn.ReLU(), torch.nn.Linear(6, 10)
        )
        torch.nn.utils.vector_to_parameters(torch.tensor(flat), module.parameters())
        return module

    def trained(
        self, flat: Any, inputs: Any, targets: Any, rng: np.random.Generator, epochs: int
    ) -> NDArray[np.float32]:
        module = self.module(flat)
        descent, inputs, targets = torch.optim.SGD(module.parameters(), lr=RATE), *map(torch.tensor, (inputs, targets))

        def loss(batch: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.cross_entropy(module(inputs[batch]), targets[batch])

        descend(descent, rng, loss, count=len(inputs), epochs=epochs, batch_size=8)
        return trained_weights(module)

    def restricted(self, index: int) -> Table:
        """f_G of the labels of a device: its rows, or its columns."""
        found = np.zeros_like(self.table)
        for label in OWNED[index]:
            here: Any = self.labels == label if self.options["reading"] == "rows" else np.s_[:, label]
            found[here] = self.table[here]
        return found

    def taught(self, index: int, number: int) -> NDArray[np.float32]:
        table = self.restricted(index)
        rows = table.sum(axis=1) > 0
        if not rows.any():
            return self.models[index]
        targets = (table[rows] / table[rows].sum(axis=1, keepdims=True)).astype(np.float32)
        rng = np.random.default_rng([3, index, number, 1])
        return self.trained(self.models[index], self.inputs[rows], targets, rng, 2)

    def portion(self, index: int, number: int) -> Any:
        rng, drawn = np.random.default_rng([3, index, number, PORTION]), list[int]()
        for label in sorted(OWNED[index]):
            there = np.flatnonzero(self.own[index].labels == label)
            drawn += rng.choice(there, round(20 * rng.uniform(0.2, 0.8)), replace=False).tolist()
        return self.own[index].take(np.sort(drawn))

    def round(self, number: int) -> None:
        sums, weights = np.zeros_like(self.table), np.zeros_like(self.table)
        for index in range(3):
            taught, own = self.taught(index, number), self.portion(index, number)
            rng = np.random.default_rng([3, index, number])
            self.models[index] = self.trained(taught, own.inputs, own.labels, rng, 1)
            with torch.no_grad():
                said = self.module(self.models[index])(torch.tensor(self.inputs)).softmax(1).numpy()
            updated = self.restricted(index)
            mine = np.isin(self.labels, list(OWNED[index]))
            for label in OWNED[index]:
                here: Any = self.labels == label if self.options["reading"] == "rows" else np.s_[:, label]
                updated[here] += len(own) / PUBLIC * said[here]
            accuracy = (updated[mine].argmax(axis=1) == self.labels[mine]).mean()
            for label in OWNED[index]:
                beta = 1.0 if label in {1, 4} else accuracy
                here = self.labels == label if self.options["reading"] == "rows" else np.s_[:, label]
                sums[here] += beta * updated[here]
                weights[here] += beta
        self.table = sums if not self.options["normalised"] else sums / np.where(weights > 0, weights, 1)


@pytest.mark.parametrize("normalised", ["true", "false"])
@pytest.mark.parametrize("reading", ["rows", "columns"])
async def test_three_rounds_are_those_of_loops_over_devices_and_labels(reading: str, normalised: str) -> None:
    found = experiment(f"method.reading={reading}", f"method.normalised={normalised}")
    rounds = Rounds(found)
    plan, plain = await rounds.planned(), Plainly(found, rounds.models[0])
    assert plan.told["owners"].tolist() == [0, 1, 2, 2, 1, 0, 0, 0, 0, 0]
    assert plan.weights == {TABLE: ({0: 1 / 3, 1: 1 / 3, 2: 1 / 3},)}
    for number in range(3):
        await rounds.one(plan)
        plain.round(number)
        for index in range(3):
            table = DeviceTable(rounds.method.options, rounds.method.facts, rounds.work(index, plan)).values()
            assert np.abs(table - plain.restricted(index)).max() < 1e-5
            assert np.abs(rounds.models[index] - plain.models[index]).max() < 1e-5
    used, received = await rounds.method.measure(rounds.work(1, plan))
    mine = np.isin(plain.labels, [2, 3])
    says = plain.module(plain.taught(1, 3))(torch.tensor(plain.inputs[mine])).argmax(1).numpy()
    hits = plain.restricted(1)[mine].argmax(axis=1) == plain.labels[mine]
    assert received is not None
    assert (used.sums, used.num_examples) == (((says == plain.labels[mine]).sum(),), 20)
    assert (received.sums, received.num_examples) == ((hits.sum(),), 20)


async def test_alone_a_device_adds_up_its_own_scores_and_labels_teach_as_they_are() -> None:
    rounds = Rounds(experiment("method.reading=alone", "method.distil_epochs=0"))
    plan = await rounds.planned()
    assert (plan.weights, dict(plan.told), rounds.method.questions()) == ({}, {}, ())
    totals = [np.zeros((PUBLIC, CLASSES)) for _ in range(3)]
    for number in range(2):
        await rounds.one(plan)
        plain = Plainly(rounds.devices.experiment, rounds.models[0])
        for index, total in enumerate(totals):
            with torch.no_grad():
                said = plain.module(rounds.models[index])(torch.tensor(plain.inputs)).softmax(1).numpy()
            for label in OWNED[index]:
                total[:, label] += len(plain.portion(index, number)) / PUBLIC * said[:, label]
            assert np.abs(rounds.tables[index][TABLE] - total).max() < 1e-5
    taught = Rounds(experiment("method.reading=labels"))
    (outcome, *_) = await taught.one(await taught.planned())
    plain = Plainly(taught.devices.experiment, Devices(taught.devices.experiment).model.initial(3))
    mine, own = np.isin(plain.labels, [1, 2]), plain.portion(0, 0)
    first = plain.trained(
        plain.models[0], plain.inputs[mine], plain.labels[mine], np.random.default_rng([3, 0, 0, 1]), 2
    )
    expected = plain.trained(first, own.inputs, own.labels, np.random.default_rng([3, 0, 0]), 1)
    assert np.abs(outcome.weights - expected).max() < 1e-5
    assert outcome.tables == {}
    assert outcome.measured_received is None


@pytest.mark.parametrize("reading", ["labels", "rows"])
async def test_public_examples_without_a_devices_labels_teach_the_device_nothing(reading: str) -> None:
    rounds = Rounds(experiment(f"method.reading={reading}", "partition.public.labels=[1, 2]"))
    work = rounds.work(2, await rounds.planned())
    assert (await rounds.method.measure(work))[0] == await work.measure(work.start)


async def test_what_is_measured_is_the_model_or_the_table_as_asked_for() -> None:
    last = []
    for measure in ("model", "table"):
        rounds = Rounds(experiment(f"method.measure={measure}"))
        plan = await rounds.planned()
        await rounds.one(plan)
        last.append(await rounds.one(plan))
    for one, other in zip(*last, strict=True):
        assert one.measured_received == other.measured
        assert other.measured_received is None


# --- what is refused --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        (["partition.public=null"], "method scores needs public examples, and the partition has none"),
        (["partition.public.labelled=false"], "needs the public examples' labels; set partition.public.labelled"),
        (["partition.public.tests=false", "method.measure=table"], "set partition.public.tests: true"),
        (["method.measure=table", "method.reading=labels"], "measure table needs a table"),
        (["method.least_share=0.9"], "method: least_share 0.9 is above most_share 0.8"),
        (["method.examples_a_label=null"], "least_share and most_share need examples_a_label, which is missing"),
        (["method.normalised=false", "training.participation=2"], "remove training.participation"),
        (["method.alpha=0"], "method.alpha: must be above 0"),
        (["method.reading=diagonals"], "method.reading: must be 'rows', 'columns', 'alone' or 'labels'"),
    ],
)
def test_options_that_do_not_go_together_are_refused_in_one_line(overrides: list[str], reason: str) -> None:
    with pytest.raises(ExperimentError, match=reason) as caught:
        experiment(*overrides)
    assert "\n" not in str(caught.value)


def test_without_labels_columns_can_be_had_with_equal_weights() -> None:
    experiment("partition.public.labelled=false", "method.reading=columns", "method.beta=equal")


@pytest.mark.parametrize("owned", [[2] + [0] * 9, [-1] * 10], ids=["two", "negative"])
def test_labels_that_cannot_be_are_refused(owned: list[int]) -> None:
    method = Devices(experiment()).method
    (question,) = method.questions()
    answer: Mapping[str, Any] = {"owned": np.array(owned)}
    with pytest.raises(PayloadError, match="a 0 or a 1 for each class"):
        method.check_answer(question, answer, ())
