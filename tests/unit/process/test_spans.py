"""Ids of spans, and what a process loads for them."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fedstrata.clock.clocks import Clock, clock_of
from fedstrata.clock.spanned import Spanned
from fedstrata.experiment_file import parse_experiment
from fedstrata.process.spans import VARIABLE, Ids, Span, Spans, process_spans
from fedstrata.v1 import rounds_pb2 as pb

ROOT = Path(__file__).parents[3]
TEXT = "{name: spans, method: fedavg, partition: {kind: iid, devices: 2, examples_per_device: 10}}"
COLLECTOR = "http://127.0.0.1:4318"  # where nobody listens
FIRST, SECOND = "0" * 31 + "1", "0" * 31 + "2"  # executions


class Sent:
    """A sender that keeps the ids of its spans, and their names with the LPS round."""

    def __init__(self) -> None:
        self.ids: list[Ids] = []
        self.named: list[tuple[str, object]] = []

    def send(self, name: str, ids: Ids, times: tuple[int, int], attributes: Mapping[str, str | int]) -> None:
        self.ids.append(ids)
        self.named.append((name, attributes.get("fedstrata.lps_round")))

    def close(self) -> None:
        pass


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No collector, unless the test names one."""
    monkeypatch.delenv(VARIABLE, raising=False)
    process_spans.cache_clear()
    yield
    process_spans.cache_clear()


def span(place: str, parent: str | None = None, *, global_round: int = 0, run_id: str = "run") -> Span:
    trace = (run_id, global_round)
    return Span(name="", trace=trace, place=place, parent=parent, began_ns=1, ended_ns=2, attributes={})


def test_parent_and_child_agree_on_ids_without_a_word() -> None:
    trace, parent, above = span("part of device:3:device-000", "LPS round:3:lps-0").ids(FIRST)
    assert span("train:3:device-000", "part of device:3:device-000").ids(FIRST)[::2] == (trace, parent)
    assert span("LPS round:3:lps-0").ids(FIRST) == (trace, above, None)
    assert 0 < trace < 1 << 128
    assert 0 < parent < 1 << 64


def test_each_round_run_and_execution_is_another_trace() -> None:
    same = [span("a").ids(FIRST), span("b", "a").ids(FIRST)]
    others = [span("a", global_round=1).ids(FIRST), span("a", run_id="other").ids(FIRST), span("a").ids(SECOND)]
    assert len({trace for trace, _, _ in same}) == 1
    assert len({trace for trace, _, _ in [*same, *others]}) == 4


@pytest.mark.parametrize("text", ["", "None", "g" * 32, "0" * 31, "0" * 33, FIRST.upper() + "A", f"{FIRST}\n"])
def test_an_execution_from_the_network_is_used_only_if_it_has_the_form_of_one(text: str) -> None:
    sent = Sent()
    spans = Spans(lambda tier: sent)
    spans.belong_to(FIRST)
    spans.belong_to(text)
    spans.add("lps", span("a"))
    assert sent.ids == [span("a").ids(FIRST)]


def test_the_clock_makes_spans_only_if_the_environment_names_a_collector(monkeypatch: pytest.MonkeyPatch) -> None:
    experiment = parse_experiment(TEXT)
    for endpoint, kind in (("", Clock), (COLLECTOR, Spanned)):
        monkeypatch.setenv(VARIABLE, endpoint)
        process_spans.cache_clear()
        assert type(clock_of(experiment)) is kind


def test_without_the_extra_a_process_says_once_what_to_install(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(VARIABLE, COLLECTOR)
    monkeypatch.delitem(sys.modules, "fedstrata.process.otlp", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry.context", None)
    spans = process_spans()
    assert spans is not None
    for _ in range(2):
        spans.add("lps", span("a"))
    spans.close()
    assert [each.getMessage() for each in caplog.records] == ["spans_off"]
    assert "pip install 'fedstrata[traces]'" in caplog.records[0].fields["reason"]


def test_a_variable_that_opentelemetry_refuses_ends_no_run(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(VARIABLE, COLLECTOR)
    monkeypatch.setenv("OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", "many")
    spans = process_spans()
    assert spans is not None
    spans.open("lps")
    spans.add("lps", span("a"))
    spans.close()
    assert [each.getMessage() for each in caplog.records] == ["spans_off"]
    assert "many; correct the OTEL_ variables" in caplog.records[0].fields["reason"]


class Exported:
    """An exporter that keeps the names of spans."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def export(self, spans: Any) -> None:
        self.names += [each.name for each in spans]

    def shutdown(self) -> None:
        pass


@pytest.mark.parametrize("sampler", ["traceidratio", "parentbased_traceidratio"])
def test_a_sampler_takes_all_spans_of_a_round_or_none(monkeypatch: pytest.MonkeyPatch, sampler: str) -> None:
    from fedstrata.process import otlp

    exported = Exported()
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", sampler)
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "0.5")
    monkeypatch.setattr(otlp, "OTLPSpanExporter", lambda: exported)
    collector = otlp.Collector("test")
    low, high = 1, 2**64 - 1  # of ids below and above the half
    for trace, name in ((low, "taken"), (high, "not taken")):
        collector.send(name, (trace, 1, None), (1, 2), {})
        collector.send(name, (trace, 2, 1), (1, 2), {})
    collector.close()
    assert exported.names == ["taken", "taken"]


async def parts(*content: bytes) -> AsyncIterator[bytes]:
    for part in content:
        yield part


def lps_rounds(sent: Sent) -> Any:
    """The spans' side of rounds between an LPS and its devices."""
    inner = SimpleNamespace(
        rounds=SimpleNamespace(
            round_opened=lambda: None,
            model=lambda *which: parts(b"model"),
            arriving=lambda header, come: nullcontext(come),
        )
    )
    clock = SimpleNamespace(lps=lambda cluster: inner)
    spanned = Spanned(clock, Spans(lambda tier: sent), parse_experiment(TEXT))
    return spanned.lps(SimpleNamespace(home_id="lps-0")).rounds  # type: ignore[arg-type]


def test_a_transfer_that_outlives_its_round_is_no_part_of_the_next() -> None:
    async def two_rounds() -> None:
        offer = SimpleNamespace(header=SimpleNamespace(evaluate_only=False), whole_bytes=5)
        rounds.round_opened()
        slow = rounds.model(None, offer, "device-000", 0, 0)
        await anext(slow)
        rounds.round_over(0, "LPS round:0:lps-0", 1)
        rounds.round_opened()
        assert [part async for part in slow] == []
        rounds.round_over(1, "LPS round:1:lps-0", 1)

    rounds = lps_rounds(sent := Sent())
    asyncio.run(two_rounds())
    assert sent.named == [("send model", 1)]


def test_only_an_update_that_is_read_to_its_end_is_received() -> None:
    async def updates() -> None:
        for header, parts_read in ((update(0), 0), (update(1), 1), (update(2), 2)):
            async with rounds.arriving(header, parts(b"a", b"b")) as come:
                for _ in range(parts_read):
                    await anext(come)
                if parts_read == 2:
                    assert [part async for part in come] == []

    def update(number: int) -> pb.UpdateHeader:
        return pb.UpdateHeader(child_id="device-000", round=number)

    rounds = lps_rounds(sent := Sent())
    asyncio.run(updates())
    assert sent.named == [("receive update", 3)]


def test_without_a_collector_no_service_loads_anything_for_spans() -> None:
    names = ("opentelemetry", "requests", "fedstrata.clock.spanned", "fedstrata.process.otlp")
    code = "import sys, gps.__main__, lps.__main__, device.__main__; from fedstrata.clock.clocks import clock_of; "
    code += "from fedstrata.experiment_file import parse_experiment; "
    code += f"clock_of(parse_experiment({TEXT!r})).device(); print([name for name in {names} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
