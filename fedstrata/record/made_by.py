"""The software, commands and times of a result: the key `made_by` of summary.json."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from pydantic import PositiveInt
from pydantic.dataclasses import dataclass as checked_dataclass

from fedstrata.process.machine import MACHINE

Counted = Sequence[tuple[int, Mapping[str, str]]]  # each software, and the number of processes that had it


@checked_dataclass(frozen=True, kw_only=True)
class Software:
    """Describe the software and the machine with which some devices, some LPSs or the GPS computed."""

    count: PositiveInt
    """Number of devices or LPSs; 1 for the GPS. A device that starts again with other software is counted with both."""
    versions: dict[str, str]
    """Version of Fedstrata, of Python, and of each loaded package that computes."""
    platform: str
    """Operating system and architecture."""
    processor: str
    """Name of the processor."""


@checked_dataclass(frozen=True, kw_only=True)
class MadeBy:
    """Hold the software, the commands and the times of a result, so that the result can be cited."""

    commands: tuple[str, ...]
    """Commands that started the run, and continued it. Empty on Kubernetes."""
    commit: str | None
    """Commit of the GPS's code; null if it is unknown."""
    started: str
    """Time at which the run began (UTC)."""
    ended: str
    """Time at which the record was written (UTC)."""
    software: dict[str, tuple[Software, ...]]
    """Software that computed, by tier: `gps`, `lps` and `device`. The most frequent comes first."""

    def facts(self) -> dict[str, tuple[str, ...]]:
        """Return all values of each version, platform and processor. The keys are texts of tier and name, such as
        `device numpy`. The last key is `commit`.
        """
        found = dict[str, set[str]]()
        for tier, each in self.software.items():
            for software in each:
                facts = {**software.versions, "platform": software.platform, "processor": software.processor}
                for name, value in facts.items():
                    found.setdefault(f"{tier} {name}", set()).add(value)
        found["commit"] = {self.commit or "unknown"}
        return {name: tuple(sorted(values)) for name, values in found.items()}


def made_by(
    *, commands: Sequence[str], commit: str, began: float, ended: float, software: Mapping[str, Counted]
) -> MadeBy:
    """Return the software, the commands and the times of a result. Times are in seconds since 1970."""
    return MadeBy(
        commands=tuple(commands),
        commit=commit or None,
        started=_utc(began),
        ended=_utc(ended),
        software={tier: tuple(_software(count, facts) for count, facts in each) for tier, each in software.items()},
    )


def _software(count: int, facts: Mapping[str, str]) -> Software:
    first = [name for name in ("fedstrata", "python") if name in facts]
    versions = {name: facts[name] for name in dict.fromkeys([*first, *facts]) if name not in MACHINE}
    return Software(count=count, versions=versions, **{name: facts.get(name, "") for name in MACHINE})


def _utc(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
