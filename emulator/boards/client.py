"""An operator's calls to the service of a fleet."""

from collections.abc import Awaitable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from fedstrata.process.logs import EventLog
from fedstrata.process.sleeping import CALL_S, HOLD_S
from fedstrata.rpc.client import CallError, ask, plain_or_secure, refusal, until_reached
from fedstrata.trust.files import TlsFiles
from fedstrata.trust.names import Name
from fedstrata.v1 import fleet_service_pb2 as pb
from fedstrata.v1.fleet_service_pb2_grpc import FleetServiceStub

FLEET = Name("fleet")
T = TypeVar("T")
log = EventLog("client")


@dataclass(frozen=True, kw_only=True)
class FleetPlace:
    """Hold the address of a fleet's service, and the folder of the operator's certificate."""

    address: str
    tls: Path


class FleetClient:
    """Call the service of a fleet. Use this object as an async context manager."""

    def __init__(self, place: FleetPlace) -> None:
        """Raise CertificateError without a usable certificate, AddressError for an address that cannot be one."""
        self._address = place.address
        self._tls = TlsFiles.load(place.tls)
        self._tls.require(Name("operator"))
        self._channel = plain_or_secure(self._address, self._tls, FLEET)
        self._stub: Any = FleetServiceStub(self._channel)

    async def __aenter__(self) -> Self:
        await self.reach()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connection."""
        await self._channel.close(None)

    async def reach(self) -> None:
        """Wait for the first connection. Raises HandshakeError if the two do not trust each other."""
        await until_reached(self._channel, self._address, self._tls, FLEET, log)

    async def everything(self) -> pb.FetchFleetResponse:
        """Return all boards and offers."""
        return await self._answered(self._stub.FetchFleet(pb.FetchFleetRequest(), timeout=CALL_S))

    async def next_after(self, known: bytes) -> pb.FetchFleetResponse:
        """Return boards and offers once they are others than those of a version. Wait also while the fleet is away."""
        reply: pb.FetchFleetResponse = await ask(
            self._stub, "FetchFleet", pb.FetchFleetRequest(known_version=known), log
        )
        return reply

    async def offer(self, request: pb.OfferRunRequest) -> None:
        """Offer a run to boards. Raises FedstrataError with the fleet's reason if it does not take the offer."""
        await self._answered(self._stub.OfferRun(request, timeout=CALL_S))

    async def withdraw(self, offer_id: str) -> bool:
        """Take a run back from its boards. Return whether it was offered."""
        request = pb.WithdrawRunRequest(offer_id=offer_id)
        reply: pb.WithdrawRunResponse = await self._answered(self._stub.WithdrawRun(request, timeout=HOLD_S))
        return reply.was_offered

    async def _answered(self, call: Awaitable[T]) -> T:
        try:
            return await call
        except CallError as error:
            reason = refusal(error)
            raise type(reason)(f"the fleet at {self._address}: {reason}") from None
