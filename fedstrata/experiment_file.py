"""The experiment file: one YAML file with all settings that define a run.

`load_experiment` reads the file, fills in defaults and checks all settings. `experiment_schema` describes the file for
editors.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from functools import cache, partial
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from fedstrata.attacks.registry import ATTACKS, attack_settings, attacks_of
from fedstrata.checks.combinations import check_combinations
from fedstrata.checks.protection import check_protection
from fedstrata.checks.values import check_values
from fedstrata.datasets import dataset_info
from fedstrata.errors import ExperimentError
from fedstrata.experiment import Experiment
from fedstrata.experiment.error_lines import one_line, unknown_key, untagged
from fedstrata.experiment.keys_of_files import HASHED, with_files
from fedstrata.experiment.sections import MODELS, PLUGIN, Settings
from fedstrata.experiment.trace_files import with_traces_read
from fedstrata.experiment.yaml_files import read_yaml
from fedstrata.methods import make_method, method_settings
from fedstrata.methods import registry as methods_known
from fedstrata.methods.registry import method_class
from fedstrata.partitions.registry import partition_schema, partition_settings
from fedstrata.process.regular_files import check_regular
from fedstrata.processors import PROCESSORS
from fedstrata.rules.registry import RULES, aggregation_settings
from fedstrata.store.named_files import sha256_of
from fedstrata.streams.architectures import Architectures
from fedstrata.tasks import make_task
from fedstrata.tasks import registry as tasks_known
from fedstrata.tasks.registry import task_class, task_settings

LARGEST = 3.4e38  # of float32, in which devices compute


def load_experiment(path: Path, overrides: Sequence[str] = (), seed: int | None = None) -> Experiment:
    """Read an experiment file, apply `key.path=value` overrides, and check the resulting experiment. If `seed` is
    given, it replaces the seed in the file.

    Raises:
        ExperimentError: the file is missing, is not YAML, or has a value that is not allowed.
    """
    try:
        check_regular(path)
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ExperimentError(f"cannot read the experiment file {path}: it is not in UTF-8; save it as UTF-8") from None
    except OSError as error:
        raise ExperimentError(
            f"cannot read the experiment file {path}: {error.strerror}; give the path of one"
        ) from None
    return parse_experiment(text, overrides=overrides, seed=seed, where=str(path))


def parse_experiment(
    text: str, *, overrides: Sequence[str] = (), seed: int | None = None, where: str = "experiment"
) -> Experiment:
    """Return the experiment that a YAML text describes. Raises ExperimentError like `load_experiment`."""
    try:
        document = read_yaml(text)
    except ValueError as error:
        raise ExperimentError(f"{where} {error}") from None
    if not isinstance(document, dict):
        found = "it is empty" if document is None else f"it is a {type(document).__name__}"
        raise ExperimentError(f"{where} must be a mapping of keys to values; {found}")
    changed = overridden(document, overrides)
    try:
        return checked(changed, Path(where).parent, seed)
    except ExperimentError as error:

        def is_fine(others: Sequence[str]) -> bool:
            try:
                checked(overridden(document, others), Path(where).parent, seed)
            except ExperimentError:
                return False
            return True

        raise type(error)(f"{_culprits(str(error), overrides, is_fine) or where}: {error}") from None


def checked(document: dict[str, Any], folder: Path, seed: int | None) -> Experiment:
    """Check a document of settings, and return its experiment. Raises ExperimentError if a setting is wrong. The
    message does not name the file.
    """
    document = _with_files_named(with_traces_read(document, folder), folder)
    if seed is not None:
        document["seed"] = seed
    try:
        own = {"method": method_settings(document.get("method")), "task": task_settings(document.get("task"))}
        if "partition" in document:
            own["partition"] = partition_settings(document["partition"])
        if "aggregation" in document:
            own["aggregation"] = aggregation_settings(document["aggregation"])
        if "attacks" in document:
            own["attacks"] = attack_settings(document["attacks"])
        experiment = Experiment.model_validate({**document, **own})
        if document.get("method") is None:  # `own` has the default
            experiment.model_fields_set.discard("method")
        _check_sizes(experiment.model_dump(mode="python", by_alias=True))
        check_experiment(experiment)
    except ValidationError as error:
        schema = _plain_schema()
        _, chosen = untagged(error.errors()[0]["loc"], schema)
        raise ExperimentError(
            one_line(error, partial(unknown_key, schema=schema, chosen=chosen), schema=schema)
        ) from None
    except ExperimentError:
        raise
    except ValueError as error:
        raise ExperimentError(f"experiment: {error}") from None
    return experiment


def _check_sizes(value: Any, key: str = "") -> None:
    """Check all numbers of an experiment. Raises ExperimentError for a number that devices cannot have as float32."""
    if isinstance(value, int | float) and LARGEST < abs(value) < math.inf:
        raise ExperimentError(f"{key}: {value!s:.20} is too large for float32; give a number below {LARGEST:g}")
    inner = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list | tuple) else ()
    for name, each in inner:
        _check_sizes(each, f"{key}.{name}" if key else str(name))


@cache
def _plain_schema() -> dict[str, Any]:
    """Return the JSON Schema in which error messages look up keys. It takes 60 ms to make: too long for each
    refused file of a sweep or a search.
    """
    schema = Experiment.model_json_schema(by_alias=True)
    found = partition_schema()
    schema["$defs"] |= found.pop("$defs") | {"PartitionSettings": found}
    return schema


def _with_files_named(document: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return a document in which each file of weights, and the file of `partition`, has its full path and its SHA-256.
    A relative path in the given document starts at `folder`.

    Raises:
        ExperimentError: a file cannot be read.
    """

    def named(section: dict[str, Any], name: str, key: str) -> dict[str, Any]:
        try:
            path = (folder / section[name]).resolve()
        except (RuntimeError, ValueError) as error:  # a link to itself, or a null character
            raise ExperimentError(f"{key}: cannot read {section[name]!r:.80}: {error}; put the file there") from None
        sha256 = section.get(f"{name}_sha256") or sha256_of(path, key)
        return {**section, name: str(path), f"{name}_sha256": sha256}

    return with_files(document, HASHED, named)


def _culprits(message: str, overrides: Sequence[str], is_fine: Callable[[Sequence[str]], bool]) -> str:
    """Return the `--set` overrides that cause the error, as one text. If the file causes the error without them, return
    an empty text. `is_fine` returns whether the file is valid with the overrides that it gets.

    If the message begins with the key of an override, this override is the cause. Otherwise each override without which
    the error disappears is a cause. If there is no such override, but the file without overrides is valid, all
    overrides together are the cause.
    """
    keys = [override.partition("=")[0].strip() for override in overrides]
    found = [each for key, each in zip(keys, overrides, strict=True) if message.startswith((f"{key}:", f"{key}."))][-1:]
    found = found or [
        each for number, each in enumerate(overrides) if is_fine([*overrides[:number], *overrides[number + 1 :]])
    ]
    if not found and overrides and is_fine(()):
        found = list(overrides)
    return " ".join(f"--set {each:.80}" for each in found)


def overridden(document: dict[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """Return a copy of the document with each `key.path=value` set. Raises ExperimentError if an override cannot be
    set.
    """
    changed: dict[str, Any] = _unshared(document)
    for override in overrides:
        _override(changed, override)
    return changed


def _unshared(value: Any) -> Any:
    """Return a deep copy. Places that share one object because of an alias in YAML get an object each."""
    if isinstance(value, dict):
        return {key: _unshared(each) for key, each in value.items()}
    return [_unshared(each) for each in value] if isinstance(value, list) else value


def override_of(key: str, value: Any) -> str:
    """Return the text `key=value` of an override. The value is YAML. NumPy's values become numbers and lists. Other
    objects become texts.
    """
    plain = json.loads(json.dumps(value, default=lambda other: getattr(other, "tolist", other.__str__)()))
    written = yaml.safe_dump([plain], default_flow_style=True, width=math.inf)
    return f"{key}={written[1:-2]}"


def _override(document: dict[str, Any], override: str) -> None:
    """Set one `key.path=value` in the document. The value is read as YAML."""
    path, separator, value = override.partition("=")
    keys = path.strip().split(".")
    if not separator or not all(keys):
        raise ExperimentError(f"--set takes key=value, for instance training.global_rounds=3, not {override[:80]!r}")
    node: Any = document
    for key in keys[:-1]:
        if isinstance(node, list):
            node = node[_index(node, key, override)]
        else:
            child = node.get(key)
            node[key] = {"name": child} if isinstance(child, str) else child if child is not None else {}
            node = node[key]
        if not isinstance(node, (dict, list)):
            raise ExperimentError(f"--set {override:.80}: {key:.80} has a value, not further keys")
    try:
        parsed = read_yaml(value)
    except ValueError as error:
        raise ExperimentError(
            f"--set {override:.80}: the value {error}; close its brackets, and put text in quotes"
        ) from None
    node[_index(node, keys[-1], override) if isinstance(node, list) else keys[-1]] = parsed


def _index(items: list[Any], key: str, override: str) -> int:
    if key not in map(str, range(len(items))):
        raise ExperimentError(f"--set {override:.80}: {key:.80} must be a number from 0 to {len(items) - 1}")
    return int(key)


def check_experiment(experiment: Experiment) -> None:
    """Check the rules that concern more than one section.

    Raises:
        ValueError: two sections contradict each other.
        FedstrataError: the method does not allow the settings of another section.
    """
    task, info = make_task(experiment), dataset_info(experiment.data)
    if PLUGIN.match(experiment.task.name):  # an LPS starts 60 ms sooner without the tables of the record
        from fedstrata.record.summary import check_names

        check_names(task.metrics)
    task.check(info)
    for settings in (experiment.model, *(entry.model for entry in experiment.architectures)):
        if settings.name in MODELS and info.outputs != math.prod(task.output_shape(info)):
            raise ExperimentError(
                f"model.name {settings.name} gives {info.outputs} numbers per example, but task {experiment.task.name} "
                f"needs outputs of shape {task.output_shape(info)}; name your own model as module:function"
            )
    method = make_method(experiment)
    check_combinations(experiment, method)
    check_protection(experiment, method)
    check_values(experiment, method)
    PROCESSORS.kind(experiment.devices.processor, "devices")
    for entry in attacks_of(experiment):
        entry.attack.check(info)
    Architectures(experiment, method).check()


def experiment_schema() -> dict[str, Any]:
    """Return the JSON Schema of the experiment file for editors, with each method's own options."""
    schema = deepcopy(_plain_schema())
    schema["required"].remove("method")  # a file without `method` uses the default method
    definitions = schema["$defs"]
    methods = {name: method_class(name).Options for name in methods_known.NAMES}
    definitions["MethodSettings"] = _named("method", methods, methods_known.DEFAULT, definitions)
    tasks = {name: task_class(name).Options for name in tasks_known.NAMES}
    definitions["TaskSettings"] = _named("task", tasks, tasks_known.DEFAULT, definitions)
    rules = {name: RULES.kind(name).Options for name in RULES.known}
    definitions["RuleSettings"] = _named("rule", rules, RULES.default, definitions)
    attacks = {name: ATTACKS.kind(name).Options for name in ATTACKS.known}
    _, _, *forms = _named("attack", attacks, ATTACKS.default, definitions)["anyOf"]  # a name alone attacks nobody
    definitions["AttackSettings"] = {"anyOf": forms}
    return schema


def _named(
    what: str, options: Mapping[str, type[Settings]], default: str, definitions: dict[str, Any]
) -> dict[str, Any]:
    """Return the schema of a section that names one of several classes, such as methods or tasks. `what` is the word
    for such a class, and `options` has the settings of each class by its name. Definitions that the schema needs are
    added to `definitions`.
    """
    short = {"enum": list(options), "description": f"A {what} with its defaults."}
    own_short = {"type": "string", "pattern": PLUGIN.pattern, "description": "Own code, as module:Class."}
    own = {"type": "object", "properties": {"name": own_short}, "required": ["name"]}
    sections = [_options(what, name, kind, default, definitions) for name, kind in options.items()]
    return {"anyOf": [short, own_short, *sections, own]}


def _options(what: str, name: str, kind: type[Settings], default: str, definitions: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a section that names the class `name`, such as a method. `kind` has the settings of this
    class. In the schema, the section must have the key `name`. Only if `name` is the default, the section may leave
    this key out.
    """
    found = kind.model_json_schema(by_alias=True)
    definitions.update(found.pop("$defs", {}))
    found["title"] = name
    found["properties"]["name"] = {"const": name, "description": f"The {what}'s name."}
    found["required"] = [key for key in found.get("required", ()) if (key, name) != ("name", default)]
    return found
