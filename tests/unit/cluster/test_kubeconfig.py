"""What is said where a kubeconfig leads nowhere, and of other mistakes before Kubernetes is asked anything."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from kubernetes import client

from emulator.cluster.release import Release
from emulator.cluster.release_objects import InstalledRelease
from emulator.commands.main import execute
from fedstrata.errors import MissingPackageError

UNREACHABLE = """
apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "http://127.0.0.1:9"}}]
users: [{name: u, user: {token: x}}]
contexts: [{name: here, context: {cluster: c, user: u}}]
current-context: here
"""


@pytest.mark.parametrize(
    ("kubeconfig", "message"),
    [
        ("- a list", "the kubeconfig has another structure than kubectl writes"),
        ("clusters: [", "the kubeconfig cannot be read: while parsing a flow"),
        ("a: b", "no Kubernetes context: Invalid kube-config file"),
        (UNREACHABLE.replace("current-context: here", "current-context: there"), "name there in"),
        (UNREACHABLE, "Kubernetes at http://127.0.0.1:9 does not answer: "),
    ],
)
def test_a_kubeconfig_that_leads_nowhere_is_told_in_a_line(
    kubeconfig: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "config"
    path.write_text(kubeconfig)
    assert execute(["status", "--kubeconfig", str(path)]) == 6
    said = capsys.readouterr().err
    assert message in said
    assert "object at 0x" not in said
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (["--chart", "."], "no chart in ."),
        (["--code", "mine.py"], "--code mine.py: cannot be read as text"),
        (["--set-value", "lps.replicas=2", "--set", "method.clusters=3"], "lps.replicas is 2"),
        (["--set-value", "device"], "--set-value 'device' must be KEY=VALUE"),
    ],
)
def test_what_is_wrong_is_said_before_kubernetes_is_asked_anything(
    wrong: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config").write_text(UNREACHABLE)
    assert execute(["up", "digits", "--kubeconfig", "config", *wrong]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("status", [200, 403])
def test_the_version_of_kubernetes_is_known_if_the_account_may_ask_for_it(
    status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def get_code(*_: object, **__: object) -> SimpleNamespace:
        if status == 403:
            raise client.ApiException(status=403)
        return SimpleNamespace(git_version="v1.34.1+k3s1")

    monkeypatch.setattr(client.VersionApi, "get_code", get_code)
    (tmp_path / "config").write_text(UNREACHABLE)
    found = InstalledRelease(Release(name="lab", namespace="default", kubeconfig=tmp_path / "config"))
    assert found.kubernetes_version() == ("v1.34.1+k3s1" if status == 200 else None)


def test_a_folder_that_cannot_be_made_is_refused_before_anybody_waits_for_the_record(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config").write_text(UNREACHABLE)
    (tmp_path / "file").write_text("in the way")
    out = tmp_path / "file" / "record"
    assert execute(["collect", "--kubeconfig", str(tmp_path / "config"), "--out", str(out)]) == 5
    assert f"cannot write to {out}: Not a directory; choose another folder" in capsys.readouterr().err


def test_without_the_kubernetes_client_the_command_that_installs_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kubernetes.client", None)
    with pytest.raises(MissingPackageError, match=r"kubernetes is not installed here .*'fedstrata\[emulator\]'"):
        InstalledRelease(Release(name="digits", namespace="default"))
