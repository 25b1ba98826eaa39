"""The ids of devices that a partition names."""

import re
from typing import Annotated

from pydantic import Field

SERVER = re.compile(r"gps|lps-\d+")
LONGEST_ID = 63


def distinct_names(value: tuple[str, ...] | None) -> tuple[str, ...] | None:
    """Return the ids of devices. Raise ValueError if two are equal, or if one is the name of a server."""
    if value is not None and len(set(value)) != len(value):
        raise ValueError("a name is listed twice; give each device a different name")
    if server := next(filter(SERVER.fullmatch, value or ()), None):
        raise ValueError(f"{server} is the name of a server, in faults and certificates, too; rename this device")
    return value


def distinct_values(value: tuple[str, ...] | None) -> tuple[str, ...] | None:
    """Return the values of a column. Raise ValueError unless all values give different device ids."""
    known: dict[str, str] = {}
    for name in value or ():
        found = device_id(name)
        if not found or len(found) > LONGEST_ID:
            raise ValueError(
                f"{name!r:.80} gives no device id, which needs 1 to {LONGEST_ID} letters (a to z) or digits; rename it"
            )
        if known.setdefault(found, name) != name:
            raise ValueError(f"{known[found]!r} and {name!r} give the same device id, {found}; rename one")
    distinct_names(tuple(map(device_id, value or ())))
    return value


def device_id(name: str) -> str:
    """Return the device id for a name: in small letters, and with hyphens for all characters except letters from a to
    z, digits and dots. A name that can be an id is returned unchanged. The chart has the same rule for certificates.
    """
    return re.sub(r"[^a-z0-9.-]+", "-", name.lower()).strip(".-")


Names = tuple[Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?$")], ...]
