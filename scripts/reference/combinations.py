"""Write docs/reference/combinations.md, the features of an experiment that do not go together, from their table."""

from collections.abc import Mapping, Sequence

from fedstrata.checks.combinations import FEATURES, REFUSALS
from fedstrata.experiment import Experiment
from fedstrata.experiment_file import parse_experiment
from fedstrata.methods import NAMES, make_method
from scripts.reference.markdown import table

BASE = """
name: base
partition:
  kind: tasks
  public: {examples: 100, labelled: true}
  tasks: [{name: all, labels: [0, 1], devices: 12, examples_per_device: 40}]
training: {lps_rounds_per_global_round: 1}
"""
OPTIONS: Mapping[str, str] = {"ifca": ", clusters: 2", "scores": ", normalised: false"}
MODELS: Mapping[str, str] = {"fedbn": "model: {name: resnet18}"}  # models for methods that need certain models
TOP = """<!-- Written by `make reference` from fedstrata/checks/combinations.py. -->
# What does not go together

`fedstrata check` and `fedstrata run` refuse these pairs of features before anything starts. The message names both
keys, their values, the reason, and what to do. All other pairs go together.
"""
PAIRS = """
## Features

A number leads to the reason below. Features without a key are what a [method](#methods) does.
"""
METHODS = """
## Methods

What each method does, the numbers of the [reasons](#reasons) that follow from it, and what it refuses for reasons of
its own. `scores` refuses absent devices if `method.normalised` is false.
"""
LIMITS = """
## While a run goes on

A local parameter server (LPS) that has lost its files takes its cluster over from the devices. Three features keep
something that devices do not have: `clock: virtual`, asynchronous rounds (`training.rounds`), and an optimiser of the
LPS with a state. The optimiser comes from `training.lps_optimiser` or, in runs without `topology`, from a method such
as `fedadam`. With one of the three features the run stops and asks for the files.

`fedstrata retime` cannot work out other links for a run with `deadlines.lps.deadline_s`, or with a `schedule` of
devices that leave or move: other devices would take part, and the models would differ.
"""


def matrix() -> str:
    """Return the table of features by features, with the numbers of reasons."""
    numbers = {row.when: f"[{number}](#reasons)" for number, row in enumerate(REFUSALS, 1)}
    across, down = (list(dict.fromkeys(row.when[side] for row in REFUSALS)) for side in (1, 0))
    rows = [[f"`{one}`", *(numbers.get((one, other), "") for other in across)] for one in down]
    return table(["", *across], rows)


def reasons() -> str:
    """Return the numbered reasons."""
    rows = [
        [str(number), f"`{row.when[0]}`", row.when[1], f"{row.why}; {FEATURES[row.when[1]].without}"]
        for number, row in enumerate(REFUSALS, 1)
    ]
    return "\n## Reasons\n" + table(["", "feature", "with", "why, and what to do if you keep the feature"], rows)


def sample(method: str) -> Experiment:
    """Return a small experiment that a method can run."""
    return parse_experiment(f"{BASE}method: {{name: {method}{OPTIONS.get(method, '')}}}\n{MODELS.get(method, '')}")


def methods() -> str:
    """Return the table of built-in methods, with their features and refusals."""
    return table(["method", "does", "reasons", "and refuses"], map(method_row, NAMES))


def method_row(name: str) -> Sequence[str]:
    """Return a method's row, for a file that sets no other option."""
    experiment = sample(name)
    method = make_method(experiment)
    does = {feature for feature, each in FEATURES.items() if f"method {name}" in each.said(experiment, method)}
    numbers = [str(number) for number, row in enumerate(REFUSALS, 1) if row.when[1] in does]
    by_reason: dict[str, list[str]] = {}
    for feature, reason in method.refuses().items():
        by_reason.setdefault(reason, []).append(f"`{feature}`")
    own = "; ".join(f"{', '.join(features)}: {reason}" for reason, features in by_reason.items())
    return [f"`{name}`", ", ".join(each for each in FEATURES if each in does), ", ".join(numbers), own]


def page() -> str:
    """Return the page."""
    return TOP + PAIRS + matrix() + reasons() + METHODS + methods() + LIMITS
