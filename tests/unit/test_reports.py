"""What LPSs report: of a cluster only from the LPS that serves it, and bytes by who counted them."""

import asyncio
import hashlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from gps_parts import IDS, GpsParts

from fedstrata.errors import NotServedError, PayloadError, UnknownChildError
from fedstrata.methods import Grouping
from fedstrata.metrics import LinkKey, ProcessMetrics
from fedstrata.v1 import gps_service_pb2 as pb
from fedstrata.v1 import rounds_pb2
from gps.plan import Plan
from gps.reports import Reports
from gps.serving import Serving

UP = LinkKey(link="device-lps", direction="up", kind="update", end="parent")
MODEL = b"a model"


class Setting:
    """Two clusters, and what is taken of their LPSs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.gps = GpsParts(folder)
        self.gps.enrol(*range(5))
        self._open()
        self.plan.make(Grouping(clusters=((0, 2), (1, 3, 4)), rule="2 as given"))

    def _open(self) -> None:
        gps = self.gps
        self.plan = Plan(gps.experiment, gps.roster, gps.journal)
        self.serving = Serving(gps.experiment, self.plan, gps.journal, clock=lambda: 0.0)
        self.reports = Reports(
            gps.experiment,
            plan=self.plan,
            serving=self.serving,
            journal=gps.journal,
            metrics=ProcessMetrics("gps"),
            models=self.folder / "models",
            model_size=10,
        )

    def restart(self) -> None:
        self.gps.restart()
        self._open()

    def note(
        self, lps_id: str, *, term: int = 0, bytes_up: int = 0, devices: int = 2, cluster_id: str = "lps-0"
    ) -> None:
        self.reports.note(
            rounds_pb2.UpdateHeader(
                cluster_id=cluster_id,
                lps_id=lps_id,
                term=term,
                lps_rounds=[rounds_pb2.LpsRound(cluster_id=cluster_id, lps_round=0, devices=devices)],
                exclusions=[rounds_pb2.Exclusion(device_id=IDS[0], stage="round 1", reason=lps_id)],
                link_bytes=[rounds_pb2.LinkBytes(**vars(UP), bytes=bytes_up)],
            )
        )

    async def take(self, lps_id: str, term: int = 0, model: bytes = MODEL, device: str = IDS[0]) -> None:
        header = pb.ReportHeader(
            lps_id=lps_id,
            cluster_id="lps-0",
            term=term,
            model_sha256=hashlib.sha256(MODEL).hexdigest(),
            evaluations=[rounds_pb2.Evaluation(device_id=device, correct=1, num_examples=2)],
        )
        await self.reports.take(header, parts_of(model))


async def parts_of(model: bytes) -> AsyncIterator[pb.ReportPart]:
    yield pb.ReportPart(data=model)


@pytest.fixture
def setting(tmp_path: Path) -> Setting:
    return Setting(tmp_path)


def devices_told(setting: Setting) -> list[int]:
    return [rounds_pb2.LpsRound.FromString(row).devices for row in setting.gps.journal.lps_rounds()]


def test_rounds_and_exclusions_are_those_that_the_serving_lps_tells_of(setting: Setting) -> None:
    told: list[str] = []
    setting.reports.on_exclusion = lambda who, stage, reason: told.append(reason)
    setting.serving.hand_over("lps-0", "lps-1", 1)
    setting.note("lps-1", term=1, devices=2)
    setting.note("lps-0", term=0, devices=1)  # it stood still, and tells of a round that was trained anew
    assert devices_told(setting) == [2]
    assert told == ["lps-1"]


def test_what_was_measured_last_is_known_after_rounds_that_were_not_measured(setting: Setting) -> None:
    for lps_round, examples in ((0, 0), (1, 10), (2, 0)):
        row = rounds_pb2.LpsRound(
            cluster_id="lps-0", lps_round=lps_round, loss_sum=25, correct=4, evaluated_examples=examples
        )
        setting.reports.note(rounds_pb2.UpdateHeader(cluster_id="lps-0", lps_id="lps-0", lps_rounds=[row]))
        assert ("lps-0" in setting.reports.latest_measured) == (lps_round > 0)
    assert setting.reports.latest_rows["lps-0"].lps_round == 2
    assert setting.reports.latest_measured["lps-0"] == (2.5, 0.4)


def test_an_lps_that_serves_two_clusters_counts_its_bytes_once(setting: Setting) -> None:
    setting.note("lps-1", cluster_id="lps-1", bytes_up=700)
    setting.note("lps-0", bytes_up=100)
    setting.serving.hand_over("lps-0", "lps-1", 1)
    setting.note("lps-1", term=1, bytes_up=900)  # all it has counted, of both clusters
    setting.note("lps-1", cluster_id="lps-1", bytes_up=850)  # said before, and heard later
    assert setting.reports.link_bytes()[UP] == 100 + 900
    setting.restart()
    assert setting.reports.link_bytes()[UP] == 100 + 900


async def test_a_report_counts_from_the_serving_lps_only(setting: Setting) -> None:
    setting.serving.hand_over("lps-0", "lps-1", 1)
    with pytest.raises(NotServedError, match="lps-0 is served by lps-1 now"):
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
        await setting.take("lps-1", term=1)
        yield pb.ReportPart(data=b"an old model")

    old = pb.ReportHeader(cluster_id="lps-0", model_sha256=hashlib.sha256(b"an old model").hexdigest())
    with pytest.raises(NotServedError):
        await setting.reports.take(old, slowly())
    assert (setting.folder / "models" / "lps-0.safetensors").read_bytes() == MODEL


def test_bytes_of_links_that_no_lps_counts_stay_out_of_the_record(setting: Setting) -> None:
    strange = [vars(UP) | {"direction": "sideways"}, vars(UP) | {"kind": "x" * 99}, vars(UP) | {"link": "lps-gps"}]
    counts = [rounds_pb2.LinkBytes(**key, bytes=1) for key in (*strange, vars(UP))]
    setting.reports.note(rounds_pb2.UpdateHeader(cluster_id="lps-0", link_bytes=counts))
    assert setting.reports.link_bytes() == {UP: 1}
    setting.restart()
    assert setting.reports.link_bytes() == {UP: 1}


async def test_a_model_that_does_not_fit_its_checksum_leaves_no_report(setting: Setting) -> None:
    with pytest.raises(PayloadError, match="does not fit its checksum"):
        await setting.take("lps-0", model=b"another")
    with pytest.raises(PayloadError, match="reports a measurement of 'device-001'"):
        await setting.take("lps-0", device=IDS[1])
    assert setting.reports.missing() == ["lps-0", "lps-1"]
    assert not list((setting.folder / "models").glob("*.safetensors"))


async def test_clusters_that_are_none_are_refused(setting: Setting) -> None:
    with pytest.raises(UnknownChildError, match="no cluster is called 'lps-7'"):
        setting.note("lps-7", cluster_id="lps-7")


async def test_the_record_waits_for_calls_that_are_being_answered(setting: Setting) -> None:
    first, second = setting.reports.call_began(), setting.reports.call_began()
    waiting = asyncio.create_task(setting.reports.all_answered())
    first()
    for _ in range(5):
        await asyncio.sleep(0)
    assert not waiting.done()
    second()
    await waiting
