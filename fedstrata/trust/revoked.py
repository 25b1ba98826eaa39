"""The names whose certificates count no more, from `revoked.txt`: a line each."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property

from fedstrata.errors import CertificateError
from fedstrata.trust.name_sets import NameSet
from fedstrata.trust.names import Name, Peer, Role, name_of

REVOKED = "revoked.txt"
# Of a list: 3,600 names of any length, 13,000 devices as experiments call them, any number in rows. A server reads it
# between two messages, each time that the file changes, and nobody else is heard for as long: 0.13 s of a core at this
# size where all are rows, which take longest.
MOST_BYTES = 1 << 18


@dataclass(frozen=True)
class Revoked:
    """Names that nobody has any more."""

    names: frozenset[Name] = field(default_factory=frozenset)

    @classmethod
    def parse(cls, text: str) -> "Revoked":
        """Read a list; what follows a # is passed over.

        Raises:
            CertificateError: a line is no name, or the last one has no end.
        """
        if not text.endswith("\n") and text:
            raise CertificateError(
                f"{REVOKED}: its last line has no end, so it may be copied in part; end the last line, or copy it again"
            )
        names = set()
        for number, line in enumerate(text.splitlines(), 1):
            if entry := line.partition("#")[0].strip():
                try:
                    names.add(name_of(entry))
                except CertificateError as error:
                    raise CertificateError(
                        f"{REVOKED}, line {number}: {error}; expected a name such as device/device-003"
                    ) from None
        return cls(frozenset(names))

    def files(self) -> dict[str, bytes]:
        """The list as it stands in its file, by the name of that; no file where nothing is revoked."""
        return {REVOKED: "".join(f"{name}\n" for name in sorted(map(str, self.names))).encode()} if self.names else {}

    def with_also(self, names: Iterable[Name]) -> "Revoked":
        """These and others."""
        return Revoked(self.names.union(names))

    def why(self, peer: Peer) -> str | None:
        """Why the holder of a certificate is refused, whatever it calls; None where it is not."""
        if self.names and all(map(self._named.covers, peer.names)):
            return f"{peer} is revoked"
        return None

    def revokes(self, roles: Iterable[Role], device_or_lps_id: str) -> bool:
        """Whether nobody may speak for a device or an LPS of that id."""
        return any(self._named.has(role, device_or_lps_id) for role in roles)

    @cached_property
    def _named(self) -> NameSet:
        return NameSet(self.names)
