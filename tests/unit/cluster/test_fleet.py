"""A fleet's boards and offers, what a board allows of an offer, and which boards a run takes."""

import asyncio
import os
import socket
from datetime import datetime, timedelta, tzinfo
from pathlib import Path

import pytest
import yaml

from emulator.boards.boards_backend import FleetBackend, own_host
from emulator.boards.fleet_client import FleetClient, FleetPlace
from emulator.boards.loans import shares, shares_again
from emulator.commands.main import execute
from emulator.commands.options import Devices
from fedstrata.errors import AddressError, ExperimentError, PayloadError, StateError
from fedstrata.experiment_file import load_experiment, parse_experiment
from fedstrata.process.logs import EventLog
from fedstrata.process.metrics import LinkMeter
from fedstrata.rpc.server import MAX_MESSAGE_BYTES, RpcServer
from fedstrata.store import write_sealed
from fedstrata.trust.authority import Authority, Issued
from fedstrata.trust.board_keys import key_of, public_key_of
from fedstrata.trust.names import Name
from fedstrata.trust.security import TlsSecurity
from fedstrata.trust.tls_files import CA, CERT, KEY, TlsFiles, write_private
from fedstrata.v1 import fleet_service_pb2 as pb
from fedstrata.v1.fleet_service_pb2_grpc import add_FleetServiceServicer_to_server
from fleet.board import runs as board_runs
from fleet.board.agent import FOLDERS_KEPT, BoardAgent
from fleet.board.runs import HostedRun, Owned, experiment_here
from fleet.offers import Fleet
from fleet.servicer import FleetServicer
from tests.support.made_certificates import made

DIGITS = "{name: few, partition: {kind: iid, devices: 5, examples_per_device: 10}}"
OWN = """
name: own
data: {name: folder, folder: /somewhere, input_shape: [1, 8, 8], num_classes: 10}
partition: {kind: local, names: [board-1, board-2]}
method: {name: one_shot, clusters: 1}
"""
NOTHING = Owned(key=b"", data=None, own_code=frozenset())


def fleet_of(folder: Path, *boards: str, most_runs: int = 1) -> Fleet:
    """A fleet that these boards have called."""
    fleet = Fleet(folder, now=lambda: 0.0)
    for name in boards:
        with fleet.visit(name):
            fleet.report(pb.FetchOffersRequest(board=pb.Board(name=name, most_runs=most_runs)))
    return fleet


def said(fleet: Fleet, board: str, *runs: pb.BoardRun) -> pb.FetchOffersRequest:
    """What a board that knows its newest offers says of runs."""
    known = fleet.offers_of(board).version
    return pb.FetchOffersRequest(board=pb.Board(name=board, most_runs=1), runs=runs, known_version=known)


def offer(offer_id: str, *boards: str, gps: str = "127.0.0.1:1") -> pb.OfferRunRequest:
    loans = [pb.Loan(board=name, devices=f"{index}-{index}") for index, name in enumerate(boards)]
    return pb.OfferRunRequest(offer_id=offer_id, experiment=DIGITS, gps=gps, loans=loans)


def ids(reply: pb.FetchOffersResponse) -> list[str]:
    return [each.offer_id for each in reply.offers]


# --- the service --------------------------------------------------------------------------------------------


def test_all_boards_see_offers_in_the_order_in_which_they_came_also_after_a_restart(tmp_path: Path) -> None:
    fleet = fleet_of(tmp_path, "a", "b")
    for offer_id in ("second-2", "first-1", "third-3"):
        fleet.offer(offer(offer_id, "a", "b"))
    assert ids(fleet.offers_of("a")) == ids(fleet.offers_of("b")) == ["second-2", "first-1", "third-3"]
    assert fleet.withdraw("first-1")
    assert not fleet.withdraw("first-1")
    again = Fleet(tmp_path)
    assert list(again.boards) == ["a", "b"]
    assert again.offers_of("a") == fleet.offers_of("a")
    again.offer(offer("fourth-4", "a"))
    assert ids(again.offers_of("a")) == ["second-2", "third-3", "fourth-4"]
    assert ids(again.offers_of("b")) == ["second-2", "third-3"]


def test_an_offer_that_changes_keeps_its_place_and_has_another_version(tmp_path: Path) -> None:
    fleet = fleet_of(tmp_path, "a")
    for offer_id in ("one", "two"):
        fleet.offer(offer(offer_id, "a"))
    before = fleet.offers_of("a")
    fleet.offer(offer("one", "a"))
    assert fleet.offers_of("a").version == before.version
    fleet.offer(offer("one", "a", gps="127.0.0.1:2"))
    after = fleet.offers_of("a")
    assert after.version != before.version
    assert [(each.offer_id, each.gps) for each in after.offers] == [("one", "127.0.0.1:2"), ("two", "127.0.0.1:1")]


def test_a_board_gets_its_own_certificate_and_devices_alone(tmp_path: Path) -> None:
    fleet = fleet_of(tmp_path, "a", "b", "c")
    loans = [pb.Loan(board="a", devices="0-2", certificate=b"for a"), pb.Loan(board="b", devices="3-4")]
    fleet.offer(pb.OfferRunRequest(offer_id="run", loans=loans))
    (of_a,), (of_b,) = fleet.offers_of("a").offers, fleet.offers_of("b").offers
    assert (of_a.devices, of_a.certificate) == ("0-2", b"for a")
    assert (of_b.devices, of_b.certificate) == ("3-4", b"")
    assert not fleet.offers_of("c").offers


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (offer("../../run", "a"), "is not a valid id"),
        (offer("run"), "at least one"),
        (offer("run", "a", "a"), "once"),
        (offer("run", "a", "stranger"), "'stranger' has ever called"),
    ],
)
def test_an_offer_is_taken_by_all_its_boards_or_refused(tmp_path: Path, wrong: pb.OfferRunRequest, said: str) -> None:
    fleet = fleet_of(tmp_path, "a")
    with pytest.raises(ExperimentError, match=said):
        fleet.offer(wrong)
    assert not fleet.offers_of("a").offers
    assert not Fleet(tmp_path).offers


def test_a_board_is_here_while_it_calls_and_for_five_seconds_after(tmp_path: Path) -> None:
    now = [0.0]
    fleet = Fleet(tmp_path, now=lambda: now[0])

    def is_here() -> bool:
        return fleet.everything().boards[0].is_here

    with fleet.visit("a"):
        fleet.report(pb.FetchOffersRequest(board=pb.Board(name="a", cores=4)))
        now[0] = 100.0
        assert is_here()
    now[0] = 104.0
    assert is_here()
    now[0] = 106.0
    assert not is_here()


def test_what_a_board_says_of_its_runs_is_shown_for_those_that_are_offered(tmp_path: Path) -> None:
    fleet = fleet_of(tmp_path, "a")
    fleet.offer(offer("run", "a"))
    failed = pb.BoardRun(offer_id="run", state="failed", reason="no\ndata " + "x" * 500)
    request = said(fleet, "a", failed, pb.BoardRun(offer_id="other", state="running"))
    assert fleet.report(request)
    assert not fleet.report(request)
    (run,) = fleet.everything().boards[0].runs
    assert (run.state, len(run.reason), run.reason[:7]) == ("failed", 300, "no data")
    fleet.withdraw("run")
    assert not fleet.everything().boards[0].runs


def test_a_board_speaks_of_the_runs_that_it_is_lent_to_alone(tmp_path: Path) -> None:
    fleet = fleet_of(tmp_path, "a", "b")
    fleet.offer(offer("run", "a"))
    fleet.report(said(fleet, "b", pb.BoardRun(offer_id="run", state="failed")))
    assert not fleet.everything().boards[1].runs


@pytest.mark.parametrize("is_withdrawn", [True, False])
def test_a_run_that_is_offered_again_forgets_that_it_failed_on_a_board(tmp_path: Path, is_withdrawn: bool) -> None:
    fleet = fleet_of(tmp_path, "a")
    fleet.offer(offer("run", "a"))
    late = said(fleet, "a", pb.BoardRun(offer_id="run", state="failed"))
    fleet.report(late)
    assert fleet.everything().boards[0].runs
    if is_withdrawn:
        fleet.withdraw("run")
    fleet.offer(offer("run", "a", gps="127.0.0.1:2"))
    assert not fleet.everything().boards[0].runs
    fleet.report(late)  # by a board that has not seen the new offer
    assert not fleet.everything().boards[0].runs
    fleet.report(said(fleet, "a", pb.BoardRun(offer_id="run", state="running")))
    assert [run.state for run in fleet.everything().boards[0].runs] == ["running"]


def test_a_board_gets_as_many_offers_as_a_reply_can_carry_the_first_ones_first(tmp_path: Path) -> None:
    fleet = fleet_of(tmp_path, "a")
    for number in range(5):
        large = offer(f"run-{number}", "a")
        large.experiment = "x" * 300_000
        fleet.offer(large)
    assert ids(fleet.offers_of("a")) == ["run-0", "run-1", "run-2"]
    assert fleet.offers_of("a").ByteSize() < MAX_MESSAGE_BYTES
    fleet.withdraw("run-0")
    assert ids(fleet.offers_of("a")) == ["run-1", "run-2", "run-3"]


@pytest.mark.parametrize("is_too_long", [False, True])
async def test_a_board_whose_key_cannot_be_certified_is_refused_when_it_calls(
    tmp_path: Path, is_too_long: bool
) -> None:
    (tmp_path / "fleet").mkdir()
    fleet = Fleet(tmp_path / "fleet")
    request = said(fleet, "a")
    request.board.public_key = b"x" * 1_000 + b"\n" + key_of(tmp_path)[1] if is_too_long else b""
    with pytest.raises(PayloadError, match="the key that a board sent is damaged"):
        await FleetServicer(fleet, EventLog("fleet")).FetchOffers(request, None)
    assert not fleet.boards


def test_a_damaged_file_of_the_fleet_is_named(tmp_path: Path) -> None:
    fleet_of(tmp_path, "a").offer(offer("run", "a"))
    (tmp_path / "offers" / "00000001-run").write_bytes(b"cut")
    with pytest.raises(StateError, match="00000001-run"):
        Fleet(tmp_path)


# --- a board ------------------------------------------------------------------------------------------------


def test_a_board_runs_an_experiment_with_its_own_data_and_downloads_nothing(tmp_path: Path) -> None:
    offered = parse_experiment(OWN)
    here = experiment_here(offered.to_yaml(), Owned(key=b"", data=tmp_path, own_code=frozenset()))
    data = yaml.safe_load(here)["data"]
    assert (data["folder"], data["download"]) == (str(tmp_path), False)
    assert parse_experiment(here).run_id == offered.run_id
    digits = parse_experiment(DIGITS)
    assert parse_experiment(experiment_here(digits.to_yaml(), NOTHING)).run_id == digits.run_id


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{data: {name: digits}, model: {name: 'os:system'}}", "'os:system', that the board does not allow"),
        ("{data: {name: digits}, method: {name: fedavg, of: [{map: 'a.b:c'}]}}", "'a.b:c'"),
        ("{data: {name: digits}, model: {name: mlp, weights: /etc/shadow}}", "a file, weights"),
        ("{data: {name: digits}, partition: {kind: given, file: /etc/shadow}}", "a file, file"),
        ("{data: {name: folder, folder: /home}}", "--data-folder"),
        ("[1, 2]", "not a resolved experiment"),
        ("{a: !!python/object:os.system {}}", "is not YAML"),
        ("{data: {name: digits}, model: {name: !!binary b3M6c3lzdGVt}}", "kind bytes under 'name'"),
        ("{data: {name: digits}, model: {name: !!set {'os:system': null}}}", "kind set"),
        ("{data: {name: digits}, model: !!omap [name: 'os:system']}", "kind tuple"),
        ("{data: {name: digits}, model: !!pairs [name: 'os:system']}", "kind tuple"),
        ("{data: {name: digits}, name: !!timestamp 2026-11-26}", "kind date"),
        ("{data: {name: digits}, model: {!!binary bmFtZQ==: mlp}}", "a key that is not text"),
    ],
)
def test_a_board_refuses_an_offer_with_code_or_files(text: str, said: str) -> None:
    with pytest.raises(ExperimentError, match=said):
        experiment_here(text, NOTHING)


@pytest.mark.parametrize("file", sorted(Path("experiments").glob("*.yaml")), ids=lambda file: file.stem)
def test_a_board_runs_the_examples_as_they_are(file: Path) -> None:
    offered = load_experiment(file)
    assert parse_experiment(experiment_here(offered.to_yaml(), NOTHING)).run_id == offered.run_id


def test_a_board_allows_the_own_code_that_its_owner_names() -> None:
    text = "{data: {name: digits}, model: {name: 'my_model:Net'}}"
    assert "my_model:Net" in experiment_here(text, Owned(key=b"", data=None, own_code=frozenset({"my_model:Net"})))


def test_a_run_certifies_the_key_of_a_board_which_does_not_leave_it(tmp_path: Path) -> None:
    private, public = key_of(tmp_path / "board")
    assert key_of(tmp_path / "board") == (private, public)
    authority = Authority.new("run-1")
    certificate = authority.certified([Name("device", "board-1")], public_key_of(public))
    assert str(Issued.parse(certificate, "board-1").peer) == "device/board-1"
    write_private(tmp_path / "tls", {KEY: private, CERT: certificate, CA: authority.trusted()})
    assert TlsFiles.load(tmp_path / "tls").me.domain == "run-1"
    with pytest.raises(PayloadError, match="damaged"):
        public_key_of(b"no key")


async def test_an_offer_for_another_key_fails_with_a_reason_that_a_restarted_agent_remembers(tmp_path: Path) -> None:
    private, _ = key_of(tmp_path / "mine")
    _, other = key_of(tmp_path / "other")
    offered = offered_to(other)
    run = HostedRun(offered, tmp_path, EventLog("board"))
    run.start(Owned(key=private, data=None, own_code=frozenset()), lambda: None)
    await run.stop()
    assert run.told().state == "failed"
    assert "is not the key of" in run.told().reason
    again = HostedRun(offered, tmp_path, EventLog("board"))
    assert again.told() == run.told()
    offered.gps = "127.0.0.1:2"
    assert HostedRun(offered, tmp_path, EventLog("board")).told().state == "waiting"


def offered_to(key: bytes) -> pb.Offer:
    """An offer that a board with this public key can take."""
    authority = Authority.new("run-1")
    names = [Name("device", "device-000", "device-001")]
    return pb.Offer(
        offer_id="run",
        experiment=parse_experiment(DIGITS).to_yaml(),
        gps="127.0.0.1:1",
        ca=authority.trusted(),
        devices="0-1",
        certificate=authority.certified(names, public_key_of(key)),
    )


@pytest.mark.parametrize(
    ("is_full", "days", "said", "is_over"),
    [
        (True, (-1, 9), "cannot write", False),
        (False, (9, 10), "is not yet valid", False),  # the board's clock is behind
        (False, (-2, -1), "expired on", True),
    ],
)
async def test_a_run_is_tried_again_or_fails_if_its_certificate_has_expired(
    tmp_path: Path, is_full: bool, days: tuple[float, float], said: str, is_over: bool
) -> None:
    authority = Authority.new("run-1")
    one = made("board", authority, days=days, names=[Name("device", "device-000", "device-001")])
    offered = offered_to(key_of(tmp_path / "mine")[1])
    offered.ca, offered.certificate = authority.trusted(), one.pem
    if is_full:
        (tmp_path / "tls").write_text("in the way")
    told = asyncio.Event()
    run = HostedRun(offered, tmp_path, EventLog("board"))
    run.start(Owned(key=one.key_pem(), data=None, own_code=frozenset()), told.set)
    await told.wait()
    await run.stop()
    assert (run.told().state, run.is_over) == ("failed" if is_over else "running", is_over)
    assert said in run.told().reason


async def test_a_run_ends_once_its_certificate_has_expired_by_a_clock_that_is_set_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """First the board's clock says that it expires in a moment, and is set back."""
    authority = Authority.new("run-1")
    one = made("board", authority, names=[Name("device", "device-000", "device-001")])

    class Clock(datetime):
        left = timedelta(seconds=0.05)

        @classmethod
        def now(cls, tz: tzinfo | None = None) -> datetime:
            return one.certificate.not_valid_after_utc.astimezone(tz) - cls.left

    monkeypatch.setattr(board_runs, "datetime", Clock)
    monkeypatch.setattr(board_runs, "LOOK_AT_CLOCK_S", 0.01)
    offered = offered_to(key_of(tmp_path / "mine")[1])
    offered.ca, offered.certificate = authority.trusted(), one.pem
    told = asyncio.Event()
    run = HostedRun(offered, tmp_path, EventLog("board"))
    run.start(Owned(key=one.key_pem(), data=None, own_code=frozenset()), told.set)
    await asyncio.sleep(0)  # it starts the device process
    assert (tmp_path / "tls" / "cert.pem").exists()
    Clock.left = timedelta(hours=2)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(told.wait(), 0.2)
    assert run.told().state == "running"
    Clock.left = timedelta(hours=-1)
    await told.wait()
    await run.stop()
    assert (run.told().state, run.is_over) == ("failed", True)
    assert "expired on" in run.told().reason


def agent_with(folder: Path, *offers: str) -> BoardAgent:
    """An agent that had these offers, which its board refuses, when it ended."""
    known = [pb.Offer(offer_id=offer_id, gps="127.0.0.1:1") for offer_id in offers]
    write_sealed(folder / "offers", pb.FetchOffersResponse(offers=known).SerializeToString())
    return BoardAgent(pb.Board(name="a", most_runs=1), NOTHING, folder, None, EventLog("board"))


async def test_the_newest_runs_that_were_given_back_keep_their_state_however_long_ago_they_began(
    tmp_path: Path,
) -> None:
    agent = agent_with(tmp_path, "long")
    await agent.go_on()
    for number in range(FOLDERS_KEPT):
        (tmp_path / "runs" / f"other-{number}").mkdir()
        os.utime(tmp_path / "runs" / f"other-{number}", (1_000 + number, 1_000 + number))
    os.utime(tmp_path / "runs" / "long", (1, 1))
    agent_with(tmp_path)
    await agent.go_on()
    kept = {path.name for path in (tmp_path / "runs").iterdir()}
    assert kept == {"long", *(f"other-{number}" for number in range(1, FOLDERS_KEPT))}


async def test_an_agent_starts_with_a_damaged_file_of_its_offers(tmp_path: Path) -> None:
    agent = agent_with(tmp_path, "run")
    (tmp_path / "offers").write_bytes(b"cut")
    await agent.go_on()
    assert not (tmp_path / "runs").exists()


# --- a run --------------------------------------------------------------------------------------------------


def everything(taken: dict[str, int], away: tuple[str, ...] = (), most_runs: int = 1) -> pb.FetchFleetResponse:
    """A fleet whose boards have so many offers each."""
    reply = pb.FetchFleetResponse()
    for name, offers in taken.items():
        reply.boards.add(board=pb.Board(name=name, most_runs=most_runs), is_here=name not in away)
        for number in range(offers):
            reply.offers.add(offer_id=f"{name}-{number}", boards=[name])
    return reply


def of(text: str, fleet: pb.FetchFleetResponse, most: int | None = None) -> dict[str, range]:
    return {share.board.name: share.devices for share in shares(parse_experiment(text), fleet, most)}


def test_boards_share_devices_evenly_those_with_room_first() -> None:
    fleet = everything({"a": 1, "b": 0, "c": 0, "d": 0}, away=("d",))
    assert of(DIGITS, fleet) == {"b": range(2), "c": range(2, 4), "a": range(4, 5)}
    assert of(DIGITS, fleet, 2) == {"b": range(3), "c": range(3, 5)}
    assert len(of(DIGITS, everything({f"board-{number}": 0 for number in range(9)}))) == 5
    with pytest.raises(ExperimentError, match="no board calls the fleet"):
        of(DIGITS, everything({"a": 0}, away=("a",)))


def test_with_own_data_the_boards_are_those_of_its_names_here_or_not() -> None:
    fleet = everything({"board-0": 0, "board-1": 3, "board-2": 0}, away=("board-2",))
    assert of(OWN, fleet) == {"board-1": range(1), "board-2": range(1, 2)}
    with pytest.raises(ExperimentError, match=r"is called board-2; .* The fleet has board-1$"):
        of(OWN, everything({"board-1": 0}))
    with pytest.raises(ExperimentError, match="--boards 1: the data of this run's devices are on 2 boards"):
        of(OWN, fleet, 1)


def test_a_run_that_goes_on_takes_the_boards_with_its_state_whatever_else_they_do() -> None:
    fleet = everything({"a": 2, "b": 0, "c": 0}, away=("a",))
    again = shares_again({"c": (0, 3), "a": (3, 5)}, fleet)
    assert {share.board.name: share.devices for share in again} == {"c": range(3), "a": range(3, 5)}
    with pytest.raises(ExperimentError, match="this run's devices have their state on 'd'"):
        shares_again({"c": (0, 3), "d": (3, 5)}, fleet)
    with pytest.raises(ExperimentError, match="--boards 1: this run's devices have their state on 2 boards"):
        shares_again({"c": (0, 3), "a": (3, 5)}, fleet, 1)


@pytest.fixture
def certs(tmp_path: Path) -> Path:
    """The certificates of a lab: its authority, and an operator."""
    for words in (["init", "lab"], ["issue", "operator"]):
        assert execute(["certs", *words, "--folder", str(tmp_path / "certs")]) == 0
    return tmp_path / "certs"


async def test_a_fleet_that_does_not_answer_is_named_in_time(certs: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(AddressError, match=f"the fleet at {address} has not answered for 0.2 s"):
            async with FleetClient(FleetPlace(address=address, tls=certs / "operator"), patience_s=0.2):
                raise AssertionError("it is reached")
        client = FleetClient(FleetPlace(address=address, tls=certs / "operator"), patience_s=0.2)
        with pytest.raises(AddressError, match=f"the fleet at {address} has not answered for 0.2 s"):
            await client.withdraw("run")
        await client.close()


async def test_a_fleet_takes_an_offer_to_a_thousand_boards(
    certs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.fsync", lambda _: None)  # for two thousand files
    assert execute(["certs", "issue", "fleet", "--folder", str(certs)]) == 0
    names = [f"board-{number}" for number in range(1_000)]
    (tmp_path / "fleet").mkdir()
    fleet = fleet_of(tmp_path / "fleet", *names)
    server = RpcServer(LinkMeter(), security=TlsSecurity(TlsFiles.load(certs / "fleet")))
    server.add(add_FleetServiceServicer_to_server, FleetServicer(fleet, EventLog("fleet")), "fedstrata.v1.FleetService")
    await server.start("127.0.0.1:0")
    loans = [pb.Loan(board=name, certificate=b"x" * 900) for name in names]
    async with FleetClient(FleetPlace(address=server.address, tls=certs / "operator")) as client:
        await client.offer(pb.OfferRunRequest(offer_id="run", loans=loans))
        told = await client.everything()
    await server.stop()
    assert (len(told.boards), len(told.offers[0].boards)) == (1_000, 1_000)


async def test_an_offer_to_too_many_boards_is_not_sent(certs: Path) -> None:
    client = FleetClient(FleetPlace(address="127.0.0.1:1", tls=certs / "operator"))
    loans = [pb.Loan(board=f"board-{number}", certificate=b"x" * 1_000) for number in range(2_000)]
    with pytest.raises(ExperimentError, match=r"the offer to 2000 boards has 20.* offer the run to fewer boards"):
        await client.offer(pb.OfferRunRequest(offer_id="run", loans=loans))
    await client.close()


async def test_a_run_whose_gps_only_this_machine_reaches_says_so(
    certs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = FleetPlace(address="127.0.0.1:1", tls=certs / "operator")
    backend = FleetBackend(
        tmp_path / "run", device_processes=None, on_restart=print, has_tls=True, fleet=place, most_boards=None
    )
    assert "the GPS listens at 127.0.0.1, which only boards on this machine reach" in capsys.readouterr().err
    await backend.stop()


def test_an_address_without_a_way_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    kind = (socket.AF_INET, socket.SOCK_DGRAM, 0, "")
    found = [(*kind, ("255.255.255.255", 1)), (*kind, ("127.0.0.1", 1))]  # the first is for broadcasts alone
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    assert own_host("fleet:1") == "127.0.0.1"
    del found[1]
    with pytest.raises(AddressError, match="no route to the fleet at fleet:1: Permission denied"):
        own_host("fleet:1")


def test_an_address_that_no_name_can_have_is_refused() -> None:
    with pytest.raises(AddressError, match=r"'10.0.0..2:50070' is not an address"):
        own_host("10.0.0..2:50070")


def test_options_of_another_place_are_refused() -> None:
    with pytest.raises(ExperimentError, match="--boards needs a fleet"):
        Devices(boards=2).backend()
    with pytest.raises(ExperimentError, match="--device-processes does not go with --fleet"):
        Devices(fleet="127.0.0.1:1", device_processes=2).backend()


def test_a_run_on_boards_does_not_ask_for_this_machines_processor(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    file = tmp_path / "few.yaml"
    file.write_text(DIGITS)
    words = ["run", str(file), "--set", "devices.processor=cuda"]
    assert execute([*words, "--out", str(tmp_path / "here")]) == 2
    assert "cuda" in capsys.readouterr().err
    on_boards = ["--fleet", "127.0.0.1:1", "--fleet-tls", str(tmp_path / "none")]
    assert execute([*words, "--out", str(tmp_path / "boards"), *on_boards]) == 2
    said = capsys.readouterr().err
    assert "cuda" not in said
    assert str(tmp_path / "none") in said


def test_the_fleets_own_authority_certifies_no_run(
    certs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "few.yaml"
    file.write_text(DIGITS)
    words = ["fleet", "offer", "127.0.0.1:1", str(file), "--gps", "127.0.0.1:2", "--tls", str(certs / "operator")]
    assert execute([*words, "--folder", str(certs)]) == 2
    assert "is the fleet's own, 'lab'" in capsys.readouterr().err
