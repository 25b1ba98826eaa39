"""The list of revoked certificates in a folder: read by itself, whatever becomes of the certificate beside it."""

from pathlib import Path

from fedstrata.errors import CertificateError
from fedstrata.process.logs import EventLog
from fedstrata.trust.renewal import Renewal, Seen, stamp
from fedstrata.trust.revoked import MOST_BYTES, REVOKED, Revoked

log = EventLog("trust")


class RevokedFile:
    """A list as it is now: `revoked.txt` beside a certificate, or where the process was told to look for one."""

    def __init__(self, path: Path) -> None:
        """Raises CertificateError where there is a list that cannot be read."""
        self.path = path
        self._renewal: Renewal[Revoked] = Renewal("revoked_not_taken")
        seen = self._seen()
        self._first = self._last = read_list(path)
        self._renewal.begin(self._first, seen)

    def newest(self, *, at_once: bool = False) -> Revoked:
        """The list as it is now; looked at once a second, or `at_once`.

        One that cannot be read is passed over, and so is one that is empty or gone where there was one.
        """
        return self._renewal.newest(self._first, self._seen, self._renewed, _tell, at_once=at_once)

    def _seen(self) -> Seen:
        return (stamp(self.path),)

    def _renewed(self) -> Revoked:
        path, last = self.path, self._last
        try:
            text = read_text(path)
        except FileNotFoundError:
            text = ""
        revoked = parsed(path, text)
        if last.entries and not text.strip():
            raise CertificateError(
                f"{path} is empty or gone, and what it said still counts ({last.entries} entries); copy it again, or "
                "write a line with a remark alone, such as # nobody, where nobody is revoked any more"
            )
        self._last = revoked
        return revoked


def _tell(revoked: Revoked) -> None:
    log.info("revoked_taken", entries=revoked.entries)


def read_revoked(folder: Path) -> Revoked:
    """The list of a folder; an empty one where there is none. Raises CertificateError where it cannot be read."""
    return read_list(folder / REVOKED)


def read_list(path: Path) -> Revoked:
    """The list in a file; an empty one where there is none. Raises CertificateError where it cannot be read."""
    try:
        return parsed(path, read_text(path))
    except FileNotFoundError:
        return Revoked()


def read_text(path: Path) -> str:
    """What a list says. Raises FileNotFoundError, and CertificateError where it cannot be read."""
    try:
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
        if len(content) > MOST_BYTES:
            raise CertificateError(f"{path} has more than {MOST_BYTES} bytes; take out what has run out by now")
        return content.decode()
    except FileNotFoundError:
        raise
    except (OSError, UnicodeDecodeError) as error:
        raise CertificateError(f"{path} cannot be read: {error}; fedstrata certs revoke writes one") from None


def parsed(path: Path, text: str) -> Revoked:
    """The list that a file says. Raises CertificateError."""
    try:
        return Revoked.parse(text)
    except CertificateError as error:
        raise CertificateError(f"{path.parent}/{error}") from None
