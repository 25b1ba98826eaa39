"""LPS rounds of three devices on a clock, as their LPS goes through them; nothing is sent, only its sizes are said."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast

from fedstrata.clock.clocks import clock_of
from fedstrata.clock.exchanged import Exchanged
from fedstrata.experiment import Experiment, LinkSettings
from fedstrata.methods import Question
from fedstrata.process.logs import EventLog
from fedstrata.process.metrics import ProcessMetrics
from fedstrata.process.waiting import Changes
from fedstrata.rounds import Intake, OpenRound, Refusals, RoundTerms, on_time
from fedstrata.rounds.parent.open_round import Around, Verdict
from fedstrata.v1 import rounds_pb2 as pb
from fedstrata.v1.gps_service_pb2 import Cluster, Member, ReportHeader
from lps.members import Members
from tests.support.rounds_setting import asking

NAMES = ("device-000", "device-001", "device-002")
Three = tuple[int, int, int]


def header_of(name: str, size: int, work: pb.Work | None = None, *, number: int = 0) -> pb.UpdateHeader:
    """The header of an update of a round that is so large with it."""
    header = pb.UpdateHeader(child_id=name, work=work or pb.Work(), round=number)
    header.payload.payload_bytes = size
    header.payload.payload_bytes -= Exchanged.of_update(header).up_bytes - size
    return header


class LpsRounds:
    """An LPS with its report."""

    def __init__(self, experiment: Experiment, busy_ns: Mapping[int, int] | None = None) -> None:
        self.devices = [Member(device_id=name, device_index=index) for index, name in enumerate(NAMES)]
        self.clock = clock_of(experiment).lps(Cluster(home_id="lps-0"))
        self.members = Members(experiment, Cluster(home_id="lps-0", members=self.devices), self.clock.presence)
        self.report, self.taken = ReportHeader(busy_ns=busy_ns), dict[str, Exchanged]()

    def open(
        self, number: int, *, drawn: tuple[int, ...] = (0, 1, 2), down: int = 0, clusters: Three = (0, 0, 0),
        question: Question | None = None,
    ) -> None:  # fmt: skip
        """Open a round whose models have so many bytes, a model for each of the clusters."""
        self.deadline, self.taken = self.clock.opens(self.report, 0, number, self.members), {}
        self.opened = OpenRound(
            number=number,
            global_round=0,
            offers={
                each: cast(
                    Any, SimpleNamespace(transfer=Exchanged(down_bytes=down, stream=each), header=pb.ModelHeader())
                )
                for each in clusters
            },
            clusters=dict(zip(NAMES, clusters, strict=True)),
            intake=Intake(children=[NAMES[index] for index in drawn], wait=self.clock.wait),
        )
        around = Around(
            opened=self.opened,
            terms=RoundTerms(run_id="", link=LinkSettings(), wait=self.clock.wait),
            refused=Refusals(EventLog("test")),
            calls=Changes(),
            messages=Changes(),
            metrics=ProcessMetrics("lps"),
            log=EventLog("test"),
        )
        self.stages = on_time(self.deadline)
        for stage in self.stages:
            stage.begin(around)
        if question is not None:
            self.asking = asking(question, self.deadline)
            self.asking.begin(around)

    def is_in_time(self, header: pb.UpdateHeader) -> bool:
        """Whether an update is in time; else its sender is left out."""
        return all(stage.judge(header) is not Verdict.LATE for stage in self.stages)

    def take(self, header: pb.UpdateHeader) -> None:
        """Have an update come; it is taken if it is in time."""
        if self.is_in_time(header):
            self.taken[header.child_id] = Exchanged.of_update(header).after(self.opened.sent_to(header.child_id))

    def close(self) -> None:
        """Close the round, with what was taken."""
        self.report.lps_rounds.add(lps_round=self.opened.number)
        self.clock.of_round(self.report, self.taken, self.members)
