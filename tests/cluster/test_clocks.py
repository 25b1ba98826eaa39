"""Both clocks in pods: the same file gives the same timeline and the same models as on a laptop."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.cluster.conftest import Lab, run_here
from tests.support.records import assert_same_result, summary_of

LINKS = (
    "{device-lps: {preset: lte, jitter: 10ms}, lps-gps: {up_rate: 50Mbit/s, down_rate: 100Mbit/s, latency: 15ms}, "
    "overrides: [{devices: [8-9], preset: nb-iot}]}"
)
SCHEDULE = "[{at: 5s, set: {devices: [0], preset: 3g-driving}}, {at: 8s, cut: {devices: [1], for: 2s}}]"
TIMED = (f"links={LINKS}", "compute={per_example: 0.8ms, devices: {pi4: [0-3]}}", f"schedule={SCHEDULE}")
VIRTUAL = (*TIMED, "clock=virtual")
REAL = (*TIMED, "clock=real", "training.global_rounds=2", "links.overrides=[]")


@pytest.fixture(scope="module")
def virtual(lab: Lab) -> Path:
    """The record of a run on the virtual clock, from pods."""
    lab.up("experiments/digits.yaml", sets=VIRTUAL, release="virtual")
    lab.here("collect", "--out", str(lab.folder / "virtual"), "--quiet", release="virtual")
    return lab.folder / "virtual"


def test_the_virtual_clock_says_the_same_in_pods_as_on_a_laptop_to_the_nanosecond(virtual: Path, lab: Lab) -> None:
    here = run_here(lab.folder / "virtual-here", *VIRTUAL)
    assert_same_result(virtual, here)
    assert summary_of(virtual)["virtual"] == summary_of(here)["virtual"]  # with the SHA-256 of timeline.csv
    for name in ("timeline.csv", "flows.csv", "waits.csv"):
        assert (virtual / name).read_bytes() == (here / name).read_bytes()


def test_links_are_paced_in_pods_without_a_right_of_their_own_and_change_no_bit(lab: Lab) -> None:
    lab.up("experiments/digits.yaml", sets=REAL, release="real")
    lab.here("collect", "--out", str(lab.folder / "real"), "--quiet", release="real")
    plain = run_here(lab.folder / "plain", "training.global_rounds=2")
    for path in sorted((plain / "models").iterdir()):
        found = load_file(lab.folder / "real" / "models" / path.name)
        for name, tensor in load_file(path).items():
            assert np.array_equal(tensor, found[name])
    links = (lab.folder / "real" / "links.csv").read_text().splitlines()
    assert len(links) == 1 + summary_of(lab.folder / "real")["real"]["links"]
    for pod in lab.pods("lps", release="real") + lab.pods("device", release="real"):
        assert all(container.security_context.capabilities.add is None for container in pod.spec.containers)


ASKED = (
    "method={name: ifca, clusters: 2}", "topology.lps=2", "training.global_rounds=3",
    "links={device-lps: {preset: lte, jitter: 10ms}, lps-gps: {up_rate: 50Mbit/s, latency: 15ms}, "
    "shared: {device-lps: {up_rate: 5Mbit/s, down_rate: 10Mbit/s, broadcast: true}}}",
    "schedule=[{at: 500ms, set: {link: shared, up_rate: 1Mbit/s}}]",
)  # fmt: skip


def test_questions_broadcasts_and_a_shared_link_that_changes_take_their_time_in_pods_and_change_no_bit(
    lab: Lab,
) -> None:
    lab.up("experiments/digits.yaml", sets=(*ASKED, "clock=real"), release="asked")
    lab.here("collect", "--out", str(lab.folder / "asked"), "--quiet", release="asked")
    here = run_here(lab.folder / "asked-virtual", *ASKED, "clock=virtual")
    assert summary_of(lab.folder / "asked")["model_sha256"].keys() == summary_of(here)["model_sha256"].keys()
    for path in sorted((here / "models").iterdir()):
        found = load_file(lab.folder / "asked" / "models" / path.name)
        for name, tensor in load_file(path).items():
            assert np.array_equal(tensor, found[name])
    assert summary_of(lab.folder / "asked")["real"]["links"] > 0
