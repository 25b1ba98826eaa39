"""An LPS when the run is over for a cluster that it still serves, and while devices are ahead of its plan."""

import asyncio
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import pytest

from fedstrata.errors import RunStoppedError
from fedstrata.process.logs import EventLog
from fedstrata.trust.call_table import Claim
from fedstrata.v1 import gps_service_pb2 as pb
from lps.clusters import Clusters
from lps.to_gps import NewestPlan

CLUSTER = pb.Cluster(home_id="lps-0")
GROUPED = pb.FetchClustersResponse(is_grouped=True, plan_version=1, clusters=[CLUSTER])
OVER = pb.FetchClustersResponse(is_grouped=True, plan_version=1, clusters=[CLUSTER], is_over=True)
STOPPED = RunStoppedError("lps-1: the disk is full")


class Gps:
    """A GPS that gives these answers, one after the other; the second after the cluster's rounds have begun."""

    def __init__(self, *answers: pb.FetchClustersResponse | Exception) -> None:
        self._answers = list(answers)
        self.has_begun, self.failures = asyncio.Event(), list[str]()

    async def clusters(self, known_version: int, waits: Iterable[pb.Wait]) -> pb.FetchClustersResponse:
        if known_version:
            await self.has_begun.wait()
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def fail(self, reason: str) -> None:
        self.failures.append(reason)


def clusters_of(gps: Gps, run: Callable[[], Any], members: set[str]) -> tuple[Clusters, NewestPlan, Any]:
    """Clusters whose sessions have these rounds and members, and what answers their devices."""
    server, newest_plan = Mock(awaited=(-1, (), "")), NewestPlan(None)

    async def running() -> None:
        gps.has_begun.set()
        await run()

    async def nothing_lost(show: Callable[[Any], None]) -> None:
        pass

    session = SimpleNamespace(
        term=0, server=server, run=running, take_members=lambda cluster: None, gps=Mock(),
        holding=SimpleNamespace(may_recover=lambda: False, recover=nothing_lost),
        members=SimpleNamespace(has=members.__contains__, goes_on_with=lambda cluster: True),
    )  # fmt: skip
    log = EventLog("test")
    clusters = Clusters(cast(Any, gps), lambda cluster: cast(Any, session), newest_plan, "lps-0", log, advice_on=str)
    return clusters, newest_plan, server


async def raising() -> None:
    raise RunStoppedError("the GPS ended the run")


@pytest.mark.parametrize(
    ("rounds", "answers", "told", "failures"),
    [
        (raising, [GROUPED, OVER, OVER], (), []),  # a completed run went on without the cluster
        (
            asyncio.Event().wait,  # another device is waited for
            [GROUPED, STOPPED],
            ("lps-0: lps-1: the disk is full",),
            ["lps-0: lps-1: the disk is full"],
        ),
    ],
)
async def test_devices_of_a_cluster_hear_how_the_run_has_ended(
    rounds: Callable[[], Any], answers: list[Any], told: tuple[str, ...], failures: list[str]
) -> None:
    gps = Gps(*answers)
    clusters, _, server = clusters_of(gps, rounds, set())
    async with asyncio.timeout(60):
        await clusters.serve()
    assert clusters.handlers == {"lps-0": server}
    server.finish.assert_called_once_with(*told)
    assert gps.failures == failures
    assert clusters.are_open(may_have_begun=True)


@pytest.mark.parametrize("wait_s", [0.01, None])
async def test_where_devices_move_a_round_begins_with_its_plan_however_late_that_is_heard(wait_s: float | None) -> None:
    newest_plan = NewestPlan(wait_s)
    hearing = asyncio.ensure_future(newest_plan.until_heard(2))
    done, _ = await asyncio.wait([hearing], timeout=0.3 if wait_s is None else 60)
    assert bool(done) == (wait_s is not None)
    newest_plan.heard(pb.FetchClustersResponse(plan_version=2, planned_rounds=3))
    async with asyncio.timeout(60):
        await hearing
    assert [newest_plan.is_planned(number) for number in (2, 3)] == [True, False]


async def test_a_device_that_comes_before_the_lps_has_heard_of_it_is_waited_for_and_another_cluster_is_not_known() -> (
    None
):
    known = {"device-000"}
    gps = Gps(GROUPED, OVER)
    clusters, newest_plan, _ = clusters_of(gps, asyncio.Event().wait, known)
    serving = asyncio.ensure_future(clusters.serve())
    await gps.has_begun.wait()
    assert await clusters.belongs(Claim("device-000", "lps-0"), 0.05)
    assert not await clusters.belongs(Claim("device-001", "lps-0"), 0.05)
    assert not await clusters.belongs(Claim("", "lps-0"), 0.05)
    assert await clusters.belongs(Claim("device-001", "lps-9"), 0.05)  # the servicer says that it is not served here
    asking = asyncio.ensure_future(clusters.belongs(Claim("device-001", "lps-0"), 30.0))
    await asyncio.sleep(0)
    known.add("device-001")
    newest_plan.changes.tell()
    async with asyncio.timeout(60):
        assert await asking
    serving.cancel()
