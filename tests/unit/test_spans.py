"""Ids of spans, and what a process loads for them."""

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from fedstrata.clock.clocks import Clock, clock_of
from fedstrata.clock.spanned import Spanned
from fedstrata.experiment_file import parse_experiment
from fedstrata.process.spans import VARIABLE, Ids, Span, Spans, process_spans

ROOT = Path(__file__).parents[2]
TEXT = "{name: spans, method: fedavg, partition: {kind: iid, devices: 2, examples_per_device: 10}}"
FIRST, SECOND = "0" * 31 + "1", "0" * 31 + "2"  # executions


class Sent:
    """A sender that keeps the ids of its spans."""

    def __init__(self) -> None:
        self.ids: list[Ids] = []

    def send(self, name: str, ids: Ids, times: tuple[int, int], attributes: Mapping[str, str | int]) -> None:
        self.ids.append(ids)

    def close(self) -> None:
        pass


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
    for endpoint, kind in (("", Clock), ("http://127.0.0.1:4318", Spanned)):
        monkeypatch.setenv(VARIABLE, endpoint)
        process_spans.cache_clear()
        assert type(clock_of(experiment)) is kind
    process_spans.cache_clear()


def test_without_the_extra_a_process_says_once_what_to_install(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(VARIABLE, "http://127.0.0.1:4318")
    monkeypatch.delitem(sys.modules, "fedstrata.process.otlp", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry.context", None)
    process_spans.cache_clear()
    spans = process_spans()
    assert spans is not None
    for _ in range(2):
        spans.add("lps", span("a"))
    spans.close()
    assert [each.getMessage() for each in caplog.records] == ["spans_off"]
    assert "pip install 'fedstrata[traces]'" in caplog.records[0].fields["reason"]
    process_spans.cache_clear()


@pytest.mark.parametrize("tier", ["gps", "lps", "device"])
def test_without_a_collector_a_service_loads_nothing_for_spans(tier: str) -> None:
    names = ("opentelemetry", "requests", "fedstrata.clock.spanned", "fedstrata.process.otlp")
    code = f"import sys, {tier}.__main__; from fedstrata.clock.clocks import clock_of; "
    code += "from fedstrata.experiment_file import parse_experiment; "
    code += f"clock_of(parse_experiment({TEXT!r})).device(); print([name for name in {names} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
