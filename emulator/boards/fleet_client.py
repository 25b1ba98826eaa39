"""Call the service of a fleet as an operator."""

import asyncio
from collections.abc import Awaitable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeVar

from fedstrata.errors import AddressError, ExperimentError
from fedstrata.process.logs import EventLog
from fedstrata.process.time_limits import CALL_S
from fedstrata.rpc.client import CallError, Connection, ask, refusal
from fedstrata.trust.call_table import MOST_OFFERED_BYTES
from fedstrata.trust.security import TlsSecurity
from fedstrata.trust.tls_files import FLEET, OPERATOR, TlsFiles
from fedstrata.v1 import fleet_service_pb2 as pb
from fedstrata.v1.fleet_service_pb2_grpc import FleetServiceStub

T = TypeVar("T")
log = EventLog("client")


@dataclass(frozen=True, kw_only=True)
class FleetPlace:
    """Hold what is needed to call a fleet: the address of its service, and the folder of the operator's certificate."""

    address: str
    tls: Path


class FleetClient:
    """Call the service of a fleet. Use this object as an async context manager."""

    def __init__(self, place: FleetPlace, patience_s: float = CALL_S) -> None:
        """Set `patience_s`, the longest time to wait if the fleet does not answer.

        Raises:
            CertificateError: the folder has no usable certificate of an operator.
            AddressError: the fleet's address is malformed.
        """
        self._patience_s = patience_s
        self._fleet = Connection(place.address, TlsSecurity(TlsFiles.load(place.tls), OPERATOR), FLEET)
        self._stub: Any = FleetServiceStub(self._fleet.channel)

    async def __aenter__(self) -> Self:
        try:
            await self.reach()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connection."""
        await self._fleet.close()

    async def reach(self) -> None:
        """Wait for the first connection to the fleet.

        Raises:
            HandshakeError: this machine and the fleet do not trust each other.
            AddressError: the fleet does not answer in time.
        """
        await self._in_time(self._fleet.until_reached(log))

    async def everything(self) -> pb.FetchFleetResponse:
        """Return all boards and offers of the fleet."""
        return await self._answered(self._stub.FetchFleet(pb.FetchFleetRequest(), timeout=CALL_S))

    async def next_after(self, known: bytes) -> pb.FetchFleetResponse:
        """Wait until the state of the fleet has another version than `known`. Return all boards and offers of the
        fleet. If the fleet does not answer, try again without end.
        """
        reply: pb.FetchFleetResponse = await ask(
            self._stub, "FetchFleet", pb.FetchFleetRequest(known_version=known), log
        )
        return reply

    async def offer(self, request: pb.OfferRunRequest) -> None:
        """Offer a run to boards.

        Raises:
            ExperimentError: there are too many boards for one offer.
            FedstrataError: the fleet refuses the offer. The message has the fleet's reason.
        """
        if (size := request.ByteSize()) > MOST_OFFERED_BYTES:
            raise ExperimentError(
                f"the offer to {len(request.loans)} boards has {size} bytes, but a fleet takes {MOST_OFFERED_BYTES}; "
                "offer the run to fewer boards (--boards)"
            )
        await self._answered(self._stub.OfferRun(request, timeout=CALL_S))

    async def withdraw(self, offer_id: str) -> bool:
        """Take a run back from its boards. Return whether the run was offered to boards. If the fleet does not answer,
        try again for some time.

        Raises:
            FedstrataError: the fleet does not answer in time, or refuses the call.
        """
        asked = ask(self._stub, "WithdrawRun", pb.WithdrawRunRequest(offer_id=offer_id), log)
        reply: pb.WithdrawRunResponse = await self._in_time(asked)
        return reply.was_offered

    async def _in_time(self, call: Coroutine[Any, Any, T]) -> T:
        try:
            return await asyncio.wait_for(call, self._patience_s)
        except TimeoutError:
            raise AddressError(
                f"the fleet at {self._fleet.address} has not answered for {self._patience_s:g} s; check that "
                "python -m fleet runs there, and the port"
            ) from None

    async def _answered(self, call: Awaitable[T]) -> T:
        try:
            return await call
        except CallError as error:
            reason = refusal(error)
            raise type(reason)(f"the fleet at {self._fleet.address}: {reason}") from None
