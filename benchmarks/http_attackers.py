"""What outsiders try at the HTTP ports of a run's processes: health, metrics, and the page of the GPS."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from benchmarks.attackers import MANY, Attack, Attacker
from fedstrata.process.address import split_address

READ_S = 5.0
Connected = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def connected(attacker: Attacker, at: str, talk: Connected) -> None:
    """Talk over a connection of its own."""
    try:
        reader, writer = await asyncio.open_connection(*split_address(attacker.target.http[at]))
    except OSError as error:
        attacker.heard[type(error).__name__] += 1
        return
    try:
        await talk(reader, writer)
    except (ConnectionError, TimeoutError):
        attacker.heard["hung up on"] += 1
    finally:
        writer.close()


async def status(reader: asyncio.StreamReader) -> str:
    """The status that a server answers with."""
    line = await asyncio.wait_for(reader.readline(), READ_S)
    return line.split()[1].decode() if line.startswith(b"HTTP/") else "hung up on"


def asks(at: str, request: bytes, body: bytes = b"", times: int = 1) -> Attack:
    """The same request, some times at once, whose body comes in pieces for as long as it is taken."""

    async def attack(attacker: Attacker) -> None:
        async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(request)
            with suppress(ConnectionError):
                for start in range(0, len(body), 1 << 16):
                    writer.write(body[start : start + (1 << 16)])
                    await writer.drain()
            attacker.heard[await status(reader)] += 1

        await asyncio.gather(*(connected(attacker, at, talk) for _ in range(times)))

    return attack


def holds(at: str, begins: bytes = b"", drips: bytes = b"", count: int = MANY) -> Attack:
    """Connections that begin so, say a byte now and then or nothing more, and are opened anew when hung up on."""

    async def attack(attacker: Attacker) -> None:
        async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            attacker.heard["connected"] += 1
            writer.write(begins)
            while not reader.at_eof() and not writer.is_closing():
                writer.write(drips)
                await writer.drain()
                await asyncio.sleep(0.1)
                if reader._buffer:  # type: ignore[attr-defined]  # it has answered, or goes on to
                    await asyncio.sleep(READ_S)

        async def again() -> None:
            while True:
                await connected(attacker, at, talk)
                await asyncio.sleep(0.01)

        await asyncio.gather(*(again() for _ in range(count)))

    return attack


def floods(at: str, path: str, workers: int = 16) -> Attack:
    """Requests one after the other."""

    async def attack(attacker: Attacker) -> None:
        async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(f"GET {path} HTTP/1.0\r\n\r\n".encode())
            attacker.heard[await status(reader)] += 1
            await asyncio.wait_for(reader.read(-1), READ_S)

        async def work() -> None:
            while True:
                await connected(attacker, at, talk)

        await asyncio.gather(*(work() for _ in range(workers)))

    return attack


def get(path: str, *headers: str) -> bytes:
    return "\r\n".join([f"GET {path} HTTP/1.1", "Host: x", *headers, "", ""]).encode()


OUT = "outsider"
ABOVE = ("/page/../../../../etc/passwd", "/page/..%2f..%2f..%2fetc/passwd", "/../state/journal.sqlite", "//etc/passwd")
HTTP_ATTACKS: tuple[tuple[str, str, Any], ...] = (
    (OUT, "100 silent connections to the GPS's HTTP port", holds("gps")),
    (OUT, "the same to an LPS's", holds("lps")),
    (OUT, "100 that send a byte of a header now and then", holds("gps", b"GET / HTTP/1.1\r\nX-A: ", b"a")),
    (OUT, "100 that announce a body and send a byte of it now and then", holds(
        "gps", b"POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n", b"a")),
    (OUT, "200 open pages that read nothing", holds("gps", get("/page/events"), count=200)),
    (OUT, "a flood of requests for metrics of the GPS", floods("gps", "/metrics")),
    (OUT, "the same of an LPS", floods("lps", "/metrics")),
    (OUT, "a flood of requests for the page", floods("gps", "/")),
    (OUT, "a flood of requests for health", floods("gps", "/healthz")),
    (OUT, "a path of 1 MB, 100 times", asks("gps", get("/" + "x" * 1_000_000), times=MANY)),
    (OUT, "headers of 1 MB, 100 times", asks("gps", get("/", *["X-A: " + "x" * 1000] * 1000), times=MANY)),
    (OUT, "a body of 100 MB", asks(
        "gps", b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100000000\r\n\r\n", bytes(100_000_000))),
    *((OUT, f"`{path}`", asks("gps", get(path))) for path in ABOVE),
    (OUT, "`DELETE /`, and a method that nobody has", asks("gps", b"DELETE / HTTP/1.1\r\n\r\nFED / HTTP/1.1\r\n\r\n")),
    (OUT, "bytes that are no HTTP", asks("gps", bytes(range(256)) * 16 + b"\r\n\r\n", times=MANY)),
)  # fmt: skip
