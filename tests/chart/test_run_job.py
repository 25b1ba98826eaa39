"""The Job that ends with a run: its name, what of an installed Job an upgrade keeps, and queues."""

from typing import Any

import kubernetes_validate
import pytest
from kubernetes_validate.utils import all_versions, major_minor

from tests.support.charts import OLDEST, Object, environment, of_kind, pod_of, render

IID = "name: lab\npartition: {kind: iid, devices: 2, examples_per_device: 5}\n"


def job(values: dict[str, Any] | None = None, **options: str) -> Object:
    (found,) = of_kind(render(values, **options), "Job")
    return found


def name(values: dict[str, Any]) -> str:
    return str(job(values)["metadata"]["name"])


def test_each_run_has_a_job_of_its_own_and_other_values_of_the_same_run_none() -> None:
    first = name({"experiment": IID})
    assert name({"experiment": IID, "device": {"devicesPerPod": 2}, "commonLabels": {"team": "blue"}}) == first
    others = [{"experiment": IID + "seed: 7\n"}, {"experiment": IID, "again": "x"}]
    assert len({first[:-4], *(name(values)[:-4] for values in others)}) == 3


def test_a_gps_knows_the_job_that_ends_with_its_run() -> None:
    objects = render()
    assert environment(pod_of(objects, "gps"))["FEDSTRATA_JOB"] == job()["metadata"]["name"]


def test_lost_pods_are_replaced_and_a_failed_run_fails_the_job() -> None:
    newest, oldest = job()["spec"], job(version=OLDEST)["spec"]
    fail, ignore = newest["podFailurePolicy"]["rules"]
    assert (fail["action"], fail["onExitCodes"]["values"]) == ("FailJob", [4])
    assert (ignore["action"], ignore["onPodConditions"][0]["type"]) == ("Ignore", "DisruptionTarget")
    assert "podFailurePolicy" not in oldest
    assert (newest["backoffLimit"], oldest["backoffLimit"]) == (1000, 3)
    assert newest["template"] == oldest["template"]


@pytest.mark.parametrize("version", sorted({*all_versions()}))
def test_the_job_is_valid_for_every_version_that_has_published_schemas(version: str) -> None:
    found = job({"queue": {"name": "lab"}}, version=f"v{version}")
    kubernetes_validate.validate(found, major_minor(version), strict=True)


def test_a_queue_is_a_label_of_every_workload_and_nothing_else_changes() -> None:
    label = "kueue.x-k8s.io/queue-name"
    queued, plain = render({"queue": {"name": "lab"}}), render()
    labelled = [item for item in queued if item["metadata"]["labels"].pop(label, None) == "lab"]
    assert [item["kind"] for item in labelled] == ["StatefulSet", "Job", "StatefulSet", "StatefulSet"]
    assert queued == plain


def test_a_priority_class_is_of_all_tiers_unless_a_tier_has_its_own() -> None:
    objects = render({"queue": {"priorityClass": "low"}, "gps": {"priorityClassName": "high"}})
    found = {
        item["metadata"]["name"].rpartition("-")[2]: item["spec"]["template"]["spec"]["priorityClassName"]
        for item in objects
        if item["kind"] == "StatefulSet"
    }
    assert found == {"gps": "high", "lps": "low", "device": "low"}
