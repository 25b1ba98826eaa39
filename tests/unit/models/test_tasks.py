"""What tasks measure, against NumPy and scikit-learn, and that the sums of parts are those of the whole."""

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from sklearn.metrics import (
    accuracy_score,
    f1_score,
    log_loss,
    mean_absolute_error,
    mean_pinball_loss,
    r2_score,
    roc_auc_score,
    root_mean_squared_error,
)

from fedstrata.checks.combinations import refusals
from fedstrata.datasets import DatasetInfo, Examples
from fedstrata.errors import DataError, ExperimentError, PluginError
from fedstrata.experiment import Experiment
from fedstrata.experiment_file import parse_experiment
from fedstrata.methods import make_method, method_settings
from fedstrata.methods.registry import facts_of, method_of
from fedstrata.partitions.registry import partition_settings
from fedstrata.process.metrics import ProcessMetrics
from fedstrata.record.summary import check_names
from fedstrata.tasks import Metric, Sum, Task, TaskSettings, measured
from fedstrata.tasks.registry import NAMES, make_task, task_class, task_settings

RNG = np.random.default_rng(7)
N = 101


def task_of(section: Any) -> Task:
    settings = task_settings(section)
    return task_class(settings.name)(settings)


def measured_in_parts(task: Task, outputs: Any, examples: Examples) -> dict[str, float | None]:
    """The metrics from sums of three devices; the sums of losses are those of all examples."""
    parts = np.split(np.arange(len(examples)), [20, 21])
    sums, loss = np.zeros(len(task.sums)), 0.0
    for part in parts:
        mine = examples.take(part)
        given, targets = torch.tensor(outputs[part]), torch.tensor(task.targets(mine))
        found = task.measure(given, targets, mine)
        assert len(found) == len(task.sums)
        for named, value in zip(task.sums, found, strict=True):
            least, most = named.range(len(part))
            assert least <= value <= most
            assert value.is_integer() or not named.is_count
        sums += found
        loss += task.loss(given, targets).sum(dtype=torch.float64).item()
    whole = task.loss(torch.tensor(outputs), torch.tensor(task.targets(examples)))
    assert whole.shape == (len(examples),)
    assert loss == pytest.approx(whole.double().sum().item(), rel=1e-6)
    return measured(task, sums.tolist(), len(examples))


def inputs(*shape: int) -> Any:
    return RNG.normal(size=(N, *shape)).astype(np.float32)


def test_accuracy_is_the_share_of_hits_and_the_loss_the_cross_entropy() -> None:
    labels, outputs = RNG.integers(0, 4, N), inputs(4)
    task = task_of("classification")
    found = measured_in_parts(task, outputs, Examples(inputs=inputs(2), labels=labels))
    assert found == {"accuracy": accuracy_score(labels, outputs.argmax(1))}
    probabilities = torch.tensor(outputs).double().softmax(1).numpy()
    loss = task.mean_loss(torch.tensor(outputs), torch.tensor(labels)).item()
    assert loss == pytest.approx(log_loss(labels, probabilities, labels=range(4)), rel=1e-6)


def test_the_accuracy_of_rare_labels_is_the_share_of_hits_among_their_examples_alone() -> None:
    task = task_of({"name": "rare_labels", "labels": [1, 3]})
    labels = np.resize([0, 1, 2, 3, 0], N)
    answers = np.where(labels == 3, 3, 0)  # of the labels 1 and 3, only 3 is ever right
    outputs = np.eye(4, dtype=np.float32)[answers]
    found = measured_in_parts(task, outputs, Examples(inputs=inputs(2), labels=labels))
    assert found == {"accuracy": 61 / 101, "rare_accuracy": 0.5}  # 41 of label 0 and 20 of 3; 20 of each rare label
    assert measured(task, [5, 0, 0], 5) == {"accuracy": 1.0, "rare_accuracy": None}  # a device without rare labels


@pytest.mark.parametrize("shape", [(), (1,), (3,), (2, 5)])
def test_errors_of_a_regression_are_those_of_all_numbers_together(shape: tuple[int, ...]) -> None:
    targets, outputs = 3 + inputs(*shape), inputs(*(shape or (1,)))
    found = measured_in_parts(task_of("regression"), outputs, Examples(inputs=inputs(2), targets=targets))
    true, said = targets.astype(np.float64).ravel(), outputs.astype(np.float64).ravel()
    assert found == {
        "rmse": pytest.approx(root_mean_squared_error(true, said), rel=1e-12),
        "mae": pytest.approx(mean_absolute_error(true, said), rel=1e-12),
        "r2": pytest.approx(r2_score(true, said), rel=1e-9),
    }


@pytest.mark.parametrize(("loss", "of_two"), [("squared", 4.0), ("absolute", 2.0), ("huber", 1.5)])
def test_a_regression_learns_by_the_loss_that_it_is_told(loss: str, of_two: float) -> None:
    task = task_of({"name": "regression", "loss": loss})
    assert task.mean_loss(torch.tensor([[2.0], [0.0]]), torch.tensor([0.0, 0.0])).item() == of_two / 2


def test_constant_targets_have_no_variance_to_explain() -> None:
    task = task_of("regression")
    sums = task.measure(torch.tensor([[1.0], [3.0]]), torch.tensor([[2.0], [2.0]]), Examples(inputs=inputs(2)))
    assert measured(task, sums, 2) == {"rmse": 1.0, "mae": 1.0, "r2": None}
    sums = task.measure(torch.zeros(7, 1), torch.full((7, 1), 3.7), Examples(inputs=inputs(2)))
    assert measured(task, sums, 7)["r2"] is None  # 7 · 3.7² is not (7 · 3.7)² / 7 in float64


def test_perplexity_is_of_tokens_and_padding_counts_nowhere() -> None:
    tokens, outputs = RNG.integers(0, 6, (N, 5)), inputs(5, 6)
    tokens[RNG.random((N, 5)) < 0.3] = -100
    task = task_of("next_token")
    found = measured_in_parts(task, outputs, Examples(inputs=inputs(5), targets=tokens))
    there = tokens >= 0
    scores = torch.tensor(outputs).double().log_softmax(-1).numpy()[there]
    of_tokens = -scores[np.arange(there.sum()), tokens[there]]
    assert found == {
        "perplexity": pytest.approx(math.exp(of_tokens.mean()), rel=1e-6),
        "accuracy": accuracy_score(tokens[there], outputs.argmax(-1)[there]),
    }
    mean = task.mean_loss(torch.tensor(outputs), torch.tensor(tokens)).item()
    assert mean == pytest.approx(of_tokens.mean(), rel=1e-6)
    alone = torch.nn.functional.cross_entropy(torch.tensor(outputs).flatten(0, 1), torch.tensor(tokens).flatten())
    assert mean == pytest.approx(alone.item(), rel=1e-6)


def test_an_example_of_padding_alone_has_no_loss_and_no_tokens() -> None:
    task, nothing = task_of("next_token"), torch.full((2, 3), -100)
    outputs = torch.tensor(inputs(3, 4)[:2])
    assert task.loss(outputs, nothing).tolist() == [0.0, 0.0]
    assert task.mean_loss(outputs, nothing).item() == 0.0
    sums = task.measure(outputs, nothing, Examples(inputs=inputs(3)[:2], targets=nothing.numpy()))
    assert measured(task, sums, 2) == {"perplexity": None, "accuracy": None}


def test_a_token_below_0_is_refused_unless_it_is_the_mark_of_padding() -> None:
    tokens = np.array([[1, -100], [-1, 2]])
    with pytest.raises(DataError, match="next_token has the target -1; write -100 for positions to ignore"):
        task_of("next_token").targets(Examples(inputs=inputs(2)[:2], targets=tokens))


@pytest.mark.parametrize("wrong", [2, -1])
def test_a_target_of_a_label_that_is_not_between_0_and_1_is_refused(wrong: float) -> None:
    targets = np.array([[0, 1], [1, wrong]], np.float32)
    with pytest.raises(DataError, match=f"multi_label has the target {wrong}; write 0 or 1 for each label"):
        task_of("multi_label").targets(Examples(inputs=inputs(2)[:2], targets=targets))


@pytest.mark.parametrize("threshold", [0.5, 0.3])
def test_f1_is_exact_and_auroc_within_the_width_of_a_bin(threshold: float) -> None:
    targets = (RNG.random((N, 4)) < 0.3).astype(np.float32)
    outputs = (inputs(4) + targets).astype(np.float32)
    task = task_of({"name": "multi_label", "threshold": threshold})
    found = measured_in_parts(task, outputs, Examples(inputs=inputs(2), targets=targets))
    probabilities = torch.tensor(outputs).double().sigmoid().numpy()
    f1 = f1_score(targets, probabilities >= threshold, average="micro")
    assert found["f1"] == pytest.approx(f1, rel=1e-12)
    assert found["auroc"] == pytest.approx(roc_auc_score(targets.ravel(), probabilities.ravel()), abs=1 / 128)


def test_anomalies_are_ranked_by_their_error_if_a_column_marks_them() -> None:
    marks = (RNG.random(N) < 0.2).astype(np.int64)
    given = inputs(3, 2)
    outputs = given + (1 + marks[:, None, None]) * inputs(3, 2) / 10
    examples = Examples(inputs=given, columns={"broken": marks})
    errors = np.square(outputs.astype(np.float64) - given).mean((1, 2))
    found = measured_in_parts(
        task_of({"name": "reconstruction", "anomalies": "broken"}), outputs.astype(np.float32), examples
    )
    assert found["mse"] == pytest.approx(errors.mean(), rel=1e-5)
    assert found["auroc"] == pytest.approx(roc_auc_score(marks, errors), abs=0.02)
    unmarked = measured_in_parts(task_of("reconstruction"), outputs.astype(np.float32), examples)
    assert unmarked == {"mse": found["mse"], "auroc": None}
    with pytest.raises(DataError, match=r"task\.anomalies names the column 'bent', but the data have broken"):
        measured_in_parts(task_of({"name": "reconstruction", "anomalies": "bent"}), outputs, examples)


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ("regresion", "task.name: no task is called 'regresion'; did you mean regression"),
        ({"name": "regression", "los": "huber"}, "task regression has no such option; its options are: loss"),
        ({"name": "multi_label", "threshold": 1.5}, "task.threshold"),
        ([1], "task: must be a name, or a mapping"),
    ],
)
def test_a_wrong_section_is_refused_in_a_line(section: Any, message: str) -> None:
    with pytest.raises(ExperimentError, match=message):
        task_settings(section)


@pytest.mark.parametrize(
    ("section", "info", "message"),
    [
        ("regression", {"num_classes": 3}, "task regression learns numbers, but the data have 3 labels"),
        ("classification", {}, "task classification needs data.num_classes"),
        ("classification", {"num_classes": 3, "target_shape": (4,)}, "task classification needs one label per example"),
        (
            {"name": "rare_labels", "labels": [1, 3]},
            {"num_classes": 3},
            "task.labels: the data set has no label 3; its labels go from 0 to 2",
        ),
        ("next_token", {"num_classes": 9}, "task next_token needs data.num_classes"),
        ("multi_label", {"num_classes": 3}, "task multi_label needs targets of 0 and 1"),
    ],
)
def test_data_that_do_not_fit_are_refused_by_name(section: Any, info: dict[str, Any], message: str) -> None:
    with pytest.raises(ExperimentError, match=message):
        task_of(section).check(DatasetInfo(input_shape=(2,), **info))


@pytest.mark.parametrize(
    ("task", "method"),
    [("next_token", "scores"), ("regression", "label_means"), ("multi_label", "{name: pacfl, by_label: true}")],
)
def test_a_method_that_reads_labels_refuses_other_tasks_by_name(task: str, method: str) -> None:
    shapes = {"next_token": "num_classes: 9, target_shape: [4]"}.get(task, "target_shape: [3]")
    text = f"""{{name: a, data: {{name: "own:load", input_shape: [4], {shapes}}}, model: {{name: "own:net"}},
        partition: {{kind: iid, devices: 2, examples_per_device: 10}}, task: {task}, method: fedavg}}"""
    experiment = parse_experiment(text)
    chosen = method_settings(yaml.safe_load(method))
    reading = method_of(chosen, replace(facts_of(experiment), num_classes=9, public_examples=5, public_labelled=True))
    changed = experiment.model_copy(update={"method": chosen})
    message = f"task {task} does not go with method {chosen.name}: the method needs labels"
    assert [said for said in refusals(changed, reading) if said.startswith(message)]
    assert not [said for said in refusals(experiment, make_method(experiment)) if said.startswith("task")]


class Flawed(Task):
    metrics = (Metric(name="share", unit="percent"),)
    sums = (Sum(name="hits"),)

    def summarise(self, sums: Any, num_examples: int) -> Any:
        return {"share": {1: 0.5, 2: 1.5, 3: math.nan}[num_examples]}


def test_a_metric_out_of_its_range_is_none_and_a_task_that_fails_is_named() -> None:
    task = Flawed(TaskSettings(name="own:Flawed"))
    assert [measured(task, [0.0], number)["share"] for number in (0, 1, 2, 3)] == [None, 0.5, None, None]
    with pytest.raises(PluginError, match="task own:Flawed failed in summarise: KeyError: 4"):
        measured(task, [0.0], 4)


@pytest.mark.parametrize("metrics", [(), (Metric(name="a"), Metric(name="a")), [Metric(name="a")]])
def test_a_task_declares_its_metrics(metrics: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedstrata.tasks.classification.Classification.metrics", metrics)
    partition = partition_settings({"kind": "iid", "devices": 2, "examples_per_device": 10})
    experiment = Experiment.model_validate({"name": "a", "partition": partition, "method": {"name": "fedavg"}})
    with pytest.raises(PluginError, match="task classification"):
        make_task(experiment)


@pytest.mark.parametrize("name", ["Accuracy", "a b", "", "x" * 41])
def test_a_metric_has_a_name_that_a_column_can_have(name: str) -> None:
    with pytest.raises(PluginError, match="the name must have small letters"):
        Metric(name=name)


def gauges() -> set[str]:
    """The names at /metrics, except those of the process itself."""
    names = {family.name for family in ProcessMetrics("gps").registry.collect()}
    return {name.removeprefix("fedstrata_") for name in names if name.startswith("fedstrata_")}


@pytest.mark.parametrize(
    "other", ["device_hits", "task_hits", "lowest_hits", "hits_ratio", "rounds", *sorted(gauges())]
)
def test_two_values_of_a_run_never_have_the_same_name(other: str) -> None:
    hits = Metric(name="hits", unit="percent")
    check_names([hits, Metric(name="misses")])
    with pytest.raises(ExperimentError, match=f"the record or /metrics uses the name {other} already"):
        check_names([hits, Metric(name=other)])


@pytest.mark.parametrize("name", NAMES)
def test_no_built_in_task_has_a_metric_with_a_name_of_the_record(name: str) -> None:
    check_names(task_class(name).metrics)


def test_the_worst_and_the_nearly_final_value_follow_the_direction() -> None:
    up, down = Metric(name="up"), Metric(name="down", higher_is_better=False)
    assert (up.worst([0.2, 0.9]), down.worst([0.2, 0.9]), up.worst([])) == (0.2, 0.9, None)
    assert [up.is_reached(value, 1.0, 0.95) for value in (0.94, 0.95, 1.2)] == [False, True, True]
    assert [down.is_reached(value, 0.95, 0.95) for value in (1.01, 1.0, 0.5)] == [False, True, True]
    assert [up.is_reached(value, -0.95, 0.95) for value in (-1.01, -1.0)] == [False, True]


def test_no_tier_and_no_page_knows_a_task_by_name() -> None:
    root = Path(__file__).parents[3]
    files = [path for folder in ("gps", "lps", "device", "fleet", "emulator") for path in (root / folder).rglob("*.py")]
    files += (root / "fedstrata" / "page" / "static").glob("[!.]*[!n].js")
    assert len(files) > 100
    words = {path: set(re.findall(r"""(?<=["'])\w+(?=["'])""", path.read_text(encoding="utf-8"))) for path in files}
    assert {str(path): found & set(NAMES) for path, found in words.items() if found & set(NAMES)} == {}


def test_the_task_of_the_documents_measures_what_they_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (Path(__file__).parents[3] / "docs" / "own-task.md").read_text(encoding="utf-8")
    (tmp_path / "quantile.py").write_text(text.partition("```python\n")[2].partition("```")[0], encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    targets, outputs = inputs(), inputs(1)
    found = measured_in_parts(
        task_of({"name": "quantile:Quantile", "share": 0.8}), outputs, Examples(inputs=inputs(2), targets=targets)
    )
    assert found == {
        "pinball": pytest.approx(mean_pinball_loss(targets, outputs[:, 0], alpha=0.8), rel=1e-5),
        "below": (targets < outputs[:, 0]).mean(),
    }
    with pytest.raises(ExperimentError, match=r"task\.share"):
        task_settings({"name": "quantile:Quantile", "share": 2})
