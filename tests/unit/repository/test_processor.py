"""Tensors are made, moved and read in one file, `fedstrata/tensors/processor.py`. Other code computes where the tensors
are that it gets.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[3]
PROCESSOR = "fedstrata/tensors/processor.py"
MAKERS = {
    "arange", "as_tensor", "empty", "eye", "frombuffer", "from_numpy", "full", "Generator", "linspace", "load", "ones",
    "rand", "randint", "randn", "randperm", "tensor", "zeros",
}  # fmt: skip
MOVES = {"cpu", "cuda", "item", "numpy", "to"}  # methods of tensors
A_TRIAL = "a correction is tried on a few numbers, on the host, before it is used"
MEASURES = "`Task.measure` returns numbers: it reads once per 512 measured examples, and never in training"
EXCEPTIONS = {
    ("device/correction.py", "torch.linspace"): A_TRIAL,
    ("device/correction.py", "torch.zeros"): A_TRIAL,
    ("device/kernels.py", "torch.Generator"): "it names the arithmetic of the CPU",
    ("device/kernels.py", "torch.randn"): "it names the arithmetic of the CPU",
    ("device/kernels.py", ".numpy"): "it names the arithmetic of the CPU",
    ("device/optimisers.py", "torch.tensor"): "torch's optimisers count their steps on the host",
    ("device/optimisers.py", ".item"): "torch's optimisers count their steps on the host",
    ("fedstrata/methods/profiles/resnet_features.py", "torch.load"): "a feature map is a function of NumPy arrays",
    ("fedstrata/methods/profiles/resnet_features.py", "torch.tensor"): "a feature map is a function of NumPy arrays",
    ("fedstrata/methods/profiles/resnet_features.py", ".numpy"): "a feature map is a function of NumPy arrays",
    ("fedstrata/models/module_source.py", "torch.from_numpy"): "initial values are drawn and read on the host",
    ("fedstrata/tasks/next_token.py", ".item"): MEASURES,
    ("fedstrata/tasks/reconstruction.py", ".item"): MEASURES,
    ("fedstrata/tasks/regression.py", ".item"): MEASURES,
}


def test_tensors_are_made_moved_and_read_only_by_the_processor() -> None:
    folders = ("device", "fedstrata", "emulator", "gps", "lps", "fleet")
    files = [path.relative_to(ROOT).as_posix() for folder in folders for path in (ROOT / folder).rglob("*.py")]
    found = {(file, call) for file in files if file != PROCESSOR for call in calls(ROOT / file)}
    assert {(PROCESSOR, call) for call in ("torch.tensor", ".cpu")} <= {(PROCESSOR, c) for c in calls(ROOT / PROCESSOR)}
    assert found == EXCEPTIONS.keys()


def calls(path: Path) -> Iterator[str]:
    """The calls in a file that make tensors, and in a file that uses torch, those that move or read tensors."""
    text = path.read_text()
    for node in ast.walk(ast.parse(text)) if "torch" in text else ():
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            name, of_torch = node.func.attr, ast.unparse(node.func.value) == "torch"
            if of_torch and name in MAKERS:
                yield f"torch.{name}"
            elif not of_torch and name in MOVES and not node.keywords:
                yield f".{name}"
