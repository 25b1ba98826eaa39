"""The experiment file: what it says, what it refuses in one line, and what identifies a run."""

import hashlib
from pathlib import Path

import numpy as np
import pytest
import yaml

from fedstrata.errors import ExperimentError
from fedstrata.experiment import Experiment, LinkSettings
from fedstrata.experiment.yaml_files import read_yaml
from fedstrata.experiment_file import load_experiment, overridden, override_of, parse_experiment
from fedstrata.methods.one_shot import OneShot
from tests.support.splits import SMALL

LINKS = ("device-lps", "lps-gps")


def small(*overrides: str, seed: int | None = None) -> Experiment:
    return parse_experiment(SMALL, overrides=overrides, seed=seed)


def refusal(*overrides: str) -> str:
    with pytest.raises(ExperimentError) as raised:
        small(*overrides)
    assert "\n" not in str(raised.value)
    return str(raised.value)


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["training.gps_rounds=3"], "--set training.gps_rounds=3: training.gps_rounds: unknown key"),
        (["seed=4", "model.hidden=16", "training.global_rounds=2"], "--set model.hidden=16: model.hidden: must"),
        (["method={name: fedprox, mu: -1}"], "--set method={name: fedprox, mu: -1}: method.mu: "),
        (["seed=4", "method={name: one_shot, clusters: 9}"], "--set method={name: one_shot, clusters: 9}: method.clus"),
        # training.lps_rounds_per_global_round is 2 in the file by default: what set the method is to blame
        (["seed=4", "method=fedfomo"], "--set method=fedfomo: training.lps_rounds_per_global_round 2 does not go with"),
        (["training.lps_rounds_per_global_round=1", "method=feddyn", "deadlines.lps.quorum_ratio=0.5"],
         "--set method=feddyn --set deadlines.lps.quorum_ratio=0.5: deadlines.lps.quorum_ratio 0.5 does not"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_set_is_said_of_set_and_not_of_the_file(
    tmp_path: Path, overrides: list[str], said: str
) -> None:
    path = tmp_path / "small.yaml"
    path.write_text(SMALL, encoding="utf-8")
    with pytest.raises(ExperimentError) as raised:
        load_experiment(path, overrides)
    assert str(raised.value).startswith(said)
    assert str(path) not in str(raised.value)


def test_what_is_wrong_with_the_file_is_said_of_the_file_whatever_is_set(tmp_path: Path) -> None:
    path = tmp_path / "small.yaml"
    path.write_text(SMALL + "colour: red\n", encoding="utf-8")
    for overrides in ([], ["seed=4"], ["seed=4", "training.global_rounds=2"]):
        with pytest.raises(ExperimentError) as raised:
            load_experiment(path, overrides)
        assert str(raised.value).startswith(f"{path}: colour: unknown key")


def test_what_is_left_out_has_its_default() -> None:
    experiment = small()
    assert (experiment.data.name, experiment.model.name, experiment.method.name) == ("digits", "mlp", "one_shot")
    assert experiment.training.local_epochs == 1
    assert experiment.training.local_steps is None


def test_the_resolved_file_is_read_back_as_the_same_experiment() -> None:
    experiment = small("links.device-lps.up=int8", "deadlines.lps.deadline_s=2.5", seed=7)
    assert parse_experiment(experiment.to_yaml()) == experiment


def test_every_key_of_the_resolved_file_is_written() -> None:
    resolved = yaml.safe_load(small().to_yaml())
    assert [*resolved, "files"] == list(Experiment.model_fields)  # `files` is written if there are own files
    assert list(resolved["method"]) == list(OneShot.Options.model_fields)
    assert set(resolved["links"]["lps-gps"]) == set(LinkSettings.model_fields)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("xyzzy=red", "xyzzy: unknown key; fedstrata schema prints all keys"),
        ("partition.alpha=0.1", "partition.alpha: unknown key; kind tasks has the keys kind, test_share, "),
        ("training.latncy=1ms", "training.latncy: unknown key; fedstrata schema prints all keys"),
        ("training.lateness=1ms", "training.lateness: unknown key; fedstrata schema prints all keys"),
        ("training.up_rate=1Mbit/s", "unknown key; did you mean links.device-lps.up_rate or "),
        ("rounds=3", "rounds: unknown key; did you mean training.global_rounds?"),
        ("traning.global_rounds=3", "traning: unknown key; did you mean training?"),
        ("training.globalrounds=3", "unknown key; did you mean training.global_rounds or training.rounds?"),
        ("training.learning_rate=1", "did you mean training.optimiser.learning_rate or training.lps_optimiser."),
        ("partition.tasks.0.label=[1]", "did you mean partition.tasks.N.labels?"),
        ("model.hidden=16", "model.hidden: must be a list, such as [1, 2], not 16"),
        ("partition.devices=9", "partition.devices: not a key of kind tasks; did you mean partition.tasks.N.devices? "),
        ("partition.device=9", "partition.device: unknown key; did you mean partition.tasks.N.devices? fedstrata"),
        ("partition={devices: 3}", "partition.kind: is missing, and has no default; choose "),
        (
            "links=null",
            "links: must be a mapping of keys to values, such as {device-lps: ...}, not null; remove it or give {} for",
        ),
        (
            "faults=[null]",
            "faults.0: must be a mapping of keys to values, such as {name: ...}, not null; remove it or give its keys",
        ),
        (
            "partition=null",
            "partition: must be a mapping of keys to values, such as {name: ...}, not null; give its keys",
        ),
        (
            "secure_aggregation=true",
            "secure_aggregation: must be a mapping of keys to values, such as {min_devices: ...}, not True; remove it "
            "or give {} for its defaults",
        ),
        (
            "topology=false",
            "topology: must be a mapping of keys to values, such as {lps: ...}, not False; remove it or",
        ),
        ("model=mlp", "model: must be a mapping of keys to values, such as {name: ...}, not 'mlp'"),
        ("training.optimiser.lr=1", "did you mean training.optimiser.learning_rate? "),
        ("training.clients=3", "training.clients: unknown key; did you mean partition.tasks.N.devices"),
        ("method=FedAvg", "no method is called 'FedAvg'; did you mean fedavg? choose one_shot"),
        ("data.name=cifar10", "no data set is called 'cifar10'; did you mean cifar-10? choose digits"),
        ("model.name=resnet", "no model is called 'resnet'; did you mean resnet18? choose mlp"),
        ("partition.tasks.0.weight=1", "partition.tasks.0.weight: unknown key"),
        (
            "name=No Spaces",
            "name: takes small letters, digits and, between them, hyphens, at most 40 in all (got 'No Spaces')",
        ),
        ("seed=-1", "seed: must be at least 0, not -1"),
        ("seed=9223372036854775808", "seed: "),
        (
            "data.name=mnist",
            "no data set is called 'mnist'; did you mean emnist? choose digits, fcube, synthetic, fashion-mnist,",
        ),
        ("data.name=own:load", "own:load needs input_shape, because"),
        ("data.num_classes=10", "digits has fixed shapes and classes"),
        ("data.orientations=[0, 0]", "data.orientations: orientations [0, 0] have one value twice"),
        ("data.orientations=[45]", "data.orientations.0: must be 0, 90, 180 or 270, not 45"),
        ("data.orientations=[]", "data.orientations: "),
        (
            "model.name=rnn",
            "no model is called 'rnn'; did you mean cnn? choose mlp, cnn, lenet5, convnet, dropout_cnn, resnet18",
        ),
        ("model.name='own:'", "no model is called 'own:'"),
        ("model.channels=[8]", "model: mlp has no keys channels and activation; remove them, or choose convnet"),
        ("model={name: convnet, channels: []}", "model.channels: List should have at least 1 item"),
        ("model={name: convnet, activation: tanh}", "model.activation: must be 'relu' or 'softmax'"),
        ("model.hidden=[0]", "model.hidden.0: "),
        (
            "method.feature_dim=9",
            "method: features raw has as many features as an example has values; remove feature_dim",
        ),
        ("partition.minority_ratio=0.5", "partition.minority_ratio: must be below 0.5, not 0.5"),
        ("partition.tasks.1.name=even", "each task needs a different name"),
        ("partition.tasks.1.labels=[2]", "a label is listed in two tasks"),
        ("partition.tasks.1.labels=[1, 1]", "labels must be different numbers of 0 or more"),
        ("partition.tasks.1.labels=[-1]", "labels must be different numbers of 0 or more"),
        ("partition.kind=noniid-labeldir", "partition.kind: no partition is called 'noniid-labeldir'; it is label_dir"),
        (
            "partition.kind=Natural",
            "partition.kind: no partition is called 'Natural'; did you mean natural? choose tasks, groups, ",
        ),
        ("faults=[{do: hang}]", "faults.0.do: no fault is called 'hang'; choose kill, pause or cut"),
        ("data.name=folder", "data: folder needs input_shape, because the servers"),
        ("training.optimiser.learning_rate=.nan", "training.optimiser.learning_rate: "),
        ("training.optimiser.momentum=1", "training.optimiser.momentum: "),
        ("training.batch_size=0", "training.batch_size: "),
        ("training.participation=0", "0 must be a number of devices (1 or more), or a share above 0.0 and at most 1.0"),
        ("training.participation=0.0", "training.participation: 0.0 must be"),
        ("training.participation=1.5", "training.participation: 1.5 must be"),
        ("training.participation=true", "training: participation is true or false"),
        ("training.participation=half", "training.participation: 'half' must be"),
        (
            "training.optimiser.name=AdamW",
            "training.optimiser.name: no optimiser is called 'AdamW'; did you mean adamw? choose sgd, adam, "
            "adamw, rmsprop or adagrad",
        ),
        (
            "training.optimiser={name: adamw, amsgrad: true}",
            "training.optimiser.amsgrad: unknown key; name adamw has the keys schedule, clip_norm, state, "
            "name, learning_rate, betas, epsilon and weight_decay; fedstrata",
        ),
        (
            "training.lps_optimiser.name=sgd",
            "training.lps_optimiser.name: no optimiser is called 'sgd'; choose none, momentum, adam, yogi or",
        ),
        (
            "training.lps_optimiser={name: none, learning_rate: 1}",
            "training.lps_optimiser.learning_rate: not a key of name none",
        ),
        ("training.gps_optimiser={name: momentum, tau: 1}", "training.gps_optimiser.tau: not a key of name momentum"),
        ("training.gps_optimiser={name: adam, tau: 0}", "training.gps_optimiser.tau: "),
        ("links.device-lps.up=float64", "links.device-lps.up: "),
        ("deadlines.lps.quorum_ratio=0", "deadlines.lps.quorum_ratio: "),
        ("training.local_epochs=0", "training.local_epochs: must be at least 1, not 0"),
        ('model.weights="a\\0b"', "model.weights: cannot read 'a\\x00b': "),
        ("model={name: my:Net, options: {widths: {0: 32}}}", "must be text, not 0"),  # devices would get the key "0"
        ("model={name: my:Net, options: {scale: .nan}}", "must be a finite number, not nan"),  # and None
    ],
)
def test_nonsense_is_refused_with_the_key_and_what_is_allowed(override: str, message: str) -> None:
    assert message in refusal(override)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("seed=true", "seed is true or false; give a number or a text"),
        ("seed=false", "seed is true or false"),
        ("training.global_rounds=true", "training: global_rounds is true or false"),
        ("training.optimiser.learning_rate=true", "training.optimiser: learning_rate is true or false"),
        ("model.hidden=[true,3]", "model: hidden is true or false"),
        ("name=true", "name is true or false"),
        ("training.optimiser.learning_rate=1e300", "training.optimiser.learning_rate: 1e+300 is too large for float32"),
        (f"bounds.max_examples={10**600}", "bounds.max_examples: 10000000000000000000 is too large"),
        (f"training.global_rounds={10**26}", "training.global_rounds: must be at most 1000000000, not 1000"),
        ("method={name: fedprox, mu: 1.0e39}", "method.mu: 1e+39 is too large for float32"),
        (f"model.hidden=[{'1,' * 1001}]", "model.hidden"),
    ],
)
def test_a_value_that_would_become_another_or_stop_devices_is_refused(override: str, message: str) -> None:
    assert message in refusal(override)


def test_keys_that_are_true_or_false_stay_so() -> None:
    assert small("data.download=true").data.download is True


def test_several_faults_are_counted_and_the_first_is_told() -> None:
    assert refusal("seed=-1", "training.batch_size=0").endswith("; and 1 more")


def test_epochs_and_steps_exclude_each_other() -> None:
    assert small("training.local_steps=4").training.local_epochs is None
    assert "local_epochs and local_steps exclude each other" in refusal(
        "training.local_steps=4", "training.local_epochs=1"
    )


def test_a_server_optimiser_has_its_papers_defaults_and_is_none_unless_told() -> None:
    experiment = small("training.lps_optimiser.name=adam", "training.gps_optimiser={name: momentum, momentum: 0.7}")
    assert parse_experiment(experiment.to_yaml()) == experiment
    adam, momentum = experiment.training.lps_optimiser, experiment.training.gps_optimiser
    assert adam.model_dump() == {"name": "adam", "learning_rate": 0.01, "beta1": 0.9, "beta2": 0.99, "tau": 0.001}
    assert momentum.model_dump() == {"name": "momentum", "learning_rate": 1.0, "momentum": 0.7}
    assert small().training.lps_optimiser.model_dump() == {"name": "none"}


@pytest.mark.parametrize(("said", "read"), [("1", 1), ("1.0", 1.0), ("0.25", 0.25), ("12", 12), ("null", None)])
def test_participation_is_a_number_of_devices_or_a_share_as_it_is_written(said: str, read: int | float | None) -> None:
    experiment = small(f"training.participation={said}")
    again = parse_experiment(experiment.to_yaml())
    for found in (experiment.training.participation, again.training.participation):
        assert (found, type(found)) == (read, type(read))


def test_a_folder_of_data_and_a_local_partition_go_together() -> None:
    local = "partition={kind: local, names: [board-a, board-b]}"
    folder = "data={name: folder, input_shape: [4], num_classes: 2}"
    assert "partition.kind local needs data.name folder" in refusal(local)
    assert small(folder).device_count == small(local, folder).device_count + 1
    assert small(local, folder).device_ids() == ["board-a", "board-b"]


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("seed", "--set takes key=value"),
        ("=3", "--set takes key=value"),
        ("a..b=3", "--set takes key=value"),
        ("seed.deeper=3", "--set seed.deeper=3: seed has a value, not further keys"),
        ("partition.tasks.9.devices=1", "9 must be a number from 0 to 1"),
        ("partition.tasks.².devices=1", "² must be a number from 0 to 1"),
        (f"partition.tasks.{'9' * 5000}=1", "9 must be a number from 0 to 1"),
        ("seed=[", "the value is not YAML"),
        ("seed=!!timestamp 2026-99-99", "the value is not YAML: month must be in 1..12"),
        (f"seed=0x{'f' * 5000}", "the number 0xfffffff… has more than 1000 characters"),
    ],
)
def test_an_override_that_cannot_be_placed_is_told(override: str, message: str) -> None:
    document = "seed: 1\n" + SMALL
    with pytest.raises(ExperimentError) as raised:
        parse_experiment(document, overrides=[override])
    assert message in str(raised.value)


def test_an_override_reaches_into_lists_and_makes_missing_levels() -> None:
    experiment = small("partition.tasks.1.devices=4", "training.optimiser.schedule.decay=0.5")
    assert experiment.device_count == 6
    assert experiment.training.optimiser.schedule.decay == 0.5


def test_an_override_changes_its_own_place_and_no_equal_one() -> None:
    document = read_yaml("same: [1, 1]\nfirst: &alias {k: 1}\nsecond: *alias")
    changed = overridden(document, ["same.1=2", "second.k=2"])
    assert changed == {"same": [1, 2], "first": {"k": 1}, "second": {"k": 2}}


@pytest.mark.parametrize(
    ("value", "read"),
    [
        (1e-05, 1e-05),
        ([1e20], [1e20]),
        (np.int64(3), 3),
        (np.float32([0.5]), [0.5]),
        (Path("a"), "a"),
        ("1\x85\n", "1\x85\n"),
    ],
)
def test_a_value_of_an_override_keeps_its_type(value: object, read: object) -> None:
    (found,) = overridden({}, [override_of("key", value)]).values()
    assert (found, type(found)) == (read, type(read))


def test_the_seed_given_beside_the_file_wins() -> None:
    assert small("seed=3", seed=5).seed == 5


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name: [", "is not YAML"),
        ("- a\n- b", "must be a mapping of keys to values; it is a list"),
        ("", "must be a mapping of keys to values; it is empty"),
        ("name: x", "partition: is missing, and has no default"),
    ],
)
def test_what_is_no_experiment_is_told_in_one_line(text: str, message: str) -> None:
    with pytest.raises(ExperimentError) as raised:
        parse_experiment(text)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "latin.yaml").write_bytes(b"name: caf\xe9")
    for path in (tmp_path / "absent.yaml", tmp_path / "latin.yaml", tmp_path):
        with pytest.raises(ExperimentError) as raised:
            load_experiment(path)
        assert str(path) in str(raised.value)
        assert ("save it as UTF-8" in str(raised.value)) == (path.name == "latin.yaml")


# --- what identifies a run ---------------------------------------------------------------------------------


def test_the_digest_does_not_say_where_data_lies() -> None:
    assert small("data.folder=/somewhere", "data.download=true").digest == small().digest


@pytest.mark.parametrize(
    "override",
    [
        "name=other",
        "seed=1",
        "method.eigenvectors=4",
        "training.batch_size=31",
        "training.last_batch=joined",
        "training.evaluate_all_every=1",
        "devices.processor=cuda",
        "deadlines.gps.deadline_s=9",
    ],
)
def test_the_digest_covers_everything_else(override: str) -> None:
    assert small(override).digest != small().digest


def test_the_digest_leaves_out_what_changes_no_result() -> None:
    resolved = yaml.safe_load(small().to_yaml())
    del resolved["faults"], resolved["data"]["folder"], resolved["data"]["download"], resolved["energy"]
    del resolved["model"]["weights"], resolved["clock"], resolved["compute"]
    del resolved["schedule"], resolved["secure_aggregation"], resolved["training"]["last_batch"]
    del resolved["training"]["evaluate_all_every"], resolved["aggregation"], resolved["attacks"], resolved["devices"]
    del resolved["training"]["rounds"]
    del resolved["partition"]["tests"], resolved["partition"]["validation_share"]
    resolved["links"] = {link: {way: resolved["links"][link][way] for way in ("up", "down")} for link in LINKS}
    assert hashlib.sha256(yaml.safe_dump(resolved).encode()).hexdigest() == small().digest


def test_a_copy_of_an_experiment_has_a_digest_of_its_own() -> None:
    one = small()
    digest = one.digest
    assert one.model_copy(update={"seed": 1}).digest == parse_experiment(one.to_yaml(), seed=1).digest != digest
    assert one.digest == digest


def test_a_copy_of_an_experiment_has_limits_of_its_own() -> None:
    one = parse_experiment("name: a\npartition: {kind: iid, devices: 2, examples_per_device: 10}")
    assert one.limits.max_examples == 10
    larger = one.partition.model_copy(update={"examples_per_device": 11})
    assert one.model_copy(update={"partition": larger}).limits.max_examples == 11
    assert one.limits.max_examples == 10


def test_the_run_id_is_the_name_and_the_start_of_the_digest() -> None:
    experiment = small()
    assert experiment.run_id == f"small-{experiment.digest[:12]}"


def test_devices_are_numbered_in_task_order() -> None:
    experiment = small()
    assert experiment.device_ids() == ["device-000", "device-001", "device-002"]
    assert experiment.task_of_devices() == ["even", "even", "odd"]


def test_ids_of_many_devices_sort_as_their_indexes() -> None:
    ids = parse_experiment("{name: many, partition: {kind: iid, devices: 1001, examples_per_device: 1}}").device_ids()
    assert ids[0] == "device-0000"
    assert ids == sorted(ids)


def test_a_partition_without_tasks_has_no_true_tasks() -> None:
    assert small("partition={kind: dirichlet, devices: 3, examples_per_device: 10}").task_of_devices() is None
