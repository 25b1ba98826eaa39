"""The chart's README, from its Chart.yaml and the comments of its values.yaml."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

KEY = re.compile(r"(?P<indent> *)(?P<key>\w+):(?P<value>.*)")


@dataclass(frozen=True, kw_only=True)
class Entry:
    """Hold one key of values.yaml: its path from the top, and the comment above it in one line."""

    path: tuple[str, ...]
    comment: str


def entries(text: str) -> Iterator[Entry]:
    """Yield every key of a values file in block style, in order. The items of a list belong to the key of the list."""
    path: list[tuple[int, str]] = []
    comment: list[str] = []
    for line in text.splitlines():
        key = KEY.fullmatch(line)
        if line.strip().startswith("#"):
            comment.append(line.strip().lstrip("# "))
        elif key:
            indent = len(key["indent"])
            path = [*((at, name) for at, name in path if at < indent), (indent, key["key"])]
            yield Entry(path=tuple(name for _, name in path), comment=" ".join(comment))
            comment = []
        elif not line.strip():
            comment = []


def rows(text: str) -> Iterator[tuple[str, str, str]]:
    """Yield name, default and meaning of each value. A value without a comment has the comment of its section."""
    values = yaml.safe_load(text)
    found = list(entries(text))
    comments = {entry.path: entry.comment for entry in found}
    sections = {entry.path[:-1] for entry in found}
    for entry in found:
        if entry.path not in sections:
            meaning = entry.comment or comments.get(entry.path[:-1], "")
            yield ".".join(entry.path), json.dumps(_value(values, entry.path)), meaning


def _value(values: Any, path: tuple[str, ...]) -> Any:
    for key in path:
        values = values[key]
    return values


def readme(chart: Mapping[str, Any], values: str) -> str:
    """Return the page in Markdown."""
    table = "\n".join(f"| `{name}` | `{_cell(default)}` | {_cell(text)} |" for name, default, text in rows(values))
    return f"""# {chart["name"]} {chart["version"]}

{chart["description"]}.

```
helm install RELEASE {chart["name"]}-{chart["version"]}.tgz --set tls.mode=cert-manager --set-file experiment=FILE.yaml
```

`tls.mode` says who makes the pods' certificates. Without an experiment it runs one on handwritten digits.
Kubernetes {chart["kubeVersion"].removesuffix("-0")};
images of version {chart["appVersion"]} have to be in `image.registry`, or loaded into the nodes.

## Values

| value | default | |
|---|---|---|
{table}
"""


def write_readme(chart: Path) -> None:
    """Put README.md into a chart's folder."""
    metadata = yaml.safe_load((chart / "Chart.yaml").read_text(encoding="utf-8"))
    page = readme(metadata, (chart / "values.yaml").read_text(encoding="utf-8"))
    (chart / "README.md").write_text(page, encoding="utf-8")


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
