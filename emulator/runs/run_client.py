"""Call a GPS as the experimenter: watch the status of its run, and fetch the record."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Self

from emulator.runs.incoming import IncomingRecord
from emulator.runs.progress import headline_of
from fedstrata.errors import AddressError, PayloadError, PluginError
from fedstrata.process.logs import EventLog
from fedstrata.process.quoting import brief, printable
from fedstrata.rpc.client import CallError, Connection, is_passing
from fedstrata.rpc.messages import checked_number
from fedstrata.tasks.base import LARGEST_METRIC
from fedstrata.trust.security import Security
from fedstrata.v1 import gps_service_pb2 as pb
from fedstrata.v1.gps_service_pb2_grpc import RunServiceStub

WATCH_DEADLINE_S = 3600.0  # the deadline of one stream; a longer run is watched over several streams
RECORD_DEADLINE_S = 600.0
STOP_DEADLINE_S = 5.0
EMPTY_STREAMS_MAX = 20
log = EventLog("client")


def checked_status(status: pb.RunStatus) -> pb.RunStatus:
    """Check a status from a GPS, and return it. Raises PayloadError if a number is invalid or impossibly large."""
    told = [status.seconds, status.epsilon_spent, *(wait.seconds for wait in status.waits)]
    told += [number for cluster in status.clusters for number in (cluster.loss, cluster.headline)]
    for number in told:
        checked_number(number, -LARGEST_METRIC, LARGEST_METRIC, "the GPS sends a state with")
    try:
        headline_of(status)
    except PluginError as error:
        raise PayloadError(f"the GPS sends a state with {error}") from None
    return status


class RunClient:
    """Call one GPS. If the GPS is restarted, calls continue. Use this object as an async context manager."""

    def __init__(self, address: str, security: Security) -> None:
        self._gps = Connection(address, security)
        self._stub = RunServiceStub(self._gps.channel)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._gps.close()

    async def watch(self) -> AsyncIterator[pb.RunStatus]:
        """Yield the run's present status, and then each changed status. The iteration never ends by itself.

        Raises:
            AddressError: the server at the address is not a GPS, or the GPS does not answer.
            HandshakeError: the GPS and this client do not trust each other.
            PayloadError: the GPS sends an invalid number.
        """
        await self._gps.until_reached(log)
        empty_streams, last = 0, ""
        while empty_streams < EMPTY_STREAMS_MAX:
            empty_streams += 1
            stream = self._stub.WatchRun(pb.WatchRunRequest(), wait_for_ready=True, timeout=WATCH_DEADLINE_S)
            try:
                async for status in stream:
                    empty_streams = 0
                    yield checked_status(status)
            except CallError as error:
                self._pass_over(error)
                last = f": {brief(error.details() or error.code().name)}"
        raise AddressError(f"the GPS at {self._gps.address} accepts calls but does not answer{last}; see its log")

    async def fetch_record(self, run_id: str, folder: Path) -> None:
        """Fetch the record of the run, and write its files to a folder. If the record is not complete and valid, no
        file is written.

        Raises:
            AddressError: the GPS refuses the call, or repeatedly fails while sending the record.
            PayloadError: the names or the order of the files are impossible for a record.
            OutputError: the folder cannot be written.
        """
        for _ in range(EMPTY_STREAMS_MAX):
            parts = self._stub.FetchRecord(
                pb.FetchRecordRequest(run_id=run_id), wait_for_ready=True, timeout=RECORD_DEADLINE_S
            )
            try:
                with IncomingRecord(folder) as incoming:
                    async for part in parts:
                        incoming.add(part.name, part.data)
                    incoming.finish()
            except CallError as error:
                self._pass_over(error)
            else:
                return
        raise AddressError(
            f"the GPS at {self._gps.address} broke off {EMPTY_STREAMS_MAX} times while sending the record"
        )

    async def stop_run(self, reason: str) -> None:
        """Stop the run, so that it fails with this reason. Raises AddressError if the GPS does not answer."""
        try:
            await self._stub.StopRun(pb.StopRunRequest(reason=reason), timeout=STOP_DEADLINE_S)
        except CallError as error:
            raise self._refused(error) from None

    def _pass_over(self, error: CallError) -> None:
        """Check whether another call may succeed after this error. If it cannot, raise AddressError."""
        if not is_passing(error):
            raise self._refused(error) from None

    def _refused(self, error: CallError) -> AddressError:
        reason = printable(error.details() or "")[:500]
        return AddressError(f"the GPS at {self._gps.address} answered {error.code().name}: {reason}")
