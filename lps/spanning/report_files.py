"""What an LPS of clusters that span LPSs keeps on disk: what it has not told the GPS yet, by global round."""

from collections.abc import Sequence
from pathlib import Path

from fedstrata.errors import StateError
from fedstrata.process.logs import EventLog
from fedstrata.store import clear_asides, write_sealed
from fedstrata.v1 import gps_service_pb2 as gps_pb
from fedstrata.v1 import rounds_pb2 as pb
from lps.kept.state import FINAL, read_report


class ReportFiles:
    """`round-000012.pb` is the report at the start of global round 12, `late-000012.pb` who has answered too late in it
    on the virtual clock, `final.pb` the complete report."""

    def __init__(self, folder: Path, log: EventLog) -> None:
        self._folder = folder
        self._log = log
        clear_asides(folder)

    def save(self, global_round: int, report: gps_pb.ReportHeader) -> None:
        """Keep the report at the start of a global round, and none that is older than the one before."""
        write_sealed(self._path(global_round), report.SerializeToString(deterministic=True))
        self._path(global_round - 2).unlink(missing_ok=True)

    def at(self, global_round: int) -> gps_pb.ReportHeader | None:
        """The report at the start of a global round, if there is one that is whole."""
        return self._whole(self._path(global_round))

    def save_late(self, global_round: int, late: Sequence[pb.Flow]) -> None:
        """Keep whose answers in a global round have come too late, before the GPS hears of the others'."""
        kept = gps_pb.ReportHeader(lps_rounds=[pb.LpsRound(times=pb.RoundTimes(late=late))])
        write_sealed(self._path(global_round, "late"), kept.SerializeToString(deterministic=True))
        self._path(global_round - 2, "late").unlink(missing_ok=True)

    def late(self, global_round: int) -> list[pb.Flow]:
        """Whose answers in a global round have come too late, as an earlier life has found.

        Raises:
            StateError: the file is damaged or gone; without it devices would go on that were left out.
        """
        path = self._path(global_round, "late")
        if not path.exists():
            raise StateError(
                f"{path} is gone, which says whose answers came too late in global round {global_round + 1}, and the "
                "plan is made of the others': put the LPS's files back, or begin the run anew"
            )
        return [flow for row in read_report(path).lps_rounds for flow in row.times.late]

    def save_final(self, report: gps_pb.ReportHeader) -> None:
        """Keep the complete report, before devices hear that nothing more is wanted of them."""
        write_sealed(self._folder / FINAL, report.SerializeToString(deterministic=True))

    def final(self) -> gps_pb.ReportHeader | None:
        """The complete report of an earlier life, if there is one and it is whole."""
        return self._whole(self._folder / FINAL)

    def _whole(self, path: Path) -> gps_pb.ReportHeader | None:
        if not path.exists():
            return None
        try:
            return read_report(path)
        except StateError as error:
            self._log.warning("state_passed_over", reason=str(error))
            return None

    def _path(self, global_round: int, what: str = "round") -> Path:
        return self._folder / f"{what}-{global_round:06d}.pb"
