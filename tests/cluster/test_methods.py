"""Methods of other shapes: clusters that span LPSs, and devices that keep models of their own on volumes."""

from pathlib import Path
from typing import Any

import pytest

from tests.cluster.conftest import LONG, Lab, run_here
from tests.support.records import assert_same_result, summary_of

IFCA = ("method={name: ifca, clusters: 3}", "topology={lps: 3}")
DITTO = ("method={name: ditto}", *LONG)
ASYNCHRONOUS = ("training.rounds.lps={kind: buffered, buffer: 2}", "method={name: fedavg}", "training.global_rounds=9")
PACKED: dict[str, Any] = {"device": {"devicesPerPod": 5}}
ON_VOLUMES: dict[str, Any] = {"device": {"devicesPerPod": 5, "persistence": {"enabled": True, "size": "50Mi"}}}


def collected(lab: Lab, release: str) -> Path:
    folder = lab.folder / release
    lab.here("collect", "--out", str(folder), "--quiet", release=release)
    return folder


def test_clusters_that_span_three_lpss_have_the_bits_of_a_laptop(
    lab: Lab, tmp_path_factory: pytest.TempPathFactory
) -> None:
    here = run_here(tmp_path_factory.mktemp("local") / "ifca", *IFCA)
    lab.up("experiments/digits.yaml", PACKED, sets=IFCA, release="ifca")
    there = collected(lab, "ifca")
    assert len(lab.pods("lps", "ifca")) == 3
    assert len(summary_of(there)["model_sha256"]) == 3
    assert_same_result(there, here)
    lab.here("down", release="ifca")


def test_a_device_pod_that_is_deleted_in_training_goes_on_with_the_models_on_its_volume(
    lab: Lab, tmp_path_factory: pytest.TempPathFactory
) -> None:
    here = run_here(tmp_path_factory.mktemp("local") / "ditto", *DITTO)
    lab.up("experiments/digits.yaml", ON_VOLUMES, sets=DITTO, release="ditto")
    lab.wait_global_round(5, "ditto")
    victim = lab.pods("device", "ditto")[0].metadata
    lab.core.delete_namespaced_pod(victim.name, lab.namespace, grace_period_seconds=0)
    there = collected(lab, "ditto")
    assert lab.pods("device", "ditto")[0].metadata.uid != victim.uid
    assert len(summary_of(there)["personal_sha256"]) == 10
    assert_same_result(there, here)
    lab.here("down", release="ditto")
    assert "state-ditto-fedstrata-device-0" not in lab.claims()


def test_asynchronous_rounds_of_pods_are_repeated_on_a_laptop_bit_for_bit(
    lab: Lab, tmp_path_factory: pytest.TempPathFactory
) -> None:
    lab.up("experiments/digits.yaml", PACKED, sets=ASYNCHRONOUS, release="buffered")
    there = collected(lab, "buffered")
    again = tmp_path_factory.mktemp("local") / "buffered"
    here = run_here(again, *ASYNCHRONOUS, arguments=("--arrivals", str(there)))
    assert_same_result(there, here)
    lab.here("down", release="buffered")
