"""A server with every RPC there is, and calls to it by every kind of caller."""

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message_factory import GetMessageClass
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from fedstrata.process.metrics import ProcessMetrics
from fedstrata.rpc.client import Connection
from fedstrata.rpc.server import RpcServer
from fedstrata.trust.authority import Authority
from fedstrata.trust.call_table import Claim
from fedstrata.trust.guard import Guard, Membership, Outdated
from fedstrata.trust.names import Name, Peer
from fedstrata.trust.rate_limits import Shares
from fedstrata.trust.security import TlsSecurity
from fedstrata.trust.tls_files import TlsFiles
from fedstrata.v1 import fleet_service_pb2, gps_service_pb2, lps_service_pb2

OWN, OTHERS = "lps-0", "lps-1"
# Who calls, and in whose name: a message says that its sender is a device or an LPS, of a cluster.
CALLERS: dict[str, tuple[Name, str]] = {
    "the device": (Name("device", "device-000"), "device-000"),
    "another device for it": (Name("device", "device-001"), "device-000"),
    "a device of another cluster": (Name("device", "device-001"), "device-001"),
    "the LPS": (Name("lps", OWN), OWN),
    "another LPS for it": (Name("lps", OTHERS), OWN),
    "an LPS of another cluster": (Name("lps", OTHERS), OTHERS),
    "the GPS": (Name("gps"), "gps"),
    "an operator": (Name("operator"), "operator"),
}
SERVICES = [
    service
    for module in (gps_service_pb2, lps_service_pb2, fleet_service_pb2, health_pb2, reflection_pb2)
    for service in module.DESCRIPTOR.services_by_name.values()
]
ALL = {
    f"/{service.full_name}/{name}": method for service in SERVICES for name, method in service.methods_by_name.items()
}


class Clusters:
    """One cluster, of one LPS and one device."""

    async def belongs(self, peer: Peer, claim: Claim) -> bool:
        return claim.home_id == OWN and (claim.id == "device-000" or peer.is_("lps", OWN)) and not claim.term


class Watchful(TlsSecurity):
    """The security of a server whose guard often looks at callers, by a clock that the test sets."""

    def __init__(self, tls: TlsFiles, clock: Callable[[], float]) -> None:
        super().__init__(tls)
        self._clock = clock

    def guards(self, membership: Membership, refused: Callable[[str], None], children: int) -> list[Guard]:
        return [
            Guard(
                self.tls, membership, refused,
                shares=Shares(children), outdated=Outdated(self._clock), look_every_s=0.05, clock=self._clock,
            )
        ]  # fmt: skip


@dataclass
class Served:
    """A server with every RPC there is, whose handlers read what comes and answer with nothing."""

    folder: Path
    authority: Authority
    metrics: ProcessMetrics = field(default_factory=lambda: ProcessMetrics("gps"))
    heard: list[Any] = field(default_factory=list)
    references: list[int] = field(default_factory=list)  # to each part of a stream, when its handler gets it
    late_s: float = 0.0  # by how much the guard's clock is ahead

    async def __aenter__(self) -> "Served":
        self.authority.issue([Name("gps")], self.folder / "server")
        self.tls = TlsFiles.load(self.folder / "server")
        security = Watchful(self.tls, self._now)
        self.server = RpcServer(
            self.metrics.links, security=security, membership=Clusters(), refused=self.metrics.refused
        )
        for service in SERVICES[:4]:  # health and reflection are there
            self.server.add(self._register, service, service.full_name)
        await self.server.start("127.0.0.1:0")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.server.stop(0)

    def _now(self) -> float:
        return time.time() + self.late_s

    def revoke(self, *names: str) -> None:
        """Have the server's list name these; it looks once a second, and now."""
        (self.folder / "server" / "revoked.txt").write_text("".join(f"{name}\n" for name in names))
        self.tls.revoked(at_once=True)

    def trust(self, authority: Authority) -> None:
        """Have the server trust an authority, and show a certificate by it."""
        authority.issue([Name("gps")], self.folder / "server")
        self.tls.newest(at_once=True)

    def refused(self, reason: str) -> float | None:
        return self.metrics.registry.get_sample_value("fedstrata_refused_total", {"reason": reason})

    def _register(self, service: Any, server: Any) -> None:
        handlers = {name: self._handler(method) for name, method in service.methods_by_name.items()}
        server.add_registered_method_handlers(service.full_name, handlers)

    def _handler(self, method: MethodDescriptor) -> Any:
        request, reply = GetMessageClass(method.input_type), GetMessageClass(method.output_type)

        async def read(requests: Any) -> None:
            if method.client_streaming:
                async for part in requests:
                    self.references.append(sys.getrefcount(part))
                    self.heard.append(part)
            else:
                self.heard.append(requests)

        async def one(requests: Any, context: Any) -> Any:
            await read(requests)
            return reply()

        async def several(requests: Any, context: Any) -> AsyncIterator[Any]:
            await read(requests)
            yield reply()

        ways = "stream" if method.client_streaming else "unary", "stream" if method.server_streaming else "unary"
        make = getattr(grpc, f"{ways[0]}_{ways[1]}_rpc_method_handler")
        behaviour = several if method.server_streaming else one
        return make(behaviour, request.FromString, reply.SerializeToString)

    def channel_of(self, name: Name, authority: Authority | None = None) -> Connection:
        folder = self.folder / str(name)
        (authority or self.authority).issue([name], folder)
        return Connection(self.server.address, TlsSecurity(TlsFiles.load(folder)))


async def called(channel: grpc.aio.Channel, path: str, *messages: Any) -> str:
    """The refusal's name in a reply to a call, or OK."""
    method = ALL[path]
    ways = "stream" if method.client_streaming else "unary", "stream" if method.server_streaming else "unary"
    make = getattr(channel, f"{ways[0]}_{ways[1]}")
    call = make(
        path, GetMessageClass(method.input_type).SerializeToString, GetMessageClass(method.output_type).FromString
    )
    try:
        async with asyncio.timeout(20):
            answer = call(iter(messages) if method.client_streaming else messages[0])
            if method.server_streaming:
                async for _ in answer:
                    break  # Watch of health goes on for ever
                else:
                    await answer.code()
                answer.cancel()
            else:
                await answer
    except grpc.aio.AioRpcError as error:
        if error.code() in {grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED}:
            return str(error.details())
        if error.details() == "Internal error from Core":  # gRPC loses a reply that comes while a message is sent
            return await called(channel, path, *messages)
        raise
    return "OK"


def said_by(path: str, who: str) -> Any:
    """A first message in somebody's name, of the cluster lps-0."""
    message = GetMessageClass(ALL[path].input_type)()
    is_of_lps = "LpsService" not in path
    for part in (message, *(getattr(message, name) for name in ("header", "evaluation") if hasattr(message, name))):
        fields = part.DESCRIPTOR.fields_by_name
        for key, value in (
            ("device_id", who),
            ("lps_id", who),
            ("home_id", OWN),
            ("child_id", OWN if is_of_lps else who),
        ):
            if key in fields and fields[key].containing_type.name != "UpdatePart":
                setattr(part, key, value)
    if "board" in message.DESCRIPTOR.fields_by_name:
        message.board.name = who
    return message
