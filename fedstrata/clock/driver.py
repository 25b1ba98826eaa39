"""The virtual time of LPSs side by side, from all that went to and fro: for whoever runs no tiers."""

from collections.abc import Mapping, Sequence

from fedstrata.clock.round import Exchanged
from fedstrata.clock.timeline import DeviceTimeline, LpsTimeline
from fedstrata.experiment import Experiment
from fedstrata.v1 import rounds_pb2 as pb

Sent = Mapping[str, Exchanged]  # what went between an LPS and its devices in an LPS round, by device


class Driver:
    """Works out the rounds of all LPSs as the tiers do together."""

    def __init__(self, experiment: Experiment) -> None:
        self._devices, self.uplinks = DeviceTimeline(experiment), LpsTimeline(experiment)
        self._indexes = {name: index for index, name in enumerate(experiment.device_ids())}

    def lps_rounds(
        self, global_round: int, first: int, begins: Mapping[str, int], sent: Mapping[str, Sequence[Sent]], *,
        is_asking: bool,
    ) -> dict[str, list[pb.RoundTimes]]:  # fmt: skip
        """Return by LPS the times of LPS rounds that follow each other, the first of which begin at these times.

        `is_asking`: devices are asked in the first, and all LPSs wait for the plan that is made of the answers.
        """
        told = self._told(global_round, first, begins, sent) if is_asking else {}
        found: dict[str, list[pb.RoundTimes]] = {name: [] for name in sent}
        for name, rounds in sent.items():
            now_ns = begins[name]
            for number, children in enumerate(rounds, first):
                goes_on_ns = told.pop(name, None)
                times = self._devices.round(number, now_ns, children, self._indexes, goes_on_ns=goes_on_ns)
                found[name].append(times)
                now_ns = times.ends_ns
        return found

    def _told(
        self, global_round: int, lps_round: int, begins: Mapping[str, int], sent: Mapping[str, Sequence[Sent]]
    ) -> dict[str, int]:
        """When each LPS has heard of the plan."""
        came = []
        for name, (children, *_) in sent.items():
            answered_ns = self._devices.answered_ns(lps_round, begins[name], children, self._indexes)
            size = sum(each.work.answer_bytes for each in children.values())
            came.append(self.uplinks.bundled_ns(name, global_round, answered_ns, size))
        return {name: self.uplinks.told_ns(name, global_round, max(came)) for name in sent}
