"""The connections of a device process: one to the GPS and one to each LPS, whatever the number of devices."""

from typing import Any

import grpc

from fedstrata.logs import EventLog
from fedstrata.metrics import LinkMeter
from fedstrata.rpc.client import check_greeting, open_channel, until_reached
from fedstrata.trust.credentials import GPS
from fedstrata.trust.files import TlsFiles
from fedstrata.trust.names import Name
from fedstrata.v1.gps_service_pb2_grpc import GpsServiceStub
from fedstrata.v1.lps_service_pb2_grpc import LpsServiceStub


class Channels:
    """Opens each connection once."""

    def __init__(self, gps_address: str, meter: LinkMeter, tls: TlsFiles | None = None) -> None:
        self._meter = meter
        self._tls = tls
        self._gps_address = gps_address
        self._channels: list[grpc.aio.Channel] = []
        self._gps = GpsServiceStub(self._open(gps_address, GPS))
        self._lps: dict[tuple[str, str], Any] = {}

    def _open(self, address: str, parent: Name) -> Any:
        channel, counting = open_channel(address, self._meter, self._tls, parent)
        self._channels.append(channel)
        return counting

    async def until_gps_reached(self, log: EventLog) -> None:
        """Wait until the GPS has been connected to. Raises HandshakeError where the two do not trust each other."""
        await until_reached(self._channels[0], self._gps_address, self._tls, GPS, log)

    def gps(self) -> Any:
        """The GPS's stub."""
        return self._gps

    def lps(self, lps_id: str, address: str) -> Any:
        """The stub of an LPS at an address."""
        if (lps_id, address) not in self._lps:
            self._lps[lps_id, address] = LpsServiceStub(self._open(address, Name("lps", lps_id)))
        return self._lps[lps_id, address]

    async def check_lps(self, lps_id: str, address: str) -> None:
        """Raise HandshakeError where an LPS is there, and no connection to it will ever come about."""
        await check_greeting(address, self._tls, Name("lps", lps_id))

    async def close(self) -> None:
        for channel in self._channels:
            await channel.close(None)
