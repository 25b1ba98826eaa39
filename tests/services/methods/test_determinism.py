"""A run is a function of its experiment file: not of the processes, nor of who comes first."""

import asyncio
import random
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Hashable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
from safetensors.numpy import load_file

from fedstrata.experiment import LinkSettings, TierDeadline
from fedstrata.process.logs import EventLog
from fedstrata.process.metrics import ProcessMetrics
from fedstrata.rounds import Intake, Offer, OpenRound, RoundServer, RoundTerms
from fedstrata.rpc.payload import Acceptance, payload_header
from fedstrata.store import ModelFile, write_model
from fedstrata.streams.streams import UPDATE_PART
from fedstrata.tensors import CHUNK_BYTES, Flat, Layout, PayloadCodec
from fedstrata.v1 import rounds_pb2 as pb
from fedstrata.v1.answers_pb2 import AnswerPart
from gps.run import Run
from gps.servicer import GpsServicer
from lps.servicer import LpsServicer
from tests.support.gatherings import one_stream, sums_in
from tests.support.tiers import outcome, run_in_process, small

Reply = TypeVar("Reply")


@pytest.fixture(scope="module")
def undisturbed(folder: Path) -> dict[str, Any]:
    return outcome(run_in_process(small(), folder / "undisturbed").folder)


def test_the_same_file_gives_the_same_run_again(undisturbed: dict[str, Any], tmp_path: Path) -> None:
    assert outcome(run_in_process(small(), tmp_path / "again").folder) == undisturbed


def test_another_seed_gives_other_models(undisturbed: dict[str, Any], tmp_path: Path) -> None:
    other = outcome(run_in_process(small("seed=1"), tmp_path / "other").folder)
    assert other["model_sha256"] != undisturbed["model_sha256"]
    assert other["relevance.csv"] != undisturbed["relevance.csv"]


def test_a_model_that_is_not_measured_is_the_same_model(tmp_path: Path) -> None:
    rounds = "training.global_rounds=4"
    always, seldom = (
        run_in_process(small(rounds, f"training.evaluate_every={every}"), tmp_path / str(every)) for every in (1, 3)
    )
    assert all(row.metrics["accuracy"] is not None for row in always.rounds)
    # Received in global round g is what the LPS rounds before it produced: of 8, those that end in round 1 and 4,
    # and the final one.
    measured = {row.lps_round for row in seldom.rounds if row.metrics["accuracy"] is not None}
    assert measured == {1, 6, 7, 8}
    same = [row.metrics["accuracy"] for row in always.rounds if row.lps_round in measured]
    assert [row.metrics["accuracy"] for row in seldom.rounds if row.metrics["accuracy"] is not None] == same
    assert seldom.summary.of_headline.clusters == always.summary.of_headline.clusters
    for home_id in always.summary.clusters:
        models = [load_file(record.folder / "models" / f"{home_id}.safetensors") for record in (always, seldom)]
        for name, tensor in models[0].items():
            assert np.array_equal(tensor, models[1][name])


def test_clusters_that_share_no_layer_train_each_for_itself(tmp_path: Path) -> None:
    each, at_once = (
        run_in_process(
            small(
                "model.shared=[]",
                f"training.global_rounds={global_rounds}",
                f"training.lps_rounds_per_global_round={4 // global_rounds}",
            ),
            tmp_path / str(global_rounds),
        )
        for global_rounds in (4, 1)
    )
    assert (each.summary.status, at_once.summary.status) == ("completed", "completed")
    models = [
        {name: load_file(record.folder / "models" / f"{name}.safetensors") for name in each.summary.clusters}
        for record in (each, at_once)
    ]
    for name, tensors in models[0].items():  # a global round in which nothing is shared changes nothing
        assert all(np.array_equal(tensor, models[1][name][layer]) for layer, tensor in tensors.items())
    one, other = models[0].values()
    assert not any(np.array_equal(tensor, other[layer]) for layer, tensor in one.items())


@pytest.mark.parametrize("seed", [1, 2])
def test_the_order_of_arrival_changes_nothing(undisturbed: dict[str, Any], tmp_path: Path, seed: int) -> None:
    turns = Turns(seed)
    record = run_in_process(
        small(), tmp_path / "run", gps_servicer=turns.gps, lps_servicer=lambda *known: InTurnLps(turns, *known)
    )
    devices = small().device_ids()
    assert turns.passed["SubmitAnswer", "profile"] == turns.order(devices) != devices
    assert turns.passed["SubmitAnswer", "relevance"] == turns.order(devices)
    for home_id, members in record.summary.clusters.items():
        assert turns.passed[home_id, 1] == turns.order(members)
    assert turns.passed["SubmitAggregate", 0] == turns.order(record.summary.clusters)
    assert outcome(record.folder) == undisturbed


class Turns:
    """Lets callers through one at a time, in an order drawn from a seed, whatever the order in which they come."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._moved = asyncio.Condition()
        self.passed: dict[Hashable, list[str]] = defaultdict(list)
        self.run: Run | None = None

    def gps(self, run: Run) -> GpsServicer:
        self.run = run
        return InTurnGps(run, self)

    def order(self, names: Iterable[str]) -> list[str]:
        return random.Random(self._seed).sample(sorted(names), len(list(names)))

    async def take(self, gate: Hashable, name: str, names: Iterable[str], call: Awaitable[Reply]) -> Reply:
        """The result of a call, begun when all those before `name` are through."""
        order = self.order(names)
        before = order[: order.index(name)]
        async with self._moved:
            await self._moved.wait_for(lambda: self.passed[gate][: len(before)] == before)
        reply = await call
        async with self._moved:
            self.passed[gate].append(name)
            self._moved.notify_all()
        return reply


class InTurnGps(GpsServicer):
    """Takes the answers to each question, and aggregates, in turn."""

    def __init__(self, run: Run, turns: Turns) -> None:
        super().__init__(run)
        self._turns = turns
        self._devices = run.experiment.device_ids()

    async def SubmitAnswer(self, requests: AsyncIterator[AnswerPart], context: Any) -> Any:
        parts = [part async for part in requests]
        first = parts[0]
        call = super().SubmitAnswer(_stream(parts), context)
        return await self._turns.take(("SubmitAnswer", first.question), first.header.device_id, self._devices, call)

    async def SubmitAggregate(self, requests: AsyncIterator[pb.UpdatePart], context: Any) -> Any:
        parts = [part async for part in requests]
        header = parts[0].header
        call = super().SubmitAggregate(_stream(parts), context)
        return await self._turns.take(
            ("SubmitAggregate", header.round), header.child_id, self._run.places.clusters, call
        )


class InTurnLps(LpsServicer):
    """Takes updates in turn."""

    def __init__(self, turns: Turns, clusters: Any, are_known: asyncio.Event) -> None:
        super().__init__(clusters, are_known)
        self._turns = turns

    async def SubmitUpdate(self, requests: AsyncIterator[pb.UpdatePart], context: Any) -> Any:
        parts = [part async for part in requests]
        header = parts[0].header
        call = super().SubmitUpdate(_stream(parts), context)
        assert self._turns.run is not None
        members = self._turns.run.places.clusters[header.home_id]
        return await self._turns.take((header.home_id, header.round), header.child_id, members, call)


async def _stream(parts: list[Any]) -> AsyncIterator[Any]:
    for part in parts:
        yield part


# --- chunks of several updates, mixed -------------------------------------------------------------

CHILDREN = {f"device-{index}": 10 * (index + 1) for index in range(4)}
LAYOUT = Layout.of({"w": (2 * CHUNK_BYTES // 4 + 1000,)})  # three chunks an update


async def test_chunks_that_arrive_in_any_mixture_add_up_to_the_same_bits(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    updates = {name: draw.normal(0, 0.1, LAYOUT.size).astype(np.float32) for name in CHILDREN}
    means = [await _gathered(updates, random.Random(seed), tmp_path) for seed in range(4)]
    expected = np.average(list(updates.values()), axis=0, weights=list(CHILDREN.values()))
    assert np.abs(means[0] - expected).max() < 1e-8
    assert len({mean.tobytes() for mean in means}) == 1


async def _gathered(updates: dict[str, Flat], order: random.Random, folder: Path) -> Flat:
    """The mean of one round whose chunks come in an order drawn anew at each."""
    path = folder / "model.safetensors"
    write_model(path, LAYOUT, [np.zeros(LAYOUT.size, np.float32)], {})
    wait, sums = TierDeadline(), one_stream(LAYOUT.size, CHILDREN)
    terms = RoundTerms(run_id="run", link=LinkSettings(), wait=wait)
    accepted = Acceptance(LAYOUT, "float32", UPDATE_PART)
    with ThreadPoolExecutor(1) as executor:
        server = RoundServer(terms, ProcessMetrics("lps"), EventLog("test"), accepts_updates=lambda number: accepted)
        intake = Intake(children=CHILDREN, sums=sums, wait=wait, executor=executor)
        server.open(OpenRound(offers={0: Offer(ModelFile(path, LAYOUT))}, number=0, global_round=0, intake=intake))
        feeds: dict[str, asyncio.Queue[pb.UpdatePart | None]] = {name: asyncio.Queue(1) for name in CHILDREN}
        waiting = {name: _parts(name, update) for name, update in updates.items()}
        async with asyncio.TaskGroup() as jobs:
            for name, parts in waiting.items():
                jobs.create_task(server.submit(parts.pop(0).header, _fed(feeds[name])))
            while left := [name for name, parts in waiting.items() if parts]:
                name = order.choice(left)
                await feeds[name].put(waiting[name].pop(0))
        gathered = await server.gather()
    assert gathered.children == len(CHILDREN)
    return sums_in(sums)[0].mean()


def _parts(name: str, update: Flat) -> list[Any]:
    codec = PayloadCodec(LAYOUT, "float32")
    payload = payload_header(codec, name="update", num_examples=CHILDREN[name])
    header = pb.UpdateHeader(run_id="run", child_id=name, home_id="lps-0", round=0, payload=payload)
    chunks = [pb.UpdatePart(data=bytes(chunk)) for chunk in codec.chunks(lambda start, stop: update[start:stop])]
    return [pb.UpdatePart(header=header), *chunks, None]


async def _fed(feed: "asyncio.Queue[pb.UpdatePart | None]") -> AsyncIterator[pb.UpdatePart]:
    while (part := await feed.get()) is not None:
        yield part
