import pytest

from fedstrata.errors import CertificateError
from fedstrata.trust.names import Name, Peer, check_domain, device_names


def test_devices_in_a_row_are_one_name_and_others_names_of_their_own() -> None:
    ids = ["device-000", "device-001", "device-002", "device-007", "pi-kitchen"]
    assert [str(name) for name in device_names(ids)] == [
        "device/device-000_device-002",
        "device/device-007",
        "device/pi-kitchen",
    ]


def test_devices_of_numbers_with_more_and_more_digits_are_no_row() -> None:
    assert len(device_names(["pi-9", "pi-10"])) == 2


@pytest.mark.parametrize(
    ("device_id", "is_one"),
    [
        ("device-000", True),
        ("device-049", True),
        ("device-050", False),
        ("device-1", False),  # another than device-001
        ("device-0001", False),
        ("device-०१२", False),  # digits of another script
        ("device-", False),
        ("evil-device-001", False),
        ("device-000_device-049", False),
    ],
)
def test_a_row_covers_the_devices_from_its_first_to_its_last(device_id: str, is_one: bool) -> None:
    assert Name("device", "device-000", "device-049").covers(device_id) is is_one


def test_the_holder_of_several_uris_is_all_that_they_name() -> None:
    peer = Peer.of_uris(
        [
            "spiffe://run-1/device/device-000_device-003",
            "spiffe://run-1/device/pi",
            "https://example.org/of-another-kind",
        ]
    )
    assert peer.domain == "run-1"
    assert peer.is_("device", "device-003")
    assert peer.is_("device", "pi")
    assert not peer.is_("lps", "pi")
    assert not peer.is_a("operator")


@pytest.mark.parametrize(
    "uris",
    [
        [],
        ["https://example.org"],
        ["spiffe://run-1/gps", "spiffe://run-2/gps"],
        ["spiffe://run-1/root"],
        ["spiffe://run-1/gps/gps"],
        ["spiffe://run-1/device"],
        ["spiffe://run-1/device/A b"],
        ["spiffe://run-1/device/device-9_device-0"],
        ["spiffe://run-1/lps/lps-0_lps-9"],
    ],
)
def test_uris_that_name_nobody_or_what_cannot_be_are_refused(uris: list[str]) -> None:
    with pytest.raises(CertificateError):
        Peer.of_uris(uris)


@pytest.mark.parametrize("domain", ["", "Run", "a/b", "-a", "a-", "a" * 300])
def test_a_domain_is_small_letters_digits_and_hyphens(domain: str) -> None:
    with pytest.raises(CertificateError, match="cannot name a run"):
        check_domain(domain)
