"""Calls that stream messages to a server. If such a call fails, it raises the original error."""

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Iterator
from typing import Any

import grpc

Messages = Iterable[Any] | AsyncIterable[Any]


def broken(code: grpc.StatusCode, details: str) -> grpc.aio.AioRpcError:
    """Return an error of the class that gRPC raises for failed calls, with this code. Use it for a failure that gRPC
    itself does not report by this class.
    """
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), details, None)


def streamed(call: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """Return a stream-unary call of grpc.aio that is cancelled only if its caller cancels it.

    grpc.aio reads the caller's messages in a separate job. This job fails if the connection breaks between two
    messages, or if the caller's iterator raises an error. grpc.aio then cancels the call. The caller would get
    CancelledError, and would end without an error. Here a broken connection raises UNAVAILABLE, and an error of the
    iterator is raised unchanged.
    """

    def make(messages: Messages, **options: Any) -> Awaitable[Any]:
        return _answered(call, messages, options)

    return make


async def _answered(call: Callable[..., Awaitable[Any]], messages: Messages, options: dict[str, Any]) -> Any:
    failures: list[Exception] = []
    noted: Messages = (
        _noted_later(messages, failures) if isinstance(messages, AsyncIterable) else _noted(messages, failures)
    )
    try:
        return await call(noted, **options)
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        if failures:
            raise failures[0] from None
        raise broken(grpc.StatusCode.UNAVAILABLE, "the connection broke while messages were sent") from None


def _noted(messages: Iterable[Any], failures: list[Exception]) -> Iterator[Any]:
    """Yield the messages. If their iterator raises an error, add the error to `failures`, and raise it."""
    try:
        yield from messages
    except Exception as error:
        failures.append(error)
        raise


async def _noted_later(messages: AsyncIterable[Any], failures: list[Exception]) -> AsyncIterator[Any]:
    try:
        async for message in messages:
            yield message
    except Exception as error:
        failures.append(error)
        raise
