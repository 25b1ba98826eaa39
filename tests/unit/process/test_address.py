"""Addresses: how they are written, and by which processes of one machine reach each other."""

from collections.abc import Iterator

import pytest

from fedstrata.errors import AddressError
from fedstrata.process import address
from fedstrata.process.address import any_port, joined_address, loopback, numbered_address, split_address


@pytest.fixture(autouse=True)
def _asked_anew() -> Iterator[None]:
    loopback.cache_clear()
    yield
    loopback.cache_clear()


@pytest.mark.parametrize(("host", "port", "written"), [("127.0.0.1", 0, "127.0.0.1:0"), ("::1", 65535, "[::1]:65535")])
def test_an_address_is_written_as_it_is_read(host: str, port: int, written: str) -> None:
    assert joined_address(host, port) == written
    assert split_address(written) == (host, port)


@pytest.mark.parametrize(
    "text", ["", "gps", ":1", "gps:x", "gps:65536", "gps:" + "1" * 5000, "a..b:1", "x" * 64 + ":1"]
)
def test_what_cannot_be_connected_to_is_no_address(text: str) -> None:
    with pytest.raises(AddressError, match="is not an address; write host:port"):
        split_address(text)


def test_ports_that_count_up_do_so_by_number() -> None:
    assert numbered_address("fl.example.org:50061+", 0) == "fl.example.org:50061"
    assert numbered_address("fl.example.org:50061+", 2) == "fl.example.org:50063"
    assert numbered_address("[2001:db8::1]:50061+", 1) == "[2001:db8::1]:50062"
    assert numbered_address("lps-2.example.org:50061", 2) == "lps-2.example.org:50061"
    for wrong in ("fl.example.org", "fl.example.org:+", "fl.example.org:65535+"):
        with pytest.raises(AddressError, match="is not an address"):
            numbered_address(wrong, 1)


def test_this_machine_answers_itself() -> None:
    assert split_address(any_port())[0] in address.LOOPBACK


def test_a_machine_without_ipv4_is_reached_by_ipv6(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(address, "_answers", lambda host: host == "::1")
    assert any_port() == "[::1]:0"


def test_a_machine_that_does_not_answer_itself_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(address, "LOOPBACK", ("192.0.2.1", "2001:db8::1"))  # nobody's: they cannot be bound
    with pytest.raises(AddressError, match=r"neither 192\.0\.2\.1 nor 2001:db8::1 answers; bring the loopback"):
        loopback()
