"""All certificates of a run and its authority are replaced while it trains: nothing is lost, and no bit changes."""

import asyncio
import shutil
from hashlib import sha256
from pathlib import Path

import grpc
import numpy as np
import pytest
from safetensors.numpy import load_file

from emulator.commands.main import execute
from fedstrata.rpc.client import Connection
from fedstrata.trust.diagnosis import why_refused
from fedstrata.trust.security import TlsSecurity
from fedstrata.trust.tls_files import GPS, TlsFiles
from fedstrata.v1 import gps_service_pb2 as pb
from fedstrata.v1.gps_service_pb2_grpc import GpsServiceStub
from tests.support.programs import Program, events
from tests.support.slowed import ROUNDS, SLOWED, WHO, has_begun, wait_for
from tests.support.tiers import SMALL, run_in_process, small

STEPS = (("--authority", "new"), (), ("--authority", "drop"))


def fingerprint(path: Path) -> str:
    return sha256(path.read_bytes()).hexdigest()[:16]


def has_taken(run: Path, who: str) -> bool:
    """Whether a process says that it has what is in its folder."""
    tls = run / "state" / "tls" / who
    taken = [event for event in events(run / "logs" / f"{who}.log") if event["event"] == "certificate_taken"]
    now = fingerprint(tls / "cert.pem"), fingerprint(tls / "ca.pem")
    return bool(taken) and (taken[-1]["certificate"], taken[-1]["authority"]) == now


async def called(gps: str, tls: TlsFiles) -> str:
    """How a call of an LPS to the GPS ends, which gRPC makes without a greeting before."""
    async with Connection(gps, TlsSecurity(tls)) as channel:
        try:
            await GpsServiceStub(channel).FetchClusters(pb.FetchClustersRequest(lps_id="lps-1"), timeout=20)
        except grpc.aio.AioRpcError as error:
            return error.code().name
    return "OK"


@pytest.fixture(scope="module")
def renewed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run whose certificates and authority were replaced; `stranger.txt` beside it says what an LPS
    heard that came afterwards with a certificate by the authority of before."""
    folder = tmp_path_factory.mktemp("renewed")
    (folder / "small.yaml").write_text(SMALL)
    run, changes = folder / "run", [word for change in SLOWED for word in ("--set", change)]
    words = ("run", str(folder / "small.yaml"), "--out", str(run), "--json", "--device-processes", "2", *changes)
    with Program("emulator", *words, log=folder / "log") as program:
        lines = program.lines()
        wait_for(lines, lambda: all(has_begun(run, who) for who in WHO))
        shutil.copytree(run / "state" / "tls" / "lps-1", folder / "before")
        for step in STEPS:
            assert execute(["certs", "renew", *step, "--folder", str(run / "state" / "tls")]) == 0
            wait_for(lines, lambda: all(has_taken(run, who) for who in WHO))
        (gps,) = {event["gps"] for event in events(run / "logs" / "devices-0-2.log") if event["event"] == "serving"}
        old = TlsFiles.load(folder / "before")
        heard = asyncio.run(why_refused(gps, old, GPS)), asyncio.run(called(gps, old))
        (folder / "stranger.txt").write_text("\n".join(map(str, heard)))
        assert list(lines)[-1:], "the run was over before"
        assert program.end() == 0, program.log_path.read_text()
    return run


@pytest.mark.runs
def test_the_run_has_the_models_of_one_whose_certificates_stay(renewed: Path, tmp_path: Path) -> None:
    plain = run_in_process(small(*ROUNDS), tmp_path / "plain").folder
    models = sorted(path.name for path in (plain / "models").iterdir())
    assert models == sorted(path.name for path in (renewed / "models").iterdir())
    for model in models:
        before, after = load_file(plain / "models" / model), load_file(renewed / "models" / model)
        assert before.keys() == after.keys()
        assert all(np.array_equal(before[name], after[name]) for name in before)


@pytest.mark.runs
def test_nobody_is_away_or_sends_again_and_each_process_connects_anew_once_a_step(renewed: Path) -> None:
    said = {who: [event["event"] for event in events(renewed / "logs" / f"{who}.log")] for who in WHO}
    lost = {"lps_away", "sent_again", "call_refused", "update_late"}
    assert not {event for events_of in said.values() for event in events_of} & lost
    for who in WHO[1:]:
        parents = 1 if who.startswith("lps") else 1 + len({event["lps"] for event in assigned(renewed, who)})
        assert 0 < said[who].count("connection_renewed") <= len(STEPS) * parents


def assigned(run: Path, who: str) -> list[dict[str, str]]:
    return [event for event in events(run / "logs" / f"{who}.log") if event["event"] == "assigned"]


@pytest.mark.runs
def test_who_has_a_certificate_by_the_authority_of_before_is_refused(renewed: Path) -> None:
    greeted, called = (renewed.parent / "stranger.txt").read_text().splitlines()
    assert greeted.startswith("gps at 127.0.0.1:")
    assert "has a certificate that" in greeted
    assert "UNAVAILABLE" in called
