"""Files with reports of a local parameter server (LPS). A file has the report at the start of a round, or the complete
report after the final measurement. Each file is sealed: it begins with the SHA-256 of its report.
"""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from google.protobuf.message import DecodeError

from fedstrata.errors import StateError
from fedstrata.process.logs import EventLog
from fedstrata.store import GLOBAL_ROUNDS_KEPT, clear_asides, read_sealed, write_sealed
from fedstrata.v1 import gps_service_pb2 as pb
from fedstrata.v1 import rounds_pb2

FINAL = "final.pb"  # file with the complete report, after devices have measured the final model


class RefusedDevices:
    """Write and read the file `LPS.refused.pb`. It has the devices of a cluster that this LPS has refused until the end
    of the run.
    """

    def __init__(self, folder: Path, home_id: str, log: EventLog, told: Iterable[rounds_pb2.Exclusion] = ()) -> None:
        """Set the folder of the run and the name of the cluster. `told` has the exclusions of refused devices that the
        GPS has sent.
        """
        self._path = folder / f"{home_id}.refused.pb"
        self._log = log
        self.exclusions = list(told)
        if found := report_if_whole(self._path, log):
            self.exclusions += [own for own in found.exclusions if own not in self.exclusions]

    def add(self, exclusion: rounds_pb2.Exclusion) -> None:
        """Save a further refused device. Without the file, a restarted LPS would wait for this device, although the
        device has ended. If the file cannot be written, log this.
        """
        self.exclusions.append(exclusion)
        try:
            write_report(self._path, pb.ReportHeader(exclusions=self.exclusions))
        except StateError as error:
            self._log.error("refusal_not_saved", device=exclusion.device_id, reason=str(error))

    def forget(self) -> None:
        """Delete the file, because the run has failed. If the run is continued, its devices may try again."""
        self._path.unlink(missing_ok=True)


class RoundReports:
    """Write and read the reports of an LPS that keeps no models, one file per global round. For example,
    `round-000012.pb` has the report at the start of global round 12.
    """

    def __init__(self, folder: Path, log: EventLog) -> None:
        self._folder = folder
        self._log = log
        clear_asides(folder)

    def save(self, global_round: int, report: pb.ReportHeader) -> None:
        """Save the report at the start of a global round, even if the GPS has not opened this round yet. Keep the
        reports of the two previous global rounds, because the GPS may return to them. Delete older reports.
        """
        write_report(self._path(global_round), report)
        self._path(global_round - 1 - GLOBAL_ROUNDS_KEPT).unlink(missing_ok=True)

    def at(self, global_round: int) -> pb.ReportHeader | None:
        """Return the report at the start of a global round. If the file is missing or damaged, return None."""
        return report_if_whole(self._path(global_round), self._log)

    def _path(self, global_round: int) -> Path:
        return self._folder / f"round-{global_round:06d}.pb"


def write_report(path: Path, report: pb.ReportHeader, *, durable: bool = True) -> None:
    """Write a report to a file that begins with the SHA-256 of the report. With `durable`, flush the file to disk."""
    write_sealed(path, report.SerializeToString(deterministic=True), durable=durable)


def read_report(path: Path) -> pb.ReportHeader:
    """Return the report in a sealed file. If the file is missing or damaged, raise StateError, which names the file."""
    try:
        return pb.ReportHeader.FromString(read_sealed(path))
    except DecodeError as error:
        raise StateError(f"{path}: {error}") from None


def report_if_whole(path: Path, log: EventLog) -> pb.ReportHeader | None:
    """Return the report in a file. If the file is missing or damaged, return None. The log names a damaged file."""
    if not path.exists():
        return None
    try:
        return read_report(path)
    except StateError as error:
        log.warning("state_passed_over", reason=str(error))
        return None


def newest_reports(folder: Path) -> Iterator[pb.ReportHeader]:
    """Yield the newest complete report of each cluster and term in the folder of a run."""
    for cluster in sorted(path for path in folder.glob("*") if path.is_dir()):
        for path in (cluster / FINAL, *sorted(cluster.glob("round-*.pb"), reverse=True)):
            with suppress(StateError):
                yield read_report(path)
                break
