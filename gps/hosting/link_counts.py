"""The bytes of a run's links. They are counted at the parents: at the GPS, and at LPSs, which report their counts."""

from collections.abc import Mapping

from fedstrata.experiment.links import WAYS
from fedstrata.process.metrics import LinkKey, LinkMeter
from fedstrata.rpc.messages import link_bytes_from_proto, link_bytes_to_proto
from fedstrata.v1 import gps_service_pb2 as pb
from gps.journal.journal import Journal

REPEATED = "repeated"  # source of the counts of repeated messages; no LPS has this name
KINDS = ("model", "update", "control", "answer")


class LinkCounts:
    """Hold the counts of bytes on a run's links. The journal keeps the counts, so a restart does not lose them."""

    def __init__(self, journal: Journal, links: LinkMeter) -> None:
        """Continue from the counts that were saved before the restart."""
        self._journal = journal
        self._links = links
        self._of_lps: dict[str, dict[LinkKey, int]] = {}
        self._repeated: dict[LinkKey, int] = {}
        for source, data in journal.rounds.link_bytes().items():
            counts = link_bytes_from_proto(pb.RunStatus.FromString(data).link_bytes)
            if source == REPEATED:
                self._repeated = counts
            elif source:
                self._of_lps[source] = counts
            else:
                links.go_on_from(counts)

    def note(self, lps_id: str, counts: Mapping[LinkKey, int]) -> None:
        """Keep the counts that an LPS reports for all its clusters. If an LPS has reported several times, the largest
        value of each count is used.
        """
        known = self._of_lps.setdefault(lps_id, {})
        kinds = {*KINDS, *self._links.questions}
        own = {key: count for key, count in counts.items() if _is_of_devices(key) and key.kind in kinds}
        known.update({key: max(count, known.get(key, 0)) for key, count in own.items()})
        self._write(lps_id, known)

    def note_repeated(self, direction: str, size: int) -> None:
        """Note that `size` bytes of the GPS's own counts are from a message that repeats an earlier message."""
        key = LinkKey(link="device-gps", direction=direction, kind=REPEATED, end="parent")
        self._repeated[key] = self._repeated.get(key, 0) + size

    def keep(self) -> None:
        """Save the GPS's own counts so far."""
        self._write("", self._links.snapshot())
        if self._repeated:
            self._write(REPEATED, self._repeated)

    def repeated(self) -> dict[LinkKey, int]:
        """Return the part of `total` that repeats earlier messages between devices and the GPS."""
        return dict(self._repeated)

    def _write(self, source: str, counts: Mapping[LinkKey, int]) -> None:
        message = pb.RunStatus(link_bytes=link_bytes_to_proto(counts))
        self._journal.rounds.set_link_bytes(source, message.SerializeToString(deterministic=True))

    def total(self) -> dict[LinkKey, int]:
        """Return all bytes so far: the GPS's counts, and the last counts of each LPS."""
        counts = {key: n for key, n in self._links.snapshot().items() if key.end == "parent"}
        for reported in self._of_lps.values():
            for key, count in reported.items():
                counts[key] = counts.get(key, 0) + count
        return counts


def _is_of_devices(key: LinkKey) -> bool:
    """Return whether a count is an LPS's own count of the bytes between the LPS and its devices."""
    return (key.link, key.end) == ("device-lps", "parent") and key.direction in WAYS
