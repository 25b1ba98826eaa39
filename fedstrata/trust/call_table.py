"""The table that says who may make which call. A call without a row is refused for everybody. `make reference` writes
the table as a page.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from fedstrata.trust.names import ROLES, Role

GPS, LPS, RUN = "/fedstrata.v1.GpsService/", "/fedstrata.v1.LpsService/", "/fedstrata.v1.RunService/"
FLEET = "/fedstrata.v1.FleetService/"
MOST_ASKED_BYTES = 1 << 16  # largest single message of a call; the longest real message names a hundred devices
MOST_OFFERED_BYTES = 1 << 20  # largest offer of a fleet; it has a certificate for each board, so about 1,000 boards
HEALTH = "/grpc.health.v1.Health/"
REFLECTION = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"


@dataclass(frozen=True)
class Claim:
    """Hold what a message states about its sender: the sender's id, and the cluster for which the sender speaks, if
    any.
    """

    id: str | None  # None if messages of this kind do not state it
    home_id: str | None = None
    term: int | None = None  # the LPS's term as the cluster's LPS; None if the message does not state it


Claims = Callable[[Any], Iterator[Claim]]


@dataclass(frozen=True)
class Rule:
    """State who may make a call: the allowed roles, and how to read the sender's id from a message. A call is refused
    if one of its messages states a sender that the caller's certificate does not name.
    """

    roles: tuple[Role, ...]
    claims: Claims | None = None  # reads the senders that a message states; None if messages state no sender
    is_of_cluster: bool = False  # whether the caller must belong to the cluster that the message names
    most_bytes: int = MOST_ASKED_BYTES  # largest size of a single message of a call


def _device(message: Any) -> Iterator[Claim]:
    yield Claim(message.device_id)


def _board(message: Any) -> Iterator[Claim]:
    yield Claim(message.board.name)


def _lps(message: Any) -> Iterator[Claim]:
    yield Claim(message.lps_id)


def _header(claims: Claims) -> Claims:
    """Return a function that reads the sender from the messages of a stream. Only the header of the stream names the
    sender.
    """

    def of(part: Any) -> Iterator[Claim]:
        if part.HasField("header"):
            yield from claims(part.header)

    return of


def _device_of_cluster(message: Any) -> Iterator[Claim]:
    yield Claim(message.child_id, message.home_id)
    if "then_fetch" in message.DESCRIPTOR.fields_by_name and message.HasField("then_fetch"):
        yield from _device_of_cluster(message.then_fetch)


def _holder(message: Any) -> Iterator[Claim]:
    yield Claim(message.device_id, message.home_id)


def _measured(message: Any) -> Iterator[Claim]:
    yield Claim(message.evaluation.device_id, message.home_id)


def _cluster(message: Any) -> Iterator[Claim]:
    """Yield what a message of an LPS states about its sender. The LPS speaks for a cluster that it serves."""
    fields = message.DESCRIPTOR.fields_by_name
    lps_id = message.lps_id if "lps_id" in fields else None
    yield Claim(lps_id, message.home_id, message.term if "term" in fields else None)
    if "child_id" in fields and message.child_id != message.home_id:
        yield Claim(lps_id, message.child_id, message.term if "term" in fields else None)
    if "then_fetch" in fields and message.HasField("then_fetch"):
        yield from _cluster(message.then_fetch)


def _attended(claims: Claims) -> Claims:
    """Return a function that reads the senders from the messages of an `Attend` stream, in which requests, answers and
    updates alternate.
    """

    def of(part: Any) -> Iterator[Claim]:
        for kind in ("header", "fetch", "answer", "announced"):
            if part.HasField(kind):
                yield from claims(getattr(part, kind))

    return of


OPERATOR = Rule(("operator",))
ANYBODY = Rule(ROLES)
TABLE: Mapping[str, Rule] = {
    GPS + "Enroll": Rule(("device",), _device),
    GPS + "SubmitAnswer": Rule(("device",), _header(_device)),
    GPS + "FetchAnswers": Rule(("device",), _device),
    GPS + "FetchAssignment": Rule(("device",), _device),
    GPS + "RegisterLps": Rule(("lps",), _lps),
    GPS + "FetchClusters": Rule(("lps",), _lps),
    GPS + "FetchShared": Rule(("lps",), _cluster, is_of_cluster=True),
    GPS + "SubmitAggregate": Rule(("lps",), _header(_cluster), is_of_cluster=True),
    GPS + "Attend": Rule(("lps",), _attended(_cluster), is_of_cluster=True),
    GPS + "LocateUpdate": Rule(("lps",), _cluster, is_of_cluster=True),
    GPS + "SubmitAnswers": Rule(("lps",), _header(_cluster), is_of_cluster=True),
    GPS + "SubmitReport": Rule(("lps",), _header(_cluster), is_of_cluster=True),
    GPS + "ReportFailure": Rule(("lps",), _lps),
    LPS + "FetchModel": Rule(("device",), _device_of_cluster, is_of_cluster=True),
    LPS + "SubmitUpdate": Rule(("device",), _header(_device_of_cluster), is_of_cluster=True),
    LPS + "Attend": Rule(("device",), _attended(_device_of_cluster), is_of_cluster=True),
    LPS + "LocateUpdate": Rule(("device",), _device_of_cluster, is_of_cluster=True),
    LPS + "SubmitEvaluation": Rule(("device",), _measured, is_of_cluster=True),
    LPS + "SubmitModel": Rule(("device",), _header(_holder), is_of_cluster=True),
    RUN + "WatchRun": OPERATOR,
    RUN + "FetchRecord": OPERATOR,
    RUN + "StopRun": OPERATOR,
    FLEET + "FetchOffers": Rule(("device",), _board),
    FLEET + "FetchFleet": OPERATOR,
    FLEET + "OfferRun": Rule(("operator",), most_bytes=MOST_OFFERED_BYTES),
    FLEET + "WithdrawRun": OPERATOR,
    REFLECTION: OPERATOR,
    HEALTH + "Check": ANYBODY,
    HEALTH + "Watch": ANYBODY,
}
