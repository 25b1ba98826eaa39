"""Certificates that counted when a connection began: what is read of them, and who is refused since."""

import shutil
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from test_trust_table import ATTEND, Clusters, Served, attended, called, said_by

from fedstrata.errors import OutdatedError
from fedstrata.process.metrics import ProcessMetrics
from fedstrata.rpc.client import PASSING
from fedstrata.trust.authority import Authority
from fedstrata.trust.files import TlsFiles
from fedstrata.trust.guard import Caller, Guard
from fedstrata.trust.names import Name, Peer
from fedstrata.trust.outdated import RECENT_S, Outdated
from fedstrata.trust.shown import is_vouched_for, shown_by
from fedstrata.trust.table import TABLE
from fedstrata.v1.rounds_pb2 import UpdatePart

DEVICE = Name("device", "device-000")
PEER = Peer("run-1", (DEVICE,))
CHECK, ENROLL = "/grpc.health.v1.Health/Check", "/fedstrata.v1.GpsService/Enroll"


def made(
    name: str, key: ec.EllipticCurvePrivateKey, by: tuple[str, ec.EllipticCurvePrivateKey], until: datetime,
    *, names_keys: bool = True,
) -> bytes:  # fmt: skip
    """A certificate as others issue it, in PEM."""
    subject, issuer = (x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, who)]) for who in (name, by[0]))
    builder = x509.CertificateBuilder(issuer, subject, key.public_key(), 7, datetime(2020, 1, 1, tzinfo=UTC), until)
    if names_keys:
        own = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
        builder = builder.add_extension(own, critical=False)
        authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(by[1].public_key())
        builder = builder.add_extension(authority, critical=False)
    return builder.sign(by[1], hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


KEYS = [ec.generate_private_key(ec.SECP256R1()) for _ in range(4)]
LONG = datetime(2060, 1, 1, tzinfo=UTC)  # which a certificate says in another form than what is before 2050
ROOT, OTHER = made("root", KEYS[0], ("root", KEYS[0]), LONG), made("other", KEYS[1], ("other", KEYS[1]), LONG)
BETWEEN = made("between", KEYS[2], ("root", KEYS[0]), LONG)
LEAF, DEEP = made("leaf", KEYS[3], ("root", KEYS[0]), LONG), made("deep", KEYS[3], ("between", KEYS[2]), LONG)


@pytest.mark.parametrize("days", [1, 365, 3650, 30 * 365])
def test_what_is_read_of_a_certificate_is_what_its_library_says(tmp_path: Path, days: int) -> None:
    authority = Authority.new("run-1")
    authority.issue([DEVICE, Name("lps", "lps-0")], tmp_path, days=days)
    pem = (tmp_path / "cert.pem").read_bytes()
    shown, known = shown_by(pem), x509.load_pem_x509_certificate(pem)
    own = authority.certificate.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value.digest
    assert (shown.serial, shown.until) == (known.serial_number, known.not_valid_after_utc.timestamp())
    assert (shown.own_key, shown.issuer_key) == (b"", own)
    assert shown_by(authority.trusted()).own_key == own


@pytest.mark.parametrize(
    ("certificate", "beside", "authorities", "is_vouched"),
    [
        (LEAF, (), {ROOT}, True),
        (LEAF, (), {ROOT, OTHER}, True),
        (LEAF, (), {OTHER}, False),
        (DEEP, (BETWEEN,), {ROOT}, True),
        (DEEP, (BETWEEN,), {OTHER}, False),
        (DEEP, (BETWEEN,), {BETWEEN}, True),
        (DEEP, (BETWEEN, BETWEEN, OTHER), {OTHER}, False),
        (made("a", KEYS[3], ("root", KEYS[0]), LONG, names_keys=False), (), {OTHER}, True),  # it does not say
        (LEAF, (), {made("plain", KEYS[1], ("plain", KEYS[1]), LONG, names_keys=False)}, True),
    ],
)
def test_by_whom_a_certificate_is_follows_from_the_names_of_keys_where_it_has_any(
    certificate: bytes, beside: tuple[bytes, ...], authorities: set[bytes], is_vouched: bool
) -> None:
    assert is_vouched_for(certificate, beside, frozenset(authorities)) is is_vouched


class Clock:
    """Seconds since 1970, as a test sets them."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_who_was_refused_lately_is_shut_out_and_is_logged_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    outdated = Outdated(lambda: frozenset({OTHER}), clock)
    assert not outdated.shuts_out("device", "device-000")
    for clock.now in (100.0, 102.0, 104.0, 161.0):
        with pytest.raises(OutdatedError, match="device/device-000 is by an authority that counts no more; renew it"):
            outdated.check(PEER, LEAF, ())
    assert outdated.shuts_out("device", "device-000")
    assert not outdated.shuts_out("device", "device-001")
    clock.now += RECENT_S + 1
    assert not outdated.shuts_out("device", "device-000")
    assert [record.message for record in caplog.records] == ["certificate_outdated"] * 2


def test_a_certificate_counts_until_its_last_second() -> None:
    clock = Clock()
    outdated = Outdated(lambda: frozenset({ROOT}), clock)
    clock.now = LONG.timestamp()
    outdated.check(PEER, LEAF, ())
    clock.now += 1
    with pytest.raises(OutdatedError, match="has run out on 2060-01-01 00:00:00 UTC"):
        outdated.check(PEER, LEAF, ())


async def test_what_has_begun_comes_to_its_end_and_what_begins_is_refused() -> None:
    trusted, told = frozenset({ROOT}), list[str]()
    guard = Guard("run-1", Clusters(), told.append, outdated=Outdated(lambda: trusted, lambda: 0.0))
    caller = Caller(PEER, LEAF)
    for part in attended("device-000"):
        await guard.check(caller, ATTEND, TABLE[ATTEND], part)
    trusted = frozenset({OTHER})
    await guard.check(caller, ATTEND, TABLE[ATTEND], UpdatePart(data=b"12"))
    for part in attended("device-000"):
        with pytest.raises(OutdatedError):
            await guard.check(caller, ATTEND, TABLE[ATTEND], part)
    assert told == ["outdated"] * len(list(attended("device-000")))


def test_who_is_refused_for_it_tries_again() -> None:
    assert OutdatedError.status in PASSING


class Following(Served):
    """A server that trusts whom the files in its folder say now."""

    def _outdated(self) -> Outdated:
        return Outdated(lambda: TlsFiles.load(self.folder / "server").authorities)

    def trust(self, authority: Authority) -> None:
        """Have the server trust an authority, and show a certificate by it."""
        authority.issue([Name("gps")], self.folder / "server")

    def refused(self) -> float | None:
        return self.metrics.registry.get_sample_value("fedstrata_refused_total", {"reason": "outdated"})


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Following]:
    async with Following(tmp_path, Authority.new("run-1"), ProcessMetrics("gps")) as server:
        yield server


async def test_over_an_open_connection_nobody_speaks_by_an_authority_that_is_dropped(served: Following) -> None:
    new = served.authority.succeeded()
    async with served.channel_of(DEVICE) as channel:
        assert await called(channel, CHECK, said_by(CHECK, "")) == "OK"
        folder = served.folder / str(DEVICE)
        served.trust(new)  # both count
        assert await called(channel, ENROLL, said_by(ENROLL, "device-000")) == "OK"
        served.trust(new.alone())
        refused = await called(channel, ENROLL, said_by(ENROLL, "device-000"))
        assert refused.startswith("the certificate of device/device-000 is by an authority that counts no more")
        new.alone().issue([DEVICE], served.folder / "new")
        for file in (served.folder / "new").iterdir():
            shutil.copy(file, folder)
        channel._connection.tls.newest(at_once=True)  # type: ignore[attr-defined]  # which it does once a second
        assert await called(channel, ENROLL, said_by(ENROLL, "device-000")) == "OK"
    assert served.refused() == 1
    assert len(served.heard) == 2


async def test_over_an_open_connection_nobody_speaks_by_a_certificate_that_has_run_out(
    served: Following, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = datetime.now(UTC) + timedelta(days=365, minutes=1)
    async with served.channel_of(DEVICE) as channel:
        assert await called(channel, CHECK, said_by(CHECK, "")) == "OK"
        monkeypatch.setattr(served.guard._outdated, "_clock", ends.timestamp)
        assert "has run out on" in await called(channel, CHECK, said_by(CHECK, ""))
