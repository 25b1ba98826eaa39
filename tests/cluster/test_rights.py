"""Accounts that have the rights in helm/fedstrata/rights, and nothing else."""

import base64
import copy
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes import client

from tests.cluster.conftest import ROOT, VALUES, Lab

RIGHTS = ROOT / "helm" / "fedstrata" / "rights"
RELEASE = "fedstrata"  # the release whose Secret operator.yaml names
RUN = ("--set", "method.clusters=3", "--set", "training.global_rounds=2")

Command = Callable[..., str]


@pytest.fixture
def account(lab: Lab) -> Callable[[str, dict[str, Any]], Command]:
    """Make an account with a Role of the namespace, and nothing else. Gives `fedstrata` as this account."""

    def made(name: str, role: dict[str, Any]) -> Command:
        rights = client.RbacAuthorizationV1Api()
        lab.core.create_namespaced_service_account(lab.namespace, {"metadata": {"name": name}})
        rights.create_namespaced_role(lab.namespace, {**role, "metadata": {"name": name}})
        reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name}
        subject = {"kind": "ServiceAccount", "name": name, "namespace": lab.namespace}
        binding = {"metadata": {"name": name}, "roleRef": reference, "subjects": [subject]}
        rights.create_namespaced_role_binding(lab.namespace, binding)
        request = {"spec": {"audiences": None, "expirationSeconds": 3600}}
        token = lab.core.create_namespaced_service_account_token(name, lab.namespace, request).status.token
        path = lab.folder / f"{name}.kubeconfig"
        path.write_text(yaml.safe_dump(_kubeconfig(token)))
        return partial(_as, lab, path)

    return made


def _as(lab: Lab, kubeconfig: Path, command: str, *arguments: str, code: int = 0) -> str:
    return lab.here(command, *arguments, "--kubeconfig", str(kubeconfig), release=RELEASE, code=code)


def _kubeconfig(token: str) -> dict[str, Any]:
    """The present Kubernetes, for the account with this token."""
    present = client.Configuration.get_default_copy()
    authority = base64.b64encode(Path(str(present.ssl_ca_cert)).read_bytes()).decode()
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "here", "cluster": {"server": present.host, "certificate-authority-data": authority}}],
        "users": [{"name": "account", "user": {"token": token}}],
        "contexts": [{"name": "account", "context": {"cluster": "here", "user": "account"}}],
        "current-context": "account",
    }


def role_of(name: str) -> dict[str, Any]:
    role: dict[str, Any] = yaml.safe_load((RIGHTS / f"{name}.yaml").read_text())
    return role


def up(lab: Lab, fedstrata: Command, *arguments: str, code: int = 0) -> str:
    values = lab.folder / "values.yaml"
    values.write_text(yaml.safe_dump({**VALUES, "device": {**VALUES["device"], "devicesPerPod": 5}}))
    return fedstrata("up", "digits", *RUN, "--values", str(values), "--timeout", "240", *arguments, code=code)


def test_an_installer_and_an_operator_need_no_other_rights(
    lab: Lab, account: Callable[[str, dict[str, Any]], Command]
) -> None:
    ann, bob = account("ann", role_of("installer")), account("bob", role_of("operator"))
    up(lab, ann)
    assert "global round" in bob("status", "--once")
    bob("collect", "--out", str(lab.folder / "collected"), "--quiet")
    assert (lab.folder / "collected" / "summary.json").exists()
    assert 'cannot list resource "secrets"' in bob("down", code=6)
    ann("down")
    assert lab.core.list_namespaced_secret(lab.namespace, label_selector="fedstrata.io/holds").items == []
    assert lab.core.list_namespaced_pod(lab.namespace).items == []


def test_what_an_account_may_not_install_is_named_and_nothing_stays(
    lab: Lab, account: Callable[[str, dict[str, Any]], Command]
) -> None:
    role = copy.deepcopy(role_of("installer"))
    role["rules"] = [rule for rule in role["rules"] if "statefulsets/scale" not in rule["resources"]]
    said = up(lab, account("carl", role), code=6)
    assert "statefulsets/scale" in said
    assert "helm/fedstrata/rights" in said
    assert "What had been installed of release fedstrata was removed again" in said
    assert lab.releases() == set()
    assert lab.core.list_namespaced_secret(lab.namespace, label_selector="fedstrata.io/holds").items == []
    for found in (lab.apps.list_namespaced_stateful_set, lab.core.list_namespaced_service):
        assert found(lab.namespace).items == []
