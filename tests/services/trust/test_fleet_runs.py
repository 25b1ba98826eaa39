"""A fleet of three boards as processes: runs one after the other and at once, boards killed, certificates renewed."""

import asyncio
import re
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits

from emulator.boards.fleet_client import FleetClient, FleetPlace
from emulator.commands.main import execute
from fedstrata.errors import CertificateError, NotAllowedError
from fedstrata.rpc.client import CallError, Connection, refusal
from fedstrata.trust.names import Name
from fedstrata.trust.security import TlsSecurity
from fedstrata.trust.tls_files import TlsFiles
from fedstrata.v1 import fleet_service_pb2 as pb
from fedstrata.v1.fleet_service_pb2_grpc import FleetServiceStub
from tests.support.programs import Program
from tests.support.tiers import SMALL

pytestmark = pytest.mark.kills

BOARDS = ("board-1", "board-2", "board-3")
# Links whose latency alone makes the rounds last longer than what is done to boards meanwhile: 60 × 2 × 2 × 20 ms.
SLOWED = ("training.global_rounds=60", "clock=real", "links={device-lps: {latency: 20ms}}")
OWN = """
name: own
data: {name: folder, folder: /nowhere, input_shape: [1, 8, 8], num_classes: 10}
partition: {kind: local, names: [board-1, board-2, board-3]}
model: {name: mlp, hidden: [16]}
method: {name: one_shot, clusters: 1}
training: {global_rounds: 2, lps_rounds_per_global_round: 1}
"""


class Lab:
    """The service of a fleet, the agents of three boards, and runs of operators. A context manager."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.certs = folder / "certs"
        self._stack = ExitStack()
        self.agents: dict[str, Program] = {}
        self._count = 0

    def __enter__(self) -> "Lab":
        assert execute(["certs", "init", "lab", "--folder", str(self.certs)]) == 0
        for words in (["fleet"], ["operator"], *(["device", name] for name in BOARDS)):
            assert execute(["certs", "issue", *words, "--folder", str(self.certs)]) == 0
        self.service = self._start_service("127.0.0.1:0")
        self.address = self.service.addresses()["grpc"]
        for name in BOARDS:
            self.start_board(name)
        return self

    def __exit__(self, *raised: object) -> None:
        self._stack.close()

    def start(self, module: str, name: str, *words: str) -> Program:
        self._count += 1
        return self._stack.enter_context(Program(module, *words, log=self.folder / f"{self._count}-{name}.log"))

    def _start_service(self, listen: str) -> Program:
        words = ("--listen", listen, "--state", str(self.folder / "fleet"), "--tls", str(self.certs / "fleet"))
        return self.start("fleet", "fleet", *words)

    def restart_service(self) -> None:
        """Kill the service of the fleet, and start it again where it was."""
        self.service.process.kill()
        self.service.end()
        self.service = self._start_service(self.address)
        self.service.addresses()

    def start_board(self, name: str) -> None:
        data = self.folder / f"data-{name}"
        if not data.exists():
            write_data(data)
        words = ["--fleet", self.address, "--state", str(self.folder / name), "--data-folder", str(data)]
        tls = str(self.certs / "devices" / name)
        self.agents[name] = self.start("fleet.board", name, *words, "--tls", tls, "--runs", "2")

    def kill_board(self, name: str) -> None:
        """Kill the agent of a board, with which its devices end, and start it again."""
        self.agents[name].process.send_signal(signal.SIGKILL)
        self.agents[name].end()
        self.start_board(name)

    def run(self, name: str, text: str, *changes: str, fleet: bool = True, boards: int = 3) -> Program:
        """Start `fedstrata run`, on so many boards of the fleet or on this machine alone."""
        file = self.folder / f"{name}.yaml"
        file.write_text(text)
        words = ["run", str(file), "--json", "--out", str(self.folder / name)]
        if fleet:
            words += ["--fleet", self.address, "--fleet-tls", str(self.certs / "operator"), "--boards", str(boards)]
        return self.start("emulator", name, *words, *(word for change in changes for word in ("--set", change)))

    def models(self, run: Program) -> dict[str, str]:
        """The digest of each model of a run, once it has ended."""
        *_, last = run.lines()
        assert run.end() == 0, run.log_path.read_text()
        assert last["event"] == "summary"
        assert last["summary"]["status"] == "completed"
        return dict(last["summary"]["model_sha256"])

    def same_here(self, name: str, text: str, *changes: str) -> dict[str, str]:
        """The models of the same run without a fleet."""
        return self.models(self.run(f"{name}-here", text, *changes, fleet=False))

    async def everything(self) -> pb.FetchFleetResponse:
        async with FleetClient(FleetPlace(address=self.address, tls=self.certs / "operator")) as client:
            return await client.everything()

    async def until_all_are_here(self) -> None:
        async with FleetClient(FleetPlace(address=self.address, tls=self.certs / "operator")) as client:
            told = await client.everything()
            while sum(state.is_here for state in told.boards) < len(BOARDS):
                told = await client.next_after(told.version)


def write_data(folder: Path) -> None:
    digits = load_digits()
    inputs = (digits.images / 16).astype(np.float32)[:, None]
    folder.mkdir()
    for name, part in {"train": slice(400), "test": slice(400, 500)}.items():
        np.savez(folder / f"{name}.npz", x=inputs[part], y=digits.target[part])


def until_round(run: Program, global_round: int) -> None:
    """Wait until so many global rounds of a run are done. It must train still."""
    for told in run.lines():
        if told["event"] == "status" and told["global_round"] >= global_round:
            assert told["phase"] == "training", told
            return
    raise AssertionError(f"over too soon: {run.log_path.read_text()}")


@pytest.fixture(scope="module")
def lab(folder: Path) -> Iterator[Lab]:
    with Lab(folder) as lab:
        asyncio.run(lab.until_all_are_here())
        yield lab


@pytest.mark.timeout(600)
def test_runs_follow_each_other_and_certificates_are_renewed_in_between(lab: Lab) -> None:
    assert lab.models(lab.run("first", SMALL)) == lab.same_here("first", SMALL)
    shown = {name: (lab.certs / "devices" / name / "cert.pem").read_bytes() for name in BOARDS}
    assert execute(["certs", "renew", "--folder", str(lab.certs)]) == 0
    assert all((lab.certs / "devices" / name / "cert.pem").read_bytes() != shown[name] for name in BOARDS)
    assert lab.models(lab.run("second", SMALL, "seed=7")) == lab.same_here("second", SMALL, "seed=7")
    told = asyncio.run(lab.everything())
    assert [state.is_here for state in told.boards] == [True] * 3
    assert not told.offers


@pytest.mark.timeout(600)
def test_two_runs_at_once_go_on_when_a_board_the_fleet_and_the_certificates_are_replaced(lab: Lab) -> None:
    runs = [lab.run(f"at-once-{seed}", SMALL, f"seed={seed}", *SLOWED) for seed in (1, 2)]
    for run in runs:
        until_round(run, 2)
    told = asyncio.run(lab.everything())
    assert [[run.state for run in state.runs] for state in told.boards] == [["running"] * 2] * 3
    lab.kill_board("board-2")
    lab.restart_service()
    assert execute(["certs", "renew", "--folder", str(lab.certs)]) == 0
    found = [lab.models(run) for run in runs]
    assert found == [lab.same_here(f"at-once-{seed}", SMALL, f"seed={seed}", *SLOWED) for seed in (1, 2)]
    assert found[0] != found[1]
    assert "started" in (lab.agents["board-2"].log_path).read_text()


@pytest.mark.timeout(600)
def test_a_third_run_waits_for_room_and_each_board_trains_on_its_own_data(lab: Lab, folder: Path) -> None:
    rehearsed = lab.models(lab.run("own-here", OWN, f"data.folder={folder / 'data-board-1'}", fleet=False))
    at = [lab.address, "--tls", str(lab.certs / "operator")]
    for run in ("one", "two"):  # of GPSs that never come
        assert execute(["certs", "init", run, "--folder", str(folder / run)]) == 0
        words = ["--gps", "127.0.0.1:9", "--folder", str(folder / run), "--set", f"name={run}"]
        (folder / "held.yaml").write_text(OWN)
        assert execute(["fleet", "offer", *at, str(folder / "held.yaml"), *words]) == 0
    third = lab.run("own", OWN)
    runs = asyncio.run(runs_once(lab, 3))
    assert [run.state for run in runs] == ["running", "running", "waiting"]
    assert execute(["fleet", "withdraw", *at, runs[0].offer_id]) == 0
    assert lab.models(third) == rehearsed
    assert execute(["fleet", "withdraw", *at, runs[1].offer_id]) == 0


async def runs_once(lab: Lab, number: int) -> list[pb.BoardRun]:
    """The runs of the first board, in their order, once each board has so many."""
    async with FleetClient(FleetPlace(address=lab.address, tls=lab.certs / "operator")) as client:
        told = await client.everything()
        while any(len(state.runs) < number for state in told.boards):
            told = await client.next_after(told.version)
        return list(told.boards[0].runs)


@pytest.mark.timeout(600)
def test_an_interrupted_run_gives_its_boards_back_and_goes_on_there_with_the_state_of_its_devices(
    lab: Lab, folder: Path
) -> None:
    changes = (*SLOWED, "training.optimiser.state=kept")
    run = lab.run("interrupted", SMALL, *changes, boards=2)
    until_round(run, 2)
    run.interrupt()
    assert run.end() == 130
    assert not asyncio.run(lab.everything()).offers
    # A new run would now prefer the other two boards.
    assert execute(["certs", "init", "held", "--folder", str(folder / "held")]) == 0
    (folder / "held.yaml").write_text(OWN)
    words = ["--gps", "127.0.0.1:9", "--folder", str(folder / "held"), "--set", "partition.names=[board-1]"]
    at = [lab.address, "--tls", str(lab.certs / "operator")]
    assert execute(["fleet", "offer", *at, str(folder / "held.yaml"), "--set", "name=held", *words]) == 0
    (held,) = asyncio.run(lab.everything()).offers
    words = ["run", "--resume", str(lab.folder / "interrupted"), "--json"]
    words += ["--fleet", lab.address, "--fleet-tls", str(lab.certs / "operator")]
    found = lab.models(lab.start("emulator", "resumed", *words))
    assert found == lab.same_here("interrupted", SMALL, *changes)
    assert execute(["fleet", "withdraw", *at, held.offer_id]) == 0


@pytest.mark.timeout(300)
def test_a_run_whose_boards_are_withdrawn_ends_with_one_line(lab: Lab) -> None:
    run = lab.run("withdrawn", SMALL, *SLOWED)
    until_round(run, 1)
    (offer,) = asyncio.run(lab.everything()).offers
    at = [lab.address, "--tls", str(lab.certs / "operator")]
    assert execute(["fleet", "withdraw", *at, offer.offer_id]) == 0
    list(run.lines())
    assert run.end() == 4
    assert [line for line in run.errors() if "has withdrawn the boards" in line]


@pytest.mark.timeout(300)
def test_a_run_whose_command_is_killed_keeps_its_boards_until_they_are_withdrawn(
    lab: Lab, capsys: pytest.CaptureFixture[str]
) -> None:
    run = lab.run("killed", SMALL, *SLOWED)
    until_round(run, 1)
    run.process.kill()
    run.end()
    at = [lab.address, "--tls", str(lab.certs / "operator")]
    assert execute(["fleet", "list", *at]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines if not line.startswith(" ")] == list(BOARDS)
    offers = set(re.findall(r"^  (small-[0-9a-f-]+): running$", "\n".join(lines), re.MULTILINE))
    assert len(offers) == 1
    assert execute(["fleet", "withdraw", *at, *offers]) == 0
    assert not asyncio.run(lab.everything()).offers
    assert execute(["fleet", "withdraw", *at, *offers]) == 2


@pytest.mark.timeout(300)
def test_a_run_fails_with_the_reason_of_the_board_that_refuses_it(lab: Lab) -> None:
    run = lab.run("code", SMALL, "method={name: 'fedstrata.methods.fed_avg:FedAvg'}")
    list(run.lines())
    assert run.end() != 0
    assert any("that the board does not allow" in line for line in run.errors())
    assert not asyncio.run(lab.everything()).offers


async def test_who_is_no_operator_offers_nothing_and_a_board_speaks_for_itself_alone(lab: Lab, tmp_path: Path) -> None:
    security = TlsSecurity(TlsFiles.load(lab.certs / "devices" / "board-1"))
    async with Connection(lab.address, security, Name("fleet")) as channel:
        stub = FleetServiceStub(channel)
        for call, request in (
            ("OfferRun", pb.OfferRunRequest(offer_id="mine", loans=[pb.Loan(board="board-2")])),
            ("WithdrawRun", pb.WithdrawRunRequest(offer_id="other")),
            ("FetchFleet", pb.FetchFleetRequest()),
            ("FetchOffers", pb.FetchOffersRequest(board=pb.Board(name="board-2"))),
        ):
            with pytest.raises(CallError) as refused:
                await getattr(stub, call)(request, timeout=20, wait_for_ready=True)
            assert isinstance(refusal(refused.value), NotAllowedError)
    with pytest.raises(CertificateError):
        FleetClient(FleetPlace(address=lab.address, tls=lab.certs / "devices" / "board-1"))


@pytest.mark.timeout(300)
def test_a_board_of_another_lab_says_why_it_does_not_come_in(lab: Lab, tmp_path: Path) -> None:
    for words in (["init", "elsewhere"], ["issue", "device", "board-9"]):
        assert execute(["certs", *words, "--folder", str(tmp_path)]) == 0
    words = ("--fleet", lab.address, "--state", str(tmp_path / "state"), "--tls", str(tmp_path / "devices" / "board-9"))
    agent = lab.start("fleet.board", "stranger", *words)
    assert agent.end() == 7
    assert agent.errors()
