"""How `fedstrata run` starts its processes on this machine."""

from pathlib import Path
from typing import Any

import pytest

from emulator.local.processes import LocalBackend
from fedstrata.errors import RunStoppedError
from fedstrata.experiment_file import parse_experiment
from fedstrata.process.child_processes import ProcessSpec, Supervisor
from fedstrata.trust.security import OPEN, security_of
from gps.__main__ import options_of_process

EXPERIMENT = parse_experiment(
    "{name: local, method: fedavg, partition: {kind: iid, devices: 2, examples_per_device: 10}}"
)


async def test_a_run_without_tls_takes_nothing_for_it_from_the_shell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for option, value in (("TLS", "folder"), ("REVOKED", "list"), ("SERVER_DOMAIN", "fl.example.org")):
        monkeypatch.setenv(f"FEDSTRATA_{option}", value)
    started: list[ProcessSpec] = []

    def start(self: Supervisor, spec: ProcessSpec) -> Any:
        started.append(spec)
        raise RunStoppedError("started")

    monkeypatch.setattr(Supervisor, "start", start)
    backend = LocalBackend(tmp_path, device_processes=1, on_restart=lambda restart: None)
    with pytest.raises(RunStoppedError, match="started"):
        await backend.start(EXPERIMENT)
    (gps,) = started
    options = options_of_process().parse_args(gps.command[1:])
    assert security_of(options) is OPEN
