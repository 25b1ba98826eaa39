"""Methods by name: options are closed and in the digest, own code has its own, and only the registry knows names."""

import inspect
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from fedstrata.errors import ExperimentError, PluginError
from fedstrata.experiment import Experiment
from fedstrata.experiment_file import parse_experiment
from fedstrata.methods import (
    NAMES,
    Facts,
    Method,
    Outcome,
    Work,
    make_method,
    method_of,
    method_settings,
    trained_examples_of,
)
from fedstrata.methods.base import says_trained_examples
from fedstrata.methods.fed_prox import FedProx
from fedstrata.methods.registry import DEFAULT, REGISTRY, method_class
from tests.support.every_method import MODELS
from tests.support.splits import SMALL

ROOT = Path(__file__).parents[3]
OWN = """
from fedstrata.methods import Method, MethodSettings
from fedstrata.methods.base import NonNegativeFloat


class Careful(Method):
    class Options(MethodSettings):
        mu: NonNegativeFloat = 0.1


class Broken(Method):
    def check(self):
        raise KeyError("width")


class NoMethod:
    pass


class OtherOptions(Method):
    class Options:
        pass


class Keyed(Method):
    def __init_subclass__(cls, key):
        pass


number = 3


def function():
    return Careful
"""


def small(*overrides: str) -> Experiment:
    return parse_experiment(SMALL, overrides=("training.lps_rounds_per_global_round=1", *overrides))


IID = """
name: plain
partition: {kind: iid, devices: 4, examples_per_device: 20}
training: {lps_rounds_per_global_round: 1}"""


def refusal(*overrides: str) -> str:
    with pytest.raises(ExperimentError) as raised:
        small(*overrides)
    assert "\n" not in str(raised.value)
    return str(raised.value)


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a module with methods of one's own."""
    (tmp_path / "own_methods.py").write_text(OWN, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    return "own_methods"


# --- names --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_every_method_goes_by_its_name_alone(name: str) -> None:
    model = f"model={MODELS[name]}" if name in MODELS else "model.name=mlp"
    experiment = small(f"method={name}", "partition.public={examples: 100, labelled: true}", model)
    method = make_method(experiment)
    assert type(method) is method_class(name)
    assert method.options is experiment.method
    assert type(method.options) is type(method).Options
    asked = [question.name for question in method.questions()]
    assert len(set(asked)) == len(asked)
    assert (method.facts.device_count, method.facts.true_groups) == (3, 2)
    assert (method.facts.input_shape, method.facts.num_classes) == ((1, 8, 8), 10)


@pytest.mark.parametrize("name", NAMES)
def test_every_method_is_a_file_that_cites_its_paper_or_says_what_it_is(name: str) -> None:
    module = inspect.getmodule(method_class(name))
    assert module is not None
    assert module.__name__ == REGISTRY[name].partition(":")[0]
    assert len((module.__doc__ or "").split()) > 6


@pytest.mark.parametrize("section", ["", "  name: one_shot\n", "  clusters: auto\n"])
def test_without_a_name_the_default_is_taken(section: str) -> None:
    text = SMALL + (f"method:\n{section}" if section else "")
    assert parse_experiment(text).method.name == DEFAULT


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("method=dbscan", "method.name: no method is called 'dbscan'; choose one_shot, random, oracle, "),
        ("method.name='own:'", "no method is called 'own:'"),
        ("method=[one_shot]", "method: must be a name, or a mapping with the name and its options, not ['one_shot']"),
        ("method=7", "method: must be a name, or a mapping with the name and its options, not 7"),
        (f"method={'x' * 3000}", "no method is called 'xxx"),
    ],
)
def test_a_name_that_is_none_is_told_with_what_there_is(override: str, message: str) -> None:
    assert message in refusal(override)
    assert len(refusal(override)) < 600


# --- options ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_a_key_that_a_method_has_not_is_refused_with_those_that_it_has(name: str) -> None:
    options = sorted(set(method_class(name).Options.model_fields) - {"name"})
    message = refusal(f"method={name}", "method.colour=red")
    assert message.endswith(
        f"method.colour: method {name} has no such option; its options are: {', '.join(options) or 'none'}"
    )


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"name": "fedprox", "mu": -1}, "method.mu: must be at least 0, not -1"),
        ({"name": "fedprox", "mu": float("inf")}, "method.mu: must be a finite number, not inf"),
        ({"name": "fedprox", "mu": "much"}, "method.mu: must be a number"),
        ({"name": "ditto", "pull": -0.1}, "method.pull: must be at least 0, not -0.1"),
        ({"name": "ditto", "personal_epochs": 0}, "method.personal_epochs: must be at least 1"),
        ({"name": "one_shot", "clusters": 0}, "method.clusters: must be 'auto' or at least 1, not 0"),
        ({"name": "one_shot", "clusters": "few"}, "method.clusters: must be 'auto' or an integer"),
        ({"name": "one_shot", "eigenvectors": 0}, "method.eigenvectors: must be at least 1"),
        ({"name": "one_shot", "features": "phi"}, "method.features: no feature map is called 'phi'; choose raw"),
        ({"name": "one_shot", "features": "a:b"}, "method: features a:b needs feature_dim"),
        ({"name": "pacfl", "angle": "widest"}, "method.angle: must be 'principal', 'smallest' or 'sum', not 'widest'"),
        ({"name": "pacfl", "vectors": 0}, "method.vectors: must be at least 1"),
        ({"name": "ifca", "clusters": "auto"}, "method.clusters: must be an integer"),
        ({"name": "feddyn", "alpha": 0}, "method.alpha: must be above 0, not 0"),
        ({"name": "cfl", "mean_ratio": 0}, "method.mean_ratio: must be above 0"),
        ({"name": "cfl", "mean_ratio": 1.5}, "method.mean_ratio: must be at most 1"),
        ({"name": "cfl", "sketch": 8}, "method.sketch: must be at least 16"),
        ({"name": "cfl", "linkage": "average"}, "method.linkage: must be 'complete' or 'single'"),
    ],
)
def test_an_option_that_cannot_be_is_refused_in_one_line(section: dict[str, Any], message: str) -> None:
    with pytest.raises(ExperimentError) as raised:
        method_settings(section)
    assert str(raised.value).startswith(message)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ("{name: one_shot, clusters: 5}", "method.clusters is 5, more than the 4 devices"),
        ("{name: pacfl, clusters: 5}", "method.clusters is 5, more than the 4 devices"),
        ("{name: ifca, clusters: 5}", "method.clusters is 5, more than the 4 devices"),
        (
            "{name: pacfl, angle: sum}",
            "method.angle sum compares vectors place by place, not label by label; set method.by_label: false",
        ),
        (
            "{name: random}",
            "method random needs a number in method.clusters, because the partition has no true clusters",
        ),
        ("{name: oracle}", "method oracle needs a partition with known true clusters"),
    ],
)
def test_options_that_do_not_go_with_the_experiment_are_refused_in_one_line(section: str, message: str) -> None:
    with pytest.raises(ExperimentError) as raised:
        parse_experiment(f"{IID}\nmethod: {section}")
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("name", "option"),
    [("fedprox", "mu=0.5"), ("ditto", "pull=0.5"), ("ditto", "personal_epochs=2"), ("ifca", "shares_layers=true"),
     ("cfl", "linkage=single"), ("pacfl", "vectors=4"), ("one_shot", "landmarks=9")],
)  # fmt: skip
def test_options_are_in_the_resolved_file_and_in_the_digest(name: str, option: str) -> None:
    plain, changed = small(f"method={name}"), small(f"method={name}", f"method.{option}")
    assert plain.digest != changed.digest
    assert plain.run_id != changed.run_id
    key, _, value = option.partition("=")
    assert yaml.safe_load(changed.to_yaml())["method"][key] == yaml.safe_load(value)
    assert parse_experiment(changed.to_yaml()) == changed


def test_methods_differ_in_the_digest_by_their_name_alone() -> None:
    assert small("method=fedavg").digest != small("method=local").digest


def test_a_checked_section_is_taken_as_it_is() -> None:
    section = small("method=fedprox").method
    assert method_settings(section) is section


# --- own code -----------------------------------------------------------------------------------------------


def test_own_code_has_options_of_its_own_which_are_closed_and_in_the_digest(own: str) -> None:
    careful = f"method={own}:Careful"
    assert make_method(small(careful, "method.mu=0.5")).options.mu == 0.5
    assert small(careful).digest != small(careful, "method.mu=0.5").digest
    assert "no such option; its options are: mu" in refusal(careful, "method.nu=0.5")
    assert "method.mu: must be at least 0" in refusal(careful, "method.mu=-1")
    assert parse_experiment(small(careful, "method.mu=0.5").to_yaml()).method == small(careful, "method.mu=0.5").method


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("Missing", "it does not exist"),
        ("number", "it is a int, not a function"),
        ("function", "must be a subclass of fedstrata.methods.Method, not <function"),
        ("NoMethod", "must be a subclass of fedstrata.methods.Method, not <class 'own_methods.NoMethod'>"),
        ("OtherOptions", "Options must be a subclass of fedstrata.methods.MethodSettings"),
        ("Keyed", "method own_methods:Keyed failed with TypeError: "),
        ("Broken", "method own_methods:Broken failed in check: KeyError: 'width'"),
    ],
)
def test_own_code_that_is_no_method_is_refused_by_name(own: str, name: str, reason: str) -> None:
    with pytest.raises(PluginError) as raised:
        small(f"method={own}:{name}")
    assert reason in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_fault_of_a_known_method_is_not_taken_for_own_code(monkeypatch: pytest.MonkeyPatch) -> None:
    kind = method_class("fedavg")

    def broken(method: Method) -> None:
        raise KeyError("ours")

    monkeypatch.setattr(kind, "check", broken)
    with pytest.raises(KeyError):
        method_of(kind.Options(name="fedavg"), Facts(device_count=1))


# --- nobody else knows a name -------------------------------------------------------------------------------


# Values that are written as a method's name is, and are something else: a partition's kind, and where LPSs run.
SOMETHING_ELSE = {
    ("fedstrata/partitions/base.py", "random"),  # test examples are drawn
    ("fedstrata/partitions/local_data.py", "random"),
    ("fedstrata/partitions/local_data.py", "local"),
    ("fedstrata/partitions/registry.py", "local"),
    ("gps/__main__.py", "local"),
}


def sources() -> Iterator[Path]:
    """What must not know a method: the tiers, the emulator's pages, and the shared library but for the methods."""
    for folder in ("gps", "lps", "device", "fleet", "emulator", "fedstrata"):
        for path in sorted((ROOT / folder).rglob("*")):
            if (
                path.suffix in {".py", ".html", ".js", ".css", ".yaml"}
                and path.parent.name != "methods"
                and ".min." not in path.name
            ):
                yield path


def values_in(path: Path) -> set[str]:
    """The strings of one word in a program, or the words of a page."""
    word = r"""["']([\w-]+)["']""" if path.suffix == ".py" else r"[\w-]+"
    return set(re.findall(word, path.read_text(encoding="utf-8")))


def test_no_tier_no_settings_and_no_page_knows_a_method_by_name() -> None:
    names = set(NAMES)
    found = {(str(path.relative_to(ROOT)), name) for path in sources() for name in values_in(path) & names}
    assert found == SOMETHING_ELSE


def test_among_the_methods_only_the_registry_knows_names() -> None:
    found = {path.name for path in (ROOT / "fedstrata/methods").glob("*.py") if values_in(path) & set(NAMES)}
    assert found == {"registry.py"}


def trained(name: str, options: Mapping[str, Any], lps_round: int = 1) -> int | None:
    """The number of examples on which a device with 60 examples trains in a round."""
    partition = "partition={kind: iid, devices: 3, examples_per_device: 20, public: {examples: 9}}"
    method = json.dumps({"name": name, **options})
    experiment = parse_experiment(IID, overrides=[partition, f"method={method}", "training.batch_size=25"])
    return trained_examples_of(make_method(experiment), 60, lps_round)


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        ("fedavg", {}, 60),
        ("fedprox", {}, 60),
        ("ditto", {}, 2 * 60),
        ("ditto", {"personal_epochs": 3}, 60 + 3 * 60),
        ("apfl", {}, 2 * 60),
        ("pfedme", {"personal_steps": 7}, 7 * 60),
        ("perfedavg", {"variant": "fo"}, 2 * 60),
        ("perfedavg", {"variant": "hf"}, 4 * 60),
        ("fedrep", {}, 2 * 60),
        ("fedrep", {"head_epochs": 5}, 5 * 60 + 60),
        ("fedfomo", {"validation_share": 0.25}, 45),
        ("adaptive", {"pretrain_epochs": 4}, 60),
        ("scores", {"reading": "columns", "beta": "equal"}, None),
        (f"{__name__}:Own", {}, None),
    ],
)
def test_a_method_says_on_how_many_examples_a_device_trains(
    name: str, options: Mapping[str, Any], expected: int | None
) -> None:
    assert trained(name, options) == expected


def test_the_first_round_of_adaptive_has_epochs_of_its_own() -> None:
    assert trained("adaptive", {"pretrain_epochs": 4}, lps_round=0) == 4 * 60


class Own(FedProx):
    """A method that trains in its own way, and does not say on how many examples."""

    async def local(self, work: Work) -> Outcome:
        return await super().local(work)


def test_only_two_methods_do_not_say_on_how_many_examples_devices_train() -> None:
    unknown = {"fedala", "scores"}  # depends on whether it is a device's first round, and on its labels
    assert {name for name in NAMES if not says_trained_examples(method_class(name))} == unknown
