"""docs/reference/record.md: the files of a run, with their columns and keys."""

import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from fedstrata.experiment.descriptions import descriptions
from fedstrata.record.contributions import ContributionRow
from fedstrata.record.energy import EnergyRow
from fedstrata.record.factors import FactorRow
from fedstrata.record.links import LinkRow
from fedstrata.record.rounds import RoundRow
from fedstrata.record.summary import Measured, Summary
from fedstrata.record.timeline import FlowRow, TimelineRow
from fedstrata.record.waits import WaitRow
from scripts.reference.markdown import cell, code, table

TOP = """<!-- Written by `make reference` from fedstrata/record/. -->
# The run record

A run leaves a folder. It has the same files from processes on a laptop and from pods. `fedstrata run` fetches them
from the global parameter server (GPS) into its `--out` folder and adds the report. [The command line](../cli.md)
describes `logs/` and `state/`.

| file | holds |
| --- | --- |
| `experiment.yaml` | the resolved experiment: every key with its value |
| `summary.json` | [the result](#summaryjson) |
| `rounds.csv` | [one row per round](#roundscsv) of a local parameter server (LPS) |
| `timeline.csv` | with `clock: virtual`: [the times of rounds](#timelinecsv) |
| `flows.csv` | with `clock: virtual`: [the transfers](#flowscsv) behind these times |
| `waits.csv` | with a clock: [the parts of each round](#waitscsv) by child |
| `links.csv` | with `clock: real`: [each link](#linkscsv), configured and achieved |
| `energy.csv` | with `energy` and a clock: [the energy of each device](#energycsv) |
| `factors.csv` | [the factor of each update](#factorscsv), if a rule chooses factors |
| `contributions.csv` | [the updates of asynchronous rounds](#contributionscsv) |
| `relevance.csv` | [the similarity of devices](#relevancecsv), if the method groups by such a matrix |
| `models/lps-0.safetensors`, … | [the final model](#models) of each cluster |
| `report.html` | [one page](../page.md) with all of it, written by `fedstrata report` |

Give `experiment.yaml` to `fedstrata run` to repeat the run. On the same kind of processor (`kernels` in the
summary) it gives the same `clusters`, `relevance.csv` and `model_sha256`. Times differ, and so do the bytes of
repeated calls.
"""
METRIC = """
METRIC stands for each metric of the [task](../own-task.md), such as `accuracy` for a classification, `rmse` for a
regression.
"""
ABOUT: Mapping[type, tuple[str, str]] = {
    RoundRow: (
        "rounds.csv",
        "One row per LPS round of each cluster. METRIC stands for the metrics of the task, such as `accuracy`.",
    ),
    TimelineRow: (
        "timeline.csv",
        "With `clock: virtual`, one row for the questions before training, one per LPS round, one per global round.\n"
        "Times are seconds of virtual time, exact to the nanosecond. The same file gives the same bytes of it.",
    ),
    FlowRow: (
        "flows.csv",
        "With `clock: virtual`, one row per child and round. `fedstrata retime` works `timeline.csv` out from it.\n"
        "A question before training has a row per device. After the last global round, the final model has a row\n"
        "per LPS.",
    ),
    WaitRow: (
        "waits.csv",
        "With a clock, one row per child and round: devices with an update in an LPS round, LPSs in a global round.\n"
        "Times are exact on the virtual clock and measured on the real one. The report draws one global round of it.",
    ),
    LinkRow: (
        "links.csv",
        "With `clock: real`, one row per child's link and direction, and one per device's computing.\n"
        "A transfer that was cut and repeated in a round counts once, as it went the last time.",
    ),
    EnergyRow: (
        "energy.csv",
        "With [`energy`](../experiment.md#energy) and a clock, one row per device before training and per LPS round.\n"
        "On the real clock it leaves out computing for late updates and, before training, everything except sending.",
    ),
    FactorRow: (
        "factors.csv",
        "With the [rules](../experiment.md#aggregation) `clipped_mean`, `geometric_median`, `multi_krum`, `trusted`\n"
        "and own `ByProducts`, one row per child and round.",
    ),
    ContributionRow: (
        "contributions.csv",
        "With [asynchronous rounds](../experiment.md#asynchronous-rounds), one row per update that a round has taken.",
    ),
}
END = """
## relevance.csv

The matrix behind the first grouping. It is symmetric, with ones on the diagonal: R of Eq. 5 for `one_shot`, one
minus the angle as a share of a right angle for `pacfl`. The header and the first column hold the ids of the grouped
devices, in the order of their indexes. Each number reads back to the bit.

## models/

One [safetensors](https://github.com/huggingface/safetensors) file of float32 per cluster. It holds the tensors that
travel. Layers that never leave a device are not in it, nor are parameters of a torch module that do not train. The
metadata has `run_id`, `cluster_id`, `lps_round` and `sha256`. The last is the digest of the whole file with 64
zeros in its own place, so it shows if the file was changed.

```python
from safetensors.numpy import load_file

weights = load_file("runs/demo/models/lps-0.safetensors")  # {"fc1.weight": array of shape (32, 64), ...}
```

## Digests

`model_sha256` and `personal_sha256` depend on names, types, shapes and values only, not on the run, the clock or
the file. A digest is the SHA-256 of all arrays in ascending order of names. Each array gives one line, then its
values, little-endian and row-major. The line is JSON with a space after each comma, escaped characters beyond
ASCII, and a line feed at its end, such as `["fc1.weight", "float32", [32, 64]]`. To compute a digest:

```python
import hashlib
import json
from safetensors.numpy import load_file

digest = hashlib.sha256()
for name, array in sorted(load_file("runs/demo/models/lps-0.safetensors").items()):
    digest.update(json.dumps([name, array.dtype.name, list(array.shape)]).encode() + b"\\n" + array.tobytes())
print(digest.hexdigest())
```
"""
KINDS: Mapping[object, str] = {int: "integer", float: "number", str: "text", bool: "true or false"}


def page() -> str:
    """Return the page: the summary and its parts, then each table, then the other files."""
    text = TOP + "\n## summary.json\n" + METRIC + keys(Summary, "key", "null")
    paths: dict[type, list[str]] = {}
    for name, kind in parts(Summary):
        paths.setdefault(kind, []).append(code(name))
    for kind, names in paths.items():
        text += f"\n### {', '.join(names)}\n" + keys(kind, "key", "null")
    for kind, (file, about) in ABOUT.items():
        text += f"\n## {file}\n\n{about}\n" + keys(kind, "column", "empty")
    return text + END


def keys(kind: type, head: str, absent: str) -> str:
    """Return the table of a dataclass: name, type and meaning; `absent` says how a missing value is written."""
    return table([head, "type", "meaning"], _rows(kind, absent))


def _rows(kind: type, absent: str) -> list[list[str]]:
    said, hints = descriptions(kind), get_type_hints(kind, include_extras=True)
    rows = []
    for name in (field.name for field in fields(kind)):
        if hints[name] == dict[str, Measured]:  # the keys of each metric are beside the other keys
            rows += _rows(Measured, absent)
        else:
            rows.append([code(_alias(name, hints[name])), _kind(hints[name], absent), cell(said[name])])
    return rows


def parts(kind: type, prefix: str = "") -> Iterator[tuple[str, type]]:
    """Return the dataclasses inside of a dataclass, each with its path once. In a path, LINK, NAME and N stand for any
    link, name and number.
    """
    for name, hint in get_type_hints(kind, include_extras=True).items():
        if hint == dict[str, Measured]:
            continue
        for path, inner in _inside(hint, prefix + name):
            yield path, inner
            yield from parts(inner, f"{path}.")


def _inside(hint: Any, path: str) -> Iterator[tuple[str, type]]:
    origin = get_origin(hint)
    if is_dataclass(hint):
        yield path, typing.cast(type, hint)
    elif origin is dict:
        key, value = get_args(hint)
        yield from _inside(value, f"{path}.{'LINK' if get_origin(key) is Literal else 'NAME'}")
    elif origin is tuple:
        yield from _inside(get_args(hint)[0], f"{path}.N")
    elif origin in {Union, types.UnionType}:
        for each in get_args(hint):
            yield from _inside(each, path)


def _alias(name: str, hint: Any) -> str:
    aliases = [getattr(each, "serialization_alias", None) for each in getattr(hint, "__metadata__", ())]
    return next((alias for alias in aliases if alias), name)


def _kind(hint: Any, absent: str) -> str:
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _kind(args[0], absent)
    if origin is Literal:
        return " or ".join(code(each) for each in args)
    if origin in {Union, types.UnionType}:
        kinds = dict.fromkeys(_kind(each, absent) for each in args if each is not types.NoneType)
        return " or ".join(kinds) + (f", or {absent}" if types.NoneType in args else "")
    if origin is dict:
        value = f"{_kind(args[1], absent)} by {'link' if get_origin(args[0]) is Literal else 'name'}"
        return value.replace(f", or {absent} by", " by") + (f" (or {absent})" if value.count(absent) else "")
    if origin is tuple:
        return f"list of {_kind(args[0], absent)}"
    return "object" if is_dataclass(hint) else KINDS[hint]
