"""Certificates around `fedstrata up` and `down`: what is there after what, on a Helm and a Kubernetes without pods."""

from pathlib import Path
from typing import Any

import pytest

from emulator.cluster.helm import Helm
from emulator.commands.main import execute
from fedstrata.errors import AccountError, AddressError, CertificateError, ExperimentError, HandshakeError
from tests.support.kept_secrets import Kept
from tests.support.releases import LAB, Noted, raising, up

CHART = Path(__file__).resolve().parents[3] / "helm" / "fedstrata"


def there(monkeypatch: pytest.MonkeyPatch) -> Noted:
    """A release that has been made by `up`, with certificates."""
    noted = Noted(monkeypatch)
    noted.kept = {}
    up()
    return noted


@pytest.mark.parametrize("value", ["tls.lps=0", "tls.mode=[generated]", "tls=1", "device=3"])
def test_what_the_chart_refuses_leaves_the_certificates_of_a_release_that_runs_as_they_are(
    monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    check = Helm.check
    noted = there(monkeypatch)
    before = dict(noted.secrets)
    monkeypatch.setattr("emulator.cluster.helm.shutil.which", lambda _: None)
    monkeypatch.setattr(Helm, "check", check)
    monkeypatch.setattr(Helm, "upgrade", raising(AssertionError("Helm is not asked for what the chart refuses")))
    with pytest.raises(ExperimentError):
        up(value)
    assert noted.secrets == before


@pytest.mark.parametrize(("version", "options"), [("v1.34.1+k3s1", ["--kube-version", "v1.34.1+k3s1"]), (None, [])])
def test_the_chart_is_rendered_by_helms_command_for_the_version_of_kubernetes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version: str | None, options: list[str]
) -> None:
    command, heard = tmp_path / "helm", tmp_path / "heard"
    command.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {heard}\necho "Error: values: tls.lps" >&2\nexit 1\n')
    command.chmod(0o755)
    monkeypatch.setattr("emulator.cluster.helm.shutil.which", lambda _: str(command))
    with pytest.raises(ExperimentError, match=r"helm: Error: values: tls\.lps"):
        Helm(LAB).check(CHART, {"tls": {"lps": 0}}, version)
    words = heard.read_text().splitlines()
    assert words[:-1] == ["--namespace", "default", "template", "lab", str(CHART), *options, "--values"]


def test_the_chart_is_rendered_by_helms_library_where_there_is_no_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("emulator.cluster.helm.shutil.which", lambda _: None)
    Helm(LAB).check(CHART, {"tls": {"mode": "generated"}}, None)
    with pytest.raises(ExperimentError, match=r"helm: .*tls\.mode is not given|helm: tls\.mode is not given"):
        Helm(LAB).check(CHART, {}, None)


def test_secrets_of_who_is_no_longer_there_go_after_the_upgrade_and_not_where_it_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    noted = there(monkeypatch)
    assert "lab-tls-device-2" in noted.secrets
    upgrade = Helm.upgrade
    monkeypatch.setattr(Helm, "upgrade", raising(AddressError("helm: away")))
    with pytest.raises(AddressError, match="helm: away"):
        up("device.devicesPerPod=2")
    assert "lab-tls-device-2" in noted.secrets
    monkeypatch.setattr(Helm, "upgrade", upgrade)
    up("device.devicesPerPod=2")
    assert [name for name in noted.secrets if "device" in name] == ["lab-tls-device-0", "lab-tls-device-1"]


def test_where_helm_says_that_there_is_a_release_its_pods_keep_the_certificates_of_a_failed_installation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    noted = Noted(monkeypatch, chart=None)

    def half_way(*_: object) -> None:
        monkeypatch.setattr(Helm, "chart", lambda _: "fedstrata-0.1.0")
        raise AddressError("helm: timed out")

    monkeypatch.setattr(Helm, "upgrade", half_way)
    with pytest.raises(AddressError, match="helm: timed out"):
        up()
    assert len(noted.secrets) == 1 + 2 + 3 + 3


@pytest.mark.parametrize("broken", ["chart", "delete"])
def test_the_first_reason_is_told_where_taking_certificates_back_fails_too(
    monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    Noted(monkeypatch, chart=None)

    def fail(*_: object) -> None:
        monkeypatch.setattr(Helm if broken == "chart" else Kept, broken, raising(AddressError("Kubernetes refused")))
        raise ExperimentError("helm: no")

    monkeypatch.setattr(Helm, "upgrade", fail)
    with pytest.raises(ExperimentError, match="helm: no"):
        up()


@pytest.mark.parametrize("error", [KeyboardInterrupt(), AccountError("Kubernetes refused: 403 Forbidden")])
def test_halted_half_way_nothing_is_left(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    noted = Noted(monkeypatch, chart=None)
    write = Kept.write

    def halting(self: Kept, name: str, data: Any) -> bool:
        if name.endswith("lps-2"):
            assert "lab-tls-authority" in self
            raise error
        return write(self, name, data)

    monkeypatch.setattr(Kept, "write", halting)
    with pytest.raises(type(error)):
        up()
    assert not noted.secrets


@pytest.mark.parametrize(
    ("values", "stays"),
    [
        (["tls.mode=off"], False),
        (["tls.mode=secret"], False),
        (["tls.mode=cert-manager"], True),  # which keeps its own authority under the same name, and takes this one over
        (["tls.mode=cert-manager", "tls.certManager.issuer.name=lab"], False),
    ],
)
def test_an_authority_that_pods_no_longer_trust_goes(
    monkeypatch: pytest.MonkeyPatch, values: list[str], stays: bool
) -> None:
    noted = there(monkeypatch)
    first = noted.upgraded["tls"]["authority"]
    up()
    assert noted.upgraded["tls"] == {"mode": "generated", "authority": first}
    noted.kept = {key: noted.upgraded[key] for key in ("tls", "experiment")}
    noted.upgraded.clear()
    up(*values)
    assert "authority" not in noted.upgraded["tls"]
    assert ("lab-tls-authority" in noted.secrets) is stays


def test_secrets_that_may_not_be_deleted_do_not_fail_an_upgrade(monkeypatch: pytest.MonkeyPatch) -> None:
    noted = there(monkeypatch)
    monkeypatch.setattr(Kept, "delete", raising(AccountError("Kubernetes refused: 403 Forbidden")))
    up("device.devicesPerPod=2")
    assert noted.calls[-1] == "wait_ready"
    assert "lab-tls-device-2" in noted.secrets


@pytest.mark.parametrize("kind", [AccountError, CertificateError, HandshakeError])
def test_a_run_is_not_begun_again_where_it_cannot_be_asked_whether_it_failed(
    monkeypatch: pytest.MonkeyPatch, kind: type[Exception]
) -> None:
    noted = there(monkeypatch)
    del noted.secrets["lab-tls-operator"]
    noted.upgraded.clear()

    def asked(*_: object, **__: object) -> None:
        assert "lab-tls-operator" in noted.secrets  # what `up` can mend it has mended before it asks
        raise kind("why not")

    monkeypatch.setattr("emulator.cluster.up.status", asked)
    with pytest.raises(kind, match=r"cannot ask the GPS whether digits-\S+ has failed: why not"):
        up(begins_again=True)
    assert noted.upgraded == {}


def test_certificates_without_a_release_can_be_deleted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    noted = Noted(monkeypatch, chart=None)
    noted.secrets.update({"lab-tls-authority": {}, "lab-tls-gps": {}})
    assert execute(["down", "--release", "lab"]) == 0
    assert "deleted the certificates lab-tls-authority, lab-tls-gps" in capsys.readouterr().out
    assert not noted.secrets
    assert execute(["down", "--release", "lab"]) == 6


def test_a_mode_in_a_values_file_that_is_no_text_is_refused_in_a_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    check = Helm.check
    noted = Noted(monkeypatch, chart=None)
    monkeypatch.setattr("emulator.cluster.helm.shutil.which", lambda _: None)
    monkeypatch.setattr(Helm, "check", check)
    values = tmp_path / "values.yaml"
    values.write_text("tls: {mode: [generated]}\n")
    assert execute(["up", "digits", "--release", "lab", "--values", str(values)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "/tls/mode" in line
    assert not noted.secrets
