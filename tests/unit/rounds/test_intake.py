"""What a parent gathers in one round, whatever the order, the cuts and the children that vanish."""

import asyncio
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedstrata.errors import ExcludedError, OffsetError, PayloadError, RunStoppedError, SupersededError
from fedstrata.experiment import TierDeadline
from fedstrata.experiment_file import parse_experiment
from fedstrata.rounds import Intake
from fedstrata.rounds.parent import intake as intake_module
from fedstrata.rounds.parent.children import ChildState, Upload
from fedstrata.rules import of_updates
from fedstrata.rules.registry import make_rule
from fedstrata.tensors import ExactSum, Flat, Layout, PayloadCodec
from tests.support.gatherings import one_stream, sums_in
from tests.support.rounds_setting import CODEC, FOREVER, LAYOUT, bytes_of, header_of, intake_of, send, vector

TEXT = "name: intake\npartition: {kind: iid, devices: 3, examples_per_device: 10}\nmethod: fedavg\n"
values = st.floats(-100, 100, width=32)
updates = st.lists(
    st.tuples(st.lists(values, min_size=LAYOUT.size, max_size=LAYOUT.size), st.integers(1, 50)), min_size=1, max_size=6
)
cut = st.integers(1, LAYOUT.size - 1).map(lambda elements: 4 * elements)


def named(drawn: list[tuple[list[float], int]]) -> dict[str, tuple[Flat, int]]:
    return {f"device-{i}": (np.float32(flat), examples) for i, (flat, examples) in enumerate(drawn)}


async def mean_of(children: dict[str, tuple[Flat, int]], order: list[str], cuts: dict[str, list[int]]) -> bytes:
    intake, total = intake_of({name: examples for name, (_, examples) in children.items()})
    for name in order:
        await send(intake, name, *children[name], cuts=cuts.get(name, []))
    await intake.close()
    return total.mean().tobytes()


async def begun(intake: Intake, child: str, weight: int, data: bytes, codec: PayloadCodec = CODEC) -> Upload:
    """Begin an update, and send its first bytes."""
    upload = await intake.begin(child, codec, (weight,), 0)
    assert upload is not None
    await intake.fold(upload, data)
    return upload


async def test_a_device_with_three_times_the_examples_counts_three_times() -> None:
    intake, total = intake_of({"a": 1, "b": 3})
    await send(intake, "a", vector(1.0), 1)
    await send(intake, "b", vector(5.0), 3)
    gathered = await intake.close()
    assert total.mean()[0] == 4.0
    assert (gathered.children, gathered.num_examples, gathered.missing) == (2, 4, ())


async def test_a_device_that_claims_more_examples_beside_its_payload_counts_by_its_payload() -> None:
    intake, _ = intake_of({"a": 1})
    upload = await begun(intake, "a", 1, bytes_of(vector(1.0)))
    claimed = header_of("a", num_examples=1)
    claimed.num_examples = 1 << 40
    await intake.finish(upload, claimed)
    assert (await intake.close()).num_examples == 1


@settings(max_examples=30, deadline=None)
@given(updates, st.randoms(use_true_random=False))
def test_the_mean_has_the_same_bits_in_any_order_of_arrival(drawn: list[Any], random: Any) -> None:
    children = named(drawn)
    shuffled = sorted(children)
    random.shuffle(shuffled)
    first = asyncio.run(mean_of(children, sorted(children), {}))
    assert asyncio.run(mean_of(children, shuffled, {})) == first


@settings(max_examples=30, deadline=None)
@given(updates, st.data())
def test_an_upload_cut_at_any_element_and_resumed_gives_the_same_mean(drawn: list[Any], data: st.DataObject) -> None:
    children = named(drawn)
    cuts = {name: data.draw(st.lists(cut, max_size=4)) for name in children}
    whole = asyncio.run(mean_of(children, sorted(children), {}))
    assert asyncio.run(mean_of(children, sorted(children), cuts)) == whole


@settings(max_examples=30, deadline=None)
@given(updates, st.data())
def test_a_sum_voided_at_any_moment_and_sent_again_gives_the_same_mean(drawn: list[Any], data: st.DataObject) -> None:
    children = named(drawn)
    before = data.draw(st.integers(0, len(children)))
    half = data.draw(st.one_of(st.none(), cut))

    async def disturbed() -> bytes:
        intake, total = intake_of({name: examples for name, (_, examples) in children.items()})
        for name in sorted(children)[:before]:
            await send(intake, name, *children[name])
        if half is not None and before < len(children):
            name = sorted(children)[before]
            await begun(intake, name, children[name][1], bytes_of(children[name][0])[:half])
        intake.void()
        assert set(intake.missing) == set(children)
        for name in children:
            await send(intake, name, *children[name])
        await intake.close()
        return total.mean().tobytes()

    assert asyncio.run(disturbed()) == asyncio.run(mean_of(children, sorted(children), {}))


async def test_a_child_excluded_half_way_leaves_no_trace_and_the_others_send_again() -> None:
    intake, total = intake_of({"a": 2, "b": 2, "c": 2})
    await send(intake, "a", vector(1.0), 2)
    await begun(intake, "b", 2, bytes_of(vector(100.0))[:16])
    intake.exclude("b")
    assert intake.missing == ("a", "c")
    await send(intake, "a", vector(1.0), 2)
    await send(intake, "c", vector(3.0), 2)
    gathered = await intake.close()
    assert total.mean()[0] == 2.0
    assert (gathered.children, gathered.num_examples, gathered.missing) == (2, 4, ("b",))


async def test_with_a_median_nobody_sends_again_for_a_child_that_leaves(tmp_path: Path) -> None:
    median = make_rule(parse_experiment(TEXT, overrides=["aggregation.lps=median"]), "lps")
    gathering = of_updates(median, LAYOUT.size, {"a": 2, "b": 2, "c": 2}, tmp_path)
    intake = Intake(children=["a", "b", "c"], sums=gathering, wait=FOREVER)
    await send(intake, "a", vector(1.0), 2)
    await begun(intake, "b", 2, bytes_of(vector(100.0))[:16])
    intake.exclude("b")
    assert intake.missing == ("c",)
    await send(intake, "c", vector(3.0), 2)
    await intake.close()
    await gathering.settle()
    assert gathering.totals[0].mean()[0] == 2.0


async def test_a_chunk_that_is_not_finite_is_refused_before_it_changes_the_sum() -> None:
    intake, total = intake_of({"a": 1, "b": 1})
    upload = await begun(intake, "a", 1, bytes_of(vector(7.0))[:8])
    with pytest.raises(PayloadError, match="finite"):
        await intake.fold(upload, bytes_of(np.full(2, np.nan, np.float32)))
    intake.exclude("a")
    await send(intake, "b", vector(2.0), 1)
    await intake.close()
    assert total.mean().tolist() == vector(2.0).tolist()


async def test_where_another_process_speaks_for_a_child_what_the_first_sent_in_part_is_forgotten() -> None:
    intake, total = intake_of({"a": 2, "b": 2})
    await send(intake, "a", vector(4.0), 2)
    half = await begun(intake, "b", 2, bytes_of(vector(100.0))[:8])
    intake.restart("b")
    with pytest.raises(SupersededError):
        await intake.fold(half, bytes_of(vector(100.0))[8:])
    await send(intake, "b", vector(8.0), 2)
    await send(intake, "a", vector(4.0), 2)
    intake.restart("a")  # it is in, and stays in
    assert intake.is_complete
    assert total.mean()[0] == 6.0


async def test_the_same_update_sent_twice_counts_once() -> None:
    intake, total = intake_of({"a": 1, "b": 1})
    await send(intake, "a", vector(4.0), 1)
    assert await intake.begin("a", CODEC, (1,), 0) is None
    await send(intake, "b", vector(0.0), 1)
    assert (await intake.close()).num_examples == 2
    assert total.mean()[0] == 2.0


async def test_a_newer_stream_supersedes_the_one_before_and_goes_on_where_it_stood() -> None:
    intake, total = intake_of({"a": 1})
    data = bytes_of(vector(1.0, 2.0, 3.0, 4.0))
    old = await begun(intake, "a", 1, data[:12])
    assert intake.offset_of("a") == 12
    new = await intake.begin("a", CODEC, (1,), 12)
    assert new is not None
    with pytest.raises(SupersededError):
        await intake.fold(old, data[12:16])
    await intake.fold(new, data[12:])
    await intake.finish(new, header_of("a", num_examples=1))
    await intake.close()
    assert total.mean()[:4].tolist() == [1.0, 2.0, 3.0, 4.0]


async def test_an_upload_that_begins_elsewhere_is_told_where_to_go_on() -> None:
    intake, _ = intake_of({"a": 1})
    await begun(intake, "a", 1, bytes_of(vector(1.0))[:4])
    with pytest.raises(OffsetError, match="at byte 4, not at 8"):
        await intake.begin("a", CODEC, (1,), 8)


async def test_an_upload_that_ends_early_is_not_counted() -> None:
    intake, _ = intake_of({"a": 1})
    upload = await begun(intake, "a", 1, bytes_of(vector(1.0))[:4])
    with pytest.raises(OffsetError, match="ended at byte 4 of 32"):
        await intake.finish(upload, header_of("a", num_examples=1))
    assert intake.state_of("a") is ChildState.AWAITED


async def test_an_upload_continued_with_other_scales_voids_what_it_began() -> None:
    layout = Layout.of({"w": (4,)})
    intake = Intake(children={"a": 1}, sums=one_stream(4, {"a": 1}), wait=TierDeadline())
    await begun(intake, "a", 1, b"\x01\x02", PayloadCodec(layout, "int8", [0.5]))
    with pytest.raises(OffsetError, match="another update"):
        await intake.begin("a", PayloadCodec(layout, "int8", [0.25]), (1,), 2)
    assert intake.offset_of("a") == 0


async def test_a_child_may_switch_to_another_update_once_a_round_and_is_refused_the_second_time() -> None:
    intake, _ = intake_of({"a": 9, "b": 1})
    voids: list[str] = []
    intake.when_void(lambda: voids.append("void"))
    for error, said in (
        (OffsetError, "continues with another update"),
        (PayloadError, "for the second time in a round"),
    ):
        await begun(intake, "a", 1, bytes_of(vector(1.0))[:4])
        with pytest.raises(error, match=said):
            await intake.begin("a", CODEC, (2,), 4)
    assert voids == ["void"]


async def test_who_had_reported_before_a_void_has_a_deadline_s_time_to_send_again() -> None:
    intake, _ = intake_of({"a": 1, "b": 1, "late": 1})
    for name in ("a", "b"):
        await send(intake, name, vector(1.0), 1)
    intake.void()
    assert intake.exclude_late() == ("late",)
    assert intake.missing == ("a", "b")
    await send(intake, "a", vector(1.0), 1)
    assert intake.exclude_late() == ("b",)  # it has had its time
    assert (await intake.close()).missing == ("b", "late")


async def test_a_child_that_claims_more_examples_than_it_enrolled_with_is_refused() -> None:
    intake, _ = intake_of({"a": 5})
    with pytest.raises(PayloadError, match=r"a states the weights \[6\]; expected one, from 1 to 5"):
        await intake.begin("a", CODEC, (6,), 0)


@pytest.mark.parametrize(("losses", "mean"), [((0.1, 0.1, 0.1), 0.1), ((1e39, 1e39, 1e39), 1e39), ((1, 3, 5), 4.0)])
async def test_a_mean_of_losses_is_not_rounded_beyond_the_largest(losses: tuple[float, ...], mean: float) -> None:
    examples = dict(zip("abc", (1, 1, 4), strict=True))
    intake, _ = intake_of(examples)
    for (name, count), loss in zip(examples.items(), losses, strict=True):
        header = header_of(name, num_examples=count)
        header.train_loss = loss
        upload = await begun(intake, name, count, bytes_of(vector(1.0)))
        await intake.finish(upload, header)
    assert (await intake.close()).train_loss == mean


async def test_an_excluded_child_cannot_begin() -> None:
    intake, _ = intake_of({"a": 1, "b": 1})
    intake.exclude("a")
    with pytest.raises(ExcludedError):
        await intake.begin("a", CODEC, (1,), 0)


async def test_too_few_reports_stop_the_run_and_name_the_absent() -> None:
    intake, _ = intake_of({"a": 1, "b": 1, "c": 1, "d": 1}, TierDeadline(deadline_s=1, quorum_ratio=0.5))
    await send(intake, "a", vector(1.0), 1)
    for name in intake.missing:
        intake.exclude(name)
    with pytest.raises(RunStoppedError, match="1 of 4 have reported, but the quorum is 2; absent: b, c, d"):
        intake.check_quorum({})


async def test_a_void_after_the_last_report_waits_again_instead_of_spinning() -> None:
    intake, _ = intake_of({"a": 1, "b": 1})
    await send(intake, "a", vector(1.0), 1)
    intake.exclude("b")
    assert intake.completed.is_set()
    intake.void()
    assert not intake.completed.is_set()
    assert intake.missing == ("a",)


class HeldExecutor(Executor):
    """Runs a job when the test says so, to let things happen while a chunk is being added."""

    def __init__(self) -> None:
        self.jobs: list[tuple[Future[Any], Any, tuple[Any, ...]]] = []
        self.has_job = asyncio.Event()

    def submit(self, function: Any, /, *arguments: Any, **named_arguments: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.jobs.append((future, function, arguments))
        self.has_job.set()
        return future

    def run_one(self) -> None:
        future, function, arguments = self.jobs.pop(0)
        self.has_job.clear()
        future.set_result(function(*arguments))


HANDED_OVER = 64 << 10  # elements that these tests have added in a thread
LARGE = Layout.of({"w": (2 * HANDED_OVER,)})
LARGE_CODEC = PayloadCodec(LARGE, "float32")
HALF = 4 * HANDED_OVER


@pytest.fixture
def _in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake_module, "INLINE_ELEMENTS", HANDED_OVER - 1)


async def begun_chunk() -> tuple[Intake, ExactSum, HeldExecutor, "asyncio.Task[None]"]:
    """An intake of two children where the first half of a's update is on its way into the sum."""
    executor, children = HeldExecutor(), {"a": 1, "b": 1}
    sums = one_stream(LARGE.size, children)
    intake = Intake(children=children, sums=sums, wait=TierDeadline(), executor=executor)
    upload = await intake.begin("a", LARGE_CODEC, (1,), 0)
    assert upload is not None
    job = asyncio.create_task(intake.fold(upload, np.ones(HANDED_OVER, "<f4").tobytes()))
    await executor.has_job.wait()
    return intake, sums_in(sums)[0], executor, job


@pytest.mark.usefixtures("_in_a_thread")
async def test_a_call_cancelled_while_its_chunk_is_added_leaves_the_chunk_counted_once() -> None:
    intake, _, executor, job = await begun_chunk()
    job.cancel()
    await asyncio.sleep(0)
    executor.run_one()
    with pytest.raises(asyncio.CancelledError):
        await job
    assert intake.offset_of("a") == HALF


@pytest.mark.usefixtures("_in_a_thread")
async def test_a_resume_that_comes_while_a_chunk_is_added_goes_on_behind_it() -> None:
    intake, _, executor, job = await begun_chunk()
    resumed = asyncio.create_task(intake.begin("a", LARGE_CODEC, (1,), HALF))
    await asyncio.sleep(0)
    executor.run_one()
    await job
    assert await resumed is not None


@pytest.mark.usefixtures("_in_a_thread")
async def test_a_void_while_a_chunk_is_added_empties_the_sum_of_it_too() -> None:
    intake, total, executor, job = await begun_chunk()
    intake.exclude("a")
    executor.run_one()
    await job
    assert intake.offset_of("a") == 0
    upload = await intake.begin("b", LARGE_CODEC, (1,), 0)
    assert upload is not None
    for _ in range(2):
        sending = asyncio.create_task(intake.fold(upload, np.full(HANDED_OVER, 3, "<f4").tobytes()))
        await executor.has_job.wait()
        executor.run_one()
        await sending
    await intake.finish(upload, header_of("b", num_examples=1))
    await intake.close()
    assert set(total.mean().tolist()) == {3.0}
