"""Names in certificates: URIs in the form of SPIFFE IDs, such as `spiffe://RUN/device/device-003`.

A process with many devices has one name, made from the ids of its first and last device:
`spiffe://RUN/device/device-000_device-049`.
"""

import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, Self, get_args

from fedstrata.errors import CertificateError
from fedstrata.process.quoting import quoted

Role = Literal["gps", "operator", "lps", "device", "fleet"]
ROLES: tuple[Role, ...] = get_args(Role)
SERVERS: frozenset[Role] = frozenset({"gps", "lps", "fleet"})  # roles of servers, which others call
NAMED: frozenset[Role] = frozenset({"lps", "device"})  # roles with several holders, each with an id
DOMAIN = re.compile(r"[a-z0-9]([a-z0-9._-]{0,252}[a-z0-9])?")
ID = re.compile(r"[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?")
LONGEST_ID = 63
LABEL = r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"  # one label of a DNS name
SERVER_DOMAIN = re.compile(rf"{LABEL}(\.{LABEL})*")
LONGEST_SERVER_DOMAIN = 200  # characters; a server's whole name may have at most 253
CERTIFICATE_DAYS = 365  # days for which a certificate is valid by default
LPS_ID = re.compile(r"lps-(0|[1-9][0-9]{0,8})")
NAME = r"(?P<role>[a-z]+)(?:/(?P<id>[^/_]+)(?:_(?P<last>[^/_]+))?)?"
URI = re.compile(rf"spiffe://(?P<domain>[^/]+)/{NAME}")
NUMBERED = re.compile(r"(?P<stem>.*?)(?P<number>[0-9]{1,9})")
Stem = tuple[str, int]  # beginning of the ids of a range of devices, and number of digits after it


@dataclass(frozen=True)
class Name:
    """Identify the holder of a certificate: the GPS, an operator, an LPS, the service that lends a fleet's boards to
    runs, a device, or a range of devices with consecutive numbers.
    """

    role: Role
    id: str = ""
    last: str = ""  # last id of a range of devices, which differ only in the number at the end

    def __post_init__(self) -> None:
        if self.role not in ROLES:
            raise CertificateError(f"{quoted(self.role)} is not a role; roles are {', '.join(ROLES)}")
        if bool(self.id) != (self.role in NAMED):
            example = f"{self.role}/ID" if self.role in NAMED else self.role
            raise CertificateError(f"a name of {self.role} must have the form {example}")
        for part in filter(None, (self.id, self.last)):
            if not ID.fullmatch(part):
                raise CertificateError(
                    f"{quoted(part)} is not an id of {self.role}: an id has at most 63 small letters, digits, dots and "
                    "hyphens"
                )
        if self.role == "lps" and not LPS_ID.fullmatch(self.id):
            raise CertificateError(f"{quoted(self.id)} is not the id of an LPS; these are lps-0, lps-1, …")
        if self.last and (self.role != "device" or _apart(self.id, self.last) <= 0):
            raise CertificateError(
                f"{quoted(self.id)} and {quoted(self.last)} are not the first and last id of a range of devices"
            )

    def covers(self, device_or_lps_id: str) -> bool:
        """Return whether this name is, or includes, the device or LPS with this id."""
        if not self.last or len(device_or_lps_id) > LONGEST_ID:
            return device_or_lps_id == self.id
        found, ends = _numbered(device_or_lps_id), self.ends
        return found is not None and ends is not None and found[0] == ends[0] and ends[1] <= found[1] <= ends[2]

    @cached_property
    def ends(self) -> tuple[Stem, int, int] | None:
        """The stem of the ids, the first number and the last number; None if the ids do not end in numbers. The stem is
        a pair: the text before the number, and the number of its digits.
        """
        first, last = _numbered(self.id), _numbered(self.last or self.id)
        return first and last and (*first, last[1])

    @property
    def devices(self) -> int:
        """The number of devices that this name includes; 0 if its role is not `device`."""
        if self.role != "device":
            return 0
        return self.ends[2] - self.ends[1] + 1 if self.ends else 1

    def uri(self, domain: str) -> str:
        """Return the name as it is in certificates of this domain, as a URI."""
        return f"spiffe://{domain}/{self}"

    def __str__(self) -> str:
        who = f"{self.id}_{self.last}" if self.last else self.id
        return f"{self.role}/{who}" if who else self.role


@dataclass(frozen=True)
class Peer:
    """Hold the domain and all names of one certificate."""

    domain: str
    names: tuple[Name, ...]

    @classmethod
    def of_uris(cls, uris: Iterable[str]) -> Self:
        """Return the peer with the names in these URIs. Ignore URIs that do not have the form of a name.

        Raises:
            CertificateError: no URI has a name, or the names have different domains.
        """
        found = [match for uri in uris if (match := URI.fullmatch(uri))]
        domains = sorted({match["domain"] for match in found})
        if len(domains) != 1:
            found_runs = f"{len(domains)} runs" if domains else "no run"
            raise CertificateError(
                f"the certificate names {found_runs}, and must name one; issue it with fedstrata certs issue"
            )
        names = (Name(match["role"], match["id"] or "", match["last"] or "") for match in found)  # type: ignore[arg-type]
        return cls(domains[0], tuple(names))

    def is_a(self, role: Role) -> bool:
        """Return whether one of the names has this role."""
        return any(name.role == role for name in self.names)

    def is_(self, role: Role, device_or_lps_id: str) -> bool:
        """Return whether one of the names is, or includes, the device or LPS with this id."""
        return any(name.role == role and name.covers(device_or_lps_id) for name in self.names)

    def __str__(self) -> str:
        first, *others = map(str, self.names)
        return f"{first} and {len(others)} more" if others else first


def device_names(ids: Iterable[str]) -> list[Name]:
    """Return as few names as possible for these devices, in the order of the ids. Devices with consecutive numbers
    share one name.
    """
    names: list[Name] = []
    for device_id in ids:
        before = names[-1] if names else None
        if before is not None and _apart(before.last or before.id, device_id) == 1:
            names[-1] = Name("device", before.id, device_id)
        else:
            names.append(Name("device", device_id))
    return names


def name_of(text: str) -> Name:
    """Parse a name without its domain, such as `device/device-003`. Raises CertificateError for any other text."""
    found = re.fullmatch(NAME, text)
    if found is None:
        raise CertificateError(f"{quoted(text)} is not a name")
    return Name(found["role"], found["id"] or "", found["last"] or "")  # type: ignore[arg-type]


def server_name(name: Name, server_domain: str = "") -> str:
    """Return the DNS name that a server's certificate must have: `gps`, `lps-0`. With a server domain, return
    `gps.DOMAIN`, `lps-0.DOMAIN`. The server's address is not part of the name.
    """
    return f"{name.id or name.role}.{server_domain}".removesuffix(".")


def check_server_domain(domain: str) -> str:
    """Check the domain of servers' names, and return it. It may be empty. Raises CertificateError if the text is not a
    domain.
    """
    if domain and not (SERVER_DOMAIN.fullmatch(domain) and len(domain) <= LONGEST_SERVER_DOMAIN):
        raise CertificateError(
            f"{quoted(domain)} is not a domain for servers' names; write one such as fl.example.org, in small "
            f"letters, with at most {LONGEST_SERVER_DOMAIN} characters, and at most 63 between dots"
        )
    return domain


def check_domain(domain: str) -> str:
    """Check that certificates may contain this name of a run or release, and return the name. Raises CertificateError
    if they may not.
    """
    if not DOMAIN.fullmatch(domain):
        raise CertificateError(
            f"{quoted(domain)} cannot be the name of a run in certificates; use only small letters, digits, dots, "
            "hyphens and underscores"
        )
    return domain


class NameSet:
    """Hold a set of names of devices, LPSs, operators and so on. A look-up is a binary search, so it does not go
    through all names.
    """

    def __init__(self, names: Iterable[Name]) -> None:
        """Set the names. Ranges that touch or overlap are joined. A single device with a number at the end of its id
        counts as a range of one device.
        """
        self._single: set[tuple[Role, str]] = set()
        rows: dict[tuple[Role, Stem], list[tuple[int, int]]] = defaultdict(list)
        for name in names:
            if (found := name.ends) is None:
                self._single.add((name.role, name.id))
            else:
                stem, low, high = found
                rows[name.role, stem].append((low, high))
        self._rows = {key: _joined(ends) for key, ends in rows.items()}

    def covers(self, name: Name) -> bool:
        """Return whether the set includes the name. If the name is a range of devices, the set must include all of
        them.
        """
        if (found := name.ends) is None:
            return (name.role, name.id) in self._single
        return self._has_row(name.role, *found)

    def has(self, role: Role, device_or_lps_id: str) -> bool:
        """Return whether the set includes this role and id. The id may come from an untrusted peer, so its length is
        checked first.
        """
        if len(device_or_lps_id) > LONGEST_ID:
            return False
        if (found := _numbered(device_or_lps_id)) is None:
            return (role, device_or_lps_id) in self._single
        stem, number = found
        return self._has_row(role, stem, number, number)

    def _has_row(self, role: Role, stem: Stem, low: int, high: int) -> bool:
        begins, ends = self._rows.get((role, stem), ((), ()))
        at = bisect_right(begins, low) - 1
        return at >= 0 and high <= ends[at]


def _joined(rows: list[tuple[int, int]]) -> tuple[list[int], list[int]]:
    """Join ranges that touch or overlap. Return the first numbers and the last numbers of the joined ranges, in
    ascending order.
    """
    begins, ends = list[int](), list[int]()
    for low, high in sorted(rows):
        if ends and low <= ends[-1] + 1:
            ends[-1] = max(ends[-1], high)
        else:
            begins.append(low)
            ends.append(high)
    return begins, ends


def _numbered(device_or_lps_id: str) -> tuple[Stem, int] | None:
    """Return the stem of an id and the number at its end. The stem is a pair: the text before the number, and the
    number of its digits. If the id does not end in a number, return None.
    """
    found = NUMBERED.fullmatch(device_or_lps_id)
    return found and ((found["stem"], len(found["number"])), int(found["number"]))


def _apart(first: str, last: str) -> int:
    """Return by how much the number at the end of `last` exceeds the number at the end of `first`. If the ids differ in
    more than these numbers, return 0.
    """
    low, high = _numbered(first), _numbered(last)
    return high[1] - low[1] if low is not None and high is not None and low[0] == high[0] else 0
