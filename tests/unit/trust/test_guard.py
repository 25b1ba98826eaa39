"""Who may call what, by every identity, which docs/reference/calls.md shows; and whose certificates count no more."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from google.protobuf.message_factory import GetMessageClass

from fedstrata.errors import NotAllowedError, OutdatedError, TooManyCallsError
from fedstrata.rpc.client import PASSING
from fedstrata.rpc.counting import METHODS
from fedstrata.trust.authority import Authority
from fedstrata.trust.call_table import TABLE
from fedstrata.trust.guard import RECENT_S, Caller, Guard, Lookout, Outdated
from fedstrata.trust.names import Name, Peer
from fedstrata.trust.rate_limits import Shares
from fedstrata.trust.security import TlsSecurity
from fedstrata.trust.tls_files import TlsFiles
from fedstrata.v1 import rounds_pb2
from tests.support.guarded_server import (
    ALL,
    CALLERS,
    OTHERS,
    OWN,
    Clusters,
    Served,
    called,
    said_by,
)

DOCUMENT = Path(__file__).parents[3] / "docs" / "reference" / "calls.md"
DEVICE, OPERATOR, ROW = Name("device", "device-000"), Name("operator"), Name("device", "device-000", "device-009")
CHECK, ENROLL, ATTEND = (
    "/grpc.health.v1.Health/Check",
    "/fedstrata.v1.GpsService/Enroll",
    "/fedstrata.v1.LpsService/Attend",
)
WATCH, RECORD = "/fedstrata.v1.RunService/WatchRun", "/fedstrata.v1.RunService/FetchRecord"
ASSIGNMENT = "/fedstrata.v1.GpsService/FetchAssignment"


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    async with Served(tmp_path, Authority.new("run-1")) as server:
        yield server


async def walked(served: Served) -> dict[str, dict[str, str]]:
    """What each caller hears on every RPC."""
    heard: dict[str, dict[str, str]] = {path: {} for path in ALL}
    for caller, (name, who) in CALLERS.items():
        async with served.channel_of(name) as channel:
            for path in ALL:
                heard[path][caller] = await called(channel, path, said_by(path, who))
    return heard


def shown() -> dict[str, dict[str, str]]:
    """Return what the document's table says of each call, by kind of caller."""
    rows = [line.strip("| ").split(" | ") for line in DOCUMENT.read_text("utf-8").splitlines() if line.startswith("| ")]
    head, _, *calls = rows
    return {call.strip("`"): dict(zip(head[1:], said, strict=True)) for call, *said in calls}


def allowed(said: Mapping[str, str]) -> set[str]:
    """Return the callers that a row of the document allows."""
    by_role = {
        "a device": ("the device", "another device for it", "a device of another cluster"),
        "an LPS": ("the LPS", "another LPS for it", "an LPS of another cluster"),
        "an operator": ("an operator",),
        "the GPS": ("the GPS",),
    }
    found: set[str] = set()
    for role, (itself, *others) in by_role.items():
        match said[role]:
            case "yes":
                found |= {itself, *others}
            case "for itself":
                found |= {itself, others[1]}
            case "for itself, in its cluster":
                found |= {itself}
            case other:
                assert other == "–"
    return found


async def test_every_call_by_every_identity_is_as_the_document_shows(served: Served) -> None:
    heard = {path.rpartition(".")[2]: by for path, by in (await walked(served)).items()}
    assert {name for by in heard.values() for name in by} == set(CALLERS)
    made = {call: {caller for caller, said in by.items() if said == "OK"} for call, by in heard.items()}
    assert made == {"Health/List": set(), **{call: allowed(said) for call, said in shown().items()}}


def test_every_call_has_a_rule_and_every_rule_a_call() -> None:
    assert set(ALL) - set(TABLE) == {"/grpc.health.v1.Health/List"}  # which nobody here serves
    assert set(TABLE) < set(ALL)
    assert set(METHODS) <= set(TABLE)


async def test_a_refusal_is_counted_by_why(served: Served) -> None:
    async with served.channel_of(Name("device", "device-000")) as channel:
        path = "/fedstrata.v1.RunService/StopRun"
        assert await called(channel, path, said_by(path, "")) == (
            "device/device-000 may not call StopRun; allowed: operator"
        )
        path = "/fedstrata.v1.GpsService/Enroll"
        assert "in the name of 'device-001'" in await called(channel, path, said_by(path, "device-001"))
        assert (
            await called(channel, path, said_by(path, ""))
            == "the message of device/device-000 does not name its sender"
        )
    assert [served.refused("role"), served.refused("identity")] == [1, 2]
    assert not served.heard


def attended(device_id: str, *, then: str = "") -> Iterator[Any]:
    """What a device may say in a session, in its name or another's."""
    fetch = rounds_pb2.FetchModelRequest(child_id=device_id, home_id=OWN)
    then_fetch = rounds_pb2.FetchModelRequest(child_id=then or device_id, home_id=OWN)
    yield rounds_pb2.UpdatePart(fetch=fetch)
    header = rounds_pb2.UpdateHeader(child_id=device_id, home_id=OWN, then_fetch=then_fetch)
    yield rounds_pb2.UpdatePart(header=header)
    yield rounds_pb2.UpdatePart(header=header, small=b"1234")
    answer = rounds_pb2.RoundAnswer(child_id=device_id, home_id=OWN, then_fetch=then_fetch)
    yield rounds_pb2.UpdatePart(answer=answer)
    yield rounds_pb2.UpdatePart(announced=header)


async def test_a_device_that_speaks_for_itself_is_heard_to_the_end(served: Served) -> None:
    parts = [*attended("device-000"), rounds_pb2.UpdatePart(data=b"12")]
    async with served.channel_of(Name("device", "device-000")) as channel:
        assert await called(channel, ATTEND, *parts) == "OK"
    assert len(served.heard) == len(parts) + 1  # the small payload is a part of its own
    # two are the handler's and the count's: no part stays in memory longer; a header keeps its small payload
    assert sorted(served.references) == [2] * len(parts) + [3]


@pytest.mark.parametrize("number", range(5))
async def test_one_message_in_anothers_name_ends_a_session_that_began_well(served: Served, number: int) -> None:
    good, bad = list(attended("device-000")), list(attended("device-007"))
    async with served.channel_of(Name("device", "device-000")) as channel:
        heard = await called(channel, ATTEND, *good, bad[number])
    assert heard == "device/device-000 may not call Attend in the name of 'device-007'"


@pytest.mark.parametrize("number", [1, 2, 3, 4])
async def test_what_is_asked_for_next_is_asked_for_in_ones_own_name(served: Served, number: int) -> None:
    part = list(attended("device-000", then="device-007"))[number]
    async with served.channel_of(Name("device", "device-000")) as channel:
        assert "'device-007'" in await called(channel, ATTEND, part)


@pytest.mark.parametrize(
    ("said", "is_heard"),
    [
        ({"child_id": OWN, "home_id": OWN, "lps_id": OWN}, True),
        ({"child_id": OWN, "home_id": OWN}, False),  # its bytes would be counted as another's
        ({"child_id": OTHERS, "home_id": OWN, "lps_id": OWN}, False),
        ({"child_id": OWN, "home_id": OTHERS, "lps_id": OWN}, False),
        ({"child_id": OWN, "home_id": OWN, "lps_id": OTHERS}, False),
        ({"child_id": OWN, "home_id": OWN, "lps_id": OWN, "term": 1}, False),
    ],
)
async def test_an_lps_speaks_for_its_own_cluster_in_its_own_term(
    served: Served, said: dict[str, Any], is_heard: bool
) -> None:
    path = "/fedstrata.v1.GpsService/SubmitAggregate"
    part = rounds_pb2.UpdatePart(header=rounds_pb2.UpdateHeader(**said))
    async with served.channel_of(Name("lps", OWN)) as channel:
        assert (await called(channel, path, part) == "OK") is is_heard


@dataclass
class Guarded:
    """A guard without a server, which is asked by hand, and a device that calls."""

    folder: Path
    authority: Authority = field(default_factory=lambda: Authority.new("run-1"))
    refused: list[str] = field(default_factory=list)
    now_s: float = field(default_factory=time.time)

    def __post_init__(self) -> None:
        self.authority.issue([Name("gps")], self.folder)
        self.tls = TlsFiles.load(self.folder)
        self.outdated = Outdated(lambda: self.now_s)
        self.guard = Guard(
            self.tls, Clusters(), self.refused.append,
            shares=Shares(1024), outdated=self.outdated, clock=lambda: self.now_s,
        )  # fmt: skip
        self.caller = Caller(Peer("run-1", (DEVICE,)), self.authority.issued([DEVICE])["cert.pem"])

    def revoke(self, *names: str) -> None:
        (self.folder / "revoked.txt").write_text("".join(f"{name}\n" for name in names))
        self.tls.revoked(at_once=True)

    def drop_authority(self) -> None:
        self.authority.succeeded().alone().issue([Name("gps")], self.folder)
        self.tls.newest(at_once=True)

    async def check(self, part: Any) -> None:
        await self.guard.check(self.caller, ATTEND, TABLE[ATTEND], part)


@pytest.fixture
def guarded(tmp_path: Path) -> Guarded:
    return Guarded(tmp_path)


@pytest.mark.parametrize("version", [None, b"TLSv1.2"])
def test_a_caller_whose_tls_is_not_known_to_be_1_3_is_refused(guarded: Guarded, version: bytes | None) -> None:
    auth = {"peer_uri": [b"spiffe://run-1/operator"], **({"ssl_tls_version": [version]} if version else {})}
    context: Any = SimpleNamespace(auth_context=lambda: auth)
    with pytest.raises(NotAllowedError, match=r"does not speak TLS 1\.3"):
        guarded.guard.caller(context, "/fedstrata.v1.RunService/StopRun", TABLE["/fedstrata.v1.RunService/StopRun"])
    assert guarded.refused == ["tls"]


async def test_a_certificate_of_another_run_by_the_same_authority_is_refused(served: Served) -> None:
    other = Authority(domain="run-2", certificate=served.authority.certificate, key=served.authority.key)
    path = "/grpc.health.v1.Health/Check"
    async with served.channel_of(Name("operator"), other) as channel:
        assert await called(channel, path, said_by(path, "")) == "operator belongs to run 'run-2', but this is 'run-1'"


async def test_bytes_that_are_no_message_are_refused_in_one_line_once_it_is_known_who_may_call(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    for name, said in ((Name("device", "device-000"), grpc.StatusCode.INVALID_ARGUMENT),
                       (Name("operator"), grpc.StatusCode.PERMISSION_DENIED)):  # fmt: skip
        async with served.channel_of(name) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await channel.unary_unary("/fedstrata.v1.GpsService/Enroll")(b"\xff\xff no message", timeout=20)
        assert refused.value.code() is said
    told = [record.message for record in caplog.records if record.levelno >= logging.INFO]  # grpc tells of its loop
    assert told == ["call_refused"] * 2
    assert not served.heard


# --- whose certificate counts no more ----------------------------------------------------------------------

REFUSED: dict[str, tuple[Callable[[Guarded], object], type[Exception], str, str]] = {
    "revoked": (
        lambda to: to.revoke("device/device-000"), NotAllowedError, "revoked", "device/device-000 is revoked; ask the"
    ),
    "of a dropped authority": (
        lambda to: to.drop_authority(), OutdatedError, "outdated",
        "device/device-000 comes from an authority that is no longer trusted; renew it",
    ),
    "run out": (
        lambda to: setattr(to, "now_s", to.now_s + 366 * 86_400), OutdatedError, "outdated", "expired on .* UTC"
    ),
}  # fmt: skip


@pytest.mark.parametrize(("change", "error", "reason", "text"), REFUSED.values(), ids=REFUSED)
async def test_a_session_ends_at_the_next_message_in_the_name_of_who_counts_no_more(
    guarded: Guarded, change: Callable[[Guarded], object], error: type[Exception], reason: str, text: str
) -> None:
    for part in attended("device-000"):
        await guarded.check(part)
    change(guarded)
    parts = list(attended("device-000"))
    for part in parts:
        with pytest.raises(error, match=text):
            await guarded.check(part)
    assert guarded.refused == [reason] * len(parts)


@pytest.mark.parametrize(
    ("change", "is_heard"), [(change, error is OutdatedError) for change, error, *_ in REFUSED.values()], ids=REFUSED
)
async def test_an_upload_that_has_begun_comes_to_its_end_unless_its_sender_is_revoked(
    guarded: Guarded, change: Callable[[Guarded], object], is_heard: bool
) -> None:
    change(guarded)
    data = rounds_pb2.UpdatePart(data=b"12")
    if is_heard:
        await guarded.check(data)
    else:
        with pytest.raises(NotAllowedError):
            await guarded.check(data)


async def test_who_was_refused_lately_is_shut_out_and_is_logged_once_a_minute(
    guarded: Guarded, caplog: pytest.LogCaptureFixture
) -> None:
    guarded.drop_authority()
    begin = guarded.now_s
    assert not guarded.outdated.shuts_out("device", "device-000")
    for seconds in (0, 2, 4, 61):
        guarded.now_s = begin + seconds
        with pytest.raises(OutdatedError):
            guarded.guard.check_sent(guarded.caller)
    assert guarded.outdated.shuts_out("device", "device-000")
    assert not guarded.outdated.shuts_out("device", "device-001")
    guarded.now_s += RECENT_S + 1
    assert not guarded.outdated.shuts_out("device", "device-000")
    assert [record.message for record in caplog.records].count("certificate_outdated") == 2


def test_an_operator_learns_whose_certificate_is_to_be_renewed(guarded: Guarded) -> None:
    security = TlsSecurity(guarded.tls)
    (guard,) = security.guards(Clusters(), guarded.refused.append, 1)
    guarded.drop_authority()
    with pytest.raises(OutdatedError):
        guard.check_sent(guarded.caller)
    assert security.advice_on("device-000") == "its certificate has expired or is of an old authority, renew it"
    assert not security.advice_on("device-001")
    guarded.revoke("device/device-001")
    assert security.advice_on("device-001") == "it is revoked"


@pytest.mark.parametrize("error", [OutdatedError, TooManyCallsError])
def test_who_is_refused_for_a_while_tries_again(error: type[OutdatedError]) -> None:
    assert grpc.StatusCode[error.status] in PASSING


@pytest.mark.parametrize("is_revoked", [True, False])
async def test_a_call_that_is_in_nobodys_name_is_refused_too(served: Served, is_revoked: bool) -> None:
    async with served.channel_of(DEVICE) as channel:
        assert await called(channel, CHECK, said_by(CHECK, "")) == "OK"
        if is_revoked:
            served.revoke("device/device-000")
        else:
            served.late_s = 366 * 86_400
        heard = await called(channel, CHECK, said_by(CHECK, ""))
    assert ("is revoked" if is_revoked else "expired on") in heard


async def test_of_a_row_only_who_is_revoked_is_not_heard(served: Served) -> None:
    served.revoke("device/device-004")
    async with served.channel_of(ROW) as channel:
        assert await called(channel, ENROLL, said_by(ENROLL, "device-003")) == "OK"
        assert (await called(channel, ENROLL, said_by(ENROLL, "device-004"))).startswith("'device-004' is revoked")
    assert served.refused("revoked") == 1


async def test_over_an_open_connection_nobody_speaks_by_an_authority_that_is_dropped(served: Served) -> None:
    new = served.authority.succeeded()
    async with served.channel_of(DEVICE) as channel:
        assert await called(channel, CHECK, said_by(CHECK, "")) == "OK"
        served.trust(new)  # both count
        assert await called(channel, ENROLL, said_by(ENROLL, "device-000")) == "OK"
        served.trust(new.alone())
        refused = await called(channel, ENROLL, said_by(ENROLL, "device-000"))
        assert refused.startswith(
            "the certificate of device/device-000 comes from an authority that is no longer trusted"
        )
        new.alone().issue([DEVICE], served.folder / str(DEVICE))
        channel._connection.tls.newest(at_once=True)  # type: ignore[attr-defined]  # which it does once a second
        assert await called(channel, ENROLL, said_by(ENROLL, "device-000")) == "OK"
    assert served.refused("outdated") == 1
    assert len(served.heard) == 2


# --- calls under way ----------------------------------------------------------------------------------------


@dataclass
class Holding(Served):
    """A server that holds all calls: streams after a first reply, but for FetchRecord, which has no end."""

    is_held: asyncio.Event = field(default_factory=asyncio.Event)
    gone: list[str] = field(default_factory=list)

    def _handler(self, method: Any) -> Any:
        handler = super()._handler(method)
        reply = GetMessageClass(method.output_type)

        async def hold() -> None:
            self.is_held.set()
            try:
                await asyncio.Event().wait()
            finally:
                self.gone.append(method.name)

        async def one(request: Any, context: Any) -> Any:
            await hold()

        async def several(request: Any, context: Any) -> AsyncIterator[Any]:
            yield reply()
            while method.name == "FetchRecord":
                yield reply()
            await hold()

        kinds = ("unary_unary", "unary_stream", "stream_unary", "stream_stream")
        kind = next(kind for kind in kinds if getattr(handler, kind))
        return handler._replace(**{kind: several if method.server_streaming else one})


@pytest.fixture
async def holding(tmp_path: Path) -> AsyncIterator[Holding]:
    async with Holding(tmp_path, Authority.new("run-1")) as server, asyncio.timeout(60):
        yield server


def begun(channel: grpc.aio.Channel, path: str, **fields: Any) -> Any:
    method = ALL[path]
    make = channel.unary_stream if method.server_streaming else channel.unary_unary
    request, reply = GetMessageClass(method.input_type), GetMessageClass(method.output_type)
    return make(path, request.SerializeToString, reply.FromString)(request(**fields))


async def read_to_the_end(call: Any) -> None:
    while await call.read() is not grpc.aio.EOF:  # type: ignore[attr-defined]
        pass


@pytest.mark.parametrize(
    ("path", "is_revoked", "code", "text"),
    [
        (WATCH, True, grpc.StatusCode.PERMISSION_DENIED, "operator is revoked; ask the operator of this run"),
        (RECORD, True, grpc.StatusCode.PERMISSION_DENIED, "operator is revoked; ask the operator of this run"),
        (RECORD, False, grpc.StatusCode.UNAUTHENTICATED, "the certificate of operator expired"),
    ],
)
async def test_nothing_more_is_sent_to_who_counts_no_more(
    holding: Holding, path: str, is_revoked: bool, code: grpc.StatusCode, text: str
) -> None:
    async with holding.channel_of(OPERATOR) as channel:
        call = begun(channel, path)
        await call.read()
        if is_revoked:
            holding.revoke("operator")
        else:
            holding.late_s = 366 * 86_400
        with pytest.raises(grpc.aio.AioRpcError, match=text) as caught:
            await read_to_the_end(call)
    assert caught.value.code() is code
    assert holding.refused("revoked" if is_revoked else "outdated") == 1
    assert holding.gone == ["WatchRun"][: path == WATCH]


async def test_a_call_that_is_held_ends_and_those_of_others_go_on(holding: Holding) -> None:
    async with holding.channel_of(DEVICE) as channel, holding.channel_of(Name("device", "device-001")) as other:
        held = begun(other, ASSIGNMENT, device_id="device-001")
        await holding.is_held.wait()
        holding.is_held.clear()
        call = begun(channel, ASSIGNMENT, device_id="device-000")
        await holding.is_held.wait()
        holding.revoke("device/device-000")
        with pytest.raises(grpc.aio.AioRpcError, match="device/device-000 is revoked"):
            await call
        assert holding.gone == ["FetchAssignment"]
        assert not held.done()
        held.cancel()


NOBODY = Caller(Peer("run-1", (DEVICE,)), b"")


async def test_a_time_out_of_the_block_itself_stays_one() -> None:
    lookout = Lookout(lambda who: True, lambda who: None)
    with pytest.raises(TimeoutError, match="of its own"):
        async with lookout.over(NOBODY):
            raise TimeoutError("of its own")


async def test_who_counts_again_meanwhile_may_try_again() -> None:
    lookout = Lookout(lambda who: False, lambda who: None, every_s=0.0)
    with pytest.raises(OutdatedError, match="was not valid a moment ago; try again"):
        async with lookout.over(NOBODY):
            await asyncio.Event().wait()
