"""Asynchronous rounds over a link that devices share, simulated without the project's clock.

One event follows the other, in fractions of a nanosecond, and no round knows what a later round does.
"""

from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from fractions import Fraction
from math import ceil, inf

S = 10**9


@dataclass(frozen=True)
class Asked:
    """What a device does for a round: bytes, rates of its own link in bits per second, and times in nanoseconds."""

    down_bytes: int
    up_bytes: int
    down_rate: int
    up_rate: int
    latency_ns: int
    compute_ns: int


@dataclass
class Cell:
    """One direction of the shared link: its rates from their times on, and what is left of each transfer."""

    rates: list[tuple[int, int]]
    left: dict[object, Fraction] = field(default_factory=dict)  # bits
    own: dict[object, float] = field(default_factory=dict)

    def shares(self, now: Fraction) -> dict[object, Fraction]:
        """What each transfer gets: all that its own link carries, or an even share of what these leave."""
        free = Fraction([rate for at, rate in self.rates if at <= now][-1])
        found, waiting = {}, sorted(self.left, key=lambda key: self.own[key])
        while waiting:
            share = free / len(waiting)
            if self.own[waiting[0]] > share:
                return found | dict.fromkeys(waiting, share)
            key = waiting.pop(0)
            found[key] = Fraction(self.own[key])
            free -= found[key]
        return found

    def next(self, now: Fraction) -> Fraction | float:
        shares = self.shares(now)
        ends = [now + self.left[key] * S / share for key, share in shares.items() if share]
        return min([*ends, *(at for at, _ in self.rates if at > now)], default=inf)

    def pass_time(self, now: Fraction, until: Fraction) -> list[object]:
        """What is over at the end of a time in which no share changes."""
        for key, share in self.shares(now).items():
            self.left[key] -= share * (until - now) / S
        over = [key for key, left in self.left.items() if left == 0]
        for key in over:
            del self.left[key]
        return over


@dataclass
class SharedRounds:
    """The devices of an LPS, on a link with these rates down and up; None: a direction that is not shared."""

    down: list[tuple[int, int]] | None
    up: list[tuple[int, int]] | None
    is_broadcast: bool = False

    def __post_init__(self) -> None:
        self.now = Fraction(0)
        self._cells = {"down": Cell(self.down or []), "up": Cell(self.up or [])}
        self._at: list[tuple[int, str, int]] = []  # what follows: time, kind, device
        self.at_work: dict[int, tuple[int, Asked]] = {}  # round of the model
        self.asked: dict[int, int] = {}
        self.arrived: dict[int, int] = {}
        self._own_ns: dict[int, int] = {}  # when the own link of a device has carried a broadcast

    def ask(self, number: int, devices: Mapping[int, Asked]) -> None:
        """Ask devices now."""
        now = int(self.now)
        for device, each in devices.items():
            self.at_work[device], self.asked[device] = (number, each), now
            self._own_ns[device] = alone = now + ceil(Fraction(8 * each.down_bytes * S, each.down_rate))
            if self.down is None:
                self._receive(device, alone)
            elif self.is_broadcast:
                self._start("down", ("model", number), each.down_bytes, inf)
            else:
                self._start("down", device, each.down_bytes, each.down_rate)

    def _start(self, way: str, key: object, size: int, own: float) -> None:
        self._cells[way].left[key], self._cells[way].own[key] = Fraction(8 * size), own

    def _receive(self, device: int, at_ns: int) -> None:
        each = self.at_work[device][1]
        self._at.append((at_ns + each.latency_ns + each.compute_ns, "ready", device))

    def _ready(self, device: int) -> None:
        each = self.at_work[device][1]
        if self.up is None:
            ends = int(self.now) + ceil(Fraction(8 * each.up_bytes * S, each.up_rate))
            self._at.append((ends + each.latency_ns, "arrives", device))
        else:
            self._start("up", device, each.up_bytes, each.up_rate)

    def _next(self) -> Fraction | float:
        cells = [cell.next(self.now) for cell in self._cells.values() if cell.left]
        return min([*cells, *(at for at, _, _ in self._at)], default=inf)

    def run_to(self, until: Fraction | float) -> None:
        """Let time pass, event by event."""
        while (at := self._next()) <= until and at < inf:
            self._step(Fraction(at))
        if until != inf:
            self._step(Fraction(until))

    def _step(self, at: Fraction) -> None:
        over = {way: cell.pass_time(self.now, at) if cell.left else [] for way, cell in self._cells.items()}
        self.now = at
        for key in over["down"]:
            for device in self._receivers(key):
                self._receive(device, max(ceil(at), self._own_ns[device] if self.is_broadcast else 0))
        for device in over["up"]:
            self._at.append((ceil(at) + self.at_work[device][1].latency_ns, "arrives", device))
        due, self._at = [each for each in self._at if each[0] <= at], [each for each in self._at if each[0] > at]
        for at_ns, kind, device in due:
            if kind == "ready":
                self._ready(device)
            else:
                self.arrived[device] = at_ns

    def _receivers(self, key: object) -> Iterable[int]:
        if not self.is_broadcast:
            return [key]
        return [device for device, (number, _) in self.at_work.items() if ("model", number) == key]

    # --- when a round closes ----------------------------------------------------------------------

    def longest_ns(self) -> int:
        """How long the devices at work take if nobody else is asked."""
        ahead = deepcopy(self)
        ahead.run_to(inf)
        return max(ahead.arrived.values()) - int(self.now)

    def close_buffered(self, updates: int) -> int:
        """Let time pass until so many updates have arrived."""
        opened, wanted = int(self.now), min(updates, len(self.at_work))
        while len(self.arrived) < wanted:
            self.run_to(self._next())
        return max(opened, sorted(self.arrived.values())[wanted - 1])

    def close_timed(self, period_ns: int) -> int:
        """Let time pass for a period, until the first update if there is none, but not if all are there."""
        opened = int(self.now)
        while len(self.arrived) < len(self.at_work):
            if self.arrived and (self.now >= opened + period_ns or self._next() > opened + period_ns):
                self.run_to(closes := max(opened + period_ns, *self.arrived.values()))
                return closes
            self.run_to(self._next())
        return max(opened, *self.arrived.values())

    def take(self) -> dict[int, tuple[int, int, int]]:
        """End the round. By device with an update: the round of its model, when it was asked and when it arrived."""
        taken = {device: (self.at_work.pop(device)[0], self.asked[device], at) for device, at in self.arrived.items()}
        self.arrived = {}
        return taken
