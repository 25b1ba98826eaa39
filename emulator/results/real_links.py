"""A run on the real clock: links.csv as values, and its sum in the summary."""

from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, TypeAdapter
from pydantic.dataclasses import dataclass as checked_dataclass

Seconds = Annotated[NonNegativeFloat, Field(allow_inf_nan=False)]


@checked_dataclass(frozen=True, kw_only=True)
class Real:
    """`real` of summary.json: rows of links.csv, and those outside of what was configured."""

    links: NonNegativeInt
    outside: NonNegativeInt


@checked_dataclass(frozen=True, kw_only=True)
class LinkRow:
    """One row of links.csv; rates are None where nothing limits them, and of computing."""

    link: Literal["device-gps", "device-lps", "lps-gps"]
    direction: Literal["down", "up", "compute"]
    child: str
    transfers: NonNegativeInt
    bytes: NonNegativeInt
    bits_per_s: NonNegativeInt | None
    achieved_bits_per_s: NonNegativeInt | None
    latency_s: Seconds
    achieved_latency_s: Seconds
    outside: str | None


LINK_ROW = TypeAdapter(LinkRow)
