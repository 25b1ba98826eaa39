"""What a certificate says that TLS has checked: its serial number, its end, and whose key has signed it.

Only services that mask load `cryptography`; the few elements that are wanted are found by walking over the others.
"""

import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import NamedTuple

from fedstrata.errors import CertificateError

CERTIFICATES_REMEMBERED = 4096
VERSION, EXTENSIONS, KEY_IDENTIFIER, UTC_TIME = 0xA0, 0xA3, 0x80, 0x17  # tags
SERIAL_PART, VALIDITY_PART = 0, 3  # of what is signed, behind the version
OWN_KEY, ISSUER_KEY = b"\x55\x1d\x0e", b"\x55\x1d\x23"  # subject and authority key identifier, as object identifiers


@dataclass(frozen=True)
class Shown:
    """A certificate."""

    serial: int
    until: float  # seconds since 1970
    own_key: bytes  # by what it names its own key, and the key that has signed it; empty where it does not
    issuer_key: bytes


class _Element(NamedTuple):
    """One element of a certificate: what kind of element, and where its content lies."""

    tag: int
    begin: int
    end: int


@lru_cache(CERTIFICATES_REMEMBERED)
def shown_by(certificate: bytes) -> Shown:
    """What a certificate in PEM says. Raises CertificateError where it is none."""
    try:
        der = ssl.PEM_cert_to_DER_cert(certificate.decode("ascii"))
        signed = [part for part in _inside(der, _first(der, _element(der, 0))) if part.tag != VERSION]
        until = list(_inside(der, signed[VALIDITY_PART]))[1]
        keys = _key_names(der, [part for part in signed if part.tag == EXTENSIONS])
        serial = int.from_bytes(_content(der, signed[SERIAL_PART]), "big")
        return Shown(serial, _seconds(der, until), keys.get(OWN_KEY, b""), keys.get(ISSUER_KEY, b""))
    except (ValueError, IndexError, StopIteration):
        raise CertificateError("what the caller shows is no certificate that can be read") from None


def is_vouched_for(certificate: bytes, beside: tuple[bytes, ...], authorities: frozenset[bytes]) -> bool:
    """Whether a certificate that counted once is by one of these authorities, as far as the names of keys tell.

    `beside` are the certificates that its holder has shown with it: those between it and an authority.
    """
    trusted = _own_keys(authorities)
    between = {one.own_key: one.issuer_key for one in map(shown_by, beside)}
    key = shown_by(certificate).issuer_key
    while key and key not in trusted and key in between:
        key = between.pop(key)
    return not key or not all(trusted) or key in trusted


@lru_cache(64)
def _own_keys(authorities: frozenset[bytes]) -> frozenset[bytes]:
    return frozenset(shown_by(one).own_key for one in authorities)


def _element(der: bytes, at: int) -> _Element:
    """The element that begins at a byte."""
    length, begin = der[at + 1], at + 2
    if length & 0x80:
        size = length & 0x7F
        length, begin = int.from_bytes(der[begin : begin + size], "big"), begin + size
    if begin + length > len(der):
        raise ValueError(length)
    return _Element(der[at], begin, begin + length)


def _inside(der: bytes, element: _Element) -> Iterator[_Element]:
    """The elements that one is made of."""
    at = element.begin
    while at < element.end:
        found = _element(der, at)
        yield found
        at = found.end


def _first(der: bytes, element: _Element) -> _Element:
    return next(_inside(der, element))


def _content(der: bytes, element: _Element) -> bytes:
    return der[element.begin : element.end]


def _seconds(der: bytes, element: _Element) -> float:
    form = "%y%m%d%H%M%SZ" if element.tag == UTC_TIME else "%Y%m%d%H%M%SZ"
    return datetime.strptime(_content(der, element).decode("ascii"), form).replace(tzinfo=UTC).timestamp()


def _key_names(der: bytes, extensions: list[_Element]) -> dict[bytes, bytes]:
    """What the two extensions say that name keys, by their object identifiers."""
    found = {}
    for extension in _inside(der, _first(der, extensions[0])) if extensions else ():
        kind, *_, value = _inside(der, extension)
        oid, inner = _content(der, kind), _element(der, value.begin)
        if oid == OWN_KEY:
            found[oid] = _content(der, inner)
        elif oid == ISSUER_KEY:
            found[oid] = next((_content(der, part) for part in _inside(der, inner) if part.tag == KEY_IDENTIFIER), b"")
    return found
