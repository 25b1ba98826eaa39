"""The clock of a cluster, or of an LPS where clusters span them: its rounds' times, written into its report."""

from fedstrata.experiment import Experiment
from fedstrata.rounds import ReceivedModel, RoundResult, RoundServer
from fedstrata.timeline import DeviceTimeline, LpsTimeline
from fedstrata.v1 import gps_service_pb2 as gps_pb
from fedstrata.v1 import rounds_pb2 as pb
from lps.members import Members


class Times:
    """Works out when things happen, where the experiment asks for it; else does nothing. Its state is in the report."""

    def __init__(self, experiment: Experiment, cluster_id: str, server: RoundServer) -> None:
        self.is_on = experiment.is_timed
        self._is_real = experiment.is_paced
        self._cluster_id = cluster_id
        self._server = server
        self._devices = DeviceTimeline(experiment)
        self._uplink = LpsTimeline(experiment)

    def of_round(self, report: gps_pb.ReportHeader, gathered: RoundResult, members: Members) -> None:
        """Put the times of the LPS round just closed into its row, the report's last, and move its clock."""
        row = report.lps_rounds[-1]
        if self._is_real:
            row.times.carried.extend(self._achieved(row.lps_round, gathered, members))
        if not self.is_on:
            return
        exchanged = self._server.exchanged(gathered)
        row.times.CopyFrom(self._devices.round(row.lps_round, report.now_ns, exchanged, members.indexes))
        report.now_ns = row.times.ends_ns

    def _achieved(self, lps_round: int, gathered: RoundResult, members: Members) -> list[pb.Carried]:
        """On the real clock: what links have carried in a round, and how long devices have computed."""
        transfers, indexes = self._server.exchange.transfers, members.indexes
        carried = transfers.take(lps_round) if transfers is not None else []
        for name, uploaded in sorted(gathered.uploaded.items()):
            modelled_ns = self._devices.compute_ns(indexes[name], lps_round, uploaded.work.examples)
            carried.append(
                pb.Carried(
                    link="device-lps",
                    direction="compute",
                    child=indexes[name],
                    link_ns=modelled_ns,
                    achieved_link_ns=uploaded.work.computed_ns,
                )
            )
        return carried

    def work(self, report: gps_pb.ReportHeader, global_round: int) -> pb.Work | None:
        """What the LPS has done in a global round: how long since its model arrived."""
        if not self.is_on:
            return None
        began = min(row.times.begins_ns for row in report.lps_rounds if row.global_round == global_round)
        return pb.Work(busy_ns=report.now_ns - began)

    def received(self, report: gps_pb.ReportHeader, model: ReceivedModel) -> None:
        """The next global round's model is here: its first LPS round begins, and what the last one made is ready."""
        if not self.is_on:
            return
        report.now_ns = self._uplink.arrival_ns(self._cluster_id, model.round, model.begins_ns, model.whole_bytes)
        if report.lps_rounds:
            report.lps_rounds[-1].times.ready_ns = report.now_ns
            report.lps_rounds[-1].times.next_bytes = model.whole_bytes
