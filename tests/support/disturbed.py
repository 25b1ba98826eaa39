"""Runs of real processes of which some are killed, and what has to be the same in them."""

import json
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from tests.support.programs import Program
from tests.support.records import summary_of

SAME = ("model_sha256", "personal_sha256", "device_accuracy", "replanned", "moves", "excluded", "virtual")


def disturbed(text: str, faults: Sequence[dict[str, object]], processes: int, folder: Path) -> Path:
    """The folder of a run of an experiment file with so many device processes, all of whose faults come about."""
    file, out, log = folder / "disturbed.yaml", folder / "out", folder / "log"
    file.write_text(text)
    words = ("run", str(file), "--set", f"faults={json.dumps(faults)}", "--json", "--out", str(out))
    with ExitStack() as stack:
        program = stack.enter_context(Program("emulator", *words, "--device-processes", str(processes), log=log))
        lines = list(program.lines())
        assert program.end() == 0, log.read_text()
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
