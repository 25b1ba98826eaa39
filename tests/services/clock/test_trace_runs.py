"""Whole runs that send spans to a collector: three tiers in one trace, and the same bits as without."""

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.collector import CollectorServer, Got
from tests.support.ports import kept_address
from tests.support.programs import Program, events
from tests.support.spanning_runs import left_alone

EXPERIMENT = """
name: spans
partition:
  kind: tasks
  tasks:
    - {name: low, labels: [0, 1, 2, 3, 4], devices: 2, examples_per_device: 40}
    - {name: high, labels: [5, 6, 7, 8, 9], devices: 2, examples_per_device: 40}
model: {name: mlp, hidden: [16]}
method: {name: one_shot, clusters: 2}
training: {global_rounds: 3, lps_rounds_per_global_round: 2, local_steps: 3, batch_size: 16}
"""
# of each global round: two LPSs with two rounds each, of two devices each
EACH = {
    ("fedstrata-gps", "global round"): 1,
    ("fedstrata-gps", "aggregate"): 1,
    ("fedstrata-gps", "part of LPS"): 2,
    ("fedstrata-gps", "receive update"): 2,
    ("fedstrata-lps", "LPS round"): 4,
    ("fedstrata-lps", "aggregate"): 4,
    ("fedstrata-lps", "part of device"): 8,
    ("fedstrata-lps", "send model"): 8,
    ("fedstrata-lps", "receive update"): 8,
    ("fedstrata-device", "train"): 8,
}
SENT = ("fedstrata-gps", "send model")  # not in the first global round: LPSs make the first model themselves


def finished(
    out: Path, endpoint: str, *words: str, after_round_1: Callable[[], None] = lambda: None
) -> Mapping[str, Any]:
    """The summary of a run. `after_round_1` is called once, at the first news that a global round is over."""
    file = out.with_suffix(".yaml")
    file.write_text(EXPERIMENT)
    # soon, so that a process that is killed has sent what it had
    environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, "OTEL_BSP_SCHEDULE_DELAY": "20"}
    command = ("run", str(file), "--out", str(out), "--device-processes", "2", *words, "--json")
    with Program("emulator", *command, log=out.with_suffix(".log"), environment=environment) as program:
        waits = True
        for line in program.lines():
            if waits and line["event"] == "status" and line["global_round"] >= 1:
                waits = False
                after_round_1()
        assert program.end() == 0, out.with_suffix(".log").read_text()
    return dict(line["summary"])


def told(out: Path) -> dict[str, list[str]]:
    """The events about spans in the log of each process."""
    return {
        path.stem: [each["event"] for each in events(path) if each["event"].startswith("spans_")]
        for path in (out / "logs").glob("*.log")
        if path.stem != "faults"
    }


def by_trace(spans: list[Got]) -> dict[int, list[Got]]:
    """The spans of each global round; each must have one trace of its own."""
    traces = defaultdict(list)
    for span in spans:
        traces[span.trace].append(span)
    rounds = [{int(span.about["fedstrata.global_round"]) for span in trace} for trace in traces.values()]
    assert all(len(of) == 1 for of in rounds), rounds
    assert len({of for (of,) in rounds}) == len(rounds), "two traces of one global round"
    return {of: trace for (of,), trace in zip(rounds, traces.values(), strict=True)}


@pytest.fixture(scope="module")
def without(folder: Path) -> Mapping[str, Any]:
    return left_alone(folder / "without", EXPERIMENT)


@pytest.fixture(scope="module")
def collected(folder: Path) -> tuple[Mapping[str, Any], list[Got]]:
    with CollectorServer() as collector:
        return finished(folder / "collected", collector.address), collector.spans


@pytest.mark.runs
def test_each_global_round_is_one_trace_of_three_tiers(collected: tuple[Mapping[str, Any], list[Got]]) -> None:
    traces = by_trace(collected[1])
    assert sorted(traces) == [1, 2, 3]
    for number, trace in traces.items():
        sent = {} if number == 1 else {SENT: 2}
        assert Counter((span.service, span.name) for span in trace) == EACH | sent


@pytest.mark.runs
def test_parents_are_there_and_children_fit_in_their_time(collected: tuple[Mapping[str, Any], list[Got]]) -> None:
    for trace in by_trace(collected[1]).values():
        known = {span.id: span for span in trace}
        assert len(known) == len(trace)
        assert [span.name for span in trace if not span.parent] == ["global round"]
        for span in trace:
            parent = known[span.parent] if span.parent else span
            assert parent.began_ns <= span.began_ns <= span.ended_ns <= parent.ended_ns, (parent, span)


@pytest.mark.runs
def test_a_device_trains_in_its_part_of_an_lps_round(collected: tuple[Mapping[str, Any], list[Got]]) -> None:
    known = {span.id: span for span in collected[1]}
    for span in (span for span in collected[1] if span.name == "train"):
        part = known[span.parent]
        assert (part.service, part.name) == ("fedstrata-lps", "part of device")
        assert part.about["fedstrata.device"] == span.about["fedstrata.device"]
        assert part.about["fedstrata.lps_round"] == span.about["fedstrata.lps_round"]
        assert span.about["fedstrata.examples"] == 40  # in three batches


@pytest.mark.runs
def test_attributes_are_ids_rounds_bytes_and_examples(collected: tuple[Mapping[str, Any], list[Got]]) -> None:
    summary, spans = collected
    numbers = {"global_round", "lps_round", "bytes", "examples"}
    ids = {"run_id": {summary["run_id"]}, "lps": {"lps-0", "lps-1"}}
    ids |= {"device": {f"device-00{index}" for index in range(4)}}
    for span in spans:
        for key, value in span.about.items():
            name = key.removeprefix("fedstrata.")
            assert isinstance(value, int) if name in numbers else value in ids[name]


@pytest.mark.runs
def test_spans_change_no_bit(collected: tuple[Mapping[str, Any], list[Got]], without: Mapping[str, Any]) -> None:
    # Bytes are not compared: on a slow machine either run may send an update again.
    assert collected[0]["model_sha256"] == without["model_sha256"]


@pytest.mark.runs
def test_a_second_execution_of_the_same_file_has_other_traces(
    folder: Path, collected: tuple[Mapping[str, Any], list[Got]]
) -> None:
    with CollectorServer() as collector:
        summary = finished(folder / "again", collector.address)
    assert summary["run_id"] == collected[0]["run_id"]
    assert len(by_trace(collector.spans)) == 3
    assert {span.trace for span in collector.spans}.isdisjoint(span.trace for span in collected[1])


@pytest.mark.kills
def test_a_killed_lps_goes_on_in_the_same_trace(folder: Path, without: Mapping[str, Any]) -> None:
    faults = [{"do": "kill", "process": "lps-0", "at": {"point": "upload", "round": 3}}]  # of global round 2
    with CollectorServer() as collector:
        summary = finished(folder / "killed", collector.address, "--set", f"faults={json.dumps(faults)}")
    assert summary["model_sha256"] == without["model_sha256"]
    assert "cluster_resumed" in {each["event"] for each in events(folder / "killed" / "logs" / "lps-0.log")}
    traces = by_trace(collector.spans)
    assert sorted(traces) == [1, 2, 3]
    rounds = [span for span in traces[2] if span.name == "LPS round" and span.about["fedstrata.lps"] == "lps-0"]
    assert {span.about["fedstrata.lps_round"] for span in rounds} >= {4}  # which it was killed in and began again
    known = {span.id: span for span in traces[2]}
    trained = [span for span in traces[2] if span.name == "train" and span.about["fedstrata.lps_round"] == 4]
    assert {known[span.parent].name for span in trained} == {"part of device"}


@pytest.mark.kills
@pytest.mark.parametrize("collector", ["absent", "dies"])
def test_a_run_without_its_collector_ends_with_the_same_bits_and_one_warning_a_process(
    folder: Path, without: Mapping[str, Any], collector: str
) -> None:
    out = folder / collector
    if collector == "absent":
        with kept_address() as address:
            summary = finished(out, f"http://{address}")
    else:
        with CollectorServer() as server:
            summary = finished(out, server.address, after_round_1=server.stop)
    assert summary["model_sha256"] == without["model_sha256"]
    assert all(said in ([], ["spans_lost"]) for said in told(out).values())
    assert ["spans_lost"] in told(out).values()
    assert not any("Traceback" in path.read_text() for path in (out / "logs").glob("*.log"))
