"""What attackers try: outsiders without a certificate of the run, and insiders with one."""

import asyncio
import json
import os
import socket
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc

from fedstrata.rpc.address import split_address
from fedstrata.trust.authority import Authority
from fedstrata.trust.credentials import channel_credentials, checked_as
from fedstrata.trust.files import TlsFiles
from fedstrata.trust.names import Name
from fedstrata.v1 import answers_pb2, gps_service_pb2, lps_service_pb2, rounds_pb2, tensors_pb2

GPS, LPS, RUN = "/fedstrata.v1.GpsService/", "/fedstrata.v1.LpsService/", "/fedstrata.v1.RunService/"
HEALTH = "/grpc.health.v1.Health/"
NAMES = {
    "stranger of the run": Name("device", "device-010"),  # by the run's authority, of nobody in its experiment
    "member": Name("device", "device-009"),
    "spare LPS": Name("lps", "lps-7"),
    "other authority": Name("operator"),
}
MANY = 100


@dataclass
class Target:
    """A run, as an attacker on the same machine finds it."""

    gps: str
    lps: str
    http: str
    run_id: str
    authority: Authority

    @classmethod
    def of(cls, run: Path) -> "Target":
        """The addresses are in the logs of the devices."""
        said = [json.loads(line) for line in (run / "logs" / "devices-0-9.log").read_text().splitlines()]
        gps = next(event["gps"] for event in said if event["event"] == "serving")
        lps = next(event["lps"] for event in said if event.get("cluster") == "lps-0")
        authority = Authority.load(run / "state" / "tls" / "authority")
        return cls(gps, lps, gps, authority.domain, authority)


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
        if self.who == "other authority":
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
            tls = TlsFiles(folder=tls.folder, ca=self.target.authority.trusted(), cert=tls.cert, key=tls.key, me=tls.me)
        return grpc.aio.secure_channel(address, channel_credentials(tls), options=options)

    def address(self, at: str) -> str:
        return self.target.gps if at == "gps" else self.target.lps

    async def call(self, channel: grpc.aio.Channel, path: str, *messages: bytes, **options: Any) -> None:
        """One call with these bytes, of any kind; what comes of it is noted."""

        async def parts() -> AsyncIterator[bytes]:
            for message in messages:
                yield message

        try:
            call = channel.stream_stream(path)(parts(), timeout=10, **options)
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
            call = channel.stream_stream(path)()
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


def enroll(who: str, index: int = 0) -> Callable[[Target], Any]:
    """An enrolment in somebody's name."""
    return lambda target: gps_service_pb2.EnrollRequest(
        device_id=who, device_index=index, num_examples=60, process_id="attacker"
    )


def fetch(who: str, cluster: str = "lps-0", **more: Any) -> Callable[[Target], Any]:
    """Asking for a model in somebody's name."""
    return lambda target: rounds_pb2.FetchModelRequest(
        run_id=target.run_id, child_id=who, cluster_id=cluster, sent_round=-1, resume_round=-1, **more
    )


def asked(who: str) -> Callable[[Target], Any]:
    """The same in a session."""
    return lambda target: rounds_pb2.UpdatePart(fetch=fetch(who)(target))


def update(who: str, cluster: str = "lps-0", payload: int = 1 << 40, **more: Any) -> Callable[[Target], Any]:
    """The header of an update, or of an aggregate, in somebody's name."""
    header = tensors_pb2.PayloadHeader(payload_bytes=payload)
    return lambda target: rounds_pb2.UpdatePart(
        header=rounds_pb2.UpdateHeader(run_id=target.run_id, child_id=who, cluster_id=cluster, payload=header, **more)
    )


def of_run(kind: Any, **fields: Any) -> Callable[[Target], Any]:
    """A message of the run."""
    return lambda target: kind(run_id=target.run_id, **fields)


def measured(who: str) -> Callable[[Target], Any]:
    evaluation = rounds_pb2.Evaluation(device_id=who, num_examples=60)
    return of_run(lps_service_pb2.SubmitEvaluationRequest, cluster_id="lps-0", evaluation=evaluation)


def reported(lps_id: str, cluster: str) -> Callable[[Target], Any]:
    return lambda target: gps_service_pb2.ReportPart(
        header=gps_service_pb2.ReportHeader(run_id=target.run_id, lps_id=lps_id, cluster_id=cluster)
    )


NOISE, DATA = os.urandom(4096), rounds_pb2.UpdatePart(data=bytes(1 << 20)).SerializeToString()
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
STOP = gps_service_pb2.StopRunRequest(reason="an attack").SerializeToString()
LONG = enroll("x" * 500_000)
OUT, INS, MEM, SPARE, OTHER = "outsider", "stranger of the run", "member", "spare LPS", "other authority"
ATTACKS: tuple[tuple[str, str, Attack], ...] = (
    (OUT, "`StopRun` in the clear", calls("gps", RUN + "StopRun", STOP)),
    (OUT, "100 silent connections to the GPS", silent("gps")),
    (OUT, "100 silent connections to an LPS", silent("lps")),
    (OUT, "100 connections with noise to the GPS", silent("gps", NOISE)),
    (OUT, "100 connections with noise to an LPS", silent("lps", NOISE)),
    (OUT, "100 HTTP/2 greetings in the clear", silent("gps", PREFACE)),
    (OUT, "100 TLS greetings and no more", silent("gps", hello())),
    (OUT, "100 halves of a TLS greeting, to an LPS", silent("lps", hello()[:100])),
    (OUT, "connections opened and closed", come_and_go),
    (OUT, "TLS handshakes without a certificate", shaken("gps")),
    (OUT, "the same of TLS 1.2, with an LPS", shaken("lps", version=ssl.TLSVersion.TLSv1_2)),
    (OTHER, "TLS handshakes with a certificate of another authority", shaken("gps", has_certificate=True)),
    (OTHER, "`StopRun` as an operator of another authority", calls("gps", RUN + "StopRun", STOP)),
    (OTHER, "a flood of calls as such", flood("lps", HEALTH + "Check")),
    (INS, "`StopRun`", calls("gps", RUN + "StopRun", STOP)),
    (INS, "`WatchRun`", calls("gps", RUN + "WatchRun", b"")),
    (INS, "`FetchRecord`", calls("gps", RUN + "FetchRecord", of_run(gps_service_pb2.FetchRecordRequest))),
    (INS, "reflection", calls("gps", "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", b"")),
    (INS, "a method that nobody has", calls("gps", GPS + "DropTables", b"", times=MANY)),
    (INS, "enrolling as itself, who is not of the experiment", calls("gps", GPS + "Enroll", enroll("device-010", 10))),
    (INS, "enrolling as another device", calls("gps", GPS + "Enroll", enroll("device-000"))),
    (INS, "enrolling with a name of 500 kB", calls("gps", GPS + "Enroll", LONG, times=MANY)),
    (INS, "registering an LPS", calls("gps", GPS + "RegisterLps", of_run(gps_service_pb2.FetchClustersRequest))),
    (INS, "an aggregate in an LPS's name", calls("gps", GPS + "SubmitAggregate", update("lps-0"), DATA)),
    (INS, "a report in an LPS's name", calls("gps", GPS + "SubmitReport", reported("lps-0", "lps-0"), DATA)),
    (INS, "asking for a model in a member's name", calls("lps", LPS + "FetchModel", fetch("device-000"), times=MANY)),
    (INS, "asking for a model in nobody's name", calls("lps", LPS + "FetchModel", fetch(""), times=MANY)),
    (
        INS,
        "asking for a model as itself, at once 100 times",
        calls("lps", LPS + "FetchModel", fetch("device-010"), times=MANY),
    ),
    (INS, "a session in a member's name", calls("lps", LPS + "Attend", asked("device-000"), times=MANY)),
    (INS, "an update in a member's name", calls("lps", LPS + "SubmitUpdate", update("device-000"), DATA)),
    (
        INS,
        "an update in a member's name without an end",
        endless("lps", LPS + "SubmitUpdate", update("device-000"), DATA),
    ),
    (INS, "a measurement in a member's name", calls("lps", LPS + "SubmitEvaluation", measured("device-000"))),
    (INS, "messages of 2 MiB", calls("lps", LPS + "SubmitUpdate", bytes(2 << 20), times=8)),
    (INS, "bytes that are no message", calls("lps", LPS + "FetchModel", NOISE, times=MANY)),
    (INS, "data without a header", endless("lps", LPS + "Attend", lambda _: rounds_pb2.UpdatePart(data=b"x"), DATA)),
    (
        INS,
        "noughts that were compressed",
        calls("lps", LPS + "FetchModel", bytes(1 << 27), compression=grpc.Compression.Gzip),
    ),
    (INS, "a flood of health checks of the GPS", flood("gps", HEALTH + "Check")),
    (INS, "a flood of health checks of an LPS", flood("lps", HEALTH + "Check")),
    (
        INS,
        "a flood of enrolments as another",
        flood("gps", GPS + "Enroll", enroll("device-000")(None).SerializeToString()),
    ),  # type: ignore[arg-type]
    (INS, "100 watches of health on a connection", calls("gps", HEALTH + "Watch", b"", times=MANY)),
    (INS, "50 connections with a watch each", channels("gps")),
    (INS, "handshakes one after the other", shaken("gps", has_certificate=True)),
    (
        MEM,
        "enrolling again, without the experiment's digest",
        calls("gps", GPS + "Enroll", enroll("device-009", 9), times=MANY),
    ),
    (
        MEM,
        "asking where it trains, for another",
        calls("gps", GPS + "FetchAssignment", of_run(gps_service_pb2.FetchAssignmentRequest, device_id="device-001")),
    ),
    (MEM, "answers in another's name", calls("gps", GPS + "SubmitAnswer", lambda t: answers_pb2.AnswerPart())),
    (
        MEM,
        "where an update of another stands",
        calls(
            "lps",
            LPS + "LocateUpdate",
            of_run(rounds_pb2.LocateUpdateRequest, child_id="device-001", cluster_id="lps-0"),
        ),
    ),
    (MEM, "a flood of health checks of an LPS", flood("lps", HEALTH + "Check")),
    (
        SPARE,
        "registering as lps-0",
        calls(
            "gps",
            GPS + "RegisterLps",
            lambda _: gps_service_pb2.RegisterLpsRequest(lps_id="lps-0", address="127.0.0.1:9"),
        ),
    ),
    (
        SPARE,
        "which clusters lps-0 has",
        calls("gps", GPS + "FetchClusters", of_run(gps_service_pb2.FetchClustersRequest, lps_id="lps-0")),
    ),
    (
        SPARE,
        "an aggregate of lps-0's cluster",
        calls("gps", GPS + "SubmitAggregate", update("lps-0", lps_id="lps-7"), DATA),
    ),
    (SPARE, "an aggregate without its own name", calls("gps", GPS + "SubmitAggregate", update("lps-0"), DATA)),
    (SPARE, "a report of lps-0's cluster", calls("gps", GPS + "SubmitReport", reported("lps-7", "lps-0"), DATA)),
    (
        SPARE,
        "saying that the run has failed",
        calls(
            "gps",
            GPS + "ReportFailure",
            of_run(gps_service_pb2.ReportFailureRequest, lps_id="lps-7", reason="an attack"),
        ),
    ),
    (
        SPARE,
        "the same in lps-0's name",
        calls(
            "gps",
            GPS + "ReportFailure",
            of_run(gps_service_pb2.ReportFailureRequest, lps_id="lps-0", reason="an attack"),
        ),
    ),
)
