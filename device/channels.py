"""The connections of a device process: one to the GPS, and one to each LPS. All devices of the process share them."""

import asyncio
from typing import Any

from fedstrata.process.logs import EventLog
from fedstrata.process.metrics import LinkMeter
from fedstrata.rpc.client import Connection
from fedstrata.trust.names import Name
from fedstrata.trust.security import Security
from fedstrata.trust.tls_files import GPS
from fedstrata.v1.gps_service_pb2_grpc import GpsServiceStub
from fedstrata.v1.lps_service_pb2_grpc import LpsServiceStub


class Channels:
    """Open and keep the connections of a device process. Each connection is opened only once."""

    def __init__(self, gps_address: str, meter: LinkMeter, security: Security) -> None:
        self._meter = meter
        self.security = security
        self._connections: list[Connection] = []
        self.gps = GpsServiceStub(self._open(gps_address, GPS))
        self._lps: dict[tuple[str, str], Any] = {}
        self._reached: set[tuple[str, str]] = set()
        self._greetings: dict[tuple[str, str], asyncio.Future[str | None]] = {}

    def _open(self, address: str, parent: Name) -> Any:
        self._connections.append(Connection(address, self.security, parent))
        return self._connections[-1].counted(self._meter)

    async def until_gps_reached(self, log: EventLog) -> None:
        """Wait for the first connection to the GPS. Raises HandshakeError if device and GPS do not trust each other."""
        await self._connections[0].until_reached(log)

    def lps(self, lps_id: str, address: str) -> Any:
        """Return the gRPC stub of an LPS at this address."""
        if (lps_id, address) not in self._lps:
            self._lps[lps_id, address] = LpsServiceStub(self._open(address, Name("lps", lps_id)))
        return self._lps[lps_id, address]

    def lps_reached(self, lps_id: str, address: str) -> None:
        """Note that an LPS has answered at an address. From then on, `why_lps_refuses` returns None for this LPS and
        address.
        """
        self._reached.add((lps_id, address))

    async def why_lps_refuses(self, lps_id: str, address: str) -> str | None:
        """Return why an LPS refuses every connection. If a connection may succeed, or has succeeded before, return
        None.

        Devices that call this at the same time share one attempt to connect.
        """
        where = lps_id, address
        if where in self._reached:
            return None
        greeting = self._greetings.get(where)
        if greeting is None or greeting.done():
            greeting = asyncio.ensure_future(self.security.why_refused(address, Name("lps", lps_id)))
            self._greetings[where] = greeting
        return await asyncio.shield(greeting)

    async def close(self) -> None:
        for connection in self._connections:
            await connection.close()
