"""The calls of an LPS to the GPS."""

import asyncio

import pytest

from lps.to_gps import answered


async def test_a_process_that_stops_still_takes_the_reply_to_its_report() -> None:
    sent, reply, taken = asyncio.Event(), asyncio.Event(), list[str]()

    async def call() -> None:
        sent.set()
        await reply.wait()
        taken.append("reply")

    job = asyncio.ensure_future(answered(call(), within_s=60))
    await sent.wait()
    job.cancel()
    reply.set()
    with pytest.raises(asyncio.CancelledError):
        await job
    assert taken == ["reply"]


async def test_a_process_that_stops_does_not_wait_for_a_gps_that_is_away() -> None:
    sent = asyncio.Event()

    async def call() -> None:
        sent.set()
        await asyncio.Event().wait()

    job = asyncio.ensure_future(answered(call(), within_s=0))
    await sent.wait()
    job.cancel()
    with pytest.raises(asyncio.CancelledError):
        await job
