"""The clock of a cluster, or of an LPS where clusters span them: its rounds' times, written into its report."""

import time
from collections.abc import Iterable, Mapping

from fedstrata.clock.presence import busy_as_they_move
from fedstrata.clock.timeline import NOBODY, DeviceTimeline, LpsTimeline
from fedstrata.experiment import Experiment, TierDeadline
from fedstrata.process.sleeping import since_ns, until_ns
from fedstrata.rounds import ReceivedModel, RoundResult, RoundServer
from fedstrata.rounds.notes import MOST_COUNTED
from fedstrata.v1 import answers_pb2
from fedstrata.v1 import gps_service_pb2 as gps_pb
from fedstrata.v1 import rounds_pb2 as pb
from lps.lateness import Lateness, of_answer
from lps.members import Members


def lps_wait(experiment: Experiment) -> TierDeadline:
    """How long an LPS waits by the wall: on the virtual clock for everybody, since deadlines are in virtual time."""
    wait = experiment.deadlines.lps
    return wait.model_copy(update={"deadline_s": None}) if experiment.is_timed else wait


class Times:
    """Works out when things happen, where the experiment asks for it; else does nothing. Its state is in the report."""

    def __init__(self, experiment: Experiment, cluster: gps_pb.Cluster, server: RoundServer) -> None:
        self.is_on = experiment.is_timed
        self._is_real = experiment.is_paced
        self._cluster_id = cluster.cluster_id
        self._began_unix_ns = cluster.began_unix_ns  # 0 but on the real clock where something happens by it
        self._server = server
        self._devices = DeviceTimeline(experiment)
        self._uplink = LpsTimeline(experiment)
        deadline_s = experiment.deadlines.lps.deadline_s
        self._deadline_ns = round(deadline_s * 1e9) if self.is_on and deadline_s is not None else None
        self._moving = busy_as_they_move(experiment)
        self._lateness: Lateness | None = None  # of the open round, with a deadline
        self._free: dict[str, int] = {}  # from when on the devices of the round are there, and not busy any more
        self._drawn: frozenset[int] = frozenset()  # who is of the round
        self._goes_on_ns: int | None = None  # when the open round goes on whose devices were asked

    async def begins_ns(self, report: gps_pb.ReportHeader, global_round: int, members: Members) -> int:
        """When an LPS round begins that is about to be opened. On the real clock, where all devices are away, waits.

        Raises:
            RunStoppedError: all devices are gone for good.
        """
        if not self._began_unix_ns:
            return report.now_ns
        now_ns = since_ns(self._began_unix_ns)
        back_ns = min(members.back_ns(global_round, now_ns).values(), default=now_ns)
        await until_ns(time.monotonic_ns() + back_ns - now_ns)
        return back_ns

    def opened(self, report: gps_pb.ReportHeader, members: Members) -> None:
        """An LPS round is open. With a deadline, who is busy until it is over with an earlier one is left out."""
        opened = self._server.opened()
        if not self.is_on or opened.evaluate_only:
            return
        self._free = members.back_ns(opened.global_round, report.now_ns)
        self._goes_on_ns = None
        if self._deadline_ns is not None:
            self._lateness = self._decides(report, members, self._deadline_ns)

    def _decides(self, report: gps_pb.ReportHeader, members: Members, deadline_ns: int) -> Lateness:
        """Who is late in the round just opened; busy as it opens is who has moved here so, too."""
        for index, busy_ns in members.busy_ns.items():  # what has passed meanwhile changes nothing, told again
            report.busy_ns[index] = max(busy_ns, report.busy_ns[index])
        opened, indexes = self._server.opened(), members.indexes
        awaited = opened.intake.missing
        self._drawn = frozenset(indexes[name] for name in awaited)
        busy = {name: report.busy_ns[indexes[name]] for name in awaited if indexes[name] in report.busy_ns}
        self._free = {name: max(busy.get(name, 0), self._free[name]) for name in awaited}
        return Lateness(
            opened, self._devices, begins_ns=report.now_ns, deadline_ns=deadline_ns, free=self._free, indexes=indexes
        )

    @property
    def has_deadline(self) -> bool:
        """Whether somebody may be late in virtual time."""
        return self._deadline_ns is not None

    @property
    def late_answers(self) -> list[pb.Flow]:
        """Whose answers have missed the deadline of the open round, and what they did for them."""
        return [flow for _, flow in sorted(self._lateness.late.items())] if self._lateness is not None else []

    def found(self, late: Iterable[pb.Flow]) -> None:
        """In the open round the plan is made of others' answers than of these devices, which came too late."""
        if self._lateness is not None:
            self._lateness.found(late)

    def answered_ns(
        self, report: gps_pb.ReportHeader, answers: Mapping[str, answers_pb2.Answer], members: Members
    ) -> int:
        """When the last answer to the question of the open round is here; 0 without the virtual clock.

        Where some have missed its deadline that is when it is over.
        """
        if not self.is_on:
            return 0
        opened, lateness = self._server.opened(), self._lateness
        if lateness is not None and lateness.ends_ns is not None:
            return lateness.ends_ns
        asked = {name: of_answer(answer).exchanged(opened.offer_to(name)) for name, answer in answers.items()}
        there = lateness.there if lateness is not None else None
        return self._devices.answered_ns(
            opened.number, report.now_ns, asked, members.indexes, free=self._free, there=there
        )

    def goes_on(self, global_round: int, planned_ns: int) -> None:
        """The plan of a global round is made at the GPS: when its devices, who were asked, go on."""
        if self.is_on:
            self._goes_on_ns = self._uplink.told_ns(self._cluster_id, global_round, planned_ns)
            if self._lateness is not None:
                self._lateness.goes_on(self._goes_on_ns)

    async def plan_came(self, global_round: int) -> None:
        """On the real clock, wait until the word that a plan is made has come over this LPS's link."""
        if self._is_real:
            now_ns = since_ns(self._began_unix_ns) if self._began_unix_ns else 0
            told_ns = self._uplink.told_ns(self._cluster_id, global_round, now_ns)
            await until_ns(time.monotonic_ns() + told_ns - now_ns)

    def of_round(self, report: gps_pb.ReportHeader, gathered: RoundResult, members: Members) -> None:
        """Put the times of the LPS round just closed into its row, the report's last, and move its clock."""
        row = report.lps_rounds[-1]
        if self._is_real:
            row.times.carried.extend(self._achieved(row.lps_round, gathered, members))
        if not self.is_on:
            return
        exchanged, lateness = self._server.exchanged(gathered), self._lateness
        if lateness is not None:  # what an update was said to be counts, as who is late was worked out of it
            exchanged = {name: lateness.announced.get(name, each) for name, each in exchanged.items()}
        times = self._devices.round(
            row.lps_round,
            report.now_ns,
            exchanged,
            members.indexes,
            free=self._free,
            there=lateness.there if lateness is not None else None,
            ends_ns=lateness.ends_ns if lateness is not None else None,
            goes_on_ns=self._goes_on_ns,
            beside=lateness.beside_of(exchanged) if lateness is not None else NOBODY,
        )
        row.times.CopyFrom(times)
        report.now_ns = row.times.ends_ns
        if lateness is None:
            return
        row.times.late.extend(flow for _, flow in sorted(lateness.late.items()))
        elsewhere = {i: free for i, free in report.busy_ns.items() if i not in self._drawn and free > report.now_ns}
        report.busy_ns.clear()
        report.busy_ns.update(elsewhere | {members.index_of(name): free for name, free in lateness.busy.items()})

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
                    link_ns=min(modelled_ns, MOST_COUNTED - 1),  # of as many examples as a device says
                    achieved_link_ns=uploaded.work.computed_ns,
                )
            )
        return carried

    def work(self, report: gps_pb.ReportHeader, global_round: int) -> pb.Work | None:
        """What the LPS has done in a global round: how long since its model arrived."""
        if not self.is_on:
            return None
        began = min(row.times.begins_ns for row in report.lps_rounds if row.global_round == global_round)
        busy = {i: busy_ns for i, busy_ns in report.busy_ns.items() if i in self._moving and busy_ns > report.now_ns}
        return pb.Work(busy_ns=report.now_ns - began, devices_busy_ns=busy)

    def received(self, report: gps_pb.ReportHeader, model: ReceivedModel) -> None:
        """The next global round's model is here: its first LPS round begins, and what the last one made is ready."""
        if not self.is_on:
            return
        report.now_ns = self._uplink.arrival_ns(self._cluster_id, model.round, model.begins_ns, model.whole_bytes)
        if report.lps_rounds:
            report.lps_rounds[-1].times.ready_ns = report.now_ns
            report.lps_rounds[-1].times.next_bytes = model.whole_bytes
