"""The real clock's links beside what was asked of them, timed from a process with all devices (link_ends.py).

    python -m benchmarks.links rates latency many shared

Every device fetches a model and submits an update over gRPC, each round in turn. Expected is what the calendar says;
the errors have all in them that calls and arithmetic take until a model or an update is there.
"""

import argparse
import asyncio
import os
import statistics
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial

import numpy as np

from benchmarks.link_ends import End, measured
from fedstrata.clock.calendar import Flow, fair_ends
from fedstrata.process.process import run_loop

CASES = ((0.1, 1.2), (1, 1.2), (10, 1.2), (100, 1.2), (500, 1.2), (10, 0.4), (100, 0.4), (1, 0.08))  # Mbit/s, s
HEADER_BYTES = 112  # of a model or an update: what the link carries is ten kilobytes with it


def cases_of(mbits: Sequence[float]) -> list[tuple[float, float]]:
    """Rates and how long transfers take, of some rates or of all."""
    return [(mbit, seconds) for mbit, seconds in CASES if mbit in mbits or not mbits]


async def rates(rounds: int, mbits: Sequence[float]) -> None:
    """One link after the other, from 0.1 to 500 Mbit/s, and small payloads."""
    print("one link                  expected      median error          worst      answered")
    for mbit, seconds in cases_of(mbits):
        size = int(mbit * 1e6 * seconds / 8) // 8 * 8
        if seconds < 0.1:
            size -= HEADER_BYTES  # of ten kilobytes it is more than one in a hundred
        links = f"{{device-lps: {{down_rate: {mbit}Mbit/s, up_rate: {mbit}Mbit/s}}}}"
        timed, _ = await measured(links, 1, [End(index=0, payload_bytes=size, rounds=rounds)])
        for way in ("down", "up"):
            missed = [each.missed_ms(mbit * 1e6) for each in timed if each.way == way]
            middle, worst = statistics.median(missed), max(missed, key=abs)
            expected_ms = next(each.bits for each in timed if each.way == way) / mbit / 1e3
            share = f"{100 * middle / expected_ms:+.2f} %"
            answered = statistics.median(each.answered_ns / 1e6 - expected_ms for each in timed if each.way == way)
            print(
                f"{mbit:>6g} Mbit/s {way:<4} {expected_ms:>12.1f} ms {middle:>+8.2f} ms {share:>9} {worst:>+9.2f} ms "
                f"{answered:>+9.2f} ms"
            )


async def latency(rounds: int) -> None:
    """By how much a message of a kilobyte is later than without a link, beside its link's latency."""
    without: dict[str, float] = {}
    for wanted in (0, 5, 50):
        links = f"{{device-lps: {{latency: {wanted}ms}}}}"
        timed, _ = await measured(links, 1, [End(index=0, payload_bytes=1000, rounds=10 * rounds)])
        for way in ("down", "up"):
            took = sorted(each.took_ns / 1e6 for each in timed if each.way == way)
            middle, most = statistics.median(took), took[int(0.95 * len(took))]
            call = without.setdefault(way, middle)
            print(
                f"latency {wanted} ms {way:<4}: median {middle:.2f} ms, 95 % below {most:.2f} ms; beyond a call "
                f"without ({call:.2f} ms) {middle - call - wanted:+.2f} and {most - call - wanted:+.2f} ms"
            )


async def many(rounds: int) -> None:
    """Twenty devices of one process, each with a rate of its own, all at once."""
    chosen = {index: 0.5 + index for index in range(20)}
    overrides = ", ".join(
        f"{{devices: [{index}], down_rate: {rate}Mbit/s, up_rate: {rate}Mbit/s}}" for index, rate in chosen.items()
    )
    sizes = {index: int(rate * 1e6 * 2 / 8) // 8 * 8 for index, rate in chosen.items()}
    ends = [End(index=index, payload_bytes=size, rounds=rounds) for index, size in sizes.items()]
    timed, _ = await measured(f"{{overrides: [{overrides}]}}", len(chosen), ends)
    print("twenty devices of one process, 0.5 to 19.5 Mbit/s, transfers of 2 s")
    for way in ("down", "up"):
        shares = {
            index: statistics.median(
                each.missed_percent(rate * 1e6) for each in timed if (each.index, each.way) == (index, way)
            )
            for index, rate in chosen.items()
        }
        worst = max(shares.values(), key=abs)
        within = sum(abs(share) <= 2 for share in shares.values())
        middle = statistics.median(shares.values())
        print(f"  {way:<4} {within} of 20 within 2 %; median {middle:+.2f} %, worst {worst:+.2f} %")


async def shared(rounds: int) -> None:
    """Eight uploads of different sizes, starts and own links through one link of 8 Mbit/s."""
    own = [None, None, 0.4, 0.8, 3.0, None, 1.2, 2.5]  # Mbit/s
    sizes, starts = [900, 400, 300, 500, 1200, 700, 600, 800], [0.0, 0.3, 0.0, 0.7, 0.2, 1.1, 0.5, 0.1]  # kB, s
    overrides = ", ".join(f"{{devices: [{n}], up_rate: {rate}Mbit/s}}" for n, rate in enumerate(own) if rate)
    links = f"{{overrides: [{overrides}], shared: {{device-lps: {{up_rate: 8Mbit/s}}}}}}"
    shares, windows, spread = [], [], []
    for _ in range(rounds):
        ends = [
            End(index=n, payload_bytes=1000 * size, start_s=start, sends_only=True)
            for n, (size, start) in enumerate(zip(sizes, starts, strict=True))
        ]
        timed, pieces = await measured(links, len(ends), ends)
        timed = sorted(timed, key=lambda each: each.index)
        flows = [
            Flow(start_ns=each.began_ns, bits=each.bits, rate=int(rate * 1e6) if rate else None)
            for each, rate in zip(timed, own, strict=True)
        ]
        for each, end_ns in zip(timed, fair_ends(flows, 8 * 10**6), strict=True):
            shares.append(100 * each.took_ns / (end_ns - each.began_ns) - 100)
        windows.append(most_in(pieces, 100_000_000) * 8 / 0.1 / 8e6)
        starts_ns = {each.index: each.began_ns for each in timed}
        spread.append(most_spread_in(pieces, starts_ns, 100_000_000) * 8 / 0.1 / 8e6)
    print(f"eight flows through 8 Mbit/s, {rounds} times")
    print(f"  beside max-min: median {statistics.median(shares):+.2f} %, worst {max(shares, key=abs):+.2f} %")
    for counted, shares_of_link in (
        ("over its own time on the link", spread),
        ("whole, as its last bit came", windows),
    ):
        most, middle = max(shares_of_link), statistics.median(shares_of_link)
        print(f"  in any 100 ms, a piece counted {counted}: at most {most:.3f} of the link, median {middle:.3f}")


def most_in(pieces: Sequence[tuple[int, int, int]], window_ns: int) -> int:
    """The most bytes that came within such a time."""
    ordered, first, within, most = sorted(pieces), 0, 0, 0
    for at_ns, size, _ in ordered:
        within += size
        while ordered[first][0] <= at_ns - window_ns:
            within -= ordered[first][1]
            first += 1
        most = max(most, within)
    return most


def most_spread_in(pieces: Sequence[tuple[int, int, int]], starts_ns: Mapping[int, int], window_ns: int) -> float:
    """The most bytes that were under way within such a time, each piece evenly since the one before of its flow."""
    times = np.unique([at for piece in pieces for at in (piece[0], piece[0] + window_ns)] + list(starts_ns.values()))
    most = np.zeros(len(times))
    for index, start_ns in starts_ns.items():
        own = sorted(piece for piece in pieces if piece[2] == index)
        came = np.cumsum([0, *(size for _, size, _ in own)])
        at = np.array([start_ns, *(at for at, _, _ in own)])
        most += np.interp(times, at, came) - np.interp(times - window_ns, at, came)
    return float(most.max())


async def lateness() -> list[float]:
    """By how many milliseconds timers of ten are late, until cancelled."""
    late = []
    with suppress(asyncio.CancelledError):
        while True:
            began = time.monotonic()
            await asyncio.sleep(0.01)
            late.append(1000 * (time.monotonic() - began) - 10)
    return late


Part = Callable[[int], Awaitable[None]]
PARTS: Mapping[str, Part] = {"latency": latency, "many": many, "shared": shared}


async def main(options: argparse.Namespace) -> None:
    """Print what was asked for, and how late timers are on this machine meanwhile."""
    print(f"load average {', '.join(f'{each:.1f}' for each in os.getloadavg())}, {os.cpu_count()} cores")
    parts: dict[str, Part] = {"rates": partial(rates, mbits=options.mbit), **PARTS}
    for part in options.parts or parts:
        timers = asyncio.create_task(lateness())
        await parts[part](options.rounds)
        timers.cancel()
        late = sorted(await timers)
        middle, most = late[len(late) // 2], late[-len(late) // 20]
        print(f"  timers meanwhile: median {middle:.2f} ms late, 95 % below {most:.2f} ms")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", choices=["rates", *PARTS, []])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--mbit", type=float, nargs="+", default=[], help="of `rates` these alone")
    run_loop(main(parser.parse_args()))
