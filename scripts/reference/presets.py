"""docs/reference/presets.md: links, traces, boards and radios that an experiment file can name, and their sources."""

from fedstrata.experiment.energy import BOARD_WATTS, PER_BIT, POWER, RADIO_SOURCE, RADIOS, WATTS_SOURCE
from fedstrata.experiment.presets import BOARD_SOURCES, BOARDS, LINK_PRESETS, LINK_SOURCES
from fedstrata.experiment.quantities import DURATION, RATE
from fedstrata.experiment.traces import TRACE_PRESETS, TRACE_SOURCES, Generated
from scripts.reference.markdown import cell, code, table

TOP = """<!-- Written by `make reference` from fedstrata/experiment/presets.py, traces.py and energy.py. -->
# Presets of links, traces, boards and radios

[Links](../links.md) explains the model. [Simulate links and boards](../how-to/simulate-links.md) says how to use it.
"""
LINKS = """
## Links

A value of `preset` in [`links`](experiment.md#links). No preset has jitter or loss.
"""
TRACES = """
## Traces

A value of `down_trace` or `up_trace`: a rate that changes every second. It has the mean, the deviation and the
correlation from second to second (lag) of a recording.
"""
BOARD_TOP = """
## Boards

A key of `compute.devices`. The computing time is a multiple of the reference's. The power is for `energy`, from
{watts}. It is measured with all cores busy. A device computes on one core, so it is an upper bound.
"""
RADIO_TOP = """
## Radios

A value of `energy.radio`, from {radios}. The base is the power while a transfer lasts.
"""


def page() -> str:
    """Return the page."""
    links = [
        [code(name), RATE.written(link.down_rate), RATE.written(link.up_rate), DURATION.written(link.latency),
         cell(LINK_SOURCES[name])]
        for name, link in LINK_PRESETS.items()
    ]  # fmt: skip
    traces = [
        [code(name), *(_trace(ways[way]) if way in ways else "–" for way in ("down", "up")), cell(TRACE_SOURCES[name])]
        for name, ways in TRACE_PRESETS.items()
    ]
    boards = [
        [code(name), f"{factor:g}", POWER.written(BOARD_WATTS[name]), cell(BOARD_SOURCES[name])]
        for name, factor in BOARDS.items()
    ]
    radios = [
        [code(name), PER_BIT.written(radio.up), PER_BIT.written(radio.down), POWER.written(radio.base)]
        for name, radio in RADIOS.items()
    ]
    return (
        TOP
        + LINKS
        + table(["link", "down", "up", "latency one way", "source"], links)
        + TRACES
        + table(["trace", "down", "up", "source"], traces)
        + BOARD_TOP.format(watts=WATTS_SOURCE)
        + table(["board", "computing time", "power", "source of the computing time"], boards)
        + RADIO_TOP.format(radios=RADIO_SOURCE)
        + table(["radio", "up", "down", "base"], radios)
    )


def _trace(trace: Generated) -> str:
    text = f"median {RATE.written(trace.median)}, σ {trace.sigma:g}, lag {trace.lag:g}"
    if trace.outage is None:
        return text
    length = DURATION.written(trace.outage)
    return f"{text}; nothing for {trace.outage_share:.0%} of the time, in outages of {length} on average"
