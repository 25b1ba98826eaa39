"""What attackers try: outsiders without a certificate of the run, and insiders with one."""

import asyncio
import json
import socket
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc

from fedstrata.experiment import Experiment
from fedstrata.experiment_file import load_experiment
from fedstrata.process.address import split_address
from fedstrata.trust.authority import Authority
from fedstrata.trust.files import TlsFiles, checked_as
from fedstrata.trust.names import Name

GPS, LPS, RUN = "/fedstrata.v1.GpsService/", "/fedstrata.v1.LpsService/", "/fedstrata.v1.RunService/"
HEALTH = "/grpc.health.v1.Health/"
NAMES = {
    "stranger of the run": Name("device", "device-010"),  # by the run's authority, of nobody in its experiment
    "member": Name("device", "device-009"),
    "member of lps-0": Name("device", "device-006"),  # of the cluster that the LPS serves that is attacked
    "spare LPS": Name("lps", "lps-7"),
    "LPS": Name("lps", "lps-0"),  # with the certificate of the one that serves the first cluster
    "other authority": Name("operator"),
}
MANY = 100
LISTENS = "0A"  # a state in /proc/net/tcp


@dataclass
class Target:
    """A run, as an attacker on the same machine finds it."""

    gps: str
    lps: str
    http: dict[str, str]  # of the GPS and of the LPS that serves the first cluster
    run_id: str
    experiment: Experiment  # which whoever has the file knows
    authority: Authority | None  # None of a run in the clear

    @classmethod
    def of(cls, run: Path, pids: Mapping[str, int]) -> "Target":
        """The addresses for gRPC are in the logs of the devices; of HTTP those where `pids` listen beside."""
        said = _events(run / "logs" / "devices-0-9.log")
        gps = next(event["gps"] for event in said if event["event"] == "serving")
        lps = next(event["lps"] for event in said if event.get("cluster") == "lps-0")
        http = {tier: other_port(pids[tier], than=grpc) for tier, grpc in (("gps", gps), ("lps", lps))}
        run_id = next(e["run_id"] for e in _events(run / "logs" / "gps.log") if e["event"] == "serving")
        place = run / "state" / "tls" / "authority"
        experiment = load_experiment(run / "experiment.yaml")
        return cls(gps, lps, http, run_id, experiment, Authority.load(place) if place.exists() else None)


def _events(log: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]


def other_port(pid: int, *, than: str) -> str:
    """The address at which a process listens beside one that is known."""
    sockets = {link.stat().st_ino for link in Path(f"/proc/{pid}/fd").iterdir() if link.is_socket()}
    host, port = split_address(than)
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, local, _, state, *rest = line.split()
        found = int(local.partition(":")[2], 16)
        if state == LISTENS and int(rest[5]) in sockets and found != port:
            return f"{host}:{found}"
    raise SystemExit(f"process {pid} listens nowhere but at {than}")


@dataclass
class Attacker:
    """One attacker, and what it heard, by how often."""

    target: Target
    folder: Path
    who: str
    heard: Counter[str] = field(default_factory=Counter)

    async def make(self, attack: "Attack", seconds: float) -> None:
        """Attack for so many seconds at most."""
        try:
            async with asyncio.timeout(seconds):
                await attack(self)
        except TimeoutError:
            self.heard["(it went on to its end)"] += 1

    def tls(self) -> TlsFiles:
        """The certificate that it has."""
        authority, name = self.target.authority, NAMES[self.who]
        if self.who == "other authority" or authority is None:
            authority = Authority.new(self.target.run_id)
        place = self.folder / self.who.replace(" ", "-")
        if not place.exists():
            authority.issue([name], place)
        return TlsFiles.load(place)

    def channel(self, at: str) -> grpc.aio.Channel:
        """A channel of its own to the GPS or the LPS."""
        address, parent = self.address(at), Name("gps") if at == "gps" else Name("lps", "lps-0")
        options = (*checked_as(parent), ("grpc.use_local_subchannel_pool", 1))
        if self.who == "outsider":
            return grpc.aio.insecure_channel(address, options=options)
        tls = self.tls()
        if self.who == "other authority":
            trusted = self.target.authority.trusted() if self.target.authority else tls.ca
            tls = TlsFiles(folder=tls.folder, ca=trusted, cert=tls.cert, key=tls.key, me=tls.me)
        return grpc.aio.secure_channel(address, tls.channel_credentials(), options=options)

    def address(self, at: str) -> str:
        return self.target.gps if at == "gps" else self.target.lps

    async def call(self, channel: grpc.aio.Channel, path: str, *messages: bytes, **options: Any) -> None:
        """One call with these bytes, of any kind; what comes of it is noted."""

        async def parts() -> AsyncIterator[bytes]:
            for message in messages:
                yield message

        try:
            call = channel.stream_stream(path, None, None)(parts(), timeout=10, **options)
            async for _ in call:
                self.heard["an answer"] += 1
        except grpc.aio.AioRpcError as error:
            self.heard[error.code().name] += 1

    def connected(self, at: str) -> socket.socket:
        """A connection that nothing has been said on."""
        host, port = split_address(self.address(at))
        return socket.create_connection((host, port), timeout=2)


Attack = Callable[[Attacker], Awaitable[None]]


def calls(at: str, path: str, *messages: Any, times: int = 1, **options: Any) -> Attack:
    """The same call, some times at once."""

    async def attack(attacker: Attacker) -> None:
        said = [one if isinstance(one, bytes) else one(attacker.target).SerializeToString() for one in messages]
        async with attacker.channel(at) as channel:
            await asyncio.gather(*(attacker.call(channel, path, *said, **options) for _ in range(times)))

    return attack


def flood(at: str, path: str, message: bytes = b"", workers: int = 16) -> Attack:
    """Calls one after the other, for as long as the attack lasts."""

    async def attack(attacker: Attacker) -> None:
        async def work(channel: grpc.aio.Channel) -> None:
            while True:
                await attacker.call(channel, path, message)

        async with attacker.channel(at) as channel:
            await asyncio.gather(*(work(channel) for _ in range(workers)))

    return attack


def channels(at: str) -> Attack:
    """Many connections of one identity, a call on each."""

    async def attack(attacker: Attacker) -> None:
        async def one() -> None:
            async with attacker.channel(at) as channel:
                await attacker.call(channel, HEALTH + "Watch", b"")

        await asyncio.gather(*(one() for _ in range(50)))

    return attack


def endless(at: str, path: str, first: Callable[[Target], Any], part: bytes) -> Attack:
    """A stream that begins well and does not end."""

    async def attack(attacker: Attacker) -> None:
        async with attacker.channel(at) as channel:
            call = channel.stream_stream(path, None, None)(None)
            try:
                await call.write(first(attacker.target).SerializeToString())
                while True:
                    await call.write(part)
                    attacker.heard["a part is taken"] += 1
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
                attacker.heard[(await call.code()).name] += 1

    return attack


def silent(at: str, data: bytes = b"", count: int = MANY) -> Attack:
    """Connections that say so much and then nothing."""

    async def attack(attacker: Attacker) -> None:
        held = []
        for _ in range(count):
            with suppress(OSError):
                held.append(attacker.connected(at))
                held[-1].sendall(data)
                attacker.heard["connected"] += 1
        try:
            await asyncio.sleep(60)
        finally:
            for connection in held:
                connection.close()

    return attack


def shaken(at: str, *, version: ssl.TLSVersion | None = None, has_certificate: bool = False) -> Attack:
    """TLS handshakes by Python's own library, one after the other."""

    async def attack(attacker: Attacker) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.set_alpn_protocols(["h2"])
        if version is not None:
            context.maximum_version = version
        if has_certificate:
            folder = attacker.tls().folder
            context.load_cert_chain(folder / "cert.pem", folder / "key.pem")

        def shake() -> str:
            try:
                with context.wrap_socket(attacker.connected(at)) as wrapped:
                    wrapped.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
                    return "hung up on" if not wrapped.recv(1) else "let in"
            except OSError as error:
                return str(getattr(error, "reason", None) or type(error).__name__)

        while True:
            attacker.heard[await asyncio.to_thread(shake)] += 1

    return attack


def hello() -> bytes:
    """How a TLS client greets."""
    ways = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with suppress(ssl.SSLWantReadError):
        context.wrap_bio(*ways).do_handshake()
    return ways[1].read()


async def come_and_go(attacker: Attacker) -> None:
    """Connect and close, one after the other."""
    while True:
        with suppress(OSError):
            (await asyncio.to_thread(attacker.connected, "gps")).close()
            attacker.heard["connected"] += 1


async def come_and_go_in_crowds(attacker: Attacker) -> None:
    """Connect a hundred at once and close, without waiting for who is not let in."""
    host, port = split_address(attacker.address("gps"))
    while True:
        crowd = [socket.socket() for _ in range(MANY)]
        for connection in crowd:
            connection.setblocking(False)
            connection.connect_ex((host, port))
        await asyncio.sleep(0)
        for connection in crowd:
            with suppress(OSError):
                connection.getpeername()
                attacker.heard["connected"] += 1
            connection.close()
