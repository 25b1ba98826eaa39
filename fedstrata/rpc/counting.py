"""Count the bytes of every message when it is serialised or parsed, at both ends of a link.

gRPC gives each message to a serialiser function. The classes in this module wrap this function. On the wire, a message
has a frame of five bytes besides its own bytes. HTTP/2 and TCP add less than one percent to a payload chunk.
"""

from collections.abc import Callable, Mapping
from typing import Any

import grpc

from fedstrata.process.metrics import LinkKey, LinkMeter
from fedstrata.rpc.chunk import Chunk, Whole, part_parser
from fedstrata.rpc.streamed import streamed
from fedstrata.trust.undecoded import or_undecoded
from fedstrata.v1 import rounds_pb2

FRAME_BYTES = 5
ANSWER = "answer"  # kind of answers; the answer to a known question has the question's name as its kind
ATTEND = "attend"  # not a kind: messages of Attend count as if FetchModel or SubmitUpdate carried them

# Each RPC's link, and the kind of its bytes. Children make the calls, so requests go up, and replies come down.
_GPS, _LPS = "/fedstrata.v1.GpsService/", "/fedstrata.v1.LpsService/"
METHODS: Mapping[str, tuple[str, str]] = {
    _GPS + "Enroll": ("device-gps", "control"),
    _GPS + "SubmitAnswer": ("device-gps", ANSWER),
    _GPS + "FetchAnswers": ("device-gps", ANSWER),
    _GPS + "FetchAssignment": ("device-gps", "control"),
    _GPS + "RegisterLps": ("lps-gps", "control"),
    _GPS + "FetchClusters": ("lps-gps", "control"),
    _GPS + "FetchShared": ("lps-gps", "shared"),
    _GPS + "SubmitAggregate": ("lps-gps", "shared"),
    _GPS + "Attend": ("lps-gps", "shared"),
    _GPS + "LocateUpdate": ("lps-gps", "control"),
    _GPS + "SubmitAnswers": ("lps-gps", ANSWER),
    _GPS + "SubmitReport": ("lps-gps", "model"),
    _GPS + "ReportFailure": ("lps-gps", "control"),
    _LPS + "FetchModel": ("device-lps", "model"),
    _LPS + "SubmitUpdate": ("device-lps", "update"),
    _LPS + "Attend": ("device-lps", ATTEND),
    _LPS + "LocateUpdate": ("device-lps", "control"),
    _LPS + "SubmitEvaluation": ("device-lps", "control"),
    _LPS + "SubmitModel": ("device-lps", "model"),
}

WITH_PAYLOAD = (bytes, Chunk, Whole)  # types of messages with a payload, when they are sent and when they are read

Serialise = Callable[[Any], bytes]
Parse = Callable[[bytes], Any]
Count = Callable[[Any, int], None]  # called with a message and its bytes on the wire
# Parsers that do not copy the payload, by the parsers that they replace.
_CHUNKED: Mapping[Parse, Parse] = {
    part.FromString: part_parser(part) for part in (rounds_pb2.UpdatePart, rounds_pb2.ModelPart)
}


def _counted_serialise(serialise: Serialise, count: Count) -> Serialise:
    def run(message: Any) -> bytes:
        data = message if isinstance(message, bytes) else serialise(message)
        count(message, len(data) + FRAME_BYTES)
        return data

    return run


def _counted_parse(parse: Parse, count: Count) -> Parse:
    parse = _CHUNKED.get(parse, parse)

    def run(data: bytes) -> Any:
        message = parse(data)
        count(message, len(data) + FRAME_BYTES)
        return message

    return run


def _counter(meter: LinkMeter, method: str, direction: str, end: str) -> Count:
    """Return the function that counts the bytes of an RPC's messages, by link, direction, kind and end."""
    link, kind = METHODS[method]

    def of_kind(kind: str) -> Callable[[int], None]:
        return meter.counter(LinkKey(link=link, direction=direction, kind=kind, end=end))

    def count_answer(message: Any, size: int) -> None:
        named = getattr(message, "question", "")
        of_kind(named if named in meter.questions else ANSWER)(size)

    if kind == ANSWER:
        return count_answer
    if kind != ATTEND:
        add = of_kind(kind)
        return lambda message, size: add(size)
    model, update = of_kind("model"), of_kind("update")
    # Up: `fetch` is a request for a model, all else is part of an update. Down: `reply` answers an update, all else is
    # part of a model.
    few, many, field = (model, update, "fetch") if direction == "up" else (update, model, "reply")

    def count(message: Any, size: int) -> None:
        if type(message) in WITH_PAYLOAD:
            many(size)
        elif direction == "up" and message.HasField("answer"):
            count_answer(message.answer.answer, size)
        elif direction == "down" and message.HasField("go_on"):
            of_kind("control")(size)
        else:
            (few if message.HasField(field) else many)(size)

    return count


class CountingChannel:
    """Count the bytes that generated stubs send and receive on a grpc.aio channel, at the child's end of a link."""

    def __init__(self, channel: grpc.aio.Channel, meter: LinkMeter) -> None:
        self._channel = channel
        self._meter = meter

    def __getattr__(self, kind: str) -> Any:
        """Return the channel's `unary_unary`, `unary_stream`, … with counted serialisers."""
        make = getattr(self._channel, kind)

        def multicallable(method: str, request_serializer: Serialise, response_deserializer: Parse, **rest: Any) -> Any:
            if method in METHODS:
                up = _counter(self._meter, method, "up", "child")
                down = _counter(self._meter, method, "down", "child")
                request_serializer = _counted_serialise(request_serializer, up)
                response_deserializer = _counted_parse(response_deserializer, down)
            call = make(method, request_serializer, response_deserializer, **rest)
            return streamed(call) if kind == "stream_unary" else call

        return multicallable


class CountingServer:
    """Wrap a grpc.aio server, and count the messages of the services that are added to the wrapper. This process is the
    parent of the link.
    """

    def __init__(self, server: grpc.aio.Server, meter: LinkMeter) -> None:
        self._server = server
        self._meter = meter

    def add_generic_rpc_handlers(self, handlers: Any) -> None:
        """Do nothing, because generated code also passes the same methods to `add_registered_method_handlers`."""

    def add_registered_method_handlers(self, service: str, handlers: Mapping[str, Any]) -> None:
        """Add a service's methods, with counting serialisers."""
        counted = {name: self._counted(f"/{service}/{name}", handler) for name, handler in handlers.items()}
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, counted),))

    def _counted(self, method: str, handler: Any) -> Any:
        if method in METHODS:
            up, down = (_counter(self._meter, method, direction, "parent") for direction in ("up", "down"))
            handler = handler._replace(
                request_deserializer=_counted_parse(handler.request_deserializer, up),
                response_serializer=_counted_serialise(handler.response_serializer, down),
            )
        if handler.request_streaming:
            return handler
        return handler._replace(request_deserializer=or_undecoded(handler.request_deserializer))
