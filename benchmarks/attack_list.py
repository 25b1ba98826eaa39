"""The attacks over gRPC: who tries what, in a run over TLS and in one in the clear."""

import os
import ssl
from collections.abc import Callable
from typing import Any

import grpc

from benchmarks import drippers
from benchmarks.attackers import (
    GPS,
    HEALTH,
    LPS,
    MANY,
    RUN,
    Attack,
    Target,
    calls,
    channels,
    come_and_go,
    come_and_go_in_crowds,
    endless,
    flood,
    hello,
    shaken,
    silent,
)  # fmt: skip
from fedstrata.v1 import answers_pb2, gps_service_pb2, lps_service_pb2, rounds_pb2, tensors_pb2


def enrolment(who: str, index: int = 0) -> gps_service_pb2.EnrollRequest:
    """An enrolment in somebody's name."""
    return gps_service_pb2.EnrollRequest(device_id=who, device_index=index, num_examples=60, process_id="attacker")


def enroll(who: str, index: int = 0) -> Callable[[Target], Any]:
    """The same, whoever is attacked."""
    return lambda target: enrolment(who, index)


def fetch(who: str, cluster: str = "lps-0", **more: Any) -> Callable[[Target], Any]:
    """Asking for a model in somebody's name."""
    return lambda target: rounds_pb2.FetchModelRequest(
        run_id=target.run_id, child_id=who, cluster_id=cluster, sent_round=-1, resume_round=-1, **more
    )


def asked(who: str) -> Callable[[Target], Any]:
    """The same in a session."""
    return lambda target: rounds_pb2.UpdatePart(fetch=fetch(who)(target))


def update(who: str, cluster: str = "lps-0", payload: int = 1 << 40, **more: Any) -> Callable[[Target], Any]:
    """The header of an update, or of an aggregate, in somebody's name."""
    header = tensors_pb2.PayloadHeader(payload_bytes=payload)
    return lambda target: rounds_pb2.UpdatePart(
        header=rounds_pb2.UpdateHeader(run_id=target.run_id, child_id=who, cluster_id=cluster, payload=header, **more)
    )


def of_run(kind: Any, **fields: Any) -> Callable[[Target], Any]:
    """A message of the run."""
    return lambda target: kind(run_id=target.run_id, **fields)


def measured(who: str) -> Callable[[Target], Any]:
    evaluation = rounds_pb2.Evaluation(device_id=who, num_examples=60)
    return of_run(lps_service_pb2.SubmitEvaluationRequest, cluster_id="lps-0", evaluation=evaluation)


def reported(lps_id: str, cluster: str) -> Callable[[Target], Any]:
    return lambda target: gps_service_pb2.ReportPart(
        header=gps_service_pb2.ReportHeader(run_id=target.run_id, lps_id=lps_id, cluster_id=cluster)
    )


def registered(lps_id: str) -> Callable[[Target], Any]:
    """An LPS that says that it listens where nobody does."""
    return lambda target: gps_service_pb2.RegisterLpsRequest(
        lps_id=lps_id, address="127.0.0.1:9", experiment_sha256=target.experiment.digest
    )


NOISE, DATA = os.urandom(4096), rounds_pb2.UpdatePart(data=bytes(1 << 20)).SerializeToString()
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
STOP = gps_service_pb2.StopRunRequest(reason="an attack").SerializeToString()
WHERE = of_run(rounds_pb2.LocateUpdateRequest, child_id="device-001", cluster_id="lps-0")
FAILED = of_run(gps_service_pb2.ReportFailureRequest, lps_id="lps-0", reason="an attack")
LONG = enroll("x" * 500_000)
OUT, INS, MEM, SPARE, OTHER = "outsider", "stranger of the run", "member", "spare LPS", "other authority"
OWN, ITS = "member of lps-0", "LPS"
ATTACKS: tuple[tuple[str, str, Attack], ...] = (
    (OUT, "`StopRun` in the clear", calls("gps", RUN + "StopRun", STOP)),
    (OUT, "100 silent connections to the GPS", silent("gps")),
    (OUT, "100 silent connections to an LPS", silent("lps")),
    (OUT, "100 connections with noise to the GPS", silent("gps", NOISE)),
    (OUT, "100 connections with noise to an LPS", silent("lps", NOISE)),
    (OUT, "100 HTTP/2 greetings in the clear", silent("gps", PREFACE)),
    (OUT, "100 TLS greetings and no more", silent("gps", hello())),
    (OUT, "100 halves of a TLS greeting, to an LPS", silent("lps", hello()[:100])),
    (OUT, "connections opened and closed", come_and_go),
    (OUT, "TLS handshakes without a certificate", shaken("gps")),
    (OUT, "the same of TLS 1.2, with an LPS", shaken("lps", version=ssl.TLSVersion.TLSv1_2)),
    (OTHER, "TLS handshakes with a certificate of another authority", shaken("gps", has_certificate=True)),
    (OTHER, "`StopRun` as an operator of another authority", calls("gps", RUN + "StopRun", STOP)),
    (OTHER, "a flood of calls as such", flood("lps", HEALTH + "Check")),
    (INS, "`StopRun`", calls("gps", RUN + "StopRun", STOP)),
    (INS, "`WatchRun`", calls("gps", RUN + "WatchRun", b"")),
    (INS, "`FetchRecord`", calls("gps", RUN + "FetchRecord", of_run(gps_service_pb2.FetchRecordRequest))),
    (INS, "reflection", calls("gps", "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", b"")),
    (INS, "a method that nobody has", calls("gps", GPS + "DropTables", b"", times=MANY)),
    (INS, "enrolling as itself, who is not of the experiment", calls("gps", GPS + "Enroll", enroll("device-010", 10))),
    (INS, "enrolling as another device", calls("gps", GPS + "Enroll", enroll("device-000"))),
    (INS, "enrolling with a name of 500 kB", calls("gps", GPS + "Enroll", LONG, times=MANY)),
    (INS, "registering an LPS", calls("gps", GPS + "RegisterLps", of_run(gps_service_pb2.FetchClustersRequest))),
    (INS, "an aggregate in an LPS's name", calls("gps", GPS + "SubmitAggregate", update("lps-0"), DATA)),
    (INS, "a report in an LPS's name", calls("gps", GPS + "SubmitReport", reported("lps-0", "lps-0"), DATA)),
    (INS, "asking for a model in a member's name", calls("lps", LPS + "FetchModel", fetch("device-000"), times=MANY)),
    (INS, "asking for a model in nobody's name", calls("lps", LPS + "FetchModel", fetch(""), times=MANY)),
    (
        INS,
        "asking for a model as itself, at once 100 times",
        calls("lps", LPS + "FetchModel", fetch("device-010"), times=MANY),
    ),
    (INS, "a session in a member's name", calls("lps", LPS + "Attend", asked("device-000"), times=MANY)),
    (INS, "an update in a member's name", calls("lps", LPS + "SubmitUpdate", update("device-000"), DATA)),
    (
        INS,
        "an update in a member's name without an end",
        endless("lps", LPS + "SubmitUpdate", update("device-000"), DATA),
    ),
    (INS, "a measurement in a member's name", calls("lps", LPS + "SubmitEvaluation", measured("device-000"))),
    (INS, "messages of 2 MiB", calls("lps", LPS + "SubmitUpdate", bytes(2 << 20), times=8)),
    (INS, "bytes that are no message", calls("lps", LPS + "FetchModel", NOISE, times=MANY)),
    (INS, "data without a header", endless("lps", LPS + "Attend", lambda _: rounds_pb2.UpdatePart(data=b"x"), DATA)),
    (
        INS,
        "noughts that were compressed",
        calls("lps", LPS + "FetchModel", bytes(1 << 24), compression=grpc.Compression.Gzip),
    ),
    (INS, "a flood of health checks of the GPS", flood("gps", HEALTH + "Check")),
    (INS, "a flood of health checks of an LPS", flood("lps", HEALTH + "Check")),
    (
        INS,
        "a flood of enrolments as another",
        flood("gps", GPS + "Enroll", enrolment("device-000").SerializeToString()),
    ),
    (INS, "100 watches of health on a connection", calls("gps", HEALTH + "Watch", b"", times=MANY)),
    (INS, "50 connections with a watch each", channels("gps")),
    (INS, "handshakes one after the other", shaken("gps", has_certificate=True)),
    (
        MEM,
        "enrolling again, without the experiment's digest",
        calls("gps", GPS + "Enroll", enroll("device-009", 9), times=MANY),
    ),
    (
        MEM,
        "asking where it trains, for another",
        calls("gps", GPS + "FetchAssignment", of_run(gps_service_pb2.FetchAssignmentRequest, device_id="device-001")),
    ),
    (MEM, "answers in another's name", calls("gps", GPS + "SubmitAnswer", lambda t: answers_pb2.AnswerPart())),
    (
        MEM,
        "where an update of another stands",
        calls("lps", LPS + "LocateUpdate", WHERE),
    ),
    (MEM, "a flood of health checks of an LPS", flood("lps", HEALTH + "Check")),
    (
        MEM,
        "asking for a model as itself, with a megabyte, 100 times",
        calls("lps", LPS + "FetchModel", fetch("device-009", resume_digest=bytes(1_000_000)), times=MANY),
    ),
    (
        MEM,
        "100 sessions that begin with a megabyte of data",
        calls("lps", LPS + "Attend", DATA, times=MANY),
    ),
    (
        SPARE,
        "registering as lps-0",
        calls("gps", GPS + "RegisterLps", registered("lps-0")),
    ),
    (
        SPARE,
        "which clusters lps-0 has",
        calls("gps", GPS + "FetchClusters", of_run(gps_service_pb2.FetchClustersRequest, lps_id="lps-0")),
    ),
    (
        SPARE,
        "an aggregate of lps-0's cluster",
        calls("gps", GPS + "SubmitAggregate", update("lps-0", lps_id="lps-7"), DATA),
    ),
    (SPARE, "an aggregate without its own name", calls("gps", GPS + "SubmitAggregate", update("lps-0"), DATA)),
    (SPARE, "a report of lps-0's cluster", calls("gps", GPS + "SubmitReport", reported("lps-7", "lps-0"), DATA)),
    (
        SPARE,
        "saying that the run has failed",
        calls(
            "gps",
            GPS + "ReportFailure",
            of_run(gps_service_pb2.ReportFailureRequest, lps_id="lps-7", reason="an attack"),
        ),
    ),
    (
        SPARE,
        "the same in lps-0's name",
        calls("gps", GPS + "ReportFailure", FAILED),
    ),
    (OUT, "connections opened and closed, a hundred at once", come_and_go_in_crowds),
    (OWN, "100 updates of a round that is over, a byte of each now and then", drippers.updates),
    (ITS, "the same of aggregates", drippers.aggregates),
    (ITS, "100 bundles of answers, one of which comes now and then", drippers.bundles),
    (ITS, "100 reports, a byte of each now and then", drippers.reports),
)

# What somebody who has no certificate can do where nobody has one; of the run it knows its id, and who is in it.
IN_THE_CLEAR: tuple[tuple[str, str, Attack], ...] = (
    (OUT, "`WatchRun`", calls("gps", RUN + "WatchRun", b"")),
    (OUT, "asking for a model in a member's name", calls("lps", LPS + "FetchModel", fetch("device-000"), times=MANY)),
    (OUT, "a session in a member's name", calls("lps", LPS + "Attend", asked("device-000"), times=MANY)),
    (OUT, "where an update of a member stands", calls("lps", LPS + "LocateUpdate", WHERE)),
    (OUT, "a measurement in a member's name", calls("lps", LPS + "SubmitEvaluation", measured("device-000"))),
    (OUT, "an aggregate in an LPS's name, of no model", calls(
        "gps", GPS + "SubmitAggregate", update("lps-0", lps_id="lps-0"), DATA)),
    (OUT, "a report in an LPS's name", calls("gps", GPS + "SubmitReport", reported("lps-0", "lps-0"), DATA)),
    (OUT, "registering as lps-0, elsewhere", calls("gps", GPS + "RegisterLps", registered("lps-0"))),
    (OUT, "a flood of health checks of the GPS", flood("gps", HEALTH + "Check")),
    (OUT, "a flood of health checks of an LPS", flood("lps", HEALTH + "Check")),
    (OUT, "100 enrolments with a name of 500 kB", calls("gps", GPS + "Enroll", LONG, times=MANY)),
    (OUT, "bytes that are no message", calls("lps", LPS + "FetchModel", NOISE, times=MANY)),
    (OUT, "an update in a member's name, of no model", calls("lps", LPS + "SubmitUpdate", update("device-000"), DATA)),
    (OUT, "saying in an LPS's name that the run has failed", calls("gps", GPS + "ReportFailure", FAILED)),
    (OUT, "`StopRun`", calls("gps", RUN + "StopRun", STOP)),
)  # fmt: skip
