"""What device 1 does in an LPS round, without an LPS, and a method with tables."""

from pathlib import Path
from typing import Any

from device.personal import KeptInMemory, PersonalStore
from device.round_job import RoundJob
from device.work import DeviceProcess
from fedstrata.experiment import LinkSettings
from fedstrata.methods import Arrays, Channel, Method, Moment, Outcome, Question, Reach, Work, all_layers
from fedstrata.models import Model
from fedstrata.partitions import device_data
from fedstrata.process.logs import EventLog
from fedstrata.rounds import Identity, ParentCalls, ReceivedModel, RoundClient
from fedstrata.rpc.answer_messages import answer_to_proto
from fedstrata.tensors import Flat, Layout


def store_in(folder: Path) -> PersonalStore:
    """The state of device 1 in an attempt of a run."""
    kept = PersonalStore(folder, "run", "device-001")
    kept.enter("5f3a9c01")
    return kept


def job_of(
    host: DeviceProcess,
    flat: Flat,
    *,
    lps_round: int = 0,
    cluster: int = 0,
    clusters: int = 0,
    offered: tuple[int, ...] = (),
    withdrawn: tuple[str, ...] = (),
    told: Arrays | None = None,
    store: PersonalStore | KeptInMemory | None = None,
) -> RoundJob:
    """What device 1 does with a model that it has received."""
    received = ReceivedModel(
        round=lps_round, global_round=lps_round // 2, evaluate_only=False, plan_version=1, flat=flat, digest=b"d",
        cluster=cluster, clusters=clusters, offered=offered,
        withdrawn=withdrawn, told=answer_to_proto(named("told"), told) if told is not None else None,
    )  # fmt: skip
    unused: Any = None
    identity = Identity(run_id="run", child_id="device-001", home_id="lps-0")
    calls = ParentCalls(stream=unused, submit=unused, locate=unused)
    client = RoundClient(calls, identity, host.streams.travelling, link=LinkSettings(), log=EventLog("test"))
    return RoundJob(
        host, device_data(host.experiment, host.dataset, 1), received, device_index=1, device_id="device-001",
        client=client, store=store or KeptInMemory(), made={},
    )  # fmt: skip


def named(name: str) -> Question:
    return Question(name=name, moment=Moment.BEFORE, arrays={})


class Diary(Method):
    """Has a table that everybody shares and one that a device keeps: how many rounds it has worked."""

    def channels(self, model: Model) -> tuple[Channel, ...]:
        return (
            *all_layers(model, Reach.EVERYWHERE),
            Channel(name="shared", tensors=Layout.of({"shared": (2,)}), reach=Reach.EVERYWHERE),
            Channel(name="rounds", tensors=Layout.of({"rounds": (1,)}), reach=Reach.DEVICE),
        )

    async def local(self, work: Work) -> Outcome:
        tables = {"shared": work.tables["shared"] * 3, "rounds": work.tables["rounds"] + 1}
        return Outcome(weights=work.start, train_loss=0.0, tables=tables)
