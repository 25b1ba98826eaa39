import os
import stat
from pathlib import Path

import pytest

from emulator.local.run_certificates import RunCertificates
from fedstrata.experiment_file import parse_experiment
from fedstrata.trust.tls_files import TlsFiles

SMALL = parse_experiment("{name: small, partition: {kind: iid, devices: 12, examples_per_device: 10}}")


def test_each_process_of_a_run_is_issued_who_it_is(tmp_path: Path) -> None:
    made = RunCertificates(tmp_path, SMALL)
    folders = made.of_server("gps"), made.of_server("lps-3"), made.of_devices("devices-4-7", range(4, 8))
    found = [TlsFiles.load(folder).me for folder in folders]
    assert list(map(str, found)) == ["gps", "lps/lps-3", "device/device-004_device-007"]
    assert {peer.domain for peer in found} == {SMALL.run_id}
    assert str(made.of_operator().tls.me) == "operator"


def test_a_run_that_goes_on_does_so_with_its_authority(tmp_path: Path) -> None:
    first = RunCertificates(tmp_path, SMALL).of_operator().tls
    second = RunCertificates(tmp_path, SMALL).of_operator().tls
    assert first.ca == second.ca
    assert first.cert != second.cert


def test_only_the_authority_waits_for_the_disk_since_certificates_are_issued_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: list[int] = []
    monkeypatch.setattr(os, "fsync", flushed.append)
    made = RunCertificates(tmp_path, SMALL)
    assert len(flushed) == 4  # key and certificate, and the name of each in its folder
    made.of_server("gps")
    made.of_devices("devices-0-11", range(12))
    assert len(flushed) == 4


def test_an_authority_that_was_half_written_is_made_anew(tmp_path: Path) -> None:
    RunCertificates(tmp_path, SMALL)
    (tmp_path / "authority" / "ca.pem").unlink()
    assert str(RunCertificates(tmp_path, SMALL).of_operator().tls.me) == "operator"


def test_nobody_else_may_look_at_the_authority(tmp_path: Path) -> None:
    RunCertificates(tmp_path / "tls", SMALL)
    assert stat.S_IMODE((tmp_path / "tls").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "tls" / "authority" / "ca-key.pem").stat().st_mode) == 0o600
