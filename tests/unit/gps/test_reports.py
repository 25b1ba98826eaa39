"""What LPSs report: of a cluster only from the LPS that serves it, and bytes by who counted them."""

import asyncio
import hashlib
from collections.abc import AsyncIterator
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from fedstrata.errors import NotReadyError, NotServedError, PayloadError, SupersededError, UnknownChildError
from fedstrata.methods import Plan
from fedstrata.process.metrics import LinkKey, ProcessMetrics
from fedstrata.store import write_model
from fedstrata.tensors import Layout
from fedstrata.trust.security import OPEN
from fedstrata.v1 import gps_service_pb2 as pb
from fedstrata.v1 import rounds_pb2
from gps.hosting.reports import Reports
from gps.hosting.serving import Serving
from gps.journal.answers import BEFORE
from gps.servicer import GpsServicer
from tests.support.gps_parts import IDS, GpsParts

UP = LinkKey(link="device-lps", direction="up", kind="update", end="parent")
LAYOUT = Layout.of({"w": (10,)})


def model_file(value: float) -> bytes:
    """A whole model file, all of whose values are the same."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "model.safetensors"
        write_model(path, LAYOUT, [np.full(10, value, np.float32)], {})
        return path.read_bytes()


MODEL = model_file(1.0)


class Setting:
    """Two clusters, and what is taken of their LPSs."""

    def __init__(self, folder: Path, *overrides: str, closed: int | None = None) -> None:
        """`closed` global rounds are done; all of them unless said."""
        self.folder = folder
        self.gps = GpsParts(folder, *overrides)
        self.gps.enrol(*range(5))
        self.excluded: list[str] = []  # for what reasons
        self._open()
        self.places.make(BEFORE, Plan(clusters=((0, 2), (1, 3, 4)), rule="2 as given"))
        for global_round in range(self.gps.experiment.training.global_rounds if closed is None else closed):
            self.gps.journal.rounds.close(global_round)

    def _open(self) -> None:
        gps = self.gps
        self.places = gps.places
        self.serving = Serving(gps.experiment, self.places, gps.journal, OPEN, lambda: 0.0)
        self.reports = Reports(
            gps.experiment,
            places=self.places,
            serving=self.serving,
            journal=gps.journal,
            metrics=ProcessMetrics("gps"),
            models=self.folder / "models",
            layout=LAYOUT,
            exclude=lambda who, stage, reason: self.excluded.append(reason),
        )

    def restart(self) -> None:
        self.gps.restart()
        self._open()

    def note(self, lps_id: str, *, term: int = 0, bytes_up: int = 0, devices: int = 2, home_id: str = "lps-0") -> None:
        self.reports.note(
            rounds_pb2.UpdateHeader(
                home_id=home_id,
                lps_id=lps_id,
                term=term,
                lps_rounds=[rounds_pb2.LpsRound(home_id=home_id, lps_round=0, devices=devices)],
                exclusions=[rounds_pb2.Exclusion(device_id=IDS[home_id == "lps-1"], stage="round 1", reason=lps_id)],
                link_bytes=[rounds_pb2.LinkBytes(**vars(UP), bytes=bytes_up)],
            )
        )

    async def take(self, lps_id: str, term: int = 0, model: bytes = MODEL, device: str = IDS[0]) -> None:
        header = header_of(lps_id=lps_id, term=term)
        header.evaluations.add(device_id=device, sums=[1], num_examples=2)
        await self.reports.take(header, parts_of(model))


def header_of(**said: Any) -> pb.ReportHeader:
    """What is said before a model of the first cluster."""
    return pb.ReportHeader(home_id="lps-0", **said)


async def parts_of(model: bytes) -> AsyncIterator[pb.ReportPart]:
    yield pb.ReportPart(data=model)


@pytest.fixture
def setting(tmp_path: Path) -> Setting:
    return Setting(tmp_path)


def devices_told(setting: Setting) -> list[int]:
    return [rounds_pb2.LpsRound.FromString(row).devices for row in setting.gps.journal.rounds.rows()]


def test_rounds_and_exclusions_are_those_that_the_serving_lps_tells_of(setting: Setting) -> None:
    setting.serving.hand_over("lps-0", "lps-1", 1)
    setting.note("lps-1", term=1, devices=2)
    setting.note("lps-0", term=0, devices=1)  # it stood still, and tells of a round that was trained anew
    assert devices_told(setting) == [2]
    assert setting.excluded == ["lps-1"]


def test_the_last_global_model_that_all_have_measured_is_known_after_other_measurements(setting: Setting) -> None:
    for lps_round, examples in ((0, 10), (1, 10), (2, 0), (3, 10), (4, 5), (5, 10)):
        row = rounds_pb2.LpsRound(
            home_id="lps-0",
            global_round=lps_round // 2,
            lps_round=lps_round,
            loss_sum=25 if examples else 0,
            sums=[4] if examples else [],
            evaluated_examples=examples,
            is_of_cohort=lps_round == 5,
        )
        setting.reports.note(rounds_pb2.UpdateHeader(home_id="lps-0", lps_id="lps-0", lps_rounds=[row]))
        assert ("lps-0" in setting.reports.latest_measured) == (lps_round > 0)
    setting.restart()
    assert setting.reports.latest_rounds["lps-0"].lps_round == 5
    assert setting.reports.latest_measured["lps-0"] == (2, {"loss": 2.5, "accuracy": 0.4})  # of LPS round 4, from 1


def test_an_lps_that_serves_two_clusters_counts_its_bytes_once(setting: Setting) -> None:
    setting.note("lps-1", home_id="lps-1", bytes_up=700)
    setting.note("lps-0", bytes_up=100)
    setting.serving.hand_over("lps-0", "lps-1", 1)
    setting.note("lps-1", term=1, bytes_up=900)  # all it has counted, of both clusters
    setting.note("lps-1", home_id="lps-1", bytes_up=850)  # said before, and heard later
    assert setting.reports.counts.total()[UP] == 100 + 900
    setting.restart()
    assert setting.reports.counts.total()[UP] == 100 + 900


async def test_a_report_counts_from_the_serving_lps_only(setting: Setting) -> None:
    setting.serving.hand_over("lps-0", "lps-1", 1)
    with pytest.raises(NotServedError, match="lps-1 serves lps-0 now"):
        await setting.take("lps-0", term=0)
    assert setting.reports.missing() == ["lps-0", "lps-1"]
    await setting.take("lps-1", term=1)
    assert setting.reports.missing() == ["lps-1"]
    assert setting.reports.all()["lps-0"].lps_id == "lps-1"
    assert (setting.folder / "models" / "lps-0.safetensors").read_bytes() == MODEL


async def test_a_report_that_was_under_way_as_its_cluster_changed_hands_leaves_the_new_model_alone(
    setting: Setting,
) -> None:
    async def slowly() -> AsyncIterator[pb.ReportPart]:
        setting.serving.hand_over("lps-0", "lps-1", 1)
        newer.append(asyncio.create_task(setting.take("lps-1", term=1)))
        await asyncio.wait(newer)
        yield pb.ReportPart(data=old)

    old, newer = model_file(2.0), list[asyncio.Task[None]]()
    with pytest.raises(SupersededError):
        await setting.reports.take(header_of(), slowly())
    await asyncio.wait(newer)
    assert (setting.folder / "models" / "lps-0.safetensors").read_bytes() == MODEL


async def test_where_clusters_span_lpss_a_report_is_of_the_devices_that_hang_there_and_brings_no_model(
    tmp_path: Path,
) -> None:
    setting = Setting(tmp_path, "topology={lps: 2, devices: [[0, 1], [2, 3, 4]]}")
    assert setting.reports.missing() == ["lps-0", "lps-1"]
    await setting.take("lps-0", device=IDS[1])  # of cluster 1, and on lps-0
    with pytest.raises(PayloadError, match="lps-0 reports a measurement of 'device-002'"):
        await setting.take("lps-0", device=IDS[2])
    assert setting.reports.missing() == ["lps-1"]
    assert not list((setting.folder / "models").glob("*"))


def test_bytes_of_links_that_no_lps_counts_stay_out_of_the_record(setting: Setting) -> None:
    strange = [vars(UP) | {"direction": "sideways"}, vars(UP) | {"kind": "x" * 99}, vars(UP) | {"link": "lps-gps"}]
    counts = [rounds_pb2.LinkBytes(**key, bytes=1) for key in (*strange, vars(UP))]
    setting.reports.note(rounds_pb2.UpdateHeader(home_id="lps-0", link_bytes=counts))
    assert setting.reports.counts.total() == {UP: 1}
    setting.restart()
    assert setting.reports.counts.total() == {UP: 1}


async def test_a_model_that_does_not_fit_its_checksum_leaves_no_report(setting: Setting) -> None:
    with pytest.raises(PayloadError, match="does not match its checksum"):
        await setting.take("lps-0", model=MODEL[:-1] + b"\x40")
    with pytest.raises(PayloadError, match="reports a measurement of 'device-001'"):
        await setting.take("lps-0", device=IDS[1])
    assert setting.reports.missing() == ["lps-0", "lps-1"]
    assert not list((setting.folder / "models").glob("*.safetensors"))


async def test_the_digest_of_a_model_is_worked_out_here_whatever_its_lps_says(setting: Setting) -> None:
    await setting.reports.take(header_of(model_sha256="ab" * 32), parts_of(MODEL))
    expected = hashlib.sha256(b'["w", "float32", [10]]\n' + 10 * b"\x00\x00\x80\x3f").hexdigest()  # 1.0, little-endian
    assert setting.reports.all()["lps-0"].model_sha256 == expected


async def test_numbers_that_cannot_be_leave_nothing_behind(setting: Setting) -> None:
    with pytest.raises(PayloadError, match="bytes are reported"):
        setting.note("lps-0", bytes_up=2**63 - 1)
    with pytest.raises(PayloadError, match="LPS round 0 is reported with devices -1"):
        setting.note("lps-0", devices=-1, bytes_up=7)
    assert setting.reports.counts.total() == {}
    assert not devices_told(setting)
    assert not setting.reports.latest_rounds


async def test_a_report_whose_cluster_changes_hands_meanwhile_is_void(setting: Setting) -> None:
    async def slowly() -> AsyncIterator[pb.ReportPart]:
        setting.serving.hand_over("lps-0", "lps-1", 1)
        yield pb.ReportPart(data=MODEL)

    with pytest.raises(NotServedError):
        await setting.reports.take(header_of(), slowly())
    assert not list((setting.folder / "models").iterdir())


async def test_before_the_last_global_round_no_report_is_taken(tmp_path: Path) -> None:
    setting = Setting(tmp_path, closed=2)
    with pytest.raises(NotReadyError, match="lps-0 reports before the last global round"):
        await setting.take("lps-0")
    assert setting.reports.missing() == ["lps-0", "lps-1"]


@pytest.mark.parametrize("model", [b"eighteen bytes it is", b"", MODEL[:-4], MODEL + b"more", MODEL[:-4] + b"else"])
async def test_what_is_no_whole_model_file_of_this_run_leaves_no_report(setting: Setting, model: bytes) -> None:
    with pytest.raises(PayloadError, match="the model file is incomplete or damaged"):
        await setting.reports.take(header_of(), parts_of(model))
    assert setting.reports.missing() == ["lps-0", "lps-1"]
    assert not list((setting.folder / "models").iterdir())


async def test_of_each_cluster_one_report_is_taken_at_a_time_and_the_newest_counts(setting: Setting) -> None:
    async def half() -> AsyncIterator[pb.ReportPart]:
        yield pb.ReportPart(data=MODEL[:8])
        await asyncio.Event().wait()

    held = [asyncio.create_task(setting.reports.take(header_of(), half())) for _ in range(100)]
    _, under_way = await asyncio.wait(held[:-1], timeout=60)
    assert not under_way
    assert len(list((setting.folder / "models").iterdir())) == 1  # of the last
    await setting.take("lps-0")
    assert setting.reports.missing() == ["lps-1"]
    await asyncio.wait(held, timeout=60)
    assert {type(report.exception()) for report in held} == {SupersededError}
    assert [path.name for path in (setting.folder / "models").iterdir()] == ["lps-0.safetensors"]


@pytest.mark.parametrize(
    ("device", "stage"),
    [("nobody", "round 1"), (IDS[1], "round 1"), (IDS[0], "enrolment"), (IDS[0], "round 0"), (IDS[0], "x" * 9999)],
)
def test_an_lps_excludes_its_own_devices_at_its_own_stages(setting: Setting, device: str, stage: str) -> None:
    for who, at, reason in ((IDS[0], "round 2", "late " * 999), (device, stage, "refused: it is said")):
        gone = rounds_pb2.Exclusion(device_id=who, stage=at, reason=reason)
        header = rounds_pb2.UpdateHeader(home_id="lps-0", exclusions=[gone])
        if who == device and at == stage:
            with pytest.raises(PayloadError, match="expected one of its own devices"):
                setting.reports.note(header)
        else:
            setting.reports.note(header)
    assert [len(reason) for reason in setting.excluded] == [300]


def test_of_a_device_that_moves_the_lpss_speak_that_have_had_it(setting: Setting) -> None:
    def note(lps_id: str) -> None:
        gone = rounds_pb2.Exclusion(device_id=IDS[0], stage="round 2", reason=lps_id)
        setting.reports.note(rounds_pb2.UpdateHeader(home_id=lps_id, exclusions=[gone]))

    with pytest.raises(PayloadError, match="expected one of its own devices"):
        note("lps-1")
    setting.places.move(1, {0: 1})
    for taken_back in (False, True):
        if taken_back:
            setting.places.go_back_to(0)
        note("lps-0")
        note("lps-1")
    assert setting.excluded == ["lps-0", "lps-1"] * 2


def test_of_a_device_that_will_move_its_new_lps_has_nothing_to_say_yet(tmp_path: Path) -> None:
    move = "schedule=[{at: 5s, move: {devices: 0, to: lps-1}}]"
    setting = Setting(tmp_path, "topology={lps: 2}", "method=fedavg", "clock=virtual", move)
    gone = rounds_pb2.Exclusion(device_id=IDS[0], stage="round 2", reason="late")
    with pytest.raises(PayloadError, match="expected one of its own devices"):
        setting.reports.note(rounds_pb2.UpdateHeader(home_id="lps-1", exclusions=[gone]))


@pytest.mark.parametrize(
    ("times", "message"),
    [
        (rounds_pb2.RoundTimes(slowest=IDS[1]), "not a device of its own"),
        (rounds_pb2.RoundTimes(flows=[rounds_pb2.Flow()] * 9), "9 flows of a round reported"),
        (rounds_pb2.RoundTimes(flows=[rounds_pb2.Flow(up_bytes=-1)]), "flows of impossible sizes"),
        (rounds_pb2.RoundTimes(flows=[rounds_pb2.Flow(answer_bytes=-1)]), "flows of impossible sizes"),
        (rounds_pb2.RoundTimes(late=[rounds_pb2.Flow()] * 9), "9 flows of a round reported"),
        (rounds_pb2.RoundTimes(late=[rounds_pb2.Flow(up_bytes=-1)]), "flows of impossible sizes"),
        (rounds_pb2.RoundTimes(late=[rounds_pb2.Flow(unsent_bytes=-1)]), "flows of impossible sizes"),
        (rounds_pb2.RoundTimes(late=[rounds_pb2.Flow(up_bytes=5, unsent_bytes=6)]), "flows of impossible sizes"),
        (rounds_pb2.RoundTimes(late=[rounds_pb2.Flow(down_ns=5, away_ns=6)]), "flows of impossible durations"),
        (rounds_pb2.RoundTimes(flows=[rounds_pb2.Flow(child=99)]), "a device that does not exist"),
        (rounds_pb2.RoundTimes(late=[rounds_pb2.Flow(child=99)]), "a device that does not exist"),
        (rounds_pb2.RoundTimes(contributions=[rounds_pb2.Contribution(arrives_ns=-1)]), "impossible updates"),
        (rounds_pb2.RoundTimes(contributions=[rounds_pb2.Contribution(flow={})]), "impossible updates"),
        (rounds_pb2.RoundTimes(contributions=[rounds_pb2.Contribution(progress={})]), "impossible updates"),
    ],
)
def test_times_that_cannot_be_are_refused(setting: Setting, times: rounds_pb2.RoundTimes, message: str) -> None:
    rows = [rounds_pb2.LpsRound(home_id="lps-0", times=times)]
    with pytest.raises(PayloadError, match=message):
        setting.reports.note(rounds_pb2.UpdateHeader(home_id="lps-0", lps_rounds=rows))


def test_a_journal_with_an_exclusion_of_nobody_is_gone_on_from(setting: Setting) -> None:
    setting.gps.journal.exclude("nobody", "enrolment", "refused: it is said")
    setting.restart()
    assert len(setting.gps.roster.devices) == 5


def test_lists_that_are_longer_than_a_run_can_make_them_are_refused(setting: Setting) -> None:
    exclusions = [rounds_pb2.Exclusion(device_id=IDS[0], stage="training", reason=str(n)) for n in range(10_000)]
    long = {
        "exclusions": exclusions,
        "lps_rounds": [rounds_pb2.LpsRound(home_id="lps-0")] * 10_000,
        "link_bytes": [rounds_pb2.LinkBytes(**vars(UP))] * 10_000,
    }
    for name, said in long.items():
        with pytest.raises(PayloadError, match=r"10000 .* reported, expected at most"):
            setting.reports.note(rounds_pb2.UpdateHeader(home_id="lps-0", **{name: said}))  # type: ignore[arg-type]
    with pytest.raises(UnknownChildError, match="no LPS is called 'lps-77'"):
        setting.note("lps-77")


async def test_a_device_that_is_measured_twice_is_refused(setting: Setting) -> None:
    measured = rounds_pb2.Evaluation(device_id=IDS[0], sums=[1], num_examples=2)
    with pytest.raises(PayloadError, match="expected one measurement per device, of its own devices"):
        await setting.reports.take(header_of(evaluations=[measured] * 2), parts_of(MODEL))


async def test_clusters_that_are_none_are_refused(setting: Setting) -> None:
    with pytest.raises(UnknownChildError, match="no cluster is called 'lps-7'"):
        setting.note("lps-7", home_id="lps-7")


async def test_a_report_that_is_still_coming_keeps_no_record_waiting(setting: Setting) -> None:
    gps = setting.gps
    run: Any = SimpleNamespace(
        experiment=gps.experiment, journal=gps.journal, reports=setting.reports, tell=lambda: None
    )

    async def half() -> AsyncIterator[pb.ReportPart]:
        yield pb.ReportPart(header=header_of(run_id=gps.journal.attempt_id))
        await asyncio.Event().wait()

    call = asyncio.create_task(GpsServicer(run).SubmitReport(half(), Mock()))
    for _ in range(10):
        await asyncio.sleep(0)
    assert not call.done()
    async with asyncio.timeout(60):
        await setting.reports.all_answered()
    call.cancel()
    await asyncio.wait([call])


async def test_the_record_waits_for_calls_that_are_being_answered(setting: Setting) -> None:
    first, second = setting.reports.call_began(), setting.reports.call_began()
    waiting = asyncio.create_task(setting.reports.all_answered())
    first()
    for _ in range(5):
        await asyncio.sleep(0)
    assert not waiting.done()
    second()
    await waiting
