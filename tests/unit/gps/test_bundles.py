"""Questions in global rounds: LPSs bundle what their devices answer, and the round's plan is made of it, once."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fedstrata.errors import PayloadError, PluginError, SupersededError, UnknownChildError
from fedstrata.methods import Plan
from fedstrata.methods.ifca import Ifca
from fedstrata.process.waiting import Changes
from fedstrata.rpc.answer_messages import answer_to_proto
from fedstrata.v1 import answers_pb2 as pb
from gps.journal.answers import BEFORE
from gps.servicer import GpsServicer
from tests.support.gps_bundles import bundles_of
from tests.support.gps_parts import IDS, GpsParts
from tests.support.loop_time import turns

ASKING = ("method={name: ifca, clusters: 2}", "topology={lps: 2, devices: [[0, 1], [2, 3, 4]]}")
FIRST, SECOND = {0: (1.0, 2.0), 1: (3.0, 1.0)}, {2: (0.5, 0.5), 3: (2.0, 1.0), 4: (1.0, 2.0)}  # losses by device
S = 10**9
Losses = Mapping[int, tuple[float, ...]]


class Setting:
    """Five devices on two LPSs, dealt out to two clusters in turn, who are asked in each global round."""

    def __init__(self, folder: Path, *overrides: str) -> None:
        self.gps = GpsParts(folder, *ASKING, *overrides)
        self.gps.enrol(*range(5))
        self.refused: set[str] = set()
        self.changes = Changes()
        self._open()
        self.gps.places.make(BEFORE, Plan(clusters=((0, 2, 4), (1, 3)), rule="2 as given"))

    def _open(self) -> None:
        self.bundles = bundles_of(self.gps, self.changes, lambda: set(self.gps.places.homes) - self.refused)

    def restart(self) -> None:
        self.gps.restart()
        self._open()

    def answer(self, losses: tuple[float, ...]) -> pb.Answer:
        assert self.bundles.question is not None
        return answer_to_proto(self.bundles.question, {"losses": np.float64(losses)})

    async def bundle(
        self, lps_id: str, losses: Losses, *, global_round: int = 0, announced: int | None = None, answered_ns: int = 0
    ) -> None:
        header = pb.BundleHeader(
            home_id=lps_id,
            global_round=global_round,
            answers=len(losses) if announced is None else announced,
            answered_ns=answered_ns,
        )
        await self.bundles.take(header, {index: self.answer(each) for index, each in losses.items()})

    async def plan(self, global_round: int = 0, deadline_s: float | None = None) -> bool:
        return await self.bundles.plan_round(global_round, deadline_s)

    @property
    def clusters(self) -> tuple[tuple[int, ...], ...]:
        return self.gps.plans.newest.clusters


@pytest.fixture
def setting(tmp_path: Path) -> Setting:
    return Setting(tmp_path)


async def test_the_plan_of_a_round_is_made_of_what_all_lpss_devices_answer(setting: Setting) -> None:
    await setting.bundle("lps-1", SECOND)
    await setting.bundle("lps-0", FIRST)
    assert await setting.plan()
    assert setting.clusters == ((0, 2, 4), (1, 3))
    await setting.bundle("lps-0", {0: (2.0, 1.0), 1: (3.0, 1.0)}, global_round=1)
    await setting.bundle("lps-1", SECOND, global_round=1)
    assert await setting.plan(1)
    assert setting.clusters == ((2, 4), (0, 1, 3))


async def test_a_round_is_planned_once_whatever_comes_later(setting: Setting) -> None:
    await setting.bundle("lps-0", FIRST)
    await setting.bundle("lps-1", SECOND)
    assert await setting.plan()
    await setting.bundle("lps-0", {0: (9.0, 0.0), 1: (9.0, 0.0)})
    assert not await setting.plan()
    assert setting.clusters == ((0, 2, 4), (1, 3))
    assert setting.gps.journal.answers.all("losses", 0)[0] == setting.answer(FIRST[0]).SerializeToString()


async def test_an_lps_that_tells_twice_is_heard_once(setting: Setting) -> None:
    await setting.bundle("lps-0", FIRST)
    await setting.bundle("lps-0", {0: (9.0, 0.0), 1: (0.0, 9.0)})
    await setting.bundle("lps-1", SECOND)
    await setting.plan()
    assert setting.clusters == ((0, 2, 4), (1, 3))


async def test_a_killed_gps_asks_nobody_twice_and_makes_the_same_plan(setting: Setting) -> None:
    await setting.bundle("lps-0", FIRST)
    setting.restart()
    await setting.bundle("lps-1", SECOND)
    assert await setting.plan()
    made = setting.gps.plans.newest
    setting.restart()
    assert not await setting.plan()
    assert setting.gps.plans.newest == made


async def test_on_the_virtual_clock_a_plan_is_made_when_the_last_bundle_is_there(tmp_path: Path) -> None:
    setting = Setting(tmp_path, "clock=virtual", "links.lps-gps={up_rate: 8kbit/s, latency: 1s}")
    await setting.bundle("lps-1", SECOND, answered_ns=4 * S)
    size = 3 * setting.answer(SECOND[2]).ByteSize()
    setting.restart()
    await setting.bundle("lps-0", FIRST, answered_ns=2 * S)
    await setting.bundle("lps-0", FIRST, answered_ns=90 * S)  # told again by an LPS that is back: the first counts
    assert await setting.plan()
    expected_ns = 4 * S + size * S // 1_000 + S
    assert setting.bundles.planned_ns == expected_ns
    setting.restart()
    assert setting.bundles.planned_ns == expected_ns
    await setting.bundle("lps-0", FIRST, global_round=1, answered_ns=20 * S)
    assert setting.bundles.planned_ns == expected_ns  # of the newest plan, as long as the next is not made
    with pytest.raises(PayloadError, match="lps-1 sends answers of time -1 ns, which is impossible"):
        await setting.bundle("lps-1", SECOND, global_round=1, answered_ns=-1)


async def test_without_a_deadline_a_plan_is_made_without_the_answers_of_a_refused_lps(setting: Setting) -> None:
    planned = asyncio.ensure_future(setting.plan())
    await setting.bundle("lps-0", {0: (1.0, 2.0), 1: (0.0, 1.0)})
    await turns()
    assert not planned.done()
    setting.refused.add("lps-1")
    setting.changes.tell()
    assert await planned
    assert setting.clusters == ((0, 1, 2, 4), (3,))


async def test_at_the_deadline_who_has_not_answered_stays_where_it_was(setting: Setting) -> None:
    await setting.bundle("lps-0", {1: (0.0, 1.0)})
    assert await setting.plan(deadline_s=0.001)
    assert setting.clusters == ((0, 1, 2, 4), (3,))


async def test_a_bundle_that_was_cut_leaves_nothing_behind(setting: Setting) -> None:
    with pytest.raises(SupersededError, match="1 of 2 answers arrived; send all again"):
        await setting.bundle("lps-0", {0: (1.0, 2.0)}, announced=2)
    assert setting.gps.journal.answers.bundled(0) == set()


async def test_an_lps_tells_of_its_own_devices_only(setting: Setting) -> None:
    with pytest.raises(UnknownChildError, match="lps-0 sends answers of 2 devices that are not its own"):
        await setting.bundle("lps-0", {0: (1.0, 2.0), 2: (1.0, 2.0), 77: (1.0, 2.0)})
    assert setting.gps.journal.answers.all("losses", 0) == {}


@pytest.mark.parametrize(
    ("losses", "reason"),
    [
        ((1.0, float("nan")), "numbers that are not finite"),
        ((1.0, 2.0, 3.0), r"the answer to losses has .* shape \[3\]"),
        ((1.0,), r"shape \[1\]; expected float64 and \(2,\)"),
    ],
)
async def test_an_answer_that_is_none_is_refused_whoever_passes_it_on(
    setting: Setting, losses: tuple[float, ...], reason: str
) -> None:
    assert setting.bundles.question is not None
    header = pb.ArrayHeader(name="losses", dtype="float64", shape=[len(losses)])
    answer = pb.Answer(question="losses", arrays=[header], data=np.float64(losses).tobytes())
    with pytest.raises(PayloadError, match=reason):
        await setting.bundles.take(pb.BundleHeader(home_id="lps-0", answers=1), {0: answer})
    assert setting.gps.journal.answers.bundled(0) == set()


async def test_where_nobody_is_asked_in_rounds_an_answer_is_refused(tmp_path: Path) -> None:
    bundles = bundles_of(GpsParts(tmp_path), Changes(), set)
    assert bundles.question is None
    with pytest.raises(PayloadError, match="this run asks devices nothing in global rounds"):
        await bundles.take(pb.BundleHeader(home_id="lps-0"), {})


@pytest.mark.parametrize(
    ("plan", "reason"),
    [
        ("lambda *_: 1 / 0", "method ifca failed in plan: ZeroDivisionError"),
        ("lambda *_: None", "method ifca: plan must return a Plan, not NoneType"),
        ("lambda *_: Plan(clusters=((0, 1, 2, 3), ()), rule='')", "must put every device into exactly one cluster"),
        ("lambda *_: Plan(clusters=((0, 1, 2, 3, 4), (), ()), rule='')", "the plan has 3 clusters and parents"),
    ],
)
async def test_a_method_that_makes_no_plan_ends_the_run_with_its_name_and_leaves_the_plan_before(
    setting: Setting, monkeypatch: pytest.MonkeyPatch, plan: str, reason: str
) -> None:
    await setting.bundle("lps-0", FIRST)
    await setting.bundle("lps-1", SECOND)
    monkeypatch.setattr(Ifca, "plan", eval(plan))
    with pytest.raises(PluginError, match=reason):
        await setting.plan()
    assert setting.gps.plans.planned_rounds == 0
    assert [device.device_id for device in setting.gps.places.members("lps-0")] == IDS[:2]


@pytest.mark.parametrize(("announced", "read"), [(1 << 31, 1), (-1, 1), (2, 4)])
async def test_an_lps_can_neither_announce_nor_send_more_answers_than_there_can_be(announced: int, read: int) -> None:
    count = 0

    async def endless() -> AsyncIterator[pb.BundlePart]:
        nonlocal count
        header = pb.BundleHeader(run_id="run-1", answers=announced)
        yield pb.BundlePart(header=header)
        for number in range(2, 1000):  # always the same device's
            count = number
            yield pb.BundlePart(answer=pb.DeviceAnswer(device_index=0))

    run: Any = SimpleNamespace(
        experiment=SimpleNamespace(device_count=5),
        journal=SimpleNamespace(attempt_id="run-1"),
        reports=SimpleNamespace(counts=SimpleNamespace(note_repeated=None, keep=None)),
    )
    with pytest.raises(PayloadError, match="announced"):
        await GpsServicer(run).SubmitAnswers(endless(), None)
    assert max(count, 1) == read
