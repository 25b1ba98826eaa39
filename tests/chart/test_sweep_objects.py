"""The Kubernetes objects of a sweep: valid for every version, restricted, Guaranteed, and named after the sweep."""

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest

from emulator.sweep_jobs.objects import HERE, JobRequest, SweepObjects, job_name, memory_of
from emulator.sweep_jobs.storage import CLAIM, BucketStorage, ClaimStorage
from fedstrata.errors import ExperimentError

VERSIONS = ("1.25", "1.28", "1.31", "1.34", "1.37")  # 1.20 is tried on a cluster
EXTRA = {"spec": {"nodeSelector": {"pool": "batch"}, "imagePullSecrets": [{"name": "lab"}]}}
FILES = {"five-seeds.yaml": "seeds: [3]\n", "mine.py": "x = 1\n"}


def objects(*, is_shared: bool = True, **keys: Any) -> SweepObjects:
    request = JobRequest(**{"storage": ClaimStorage("shared"), **keys})
    return SweepObjects(name="five seeds", namespace="lab", request=request, files=FILES, is_shared=is_shared)


CASES = {
    "plain": objects(),
    "all": objects(parallelism=8, cores=2, queue="team-a", priority_class="low", pod=EXTRA, image="r.example/e:1"),
    "one node": objects(is_shared=False),
    "bucket": objects(storage=BucketStorage("s3://lab/five-seeds", "lab-bucket")),
    "bucket without secret": objects(storage=BucketStorage("s3://lab/five-seeds", None)),
}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("case", CASES)
def test_the_objects_are_valid(case: str, version: str) -> None:
    of = CASES[case]
    for document in (of.config_map(), of.job(), *([] if "bucket" in case else [of.reader("1234")])):
        kubernetes_validate.validate(json.loads(json.dumps(document)), version, strict=True)


def test_a_pod_has_what_it_asks_for_and_no_rights() -> None:
    of = objects(cores=2, memory_mib=4096)
    pod = of.job()["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["resources"]["requests"] == container["resources"]["limits"] == {"cpu": "2", "memory": "4096Mi"}
    for each in (pod, of.reader("1234")["spec"]):
        assert each["securityContext"]["runAsNonRoot"] is True
        assert each["automountServiceAccountToken"] is False
        security = each["containers"][0]["securityContext"]
        assert (security["readOnlyRootFilesystem"], security["capabilities"]) == (True, {"drop": ["ALL"]})
        assert {"name": "tmp", "emptyDir": {}} in each["volumes"]
    (mount,) = of.reader("1234")["spec"]["containers"][0]["volumeMounts"]
    assert mount == {"name": "claim", "mountPath": CLAIM, "readOnly": True}


def test_pods_run_the_sweep_in_its_folder_on_the_claim_until_all_work_is_done() -> None:
    spec = objects(parallelism=8).job()["spec"]
    assert spec["parallelism"] == 8
    assert "completions" not in spec
    (container,) = spec["template"]["spec"]["containers"]
    assert container["args"] == [
        "sweep", f"{HERE}/five-seeds.yaml", "--out", f"{CLAIM}/sweeps/five-seeds", "--jobs", "1", "--json",
    ]  # fmt: skip


def test_pods_of_a_bucket_work_in_a_folder_of_their_own_and_get_credentials_by_the_secret_alone() -> None:
    job = objects(storage=BucketStorage("s3://lab/five-seeds", "lab-bucket")).job()
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["args"] == [
        "sweep", f"{HERE}/five-seeds.yaml", "--out", "/tmp/five-seeds", "--to", "s3://lab/five-seeds", "--jobs", "1",
        "--json",
    ]  # fmt: skip
    assert container["envFrom"] == [{"secretRef": {"name": "lab-bucket"}}]
    assert [each["name"] for each in container["env"]] == ["FEDSTRATA_DATA"]
    assert [volume["name"] for volume in pod["volumes"]] == ["tmp", "files"]
    assert json.loads(job["metadata"]["annotations"]["fedstrata.io/options"]) == {
        "to": "s3://lab/five-seeds", "secret": "lab-bucket", "cores": 1, "memory_mib": 2048, "retries": 6,
    }  # fmt: skip


def test_a_job_names_the_options_of_its_pods_but_not_the_parallelism() -> None:
    one, other, third = (objects(**keys).job() for keys in ({}, {"parallelism": 9}, {"memory_mib": 4096}))
    key = "fedstrata.io/options"
    assert one["metadata"]["annotations"][key] == other["metadata"]["annotations"][key]
    assert json.loads(third["metadata"]["annotations"][key])["memory_mib"] == 4096


def test_queues_and_priorities_are_there_only_if_given() -> None:
    plain, queued = objects().job(), objects(queue="team-a", priority_class="low").job()
    assert not [label for label in plain["metadata"]["labels"] if "kueue" in label]
    assert "priorityClassName" not in plain["spec"]["template"]["spec"]
    assert queued["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "team-a"
    assert queued["spec"]["template"]["spec"]["priorityClassName"] == "low"


def test_more_of_the_template_comes_from_a_file_for_all_pods() -> None:
    of = objects(pod=EXTRA)
    for pod in (of.job()["spec"]["template"]["spec"], of.reader("1234")["spec"]):
        assert pod["nodeSelector"] == {"pool": "batch"}
        assert pod["containers"]


def test_pods_of_a_claim_for_one_node_stay_together() -> None:
    def terms(of: SweepObjects) -> Any:
        affinity = of.job()["spec"]["template"]["spec"].get("affinity", {})
        return affinity.get("podAffinity", {}).get("requiredDuringSchedulingIgnoredDuringExecution")

    assert terms(objects()) is None
    (term,) = terms(objects(is_shared=False))
    assert term["labelSelector"]["matchLabels"].items() <= (
        objects().job()["spec"]["template"]["metadata"]["labels"].items()
    )


@pytest.mark.parametrize(
    ("name", "job"), [("Five seeds_2", "five-seeds-2-sweep"), ("…", "a-sweep"), ("a" * 40, "a" * 40 + "-sweep")]
)
def test_the_job_has_the_name_of_the_sweep(name: str, job: str) -> None:
    assert job_name(name) == job


def test_long_names_stay_apart() -> None:
    names = {job_name("a" * 60 + str(number)) for number in range(3)}
    assert len(names) == 3
    assert all(len(name) <= 46 for name in names)


def test_memory_has_a_unit() -> None:
    assert (memory_of("512Mi"), memory_of("4Gi")) == (512, 4096)
    with pytest.raises(ExperimentError, match="--memory '4G': give a whole number with Mi or Gi"):
        memory_of("4G")


def test_the_image_has_what_the_device_image_lacks() -> None:
    dockerfile = (Path(__file__).parents[2] / "emulator" / "Dockerfile").read_text()
    final = dockerfile.rpartition("\nFROM ")[2]
    assert final.startswith("--platform=$TARGETPLATFORM ${DEVICE}")
    assert "RUN" not in final
    assert 'ENTRYPOINT ["python3", "-m", "emulator"]' in final


@pytest.mark.parametrize(("more", "expected"), [("", "s3"), ("torch,parquet", "s3,torch,parquet")])
def test_the_image_can_use_buckets_whatever_else_it_has(more: str, expected: str) -> None:
    dockerfile = (Path(__file__).parents[2] / "emulator" / "Dockerfile").read_text()
    (default,) = re.findall(r"^ARG EXTRAS=(.*)$", dockerfile, re.MULTILINE)
    (step,) = re.findall(r"&& (.*)scripts/image-packages emulator ", dockerfile)
    given = {**os.environ, "EXTRAS": more or default}
    done = subprocess.run(
        ["sh", "-c", f"{step} printenv EXTRAS"], env=given, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == expected
