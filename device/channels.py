"""The connections of a device process: one to the GPS and one to each LPS, whatever the number of devices."""

from typing import Any

import grpc

from fedstrata.metrics import LinkMeter
from fedstrata.rpc.client import open_channel
from fedstrata.v1.gps_service_pb2_grpc import GpsServiceStub
from fedstrata.v1.lps_service_pb2_grpc import LpsServiceStub


class Channels:
    """Opens each connection once."""

    def __init__(self, gps_address: str, meter: LinkMeter) -> None:
        self._meter = meter
        self._channels: list[grpc.aio.Channel] = []
        self._gps = GpsServiceStub(self._open(gps_address))
        self._lps: dict[str, Any] = {}

    def _open(self, address: str) -> Any:
        channel, counting = open_channel(address, self._meter)
        self._channels.append(channel)
        return counting

    def gps(self) -> Any:
        """The GPS's stub."""
        return self._gps

    def lps(self, address: str) -> Any:
        """The stub of the LPS at an address."""
        if address not in self._lps:
            self._lps[address] = LpsServiceStub(self._open(address))
        return self._lps[address]

    async def close(self) -> None:
        for channel in self._channels:
            await channel.close(None)
