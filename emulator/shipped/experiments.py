"""Find the example experiments that come with Fedstrata by their names."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from emulator.shipped.share import EXPERIMENTS
from fedstrata.errors import ExperimentError


@dataclass(frozen=True, kw_only=True)
class Example:
    """Hold an example experiment that comes with Fedstrata. The name of the example is the name of its file without the
    suffix.
    """

    name: str
    path: Path

    @property
    def text(self) -> str:
        """The text of the example's file."""
        return self.path.read_text(encoding="utf-8")

    @property
    def summary(self) -> str:
        """A summary of the example: the first sentence of the comment at the beginning of its file."""
        comment = re.match(r"(?:#.*\n)*", self.text)
        words = " ".join(line.lstrip("# ") for line in (comment[0] if comment else "").splitlines())
        return re.split(r"(?<=\.)\s", words, maxsplit=1)[0]


def examples(folder: Path = EXPERIMENTS) -> dict[str, Example]:
    """Return all examples by name, in alphabetical order."""
    return {path.stem: Example(name=path.stem, path=path) for path in sorted(folder.glob("*.yaml"))}


def find_example(name: str) -> Example:
    """Return the example with this name. Hyphens may replace underscores.

    Raises:
        ExperimentError: no example has this name. The message has the most similar names.
    """
    known = examples()
    found = known.get(name.replace("-", "_"))
    if found is None:
        raise ExperimentError(f"no example is called {name!r}; {_suggested(name, list(known))}")
    return found


def find_experiment(given: Path) -> Path:
    """Return the experiment file for a command's argument. If no file has this path, the argument is the name of an
    example.

    Raises:
        ExperimentError: neither a file nor an example has this name.
    """
    if given.is_file():
        return given
    if given.name != str(given) or given.suffix in {".yaml", ".yml"}:
        raise ExperimentError(_no_file(given))
    try:
        return find_example(given.name).path
    except ExperimentError as error:
        raise ExperimentError(_no_file(given) if given.is_dir() else f"there is no file {given}, and {error}") from None


def complete_experiment(incomplete: str) -> Iterator[str]:
    """Yield completions of the text that the user has typed in the shell: examples, experiment files and folders."""
    yield from (name for name in examples() if name.startswith(incomplete))
    folder, _, start = incomplete.rpartition("/")
    for path in sorted(Path(folder or ("/" if incomplete.startswith("/") else ".")).glob(f"{start}*")):
        if path.is_dir() or path.suffix in {".yaml", ".yml"}:
            yield f"{path}/" if path.is_dir() else str(path)


def _no_file(given: Path) -> str:
    if (given / "experiment.yaml").is_file():
        return f"{given} is a folder; for the experiment of its run give {given / 'experiment.yaml'}"
    if given.is_dir():
        return f"{given} is a folder; give an experiment file, or the name of an example (fedstrata examples)"
    if given.stem in examples():
        return f"there is no file {given}; for the example that comes with Fedstrata give {given.stem}"
    return f"there is no file {given}; give an experiment file, or the name of an example (fedstrata examples)"


def _suggested(name: str, known: list[str]) -> str:
    near = get_close_matches(name.replace("-", "_"), known, n=3)
    return f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(known)}"
