"""The Roles in helm/fedstrata/rights have all rights that installers and operators need."""

import re
from pathlib import Path
from typing import Any

import pytest

from tests.support.charts import CASES, CHART, NEWEST, OLDEST, ROOT, Object, of_kind, render, values_of

INSTALLER, OPERATOR = (values_of(CHART / "rights" / f"{name}.yaml") for name in ("installer", "operator"))
BY_HELM = {"get", "list", "watch", "create", "patch", "delete"}
GROUPS = {"StatefulSet": "apps", "DaemonSet": "apps", "Job": "batch"}
CALLERS = [*(ROOT / "emulator" / "cluster").glob("*.py"), *(ROOT / "emulator" / "sweep_jobs").glob("*.py")]
VERBS = {"read": "get", "replace": "update", "delete_collection": "deletecollection", "connect_get": "get"}
CALL = re.compile("(create|read|list|patch|replace|delete|delete_collection|connect_get)_namespaced_([a-z_]+)")
RESOURCES = {"event": "events", "pod_portforward": "pods/portforward"}
IN_GROUPS = {"statefulsets": "apps", "daemonsets": "apps", "jobs": "batch"}


def allows(role: Object, verb: str, group: str, resource: str, name: str = "") -> bool:
    """Whether a Role gives a right."""
    return any(
        verb in rule["verbs"]
        and group in rule["apiGroups"]
        and resource in rule["resources"]
        and name in rule.get("resourceNames", [name])
        for rule in role["rules"]
    )


def plural(kind: str) -> str:
    return re.sub("ys$", "ies", f"{kind.lower()}s")


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
@pytest.mark.parametrize("values", CASES)
def test_an_installer_may_make_every_object_of_the_chart(values: dict[str, Any], version: str) -> None:
    made = {(item["apiVersion"].rpartition("/")[0], plural(item["kind"])) for item in render(values, version=version)}
    needed = {(verb, group, resource) for group, resource in made for verb in BY_HELM}
    assert not [right for right in needed if not allows(INSTALLER, *right)]


@pytest.mark.parametrize("values", CASES)
def test_an_installer_has_every_right_that_the_chart_gives_to_the_gps(values: dict[str, Any]) -> None:
    for role in of_kind(render(values), "Role"):
        for rule in role["rules"]:
            for group, resource, verb in (
                (g, r, v) for g in rule["apiGroups"] for r in rule["resources"] for v in rule["verbs"]
            ):
                assert allows(INSTALLER, verb, group, resource), (verb, group, resource)


def calls_of(*files: Path) -> set[tuple[str, str, str]]:
    """The rights that calls of the Kubernetes API in these files need."""
    found = set()
    for call, words in CALL.findall("\n".join(path.read_text() for path in files)):
        resource = RESOURCES.get(words) or plural(words.replace("_", ""))
        found.add((VERBS.get(call, call), IN_GROUPS.get(resource, ""), resource))
    return found


def test_an_installer_may_make_every_call_of_the_commands() -> None:
    needed = calls_of(*CALLERS)
    assert ("delete", "", "pods") in needed
    assert ("list", "apps", "daemonsets") in needed
    assert not [right for right in needed if not allows(INSTALLER, *right)]


def test_an_operator_may_look_and_forward_ports_and_changes_nothing() -> None:
    cluster = ROOT / "emulator" / "cluster"
    looks = {right for right in calls_of(cluster / "release_objects.py") if right[0] == "list"}
    needed = looks | calls_of(cluster / "forward.py")
    assert not [right for right in needed if not allows(OPERATOR, *right)]
    assert allows(OPERATOR, "get", "", "secrets", "fedstrata-tls-operator")
    assert not allows(OPERATOR, "get", "", "secrets", "fedstrata-tls-authority")
    changes = {(verb, *rule["resources"]) for rule in OPERATOR["rules"] for verb in {*rule["verbs"]} - {"get", "list"}}
    assert changes == {("create", "pods/portforward")}
