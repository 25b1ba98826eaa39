"""docs/reference/methods/NAME.md: each method with its options, tensors, questions and refusals."""

import inspect
from collections.abc import Mapping

from fedstrata.datasets import dataset_info
from fedstrata.methods import NAMES, make_method
from fedstrata.methods.base import Method, Moment, places_late
from fedstrata.models import build_model
from scripts.reference.combinations import sample
from scripts.reference.keys import key_table, keys
from scripts.reference.markdown import cell, code, table

MOMENTS: Mapping[Moment, str] = {
    Moment.BEFORE: "before training, once",
    Moment.RECEIVED: "in each global round, before devices train",
    Moment.TRAINED: "in each global round, after devices have trained",
}
FLAGS: Mapping[str, str] = {
    "fetches_all": "Devices receive the models of several clusters.",
    "mixes": "Devices receive a mix of models.",
    "withdraws": "From some global round on, devices stop sending some of the tensors.",
    "has_personal_state": "Each device keeps its own state in the folder `--state`, with a checksum but not encrypted.",
    "noises_profiles": "`privacy.profiles` is supported.",
}
ALWAYS = "With every method, a device sends numbers of examples, losses, and metrics on held-out examples."
BYTES = {"float32": 4, "float64": 8, "int64": 8, "int32": 4, "uint8": 1, "int8": 1}


def pages() -> Mapping[str, str]:
    """Return the pages by the names of the methods."""
    return {name: page(name) for name in NAMES}


def page(name: str) -> str:
    """Return a method's page. The page has the shapes and bytes of a small experiment, and names the experiment."""
    experiment = sample(name)
    method = make_method(experiment)
    schema = type(method).Options.model_json_schema(by_alias=True)
    options = [key for key in keys(schema, schema.get("$defs", {}), "method.") if key.name != "method.name"]
    said = [text for flag, text in FLAGS.items() if getattr(method, flag)]
    late = "A late device joins a cluster." if places_late(type(method)) else "A late device cannot join."
    return (
        f"<!-- Written by `make reference` from {inspect.getmodule(type(method)).__name__.replace('.', '/')}.py. -->\n"
        f"# {name}\n\n{inspect.getdoc(type(method))}\n\n"
        f"[Methods](../../methods.md#{name}) has its formulas, source, and departures from the paper.\n\n"
        f"## Options\n{key_table(options) if options else chr(10) + 'None.' + chr(10)}"
        f"\n## What leaves a device\n\n{ALWAYS}\n"
        f"{questions(method)}{travels(method, build_model(experiment.model, dataset_info(experiment.data)))}"
        f"\n## Properties\n\n- {chr(10).join(f'- {each}' for each in [*said, late]).removeprefix('- ')}\n"
        f"\n## What it refuses\n{refuses(method)}"
    )


def questions(method: Method) -> str:
    """Return the table of the questions to devices."""
    rows = []
    for question in method.questions():
        arrays = [f"{array} {dtype} {list(shape)}" for array, (dtype, shape) in question.arrays.items()]
        most = sum(_bytes(dtype, shape) for dtype, shape in question.arrays.values())
        to = "the GPS and other devices" if question.relayed else "the GPS"
        rows.append([code(question.name), MOMENTS[question.moment], to, cell("; ".join(arrays)), f"{most:,}"])
    if not rows:
        return "\nThe method asks devices nothing.\n"
    about = (
        "\nAnswers. The table has the largest shapes and bytes of twelve devices with images of 8 × 8 and ten labels.\n"
    )
    return about + table(["answer", "when", "to", "arrays", "bytes at most"], rows)


def _bytes(dtype: str, shape: tuple[int, ...]) -> int:
    size = BYTES[dtype]
    for side in shape:
        size *= side
    return size


def travels(method: Method, model: object) -> str:
    """Return the table of tensors by how far they travel."""
    rows = [
        [code(channel.name), channel.reach.value, ", ".join(code(each) for each in channel.tensors.names)]
        for channel in method.channels(model)
    ]
    about = (
        "\nUpdates. Reach `everywhere`: averaged over all devices; `cluster`: over a cluster; `device`: never sent.\n"
    )
    return about + "The table has the tensors of a small model.\n" + table(["channel", "reach", "tensors"], rows)


def refuses(method: Method) -> str:
    """Return the table of features that a method refuses with `Method.refuses`."""
    rows = [[code(feature), cell(reason)] for feature, reason in method.refuses().items()]
    own = table(["feature", "reason"], rows) if rows else ""
    return f"{own}\n[What does not go together](../combinations.md#methods) has all refusals.\n"
