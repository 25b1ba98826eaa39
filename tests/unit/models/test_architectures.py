"""A model for each device: who has which when, what stays with a device as its model changes, and what is refused."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from device.__main__ import load
from device.round_job import OWN_LAYERS
from device.work import DeviceProcess
from emulator.estimates.sizing import device_memory
from fedstrata.errors import ExperimentError
from fedstrata.experiment import Experiment
from fedstrata.experiment_file import parse_experiment
from fedstrata.methods import Facts, make_method
from fedstrata.process.metrics import ProcessMetrics
from fedstrata.streams.architectures import Architectures
from fedstrata.tensors import Flat, taken
from fedstrata.trust.security import OPEN
from tests.support.methods import method_with
from tests.support.round_jobs import Diary, job_of, store_in

TEXT = """
name: three-models
partition: {kind: iid, devices: 3, examples_per_device: 40}
model: {name: convnet, channels: [4]}
method: fedper
training: {global_rounds: 4, lps_rounds_per_global_round: 2, local_steps: 2, batch_size: 16}
"""
OTHERS = """
architectures:
  - {devices: [1], from_global_round: 3, model: {name: convnet, channels: [4], hidden: [6, 6]}}
  - {devices: ["0-1"], model: {name: convnet, channels: [4], hidden: [8]}}
"""


def experiment(*overrides: str, text: str = TEXT + OTHERS) -> Experiment:
    return parse_experiment(text, overrides=overrides)


def host_of(found: Experiment) -> DeviceProcess:
    return load(found, SimpleNamespace(security=OPEN), ProcessMetrics("device"), None)  # type: ignore[arg-type]  # nothing is sent


def test_of_a_devices_entries_the_one_counts_that_has_begun_last() -> None:
    hidden = [[experiment().model_of(device, number).hidden for number in range(4)] for device in range(3)]
    assert hidden == [[(8,)] * 4, [(8,), (8,), (6, 6), (6, 6)], [None] * 4]


def test_architectures_are_part_of_the_digest() -> None:
    plain = experiment(text=TEXT)
    assert plain.digest == experiment("architectures=[]", text=TEXT).digest
    assert len({plain.digest, experiment().digest, experiment("architectures.0.from_global_round=4").digest}) == 3


@pytest.mark.parametrize(
    ("override", "reason"),
    [
        ("method=fedavg", "architectures.0: with method fedavg all devices share fc1.bias of shape 10, but this model "
                          "has fc1.bias of shape 6"),
        ("architectures.1.model.channels=[5]", "architectures.1: with method fedper all devices share conv1.bias of "
                                               "shape 4, but this model has conv1.bias of shape 5"),
        ("architectures.1.model.channels=[4, 4]", "architectures.1: .* share no conv2.bias, but this model has "
                                                  "conv2.bias of shape 4"),
        ("architectures.0.model.shared=[conv9]", "architectures.0: model.shared: the model has no layer 'conv9'"),
        ("architectures.1.devices=[3]", "architectures: there is no device 3; the partition has devices 0 to 2"),
        ("architectures.0.from_global_round=5", "from_global_round is 5, more than training.global_rounds, 4"),
        ("architectures.0.from_global_round=1", "device 1 begins with two models in global round 1"),
        ("architectures.0.model.name=cnnn", "architectures.0.model.name: no model is called 'cnnn'; did you mean cnn"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_by_its_key(override: str, reason: str) -> None:
    with pytest.raises(ExperimentError, match=reason) as caught:
        experiment(override)
    assert "\n" not in str(caught.value)


def test_a_method_that_shares_no_layer_takes_any_models() -> None:
    experiment("method=local", "architectures.0.model={name: mlp}")


def test_memory_is_that_of_the_largest_model() -> None:
    small, large = experiment(text=TEXT), experiment("architectures.1.model.hidden=[90000]")
    assert device_memory(large, None).of(1) > device_memory(small, None).of(1) + 8 * 4 * 90_000


async def test_a_device_goes_on_with_its_own_layers_and_begins_them_anew_with_another_model(tmp_path: Path) -> None:
    host, store = host_of(experiment()), store_in(tmp_path)
    received = np.zeros(host.streams.travelling.size, np.float32)
    kept: Flat | None = None
    for number in range(6):  # the third global round begins with LPS round 4
        job = job_of(host, received, lps_round=number, store=store)
        model, streams = host.architectures.at(1, number // 2)
        assert job.work.model is model
        if kept is None or number == 4:
            kept = taken(model.initial(0), model.layout.slices_of(streams.own))
        assert taken(job.work.start, model.layout.slices_of(streams.own)).tobytes() == kept.tobytes()
        await job.begin()
        saved = store.at(number + 1)
        assert saved is not None
        kept = saved[1][OWN_LAYERS]
    assert [host.architectures.at(1, number).model.layout.size for number in (0, 2)] == [650, 542]


async def test_a_table_of_the_devices_own_goes_on_where_the_model_changes(tmp_path: Path) -> None:
    class Local(Diary):
        def channels(self, model):  # type: ignore[no-untyped-def]
            shared, diary, rounds = super().channels(model)
            return (type(shared)(name="model", tensors=model.layout, reach=rounds.reach), diary, rounds)

    found = experiment("method=local")
    method = method_with(Local, {"name": "own:Local"}, Facts(device_count=3))
    host = host_of(found)
    host = DeviceProcess(**{**vars(host), "method": method, "architectures": Architectures(found, method)})
    store = store_in(tmp_path)
    for number in range(5):
        job = job_of(host, np.float32([0, 0]), lps_round=number, store=store)
        assert job.work.tables["rounds"].tolist() == [number]
        await job.begin()


def test_servers_know_the_models_of_the_file_and_no_others() -> None:
    found = Architectures(experiment(), make_method(experiment()))
    assert [each.model.layout.size for each in found.all] == [690, 542, 650]
    assert found.at(2, 3) is found.main
