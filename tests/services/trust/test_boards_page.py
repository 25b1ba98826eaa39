"""Boards without Kubernetes: the page's experiment, certificates and systemd units make a run."""

import re
import shlex
import socket
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits
from typer.testing import CliRunner

import fedstrata
from emulator.commands.main import app
from tests.support.programs import REPOSITORY, Program

pytestmark = pytest.mark.pages

PAGE = (REPOSITORY / "docs" / "boards-without-kubernetes.md").read_text("utf-8")


def blocks(language: str) -> list[str]:
    """Return the fenced blocks of a language."""
    fences = re.findall(r"^```(\w*)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    return [text for name, text in fences if name == language]


def unit_of(service: str) -> dict[str, str]:
    """Return the environment of the unit that starts a service."""
    (unit,) = [unit for unit in blocks("ini") if f"ExecStart=/opt/fedstrata/bin/python -m {service}\n" in unit]
    return dict(re.findall(r"^Environment=(\w+)=(.*)$", unit, re.MULTILINE))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def certificates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Issue the page's certificates into a folder."""
    monkeypatch.chdir(tmp_path)
    said = [line for block in blocks("") for line in block.splitlines() if line.startswith("fedstrata certs")]
    assert len(said) == 6
    for line in said:
        done = CliRunner().invoke(app, shlex.split(line)[1:])
        assert done.exit_code == 0, done.output
    return tmp_path / "certs"


def write_board(folder: Path, first: int) -> None:
    """Write five hundred digits as the files of a board."""
    digits = load_digits()
    inputs = (digits.images / 16).astype(np.float32)[:, None]
    folder.mkdir()
    for name, part in {"train": slice(first, first + 400), "test": slice(first + 400, first + 500)}.items():
        np.savez(folder / f"{name}.npz", x=inputs[part], y=digits.target[part])


def test_the_units_of_the_page_make_a_run(tmp_path: Path, certificates: Path) -> None:
    (experiment,) = blocks("yaml")
    lps_address = f"127.0.0.1:{free_port()}"
    here = {"FEDSTRATA_EXPERIMENT": str(tmp_path / "field.yaml"), "FEDSTRATA_HTTP": "127.0.0.1:0"}
    (tmp_path / "field.yaml").write_text(experiment)
    with ExitStack() as stack:

        def start(service: str, name: str, **changed: object) -> Program:
            """Start a unit, with the addresses and folders of this test in place of the page's."""
            environment = {**unit_of(service), **here, "FEDSTRATA_STATE": str(tmp_path / f"state-{name}")}
            environment |= {f"FEDSTRATA_{key.upper()}": str(value) for key, value in changed.items()}
            return stack.enter_context(Program(service, log=tmp_path / f"{name}.log", environment=environment))

        server = start("gps", "gps", listen="127.0.0.1:0", tls=certificates / "gps")
        gps = server.addresses()["grpc"]
        start("lps", "lps-0", gps=gps, listen=lps_address, advertise=lps_address, tls=certificates / "lps-0")
        devices = []
        for number in range(3):
            name = f"board-{number}"
            write_board(tmp_path / name, 500 * number)
            file = tmp_path / f"{name}.yaml"
            file.write_text(experiment.replace("/var/lib/fedstrata/data", str(tmp_path / name)))
            tls = certificates / "devices" / name
            devices.append(start("device", name, experiment=file, gps=gps, device_name=name, tls=tls))
        assert [device.end() for device in devices] == [0, 0, 0]
    (record,) = (tmp_path / "state-gps").glob("field-*/record")
    assert fedstrata.load(record).status == "completed"
    assert len(list((record / "models").iterdir())) == 2
