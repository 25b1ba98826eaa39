"""The cores that a process may use are no more than its container's limit."""

from pathlib import Path

from emulator.estimates.device_processes import usable_cores


def test_a_containers_limit_bounds_the_cores(tmp_path: Path) -> None:
    of_machine = usable_cores(tmp_path)  # without a limit
    assert of_machine >= 1
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert usable_cores(tmp_path) == of_machine
    (tmp_path / "cpu.max").write_text("150000 100000\n")
    assert usable_cores(tmp_path) == 1
    (tmp_path / "cpu.max").write_text("6400000 100000\n")
    assert usable_cores(tmp_path) == min(64, of_machine)


def test_a_limit_of_older_cgroups_counts_too(tmp_path: Path) -> None:
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "cpu.cfs_period_us").write_text("100000\n")
    for quota, cores in (("-1\n", usable_cores(Path("/nowhere"))), ("50000\n", 1)):
        (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text(quota)
        assert usable_cores(tmp_path) == cores
