"""Names in certificates: URIs in the form of SPIFFE IDs, such as `spiffe://RUN/device/device-003`.

A process that hosts many devices is named by the first and the last of them: `spiffe://RUN/device/device-000_device-049`.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, Self, get_args

from fedstrata.errors import CertificateError
from fedstrata.process.quoting import quoted

Role = Literal["gps", "operator", "lps", "device"]
ROLES: tuple[Role, ...] = get_args(Role)
NAMED: frozenset[Role] = frozenset({"lps", "device"})  # of which there are several, each with an id
DOMAIN = re.compile(r"[a-z0-9]([a-z0-9._-]{0,252}[a-z0-9])?")
ID = re.compile(r"[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?")
LONGEST_ID = 63
LPS_ID = re.compile(r"lps-(0|[1-9][0-9]{0,8})")
NAME = r"(?P<role>[a-z]+)(?:/(?P<id>[^/_]+)(?:_(?P<last>[^/_]+))?)?"
URI = re.compile(rf"spiffe://(?P<domain>[^/]+)/{NAME}")
NUMBERED = re.compile(r"(?P<stem>.*?)(?P<number>[0-9]{1,9})")


@dataclass(frozen=True)
class Name:
    """What a certificate says that its holder is: the GPS, an operator, an LPS, a device, or devices in a row."""

    role: Role
    id: str = ""
    last: str = ""  # of devices in a row; they differ in the number at the end alone

    def __post_init__(self) -> None:
        if self.role not in ROLES:
            raise CertificateError(f"{quoted(self.role)} is no role; they are {', '.join(ROLES)}")
        if bool(self.id) != (self.role in NAMED):
            raise CertificateError(f"a name of {self.role} has {'an' if self.role in NAMED else 'no'} id")
        for part in filter(None, (self.id, self.last)):
            if not ID.fullmatch(part):
                raise CertificateError(
                    f"{quoted(part)} is no id of {self.role}: small letters, digits, dots and hyphens, at most 63"
                )
        if self.role == "lps" and not LPS_ID.fullmatch(self.id):
            raise CertificateError(f"{quoted(self.id)} is no LPS; they are lps-0, lps-1, …")
        if self.last and (self.role != "device" or _row(self.id, self.last) is None):
            raise CertificateError(f"{quoted(self.id)} and {quoted(self.last)} are not the ends of a row of devices")

    def covers(self, device_or_lps_id: str) -> bool:
        """Whether this is a name of somebody with that id."""
        if not self.last:
            return device_or_lps_id == self.id
        stem, width, numbers = _row(self.id, self.last) or ("", 0, range(0))
        number = device_or_lps_id.removeprefix(stem)
        is_alike = device_or_lps_id.startswith(stem) and len(number) == width and number.isascii()
        return is_alike and number.isdecimal() and int(number) in numbers

    @property
    def devices(self) -> int:
        """How many devices have this name."""
        if self.role != "device":
            return 0
        row = _row(self.id, self.last) if self.last else None
        return len(row[2]) if row else 1

    def uri(self, domain: str) -> str:
        """The name as it stands in a certificate."""
        return f"spiffe://{domain}/{self}"

    def __str__(self) -> str:
        who = f"{self.id}_{self.last}" if self.last else self.id
        return f"{self.role}/{who}" if who else self.role


@dataclass(frozen=True)
class Peer:
    """The holder of a certificate, who is all that it names."""

    domain: str
    names: tuple[Name, ...]

    @classmethod
    def of_uris(cls, uris: Iterable[str]) -> Self:
        """The holder that these URIs name; URIs of other kinds are passed over.

        Raises:
            CertificateError: they name nobody, or are of several domains.
        """
        found = [match for uri in uris if (match := URI.fullmatch(uri))]
        domains = sorted({match["domain"] for match in found})
        if len(domains) != 1:
            several = f"of {len(domains)} runs" if domains else "of no run; fedstrata certs issue makes one that is"
            raise CertificateError(f"the certificate names somebody {several}")
        names = (Name(match["role"], match["id"] or "", match["last"] or "") for match in found)  # type: ignore[arg-type]
        return cls(domains[0], tuple(names))

    def is_a(self, role: Role) -> bool:
        """Whether it has a role at all."""
        return any(name.role == role for name in self.names)

    def is_(self, role: Role, device_or_lps_id: str) -> bool:
        """Whether it is the device, or the LPS, of that id."""
        return any(name.role == role and name.covers(device_or_lps_id) for name in self.names)

    def __str__(self) -> str:
        first, *others = map(str, self.names)
        return f"{first} and {len(others)} more" if others else first


def device_names(ids: Iterable[str]) -> list[Name]:
    """The names of these devices, in order, as few as there can be: numbers that follow each other are a row."""
    names: list[Name] = []
    for device_id in ids:
        before = names[-1] if names else None
        if before is not None and _follows(before.last or before.id, device_id):
            names[-1] = Name("device", before.id, device_id)
        else:
            names.append(Name("device", device_id))
    return names


def name_of(text: str) -> Name:
    """The name that is written so, as in a certificate behind the run: `device/device-003`. Raises CertificateError."""
    found = re.fullmatch(NAME, text)
    if found is None:
        raise CertificateError(f"{quoted(text)} is no name")
    return Name(found["role"], found["id"] or "", found["last"] or "")  # type: ignore[arg-type]


def server_name(name: Name) -> str:
    """By which name a server's certificate is checked, wherever it listens: `gps`, `lps-0`."""
    return name.id or name.role


def check_domain(domain: str) -> str:
    """The name of a run or a release, as it may stand in certificates. Raises CertificateError."""
    if not DOMAIN.fullmatch(domain):
        raise CertificateError(
            f"{quoted(domain)} cannot name a run in certificates: small letters, digits, dots, hyphens, underscores"
        )
    return domain


def split_number(device_or_lps_id: str) -> tuple[tuple[str, int], int] | None:
    """What an id begins with and how many digits follow, and their number; None where it ends in none."""
    found = NUMBERED.fullmatch(device_or_lps_id)
    return found and ((found["stem"], len(found["number"])), int(found["number"]))


def ends_of(name: Name) -> tuple[tuple[str, int], int, int] | None:
    """As `split_number`, with the first and the last number of a name; None of one without a number."""
    first, last = split_number(name.id), split_number(name.last or name.id)
    return first and last and (*first, last[1])


def _row(first: str, last: str) -> tuple[str, int, range] | None:
    """What ids of a row begin with, how many digits follow, and which numbers; None where there is no such row."""
    ends = NUMBERED.fullmatch(first), NUMBERED.fullmatch(last)
    if ends[0] is None or ends[1] is None or ends[0]["stem"] != ends[1]["stem"]:
        return None
    low, high = ends[0]["number"], ends[1]["number"]
    if len(low) != len(high) or int(low) >= int(high):
        return None
    return ends[0]["stem"], len(low), range(int(low), int(high) + 1)


def _follows(before: str, after: str) -> bool:
    row = _row(before, after)
    return row is not None and len(row[2]) == 2
