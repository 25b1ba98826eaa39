"""The keys of an experiment file for traces. A trace has rates that change over time, and is generated or read from a
file.

A generated trace has one rate per second. The rate is 0 in an outage, and otherwise e to the power of a first-order
autoregression. A Markov chain with two states decides when outages begin and end. The random numbers depend on seed,
link and direction.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from fedstrata.experiment.quantities import DURATION, RATE, Duration, SampleRate
from fedstrata.experiment.rates import SECOND_NS, Trace
from fedstrata.experiment.sections import Settings

DRAWS = 0x74726163  # "trac": an address that only these draws use
GRAIN = 1_000  # bits per second: generated rates are rounded to multiples of it, so that all machines agree
MOST_SAMPLES = 20_000
SHORTEST_NS = 10**6  # shortest duration of a rate, since a transfer takes computing time for each rate
Median = Annotated[int, *replace(RATE, least=GRAIN, limits="a median must be from 1kbit/s to 1000000Gbit/s").form]
Outage = Annotated[int, *replace(DURATION, least=SECOND_NS, limits="an outage must be from 1s to 168h").form]
LENGTHS = f"a generated trace must last from 1s to {MOST_SAMPLES}s"
Length = Annotated[
    int, *replace(DURATION, least=SECOND_NS, most=MOST_SAMPLES * SECOND_NS, limits=LENGTHS).form
]  # fmt: skip


class Generated(Settings):
    """Define a generated trace. Each device and direction draws different random numbers for it."""

    median: Median
    """Median of the rate."""
    sigma: float = Field(gt=0, le=3)
    """Standard deviation of the natural logarithm of the rate."""
    lag: float = Field(ge=0, lt=1)
    """Correlation of the rate's logarithm from one second to the next."""
    outage_share: float = Field(default=0.0, ge=0, lt=1)
    """Share of the time in which the link carries nothing."""
    outage: Outage | None = None
    """Mean time of one outage."""
    length: Length = Field(default="1h", validate_default=True)
    """Time after which the trace repeats."""

    @model_validator(mode="after")
    def _coherent(self) -> Self:
        if bool(self.outage_share) != (self.outage is not None):
            raise ValueError("outage_share (of the time) and outage (mean duration) need each other; give both or none")
        least = self.outage_share / (1 - self.outage_share)  # with a mean of one second between outages
        if self.outage is not None and self.outage < least * SECOND_NS * (1 - 1e-9):
            raise ValueError(
                f"outages of this mean duration cannot fill {self.outage_share:g} of the time; set outage to at least "
                f"{math.ceil(round(least * 1000, 6)) / 1000:g}s"
            )
        return self

    def drawn(self, address: Sequence[int]) -> Trace:
        """Draw the trace of a link in a direction. `address` is the seed of the random numbers."""
        draws = np.random.default_rng([address[0], DRAWS, *address[1:]])
        count = self.length // SECOND_NS
        level, rates = float(draws.standard_normal()), []
        for shock in draws.standard_normal(count).tolist():
            rates.append(GRAIN * round(self.median * math.exp(self.sigma * level) / GRAIN))
            level = self.lag * level + math.sqrt(1 - self.lag**2) * shock
        out = self._outages(draws.random(count + 1).tolist())
        kept = [0 if is_out else rate for rate, is_out in zip(rates, out, strict=True)]
        if not any(kept):
            kept[0] = max(GRAIN, self.median)  # a short trace may have drawn only outages or rates of 0
        return Trace(tuple(second * SECOND_NS for second in range(count)), tuple(kept), count * SECOND_NS)

    def _outages(self, draws: Sequence[float]) -> list[bool]:
        """Return, for each second, whether it is part of an outage. `draws` has one random number in [0, 1) for the
        start, and one for each second.
        """
        if self.outage is None:
            return [False] * (len(draws) - 1)
        ends = SECOND_NS / self.outage
        begins = ends * self.outage_share / (1 - self.outage_share)
        is_out, found = draws[0] < self.outage_share, []
        for draw in draws[1:]:
            found.append(is_out)
            is_out = draw >= ends if is_out else draw < begins
        return found


AnyTrace = Trace | Generated


def _from_moments(mean: float, deviation: float, lag: float, **outages: float) -> Generated:
    """Return the settings of a generated trace. Its rates are log-normal with this mean and standard deviation, both in
    Mbit/s. `lag` is the correlation of the rate's logarithm from one second to the next.
    """
    squared = math.log(1 + (deviation / mean) ** 2)
    median = f"{mean / math.exp(squared / 2):.3f}Mbit/s"
    return Generated.model_validate({"median": median, "sigma": round(math.sqrt(squared), 3), "lag": lag, **outages})


# By name and direction: generated traces with the mean, deviation and lag of recorded traces.
TRACE_PRESETS: Mapping[str, Mapping[str, Generated]] = {
    "lte-driving": {"down": _from_moments(5.2, 2.9, 0.92), "up": _from_moments(0.83, 0.41, 0.84)},
    "3g-driving": {"down": _from_moments(2.0, 1.6, 0.9), "up": _from_moments(0.94, 0.44, 0.9)},
    "evdo-driving": {"down": _from_moments(0.52, 0.46, 0.9, outage_share=0.04, outage="5s")},  # type: ignore[arg-type]
}
TRACE_SOURCES: Mapping[str, str] = {
    "lte-driving": "Mahimahi, LTE, recomputed: 5.2 ± 2.9 Mbit/s down, 0.83 ± 0.41 up.",
    "3g-driving": "Mahimahi, 3G: 2.0 ± 1.6 Mbit/s down, 0.94 ± 0.44 up. The lag is assumed.",
    "evdo-driving": "Mahimahi, EV-DO: 0.52 ± 0.46 Mbit/s down. The lag and the length of outages are assumed.",
}


class TraceSettings(Settings):
    """Define a trace with a name in `links.traces`. It is generated, given as samples, or read from a file into
    samples.
    """

    generate: Generated | None = None
    """Settings of a trace that is drawn by the seed, for each device and direction, second by second."""
    file: Path | None = None
    """File with the trace, relative to the experiment file's folder."""
    format: Literal["csv", "mahimahi", "ghent"] | None = None
    """Format of the file: `csv` has a header `seconds,Mbit/s`, `mahimahi` has a millisecond per packet, `ghent` six
    numbers per line.
    """
    samples: tuple[tuple[Duration, SampleRate], ...] | None = Field(default=None, min_length=1, max_length=MOST_SAMPLES)
    """Pairs of time and rate; the first time is 0."""
    length: Duration | None = None
    """Time at which the samples end."""
    after: Literal["repeat", "hold"] | None = None
    """After the end, `repeat` begins again and `hold` keeps the last rate."""

    @model_validator(mode="after")
    def _one(self) -> Self:
        if sum(kind is not None for kind in (self.generate, self.file, self.samples)) != 1:
            raise ValueError("give exactly one of generate, file and samples")
        if self.file is not None:
            raise ValueError("only an experiment file can name a trace's file; give the samples themselves here")
        if (self.samples is not None) != (self.length is not None):
            raise ValueError("samples and length need each other; give both or none")
        if self.samples is not None:
            self._check_samples(self.samples, self.length or 0)
        elif self.after is not None:
            raise ValueError("after is only for file and samples; remove it, because a generated trace repeats")
        return self

    def _check_samples(self, samples: Sequence[tuple[int, int]], length: int) -> None:
        """Raise ValueError for samples that are no valid trace. Their times must begin at 0 and increase up to
        `length`, and each rate must last 1 ms or longer. At least one rate must be above 0. The key `after` must be
        set; with `hold`, the last rate must be above 0.
        """
        times = [at for at, _ in samples]
        if times[0] != 0:
            raise ValueError(f"the trace begins at {times[0] / 1e9:g} s; its first time must be 0")
        for before, at in zip(times, [*times[1:], length], strict=True):
            if at <= before:
                raise ValueError(f"in the trace {at / 1e9:g} s follows {before / 1e9:g} s; times must increase")
            if at - before < SHORTEST_NS:
                raise ValueError(f"the rate at {before / 1e9:g} s lasts {at - before} ns; it must last 1ms or longer")
        if not any(rate for _, rate in samples):
            raise ValueError("all rates of the trace are 0; give it a rate above 0")
        if self.after is None:
            raise ValueError(f"the trace ends after {length / 1e9:g} s; add after: repeat, or after: hold")
        if self.after == "hold" and not samples[-1][1]:
            raise ValueError("the trace ends at 0bit/s, and after: hold would keep this rate; set after: repeat")

    def resolved(self) -> AnyTrace:
        """Return the trace. If the trace is generated, return the generator that draws it for each link."""
        if self.generate is not None:
            return self.generate
        samples, period = self.samples or (), self.length if self.after == "repeat" else None
        return Trace(tuple(at for at, _ in samples), tuple(rate for _, rate in samples), period)


Traces = Mapping[str, TraceSettings]


def trace_called(name: str, way: str, traces: Traces) -> AnyTrace:
    """Return the trace with this name, from `links.traces` or the presets. For a preset, `way` chooses the direction.
    Raises ValueError for an unknown name, and for a preset without a trace in this direction.
    """
    if name in traces:
        return traces[name].resolved()
    if name not in TRACE_PRESETS:
        raise ValueError(
            f"no trace is called {name!r}; choose one of {', '.join([*traces, *TRACE_PRESETS])}, or add it to "
            "links.traces"
        )
    if way not in TRACE_PRESETS[name]:
        raise ValueError(
            f"trace {name} has no rates for the direction {way}; choose another, or add one to links.traces"
        )
    return TRACE_PRESETS[name][way]


def written(trace: AnyTrace) -> Mapping[str, Any]:
    """Return a trace as a mapping of numbers, from which YAML can be written."""
    if isinstance(trace, Generated):
        return trace.model_dump(mode="json")
    return {"starts": list(trace.starts), "rates": list(trace.rates), "period": trace.period_ns}
