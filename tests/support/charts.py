"""Rendering the chart with Helm's own engine, and reading what came out. No cluster, no helm binary."""

import json
import pickle
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from helm_python import Chart, _native

from fedstrata.datasets.loading import BUILT_IN, PUBLISHED

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "helm" / "fedstrata"
VARIANTS = sorted((CHART / "ci").glob("*.yaml"))
EXPERIMENTS = sorted(
    path for path in (ROOT / "experiments").rglob("*.yaml") if not {"sweeps", "searches", "published"} & {*path.parts}
)
OLDEST, NEWEST = "v1.20.2", "v1.37.0"

# Every object of a version is validated with the same definitions, of nearly two megabytes: they are read once.
kubernetes_validate.utils.schema_contents = cache(kubernetes_validate.utils.schema_contents)

MADE_BY_UP = {"tls": {"mode": "generated"}}  # what `fedstrata up` chooses where nothing is said

Object = dict[str, Any]
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # PyYAML's own loader takes most of the time of these tests


@cache
def chart() -> Chart:
    return Chart.load(CHART)


def rendered_files(
    values: Mapping[str, Any], *, version: str, release: str, namespace: str, apis: Sequence[str] = ()
) -> dict[str, str]:
    """Each template's text, for a Kubernetes version with further APIs: the package's own `render` cannot be told."""
    values = {**MADE_BY_UP, **values}
    options = {"name": release, "namespace": namespace, "kube_version": version, "is_install": True}
    options |= {"api_versions": [*apis]} if apis else {}
    text = _rendered(json.dumps(dict(values)), json.dumps(options))
    files: dict[str, str] = json.loads(text)
    return {name.removeprefix("fedstrata/templates/"): text for name, text in files.items()}


@cache
def _rendered(values: str, options: str) -> str:
    """The same values are rendered once, however many tests look at them."""
    return _native.call_string("helm_render", chart()._raw(), values, options)


def render(
    values: Mapping[str, Any] | None = None,
    *,
    version: str = NEWEST,
    release: str = "demo",
    namespace: str = "lab",
    apis: Sequence[str] = (),
) -> list[Object]:
    """The objects of a release, in the order of the templates' names."""
    files = rendered_files(values or {}, version=version, release=release, namespace=namespace, apis=apis)
    objects: list[Object] = pickle.loads(
        _read("\n---\n".join(files[name] for name in sorted({*files} - {"NOTES.txt"})))
    )
    return objects


@cache
def _read(text: str) -> bytes:
    """The objects of a text, each time new: tests change them."""
    return pickle.dumps([document for document in yaml.load_all(text, LOADER) if document])


def notes(values: Mapping[str, Any] | None = None, *, release: str = "demo", namespace: str = "lab") -> str:
    """What Helm prints after an installation."""
    return rendered_files(values or {}, version=NEWEST, release=release, namespace=namespace)["NOTES.txt"]


def values_of(path: Path) -> dict[str, Any]:
    """A values file."""
    values: dict[str, Any] = yaml.load(path.read_text(), LOADER)
    return values


def experiment_values(path: Path) -> dict[str, Any]:
    """What installs an experiment file, with a data folder where it needs one."""
    text = path.read_text()
    document = yaml.load(text, LOADER)
    if not needs_files(document):
        return {"experiment": text}
    values: dict[str, Any] = {"experiment": text, "data": {"type": "hostPath", "hostPath": "/var/lib/fedstrata"}}
    if document["partition"]["kind"] == "local":
        values["device"] = {"kind": "DaemonSet"}
    return values


def shape(path: Path) -> tuple[str, bool, bool]:
    """What the chart tells experiments apart by, other than names and numbers."""
    document = values_of(path)
    return document["partition"]["kind"], "topology" in document, needs_files(document)


def needs_files(document: Mapping[str, Any]) -> bool:
    """Return whether the data set of an experiment is read from files. Own code may read files, too."""
    name = document.get("data", {}).get("name", "digits")
    return name not in BUILT_IN or name in PUBLISHED


# One experiment of each shape, and every example of values.
SHAPES = [*{shape(path): path for path in EXPERIMENTS}.values()]
CASES = [pytest.param(values_of(path), id=path.stem) for path in VARIANTS]
CASES += [pytest.param(experiment_values(path), id=f"experiments-{path.stem}") for path in SHAPES]


def one(objects: list[Object], kind: str, name: str) -> Object:
    """The object of that kind and name. It fails the test when there is none, or more than one."""
    found = [item for item in objects if item["kind"] == kind and item["metadata"]["name"] == name]
    assert len(found) == 1, f"{len(found)} objects {kind}/{name} in {[identity(item) for item in objects]}"
    return found[0]


def of_kind(objects: list[Object], kind: str) -> list[Object]:
    """All objects of a kind, such as `Service`."""
    return [item for item in objects if item["kind"] == kind]


def workload(objects: list[Object], tier: str, kind: str = "StatefulSet") -> Any:
    """What the release `demo` says of the pods of a tier."""
    return one(objects, kind, f"demo-fedstrata-{tier}")["spec"]


def pod_of(objects: list[Object], tier: str, kind: str = "StatefulSet") -> Any:
    """A pod of a tier."""
    return workload(objects, tier, kind)["template"]["spec"]


def environment(pod: Object) -> dict[str, str | None]:
    """The variables of a pod's container, in order; those without a value of their own are None."""
    return {variable["name"]: variable.get("value") for variable in pod["containers"][0].get("env", [])}


def identity(item: Object) -> str:
    """`Kind/name`."""
    return f"{item['kind']}/{item['metadata']['name']}"


def pods(objects: list[Object]) -> Iterator[tuple[str, Object, dict[str, str]]]:
    """Each pod that the objects make, as component, spec and labels."""
    for item in objects:
        template = item if item["kind"] == "Pod" else item.get("spec", {}).get("template")
        if template:
            labels = template["metadata"]["labels"]
            yield labels["app.kubernetes.io/component"], template["spec"], labels
