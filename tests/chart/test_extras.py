"""What pods are given beyond the chart's own, and own code."""

import re
from typing import Any

import kubernetes_validate
import pytest
from helm_python import HelmRenderError, HelmValuesError

from tests.support.charts import CHART, NEWEST, Object, one, render, values_of, workload

EXTENDED = values_of(CHART / "ci" / "extended.yaml")
TIERS = ("gps", "lps", "device")
MINE = {"files": {"mine.py": "A = 1\n"}}


def template(objects: list[Object], tier: str) -> Any:
    return workload(objects, tier)["template"]


def pod(values: dict[str, Any], tier: str) -> Any:
    return template(render(values), tier)["spec"]


@pytest.mark.parametrize("tier", TIERS)
def test_a_tier_is_given_what_a_pod_can_be_given_and_the_others_are_not(tier: str) -> None:
    given = {
        "envFrom": [{"secretRef": {"name": "proxy"}}],
        "extraVolumes": [{"name": "scratch", "emptyDir": {}}],
        "extraVolumeMounts": [{"name": "scratch", "mountPath": "/scratch"}],
        "initContainers": [{"name": "wait", "image": "registry.example/wait:1"}],
        "runtimeClassName": "gvisor",
        "podSecurityContext": {"supplementalGroups": [44]},
    }
    for other in TIERS:
        spec = pod({tier: given}, other)
        is_given = other == tier
        assert (spec["containers"][0].get("envFrom") == given["envFrom"]) is is_given
        assert (given["extraVolumes"][0] in spec["volumes"]) is is_given
        assert (given["extraVolumeMounts"][0] in spec["containers"][0]["volumeMounts"]) is is_given
        assert (spec.get("initContainers") == given["initContainers"]) is is_given
        assert (spec.get("runtimeClassName") == "gvisor") is is_given
        assert (spec["securityContext"].get("supplementalGroups") == [44]) is is_given
        assert spec["securityContext"]["runAsUser"] == 10001


@pytest.mark.parametrize("version", ["v1.34.0", NEWEST])
def test_devices_claim_gpus_and_their_container_uses_each_claim(version: str) -> None:
    claims = [
        {"name": "gpu", "resourceClaimTemplateName": "a-gpu"},
        {"name": "shared", "resourceClaimName": "one-for-all"},
    ]
    objects = render({"device": {"resourceClaims": claims, "resources": {"limits": {"cpu": "2"}}}}, version=version)
    kubernetes_validate.validate(one(objects, "StatefulSet", "demo-fedstrata-device"), NEWEST, strict=True)
    spec = template(objects, "device")["spec"]
    assert spec["resourceClaims"] == claims
    resources = spec["containers"][0]["resources"]
    assert resources["claims"] == [{"name": "gpu"}, {"name": "shared"}]
    assert resources["limits"]["cpu"] == "2"
    for other in ("gps", "lps"):
        spec = template(objects, other)["spec"]
        assert "resourceClaims" not in spec
        assert "claims" not in spec["containers"][0]["resources"]


@pytest.mark.parametrize(
    ("claims", "said"),
    [
        ([{"resourceClaimName": "a"}], "missing property 'name'"),
        ([{"name": "", "resourceClaimName": "a"}], "minLength"),
        ([{"name": "gpu"}], "'oneOf' failed"),
        ([{"name": "gpu", "resourceClaimName": "a", "resourceClaimTemplateName": "b"}], "'oneOf' failed"),
        ([{"name": "gpu", "resourceClaimName": "a", "count": 2}], "additional properties 'count' not allowed"),
        ([{"name": "gpu", "resourceClaimName": "a"}] * 2, "items at 0 and 1 are equal"),
    ],
)
def test_a_claim_has_a_name_and_one_source(claims: list[dict[str, Any]], said: str) -> None:
    with pytest.raises(HelmValuesError) as refused:
        render({"device": {"resourceClaims": claims}})
    assert "at '/device/resourceClaims" in str(refused.value)
    assert said in str(refused.value)


def test_a_kubernetes_before_resource_claims_is_refused() -> None:
    values = {"device": {"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "a-gpu"}]}}
    said = r"device\.resourceClaims needs Kubernetes 1\.34, and this is v1\.33\.4: set device\.resources\.limits"
    with pytest.raises(HelmRenderError, match=said):
        render(values, version="v1.33.4")


def test_kubernetes_may_choose_users_and_groups_itself() -> None:
    for tier in TIERS:
        security = pod(EXTENDED, tier)["securityContext"]
        assert not {"runAsUser", "runAsGroup", "fsGroup"} & set(security)
        assert security["runAsNonRoot"] is True


def test_accounts_are_annotated_or_named() -> None:
    account = one(render(EXTENDED), "ServiceAccount", "demo-fedstrata-gps")
    assert account["metadata"]["annotations"] == {"example.org/role": "records"}
    assert pod(EXTENDED, "gps")["serviceAccountName"] == "demo-fedstrata-gps"
    assert pod(EXTENDED, "lps")["serviceAccountName"] == "edge"
    assert "serviceAccountName" not in pod(EXTENDED, "device")


def test_volumes_of_the_charts_own_names_are_refused() -> None:
    for name in ("state", "data", "code", "experiment", "tls", "revoked", "tmp"):
        with pytest.raises(HelmRenderError, match=rf"device\.extraVolumes: {name} is one of the chart's own"):
            render({"device": {"extraVolumes": [{"name": name, "emptyDir": {}}]}})


def test_a_volume_of_root_is_given_to_the_user_of_the_tier_that_has_a_claim() -> None:
    values = {"volumeOwner": {"enabled": True}, "lps": {"persistence": {"enabled": True, "retain": "keep"}}}
    for tier in ("gps", "lps"):
        first = pod(values, tier)["initContainers"][0]
        assert first["command"][-1] == "import os; os.chown('/state', 10001, 10001)"
        assert first["securityContext"]["runAsUser"] == 0
        assert first["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["CHOWN"]}
    assert "initContainers" not in pod(values, "device")  # an emptyDir is given to fsGroup
    assert "initContainers" not in pod({}, "gps")


def test_nobody_is_given_a_volume_where_kubernetes_chooses_the_user() -> None:
    values = {"volumeOwner": {"enabled": True}, "podSecurityContext": {"runAsUser": None}}
    with pytest.raises(HelmRenderError, match=r"volumeOwner\.enabled gives volumes to podSecurity"):
        render(values)


def test_resources_and_a_security_context_that_are_left_empty_are_those_without_the_charts_defaults() -> None:
    empty = {"podSecurityContext": None, **{tier: {"resources": None} for tier in TIERS}}
    resources = {tier: pod(empty, tier)["containers"][0]["resources"] for tier in TIERS}
    assert resources["gps"] == {}
    assert resources["lps"] == {"requests": {"memory": "256Mi"}, "limits": {"memory": "1024Mi"}}
    assert resources["device"] == {"requests": {"memory": "426Mi"}, "limits": {"memory": "1024Mi"}}
    assert pod(empty, "lps")["securityContext"] == {}


def test_memory_grows_with_the_devices_of_a_pod_unless_resources_say_how_much() -> None:
    def memory(device: dict[str, Any]) -> tuple[str | None, str | None]:
        resources = pod({"device": device}, "device")["containers"][0]["resources"]
        return resources["requests"].get("memory"), resources["limits"].get("memory")

    assert memory({"memoryMi": {"pod": 400, "device": 7}}) == ("407Mi", "1024Mi")
    assert memory({"memoryMi": {"pod": 400, "device": 7}, "devicesPerPod": 5}) == ("435Mi", "1024Mi")
    assert memory({"memoryMi": {"pod": 400, "device": 7}, "devicesPerPod": 50}) == ("750Mi", "1500Mi")
    assert memory({"resources": {"requests": {"memory": "1Gi"}}}) == ("1Gi", None)
    assert memory({"resources": {"limits": {"memory": "1Gi"}}}) == ("426Mi", "1Gi")
    lps = pod({"lps": {"memoryMi": {"pod": 100}}, "device": {"devicesPerPod": 5}}, "lps")["containers"][0]["resources"]
    assert (lps["requests"]["memory"], lps["limits"]["memory"]) == ("100Mi", "1024Mi")


# --- own code ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tier", TIERS)
def test_own_code_lies_in_the_folder_that_the_services_start_in(tier: str) -> None:
    spec = pod({"code": MINE}, tier)
    assert spec["containers"][0]["workingDir"] == "/code"
    assert {"name": "code", "mountPath": "/code", "readOnly": True} in spec["containers"][0]["volumeMounts"]
    assert {"name": "code", "configMap": {"name": "demo-fedstrata-code"}} in spec["volumes"]
    assert "workingDir" not in pod({}, tier)["containers"][0]


def test_files_become_a_configmap_and_others_make_other_pods() -> None:
    objects, others = render({"code": MINE}), render({"code": {"files": {"mine.py": "A = 2\n"}}})
    assert one(objects, "ConfigMap", "demo-fedstrata-code")["data"] == MINE["files"]
    for tier in TIERS:
        first, second = (template(found, tier)["metadata"]["annotations"] for found in (objects, others))
        assert first["checksum/code"] != second["checksum/code"]


def test_a_configmap_that_is_there_is_mounted_and_none_is_made() -> None:
    objects = render({"code": {"configMap": "mine"}})
    assert {"name": "code", "configMap": {"name": "mine"}} in template(objects, "device")["spec"]["volumes"]
    assert not [item for item in objects if item["metadata"]["name"] == "demo-fedstrata-code"]


def test_code_in_an_image_is_copied_before_the_service_starts() -> None:
    spec = pod(values_of(CHART / "ci" / "gateway.yaml"), "gps")
    copy = spec["initContainers"][0]
    assert copy["image"] == "registry.example/mine:1"
    assert copy["command"] == ["cp", "-R", "/src/.", "/own-code"]
    assert {"name": "code", "emptyDir": {"sizeLimit": "16Gi"}} in spec["volumes"]
    assert copy["securityContext"] == spec["containers"][0]["securityContext"]


def test_code_from_two_places_is_refused() -> None:
    with pytest.raises(HelmRenderError, match=r"one source, but code.files and code.image are given"):
        render({"code": {**MINE, "image": "registry.example/mine:1"}})


@pytest.mark.parametrize("name", ["../mine.py", "mine", "my-file.py", "package/mine.py", "device.py"])
def test_a_file_that_cannot_be_a_module_or_would_hide_a_service_is_refused(name: str) -> None:
    with pytest.raises(HelmRenderError, match=rf"code\.files: {re.escape(name)} cannot be imported"):
        render({"code": {"files": {name: ""}}})
