"""Links and boards by name, with the source of each number; docs/reference/presets.md shows them."""

from collections.abc import Mapping
from dataclasses import dataclass

from fedstrata.experiment.quantities import DURATION, RATE


@dataclass(frozen=True, kw_only=True)
class LinkPreset:
    """Hold the values of a preset link: bits per second down and up, and nanoseconds of latency in one direction."""

    down_rate: int
    up_rate: int
    latency: int


def _preset(down: str, up: str, latency: str) -> LinkPreset:
    return LinkPreset(down_rate=RATE.parsed(down), up_rate=RATE.parsed(up), latency=DURATION.parsed(latency))


LINK_PRESETS: Mapping[str, LinkPreset] = {
    "lte": _preset("13Mbit/s", "6Mbit/s", "35ms"),
    "lte-driving": _preset("5.2Mbit/s", "0.83Mbit/s", "35ms"),
    "3g-driving": _preset("2Mbit/s", "0.94Mbit/s", "100ms"),
    "wifi": _preset("42Mbit/s", "42Mbit/s", "5ms"),
    "lte-m": _preset("300kbit/s", "375kbit/s", "15ms"),
    "nb-iot": _preset("26kbit/s", "66kbit/s", "1.6s"),
    "nb-iot-nb2": _preset("127kbit/s", "159kbit/s", "1.6s"),
}
LINK_SOURCES: Mapping[str, str] = {
    "lte": "Medians of 3,000 users: Huang et al., MobiSys 2012. The latency is assumed.",
    "lte-driving": "Means of Mahimahi's LTE traces from a car (Netravali et al., USENIX ATC 2015). The latency is "
    "assumed.",
    "3g-driving": "Means of Mahimahi's 3G traces. The latency is assumed.",
    "wifi": "Down: median of 164 users in the traces of FLASH and FLHetBench. Up and the latency are assumed.",
    "lte-m": "LTE Cat M1, half duplex.",
    "nb-iot": "LTE Cat NB1: peak rates, lowest latency.",
    "nb-iot-nb2": "LTE Cat NB2: peak rates, lowest latency.",
}
# Computing time of one core of a board, divided by the time of one core of an Intel i5-7400T.
BOARDS: Mapping[str, float] = {"i5-7400t": 1.0, "pi4": 6.3, "pi5": 2.4}
BOARD_SOURCES: Mapping[str, str] = {
    "i5-7400t": "The reference: one core of an Intel i5-7400T.",
    "pi4": "Raspberry Pi 4: 11.9 GFLOP/s in HPL (Jeff Geerling's list).",
    "pi5": "Raspberry Pi 5: 30.2 of 72 GFLOP/s in HPL, both with four cores (the same list).",
}
