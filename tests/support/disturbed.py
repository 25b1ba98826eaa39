"""Runs of real processes of which some are killed, and what has to be the same in them."""

import json
from collections.abc import Sequence
from pathlib import Path

from tests.support.programs import run_to_the_end
from tests.support.records import summary_of

SAME = ("model_sha256", "personal_sha256", "device_accuracy", "replanned", "moves", "excluded", "virtual")


def disturbed(text: str, faults: Sequence[dict[str, object]], processes: int, folder: Path) -> Path:
    """The folder of a run of an experiment file with so many device processes, all of whose faults come about."""
    file, out = folder / "disturbed.yaml", folder / "out"
    file.write_text(text)
    lines = run_to_the_end(file, out, "--set", f"faults={json.dumps(faults)}", processes=processes)
    assert len([line for line in lines if line["event"] == "restart"]) == len(faults)
    return out


def assert_same(one: Path, other: Path) -> None:
    """Two runs are the same to the bit and the nanosecond."""
    assert (one / "timeline.csv").read_bytes() == (other / "timeline.csv").read_bytes()
    said = [summary_of(folder) for folder in (one, other)]
    for summary in said:
        summary["excluded"].sort(key=json.dumps)  # rows are in the order in which LPSs have told
    for key in SAME:
        assert said[0][key] == said[1][key]
