"""Jobs of a device process: which of them go to the trainer together, and that nobody waits for those who stay away."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from device.compute_thread import ComputeThread

A_WHILE_S = 20.0  # no test waits so long, unless it fails


class Recorder:
    """A trainer that gives its jobs back and remembers which came together."""

    def __init__(self) -> None:
        self.batches: list[list[Any]] = []

    def train(self, jobs: Sequence[Any]) -> list[Any]:
        if "bad" in jobs:
            raise ValueError("a bad job")
        self.batches.append(list(jobs))
        return list(jobs)

    evaluate = train


async def hears_and_trains(bench: Any, job: Any, group: str, model: asyncio.Event) -> Any:
    """As a device does: wait for the model, then train."""
    with bench.listening(group):
        await model.wait()
    return await bench.train(job, group)


async def some_turns() -> None:
    """Let everybody else go as far as they can."""
    for _ in range(20):
        await asyncio.sleep(0)


@pytest.fixture
def trainer() -> Recorder:
    return Recorder()


@pytest.fixture
def bench(trainer: Recorder) -> ComputeThread:
    return ComputeThread(trainer)


@pytest.fixture
def patient(trainer: Recorder) -> ComputeThread:
    """A thread whose waiting jobs do not begin for a long time."""
    return ComputeThread(trainer, A_WHILE_S)


async def test_devices_whose_models_come_one_after_the_other_train_together(patient: Any, trainer: Recorder) -> None:
    models = [asyncio.Event() for _ in range(3)]
    devices = [asyncio.create_task(hears_and_trains(patient, n, "a", model)) for n, model in enumerate(models)]
    for model in models:
        await some_turns()
        model.set()
    assert await asyncio.wait_for(asyncio.gather(*devices), A_WHILE_S / 2) == [0, 1, 2]
    assert trainer.batches == [[0, 1, 2]]


async def test_the_last_of_a_group_waits_for_no_other_group(patient: Any, trainer: Recorder) -> None:
    with patient.listening("b"):
        assert await asyncio.wait_for(patient.train(0, "a"), A_WHILE_S / 2) == 0
    assert trainer.batches == [[0]]


async def test_one_who_stays_away_holds_the_others_up_for_a_moment_only(bench: Any, trainer: Recorder) -> None:
    with bench.listening("a"):
        assert await asyncio.wait_for(bench.train(0, "a"), A_WHILE_S) == 0
    assert trainer.batches == [[0]]


async def test_who_gives_up_listening_is_not_waited_for(patient: Any) -> None:
    gone = asyncio.create_task(hears_and_trains(patient, 0, "a", asyncio.Event()))
    await some_turns()
    gone.cancel()
    await some_turns()
    assert await asyncio.wait_for(patient.evaluate(1, "a"), A_WHILE_S / 2) == 1


async def test_an_error_belongs_to_the_batch_and_the_next_goes_on(bench: Any) -> None:
    with pytest.raises(ValueError, match="a bad job"):
        await bench.train("bad", "a")
    assert await bench.train(1, "a") == 1
