"""The values file explains itself, and the schema knows every key of it."""

from typing import Any

import pytest
import yaml

from tests.support.charts import CHART, chart, notes, render, values_of

VALUES_TEXT = (CHART / "values.yaml").read_text()


def schema_node(path: tuple[str, ...]) -> dict[str, Any]:
    schema = chart().schema
    assert schema is not None
    node: dict[str, Any] = schema
    for key in path:
        node = node["properties"][key]
        if "$ref" in node:
            node = schema["$defs"][node["$ref"].rpartition("/")[2]]
    return node


def test_every_line_with_a_value_has_a_comment_above_it() -> None:
    lines = VALUES_TEXT.splitlines()
    for before, line in zip(["", *lines], lines, strict=False):
        is_key = line.strip() and not line.strip().startswith(("#", "-")) and ":" in line
        opens = line.rstrip().endswith(":")  # a key that only holds others is explained by them
        trivial = line.strip() in {"enabled: true", "enabled: false"}  # said by the comment over its section
        if is_key and not (opens or trivial):
            assert before.strip().startswith("#"), f"values.yaml: no comment above {line.strip()!r}"


def closed_paths(values: dict[str, Any], path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """The mappings whose keys are the chart's own to name; what is below one that Kubernetes names is Kubernetes's."""
    below = [(*path, key) for key, value in values.items() if isinstance(value, dict)]
    named = [found for found in below if schema_node(found).get("properties")]
    return named + [deeper for found in named for deeper in closed_paths(values[found[-1]], found)]


def test_the_schema_is_closed_wherever_the_chart_names_the_keys() -> None:
    values: dict[str, Any] = yaml.safe_load(VALUES_TEXT)
    paths = closed_paths(values)
    assert len(paths) > 20
    for path in [(), *paths]:
        assert schema_node(path)["additionalProperties"] is False, ".".join(path)


def test_the_schema_names_no_key_that_the_values_file_does_not_explain() -> None:
    values: dict[str, Any] = yaml.safe_load(VALUES_TEXT)
    for path in [(), *closed_paths(values)]:
        held = values
        for key in path:
            held = held[key]
        assert set(schema_node(path)["properties"]) - {"global"} == set(held), ".".join(path)


@pytest.mark.parametrize(
    ("values", "image"),
    [
        ({}, "localhost/fedstrata/gps:0.2.0"),
        ({"image": {"registry": "ghcr.io/us", "tag": "1.2"}}, "ghcr.io/us/fedstrata/gps:1.2"),
        ({"image": {"tag": "1.2"}, "gps": {"image": {"tag": "1.3-arm"}}}, "localhost/fedstrata/gps:1.3-arm"),
        ({"gps": {"image": {"digest": "sha256:" + "a" * 64}}}, "localhost/fedstrata/gps@sha256:" + "a" * 64),
        ({"global": {"imageRegistry": "mirror.lab"}, "image": {"tag": "1.2"}}, "mirror.lab/fedstrata/gps:1.2"),
        ({"image": {"registry": ""}, "gps": {"image": {"repository": "gps"}}}, "gps:0.2.0"),
    ],
)
def test_an_image_is_registry_repository_and_tag_or_digest(values: dict[str, Any], image: str) -> None:
    gps = next(i for i in render(values) if i["kind"] == "StatefulSet" and i["metadata"]["name"].endswith("-gps"))
    assert gps["spec"]["template"]["spec"]["containers"][0]["image"] == image


def test_a_parent_chart_may_enable_this_one() -> None:
    assert render({"enabled": True}) == render()


def test_commands_of_the_notes_name_objects_that_exist() -> None:
    objects = render()
    names = {item["metadata"]["name"] for item in objects} | {"demo-fedstrata-gps-0"}
    names |= {"demo-tls-gps", "demo-tls-operator"}  # Secrets that `fedstrata up` makes
    commands = [line.strip().removeprefix("$ ") for line in notes().splitlines() if line.strip().startswith("$ ")]
    assert len(commands) >= 5
    for command in commands:
        words = command.split()
        assert words[0] in {"kubectl", "helm", "fedstrata"}, command
        assert "lab" in words, f"{command}: says no namespace"
        mentioned = {word.rpartition("/")[2] for word in words if "demo-" in word}
        assert mentioned <= names, command


def test_the_upgrade_that_the_notes_show_keeps_the_values_that_were_given() -> None:
    def upgrades(mode: str) -> list[str]:
        return [line for line in notes({"tls": {"mode": mode}}).splitlines() if "upgrade demo" in line]

    for mode in ("off", "cert-manager", "secret"):
        (upgrade,) = upgrades(mode)
        assert "--reset-then-reuse-values" in upgrade
    assert upgrades("generated") == []  # its pods would have no certificates


def test_the_notes_say_what_an_uninstall_leaves() -> None:
    assert "delete pvc demo-fedstrata-gps" in notes()
    assert "component=lps" in notes()
    for mode in ("generated", "cert-manager", "secret", "off"):  # the last two are Secrets that you make, or none
        leaves = "delete secret -l app.kubernetes.io/instance=demo,fedstrata.io/holds=certificate" in notes(
            {"tls": {"mode": mode}}
        )
        assert leaves is (mode in {"generated", "cert-manager"})
    gone = {tier: {"persistence": {"retain": "delete"}} for tier in ("gps", "lps")}
    assert "delete pvc" not in notes(gone)
    for tier in ("lps", "device"):
        kept = {tier: {"persistence": {"enabled": True, "retain": "keep"}}}
        assert f"delete pvc -l app.kubernetes.io/instance=demo,app.kubernetes.io/component={tier}" in notes(kept)


def test_the_notes_say_what_the_gps_may_not_do() -> None:
    values: dict[str, Any] = {"lps": {"replicas": 1}, "gps": {"rbac": {"create": False}}}
    assert "the GPS scales nothing" in notes(values)
    assert "the GPS scales nothing" not in notes(
        {**values, "gps": {**values["gps"], "serviceAccount": {"name": "own"}}}
    )


def test_every_variant_shows_its_experiment_in_the_notes() -> None:
    for path in sorted((CHART / "ci").glob("*.yaml")):
        assert f"Experiment {path.stem}:" in notes(values_of(path))
