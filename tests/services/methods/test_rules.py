"""A user's own rule at either tier: a median over devices is the same median, wherever it is taken."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from fedstrata.errors import ExperimentError
from tests.support.tiers import outcome, run_in_process, small

MEDIAN = "{name: 'tests.support.medians:Median'}"
FLAT = ("method=fedavg", "topology={lps: 1}", "training.global_rounds=2", "training.lps_rounds_per_global_round=1")


def model(folder: Path, *overrides: str) -> dict[str, np.ndarray]:
    record = run_in_process(small(*FLAT, *overrides), folder)
    assert record.summary.status == "completed"
    return load_file(next((record.folder / "models").glob("*.safetensors")))


@pytest.fixture(scope="module")
def at_lps(folder: Path) -> dict[str, np.ndarray]:
    return model(folder / "at-lps", f"aggregation.lps={MEDIAN}")


def test_a_median_at_the_gps_over_lpss_with_a_device_each_is_the_median_at_an_lps(
    at_lps: dict[str, np.ndarray], tmp_path: Path
) -> None:
    at_gps = model(tmp_path / "at-gps", "topology={lps: 5}", f"aggregation.gps={MEDIAN}")
    mean = model(tmp_path / "mean")
    for name, tensor in at_lps.items():
        np.testing.assert_allclose(at_gps[name], tensor, atol=1e-6)
        assert np.abs(mean[name] - tensor).max() > 1e-3


def test_a_cluster_with_an_lps_of_its_own_has_the_median_of_its_devices(
    at_lps: dict[str, np.ndarray], tmp_path: Path
) -> None:
    kept = run_in_process(small("method=fedavg", *FLAT[2:], f"aggregation.lps={MEDIAN}"), tmp_path / "kept").folder
    for name, tensor in load_file(kept / "models" / "lps-0.safetensors").items():
        np.testing.assert_allclose(tensor, at_lps[name], atol=1e-6)


def test_the_same_file_with_a_rule_gives_the_same_run_again(tmp_path: Path) -> None:
    ruled = small(f"aggregation.lps={MEDIAN}")
    one, again = (outcome(run_in_process(ruled, tmp_path / name).folder) for name in ("one", "again"))
    assert one == again


def test_trusted_children_are_named_by_the_ids_of_devices_and_lpss(
    at_lps: dict[str, np.ndarray], tmp_path: Path
) -> None:
    def trusted(child: str) -> str:
        return f"{{name: trusted, children: [{child}]}}"

    by_device = model(tmp_path / "device", f"aggregation.lps={trusted('device-000')}")
    by_lps = model(tmp_path / "lps", "topology={lps: 5}", f"aggregation.gps={trusted('lps-0')}")
    for name, tensor in at_lps.items():  # LPS 0 has device 0 alone
        np.testing.assert_allclose(by_lps[name], by_device[name], atol=1e-6)
        assert np.abs(by_lps[name] - tensor).max() > 1e-3
    with pytest.raises(
        ExperimentError, match="no child 'lps-0' takes part from the first round on; choose from device-000, device-001"
    ):
        small(*FLAT, f"aggregation.lps={trusted('lps-0')}")
