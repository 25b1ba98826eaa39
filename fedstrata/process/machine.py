"""Describe the machine and the code that computed a result: the processor, the commit, the versions of packages, and
the command.
"""

import os
import platform
import re
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[2]
# The packages on which bits of a result can depend, by the name of their module.
COMPUTING = {
    "numpy": "numpy", "scipy": "scipy", "sklearn": "scikit-learn", "torch": "torch", "torchvision": "torchvision",
    "timm": "timm", "transformers": "transformers", "pandas": "pandas", "pyarrow": "pyarrow", "PIL": "pillow",
}  # fmt: skip
MACHINE = ("platform", "processor")  # keys of `software` that are not versions
PASSWORD = re.compile(r"(?<=://)[^/@\s]+(?=@)")  # the user and the password of a URL


@cache
def installed(name: str) -> str:
    """Return the version of a package. If the package is missing, return `(not installed)`."""
    try:
        return version(name)
    except PackageNotFoundError:
        return "(not installed)"


def commit() -> str:
    """Return the commit of the checkout that contains this code, or the commit of the image. For an installed wheel,
    return an empty text.
    """
    if revision := os.environ.get("FEDSTRATA_REVISION", ""):
        return "" if revision == "unknown" else revision
    if (ROOT / ".git").exists():
        with suppress(OSError, subprocess.SubprocessError):
            words = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=12"]
            done = subprocess.run(words, capture_output=True, text=True, timeout=10, check=True)  # noqa: S603  # no input
            return done.stdout.strip()
    return ""


def processor() -> str:
    """Return the processor's name."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def software(modules: Mapping[str, ModuleType]) -> dict[str, str]:
    """Return the versions of Fedstrata, of Python, and of each loaded package that computes, then the platform and the
    processor. `modules` has the loaded modules, as `sys.modules` does.
    """
    loaded = {package: modules[name] for name, package in COMPUTING.items() if name in modules}
    versions = {package: str(getattr(module, "__version__", "unknown")) for package, module in loaded.items()}
    return {"fedstrata": installed("fedstrata"), "python": platform.python_version(), **versions, **_machine()}


@cache
def _machine() -> Mapping[str, str]:
    return dict(zip(MACHINE, (platform.platform(), processor()), strict=True))


def command_line(words: Sequence[str]) -> str:
    """Return the command of this process, such as `fedstrata run digits`. `words` has the form of `sys.argv`. Users and
    passwords in URLs are left out. A program that is not of Fedstrata is named without its arguments and folder.

    >>> command_line(["/home/me/bin/fedstrata", "run", "digits", "--set", "seed=1"])
    'fedstrata run digits --set seed=1'
    >>> command_line(["/home/me/study.py", "--secret", "x"])
    'python study.py'
    """
    path = Path(words[0] if words else "")
    program = path.name
    if program == "fedstrata" or path.parts[-2:] == ("emulator", "__main__.py"):
        return PASSWORD.sub("…", shlex.join(["fedstrata", *words[1:]]))
    return f"python {program}" if program.endswith(".py") else "python"
