"""The execution id, which identifies one execution of a run. The GPS sends this id to devices and LPSs, for their
spans.

All executions of an experiment file have the same run id. The execution id distinguishes their traces. The GPS sends it
in the metadata of replies, and the byte counts do not include metadata.
"""

import secrets
from functools import partial
from pathlib import Path
from typing import Any

import grpc

from fedstrata.process.spans import Spans, process_spans
from fedstrata.store import write_aside

KEY = "fedstrata-execution"
FIRST_CALLS = (
    "/fedstrata.v1.GpsService/Enroll",
    "/fedstrata.v1.GpsService/RegisterLps",
)  # first call of devices, and of LPSs


class _Telling(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]  # generic in its stubs only
    def __init__(self, execution: str) -> None:
        self._metadata = ((KEY, execution),)

    async def intercept_service(self, continuation: Any, details: grpc.HandlerCallDetails) -> Any:
        handler = await continuation(details)

        async def run(request: Any, context: Any) -> Any:
            context.set_trailing_metadata(self._metadata)
            return await handler.unary_unary(request, context)

        return handler._replace(unary_unary=run) if details.method in FIRST_CALLS else handler


def telling(state: Path) -> list[Any]:
    """Return a list with the interceptor by which the GPS sends the execution id. A file in the folder `state` keeps
    the id. If this process sends no spans, the list is empty.
    """
    if (spans := process_spans()) is None:
        return []
    path = state / "execution"
    if not path.exists():
        with write_aside(path) as file:
            file.write(secrets.token_hex(16).encode())
    execution = path.read_text(encoding="utf-8")
    spans.belong_to(execution)
    return [_Telling(execution)]


class _Hearing:
    def __init__(self, channel: Any, spans: Spans) -> None:
        self._channel, self._spans = channel, spans

    def __getattr__(self, kind: str) -> Any:
        return partial(self._multicallable, getattr(self._channel, kind))

    def _multicallable(self, make: Any, method: str, *words: Any, **rest: Any) -> Any:
        call = make(method, *words, **rest)
        return partial(self._heard, call) if method in FIRST_CALLS else call

    async def _heard(self, make: Any, *request: Any, **options: Any) -> Any:
        call = make(*request, **options)
        reply = await call
        self._spans.belong_to(str(dict(await call.trailing_metadata()).get(KEY)))
        return reply


def hearing(channel: Any) -> Any:
    """Return a channel that also reads the execution id from replies. If this process sends no spans, return the given
    channel.
    """
    spans = process_spans()
    return channel if spans is None else _Hearing(channel, spans)
