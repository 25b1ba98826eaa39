"""Whom a run waits for: named in its status, metrics, log and Events, by the GPS's roster and the LPSs' own words."""

import logging
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import generate_latest

from fedstrata.errors import PayloadError
from fedstrata.process.metrics import ProcessMetrics
from fedstrata.trust.names import Name
from fedstrata.trust.tls_files import Revoked
from fedstrata.v1 import gps_service_pb2 as pb
from lps.slow_devices import Waits
from tests.support.gps_parts import IDS
from tests.support.waiting_setting import Clock, Setting

EVERYONE = range(5)


@pytest.fixture
def setting(tmp_path: Path) -> Setting:
    return Setting(tmp_path)


def test_who_has_not_enrolled_is_named_after_five_seconds(setting: Setting) -> None:
    setting.gps.enrol(0, 1, 2)
    assert setting.after(4, "enrolment") == {}
    setting.clock.now += 1
    assert setting.named("enrolment") == dict.fromkeys([*IDS[3:], *IDS[:3]], 5.0)  # the first three lack profiles
    assert {w.what for w in setting.waiting.waits if w.name in IDS[3:]} == {"to enrol"}
    assert {w.what for w in setting.waiting.waits if w.name in IDS[:3]} == {"its answer to profile"}


async def test_a_device_without_a_row_is_named_and_one_that_was_refused_is_not(setting: Setting) -> None:
    setting.gps.enrol(*EVERYONE)
    await setting.gps.profiles(*EVERYONE)
    for index in EVERYONE[:3]:
        await setting.gps.relate(index, {other: 0.5 for other in EVERYONE if other != index})
    setting.gps.roster.refuse(setting.gps.roster.devices[4], "a bad row")
    assert setting.after(7, "relevance") == {IDS[3]: 7.0}


def test_an_lps_that_does_not_ask_is_named_and_one_that_does_speaks_for_its_devices(setting: Setting) -> None:
    setting.group()
    wait = pb.Wait(name=IDS[4], what="its update of round 3 of lps-1", seconds=8.0)
    with setting.ask("lps-1", wait):
        setting.waiting.look("training")
        setting.clock.now += 6
        assert setting.named("training") == {IDS[4]: 14.0, "lps-0": 6.0}
        with setting.ask("lps-0"), setting.ask("lps-1"):  # both live, and lps-1 waits for nobody any more
            assert setting.named("training") == {}


def test_what_an_lps_said_counts_no_more_once_it_is_away(setting: Setting) -> None:
    setting.group()
    with setting.ask("lps-1", pb.Wait(name=IDS[4], what="its update", seconds=8.0)), setting.ask("lps-0"):
        assert set(setting.named("training")) == {IDS[4]}
    assert set(setting.after(5, "training")) == {"lps-0", "lps-1"}


def test_a_revoked_lps_is_named_with_what_to_do_though_it_asks_still(setting: Setting) -> None:
    setting.group()
    setting.revoked = Revoked(frozenset({Name("lps", "lps-0")}))
    with setting.ask("lps-0"), setting.ask("lps-1"):
        assert setting.after(5, "training") == {"lps-0": 5.0}
        assert "its certificate is revoked, and no other LPS is there; start one" in setting.waiting.waits[0].what


async def test_names_are_in_metrics_log_and_one_event_a_minute(
    setting: Setting, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    setting.group()
    events: list[str] = []
    run: Any = SimpleNamespace(
        phase="training", roster=setting.gps.roster, tell_soon=lambda: None,
        rounds=SimpleNamespace(global_round=3), reports=SimpleNamespace(latest_rounds={}),
    )  # fmt: skip
    wait = pb.Wait(name=IDS[4], what="its update of round 3 of lps-1", seconds=8.0)
    with caplog.at_level(logging.INFO), setting.ask("lps-0"), setting.ask("lps-1", wait):
        await looks(setting, run, events, monkeypatch, times=3, step_s=2.0)
        assert events == [f"the run waits for {IDS[4]} (its update of round 3 of lps-1, 8 s)"]
        assert samples(setting.metrics)[f'fedstrata_waits_seconds{{who="{IDS[4]}"}}'] == 12.0
        assert samples(setting.metrics)["fedstrata_awaited"] == 1.0
        await looks(setting, run, events, monkeypatch, times=2, step_s=60.0)
        assert len(events) == 2
        with setting.ask("lps-1"):
            await looks(setting, run, events, monkeypatch, times=1, step_s=0.0)
    assert not [name for name in samples(setting.metrics) if "waits_seconds{" in name]
    assert [record.getMessage() for record in caplog.records].count("waits_for") == 2


async def looks(
    setting: Setting, run: Any, events: list[str], monkeypatch: pytest.MonkeyPatch, *, times: int, step_s: float
) -> None:
    """Have it look so many times, with time going by in between."""
    left = [times]

    async def pass_by(*_: object) -> bool:
        left[0] -= 1
        if not left[0]:
            raise StopAsyncIteration
        setting.clock.now += step_s
        return False

    monkeypatch.setattr("gps.hosting.waiting.Changes.wait_until", pass_by)
    with pytest.raises((StopAsyncIteration, RuntimeError)):
        await setting.waiting.watch(run, lambda reason, message, **_: events.append(message))


def samples(metrics: ProcessMetrics) -> Mapping[str, float]:
    lines = generate_latest(metrics.registry).decode().splitlines()
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))}


# --- at the LPS ---------------------------------------------------------------------------------------------


class Rounds:
    """A cluster's rounds as a test sets them."""

    def __init__(self, number: int, *missing: str) -> None:
        self.awaited = (number, missing, "its update")


def nobody(device_id: str) -> str:
    return ""


def test_an_lps_names_who_is_missing_after_five_seconds_of_a_round() -> None:
    clock, rounds = Clock(), Rounds(2, "device-003")
    waits = Waits({"lps-1": rounds}, nobody, clock)
    assert waits.now() == []
    clock.now += 4.9
    assert waits.now() == []
    clock.now += 0.1
    assert waits.now() == [pb.Wait(name="device-003", what="its update of round 3 of lps-1", seconds=5.0)]
    rounds.awaited = (3, ("device-003", "device-004"), "its update")  # a round further: nobody is late yet
    assert waits.now() == []


def test_a_device_that_is_shut_out_for_its_certificate_is_named_with_what_to_do() -> None:
    clock, rounds = Clock(), Rounds(4)
    waits = Waits({"lps-0": rounds}, {"device-003": "renew it", "device-004": ""}.__getitem__, clock)
    waits.now()
    rounds.awaited = (4, ("device-003", "device-004"), "its mask key")
    clock.now += 5
    assert {wait.name: wait.what for wait in waits.now()} == {
        "device-003": "its mask key of round 5 of lps-0; renew it",
        "device-004": "its mask key of round 5 of lps-0",
    }


def test_where_rounds_take_long_so_does_patience() -> None:
    clock, rounds = Clock(), Rounds(0)
    waits = Waits({"lps-1": rounds}, nobody, clock)
    waits.now()
    clock.now += 60  # the length of round 0
    rounds.awaited = (1, ("device-003",), "its update")
    waits.now()
    clock.now += 119
    assert waits.now() == []
    clock.now += 1
    assert [wait.seconds for wait in waits.now()] == [120.0]


async def test_the_gps_is_told_when_somebody_else_is_missing_and_not_each_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, rounds, asked = Clock(), Rounds(2, "device-003"), []
    waits = Waits({"lps-1": rounds}, nobody, clock)
    moments = [6.0, 1.0, 1.0]

    async def pass_by(*_: object) -> bool:
        if not moments:
            raise StopAsyncIteration
        clock.now += moments.pop(0)
        return False

    async def ask() -> None:
        asked.append([wait.name for wait in waits.now()])

    waits.now()
    monkeypatch.setattr("lps.slow_devices.Changes.wait_until", pass_by)
    with pytest.raises((StopAsyncIteration, RuntimeError)):
        await waits.tell(ask)
    assert asked == [["device-003"]]


@pytest.mark.parametrize("seconds", [-1.0, 1e10])
def test_a_time_that_is_none_is_refused_and_nothing_is_shown_of_it(seconds: float, tmp_path: Path) -> None:
    setting = Setting(tmp_path)
    setting.group()
    request = pb.FetchClustersRequest(lps_id="lps-0", waits=[pb.Wait(name=IDS[0], what="its update", seconds=seconds)])
    with pytest.raises(PayloadError, match="'lps-0' says that it has waited for"), setting.waiting.call_of(request):
        pass
    assert IDS[0] not in setting.named("training")
