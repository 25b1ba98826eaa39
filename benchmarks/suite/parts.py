"""The parts of the suite. Each measures Fedstrata and its peers in turn, and yields rows or points."""

import json
import shutil
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from benchmarks.suite.observed import observe, seconds_of_a_round
from benchmarks.suite.programs import ROOT, ProgramError, output_of, python
from benchmarks.suite.results import Aim, Axis, Point, Row
from benchmarks.suite.work import write_work
from fedstrata.errors import DataError

HERE = ROOT / "benchmarks"
PEERS = HERE / "peers"
PROGRAMS = {"Flower simulation": "flower_train.py", "FLARE simulator": "flare_train.py"}
# (devices, rounds to warm up, measured rounds), for Fedstrata and its peers.
TRAINING = {"ten": (10, 20, 40), "hundred": (100, 5, 10)}
# (rounds to warm up, measured rounds) by module of benchmarks/modules.py.
MODULES = {"cnn": (2, 6), "transformer": (2, 6), "residual": (1, 1)}
ONE = Aim(sense="at most", limit=1)
WORKERS = (1, 2, 5)  # processes that train
PART_S = 180.0  # a part that has taken this long is not repeated again
# (rounds, repeats) by MB. Small sizes reach their full speed after about twenty rounds, and their ratios vary more.
ECHO = {0.1: (200, 7), 1.0: (40, 3), 10.0: (6, 2)}
QUICK_ECHO = {0.1: (40, 1)}
Measure = Callable[[], float]


@dataclass(kw_only=True)
class Setting:
    """Hold the settings that the parts share."""

    folder: Path  # a temporary folder
    peers: Path | None  # the Python interpreter of the peers' environment
    repeats: int
    is_quick: bool
    notes: list[str] = field(default_factory=list)
    _folders: int = 0

    def new_folder(self) -> Path:
        """Return a new, empty folder."""
        self._folders += 1
        folder = self.folder / str(self._folders)
        folder.mkdir()
        return folder

    def note(self, text: str) -> None:
        """Add a note to the table and to the results, unless it is there already."""
        if text not in self.notes:
            self.notes.append(text)


def in_turn(setting: Setting, measures: dict[str, Measure], repeats: int) -> dict[str, list[float]]:
    """Run each measurement once per repeat, in turn. A measurement that fails is reported and left out."""
    results: dict[str, list[float]] = {name: [] for name in measures}
    began = time.perf_counter()
    for repeat in range(repeats):
        if repeat and time.perf_counter() - began > PART_S:
            setting.note(f"{', '.join(measures)}: {repeat} repeats instead of {repeats}, for the time they take")
            break
        for name in list(results):
            try:
                results[name].append(measures[name]())
            except (ProgramError, OSError, ValueError, KeyError) as error:
                setting.note(f"{name} is left out: {' '.join(str(error).split())[:500]}")
                del results[name]
    return results


def beside(
    part: str, measured: str, results: dict[str, list[float]], aims: dict[str, Aim], unit: str = "s a round"
) -> Iterator[Row]:
    """Yield a row for each peer, with the measured values of Fedstrata and of the peer. If there are no peers, yield a
    row of Fedstrata alone.
    """
    ours = results.pop("fedstrata", [])
    for other, theirs in (results or {"": []}).items() if ours else ():
        yield Row(part=part, measured=measured, unit=unit, ours=ours, other=other, theirs=theirs, aim=aims.get(other))


def alone_and_beside(
    part: str, measured: str, results: dict[str, list[float]], *, alone: Aim, aims: dict[str, Aim], unit: str
) -> Iterator[Row]:
    """Yield a row of Fedstrata without a peer, which has the aim `alone`, and a row for each peer."""
    yield from beside(part, measured, {"fedstrata": results.get("fedstrata", [])}, {"": alone}, unit)
    if results.keys() - {"fedstrata"}:
        yield from beside(part, measured, results, aims, unit)


@dataclass(frozen=True, kw_only=True)
class Training:
    """Measure rounds of one epoch over gRPC, and for comparison loops without a framework and Flower's simulation."""

    part: str
    measured: str
    experiment: Path
    devices: int
    warm_up: int  # rounds to warm up
    counted: int
    loops: dict[str, tuple[str, ...]]  # by loop: the arguments of its command
    peers: dict[str, tuple[str, ...]]  # by peer: the program and its arguments
    aims: dict[str, Aim]
    timeout_s: float = 120

    def rows(self, setting: Setting) -> Iterator[Row]:
        """Yield the rows of all measurements, which are made in turn."""
        folder = setting.new_folder()
        try:
            work = write_work(self.experiment, folder / "work")
        except DataError as error:
            setting.note(f"{self.experiment.stem} is left out: {error}")
            return
        warm_up, counted = (
            (min(self.warm_up, 2), min(self.counted, 5)) if setting.is_quick else (self.warm_up, self.counted)
        )
        rounds, limit_s = warm_up + counted, self.timeout_s
        common = ("--work", str(work), "--devices", str(self.devices), "--rounds", str(rounds))

        def loop(words: tuple[str, ...]) -> Measure:
            return lambda: median_of(output_of(python(*words, *common), timeout_s=limit_s, folder=work), warm_up)

        def theirs(program: str, *words: str) -> Measure:
            return lambda: median_of(peer(setting, program, (*common, *words), limit_s + 60), warm_up)

        def ours() -> float:
            settings = [f"training.global_rounds={rounds}"]
            return seconds_of_a_round(
                self.experiment, setting.new_folder(), settings=settings, warm_up=warm_up, timeout_s=limit_s
            )

        measures = {"fedstrata": ours, **{name: loop(words) for name, words in self.loops.items()}}
        if setting.peers:
            measures |= {name: theirs(*words) for name, words in self.peers.items()}
        results = in_turn(setting, measures, setting.repeats)
        shutil.rmtree(work)
        yield from beside(self.part, self.measured, results, self.aims)


def training(setting: Setting, name: str, aims: dict[str, Aim]) -> Iterator[Row]:
    """Measure rounds of the network of `benchmarks/loops.py`."""
    devices, warm_up, counted = TRAINING[name]
    kinds = {"stacked loop": "stacked", "stacked loop, cached parts": "parts", "one-by-one loop": "one-by-one"}
    yield from Training(
        part=name,
        measured=f"{devices} devices × one epoch",
        experiment=HERE / f"{name}.yaml",
        devices=devices,
        warm_up=warm_up,
        counted=counted,
        loops={title: ("-m", "benchmarks.loops", "--loop", kind) for title, kind in kinds.items()},
        peers={peer: (program,) for peer, program in PROGRAMS.items() if peer in aims},
        aims=aims,
    ).rows(setting)


def peer(setting: Setting, program: str, words: Sequence[str], timeout_s: float) -> str:
    """Return the JSON that a peer's program writes."""
    folder = setting.new_folder()
    out = folder / "out.json"
    output_of([str(setting.peers), str(PEERS / program), *words, "--out", str(out)], timeout_s=timeout_s, folder=folder)
    return out.read_text(encoding="utf-8")


def median_of(printed: str, warm_up: int) -> float:
    """Return the median of the seconds in a program's JSON, without the first rounds."""
    seconds: list[float] = json.loads(printed)["seconds"]
    return statistics.median(seconds[warm_up:])


def hundred(setting: Setting) -> Iterator[Row]:
    """Measure the training of a hundred devices."""
    flower, loop = Aim(sense="at least", limit=10), Aim(sense="at most", limit=2)
    aims = {"Flower simulation": flower, "stacked loop": loop, "stacked loop, cached parts": loop}
    return training(setting, "hundred", aims)


def ten(setting: Setting) -> Iterator[Row]:
    """Measure the training of ten devices."""
    return training(setting, "ten", {peer: Aim(sense="at least", limit=8) for peer in PROGRAMS})


def modules(setting: Setting) -> Iterator[Row]:
    """Measure ten devices that each train a PyTorch module."""
    for name, (warm_up, counted) in MODULES.items():
        yield from Training(
            part="modules",
            measured=f"10 devices × one epoch, {name}",
            experiment=HERE / f"module_{name}.yaml",
            devices=10,
            warm_up=warm_up,
            counted=counted,
            loops={"plain loop": ("-m", "benchmarks.modules", "--module", name)},
            peers={"Flower simulation": ("flower_train.py", "--module", name)},
            aims={
                "plain loop": Aim(sense="at most", limit=1.2),
                "Flower simulation": Aim(sense="at least", limit=1),
            },
            timeout_s=400,
        ).rows(setting)


def echo(setting: Setting) -> Iterator[Row]:
    """Measure rounds of 20 devices that return the received model, and for comparison plain grpcio."""
    devices, works = (5, QUICK_ECHO) if setting.is_quick else (20, ECHO)
    for mb, (rounds, repeats) in works.items():
        words = [
            "-m", "benchmarks.echo", "--json", "--devices", str(devices), "--mb", f"{mb:g}",
            "--rounds", str(rounds), "--repeats", str(repeats),
        ]  # fmt: skip
        told = json.loads(output_of(python(*words), timeout_s=60 * repeats, folder=setting.new_folder()))
        work = f"{devices} devices × {mb:g} MB"
        for place, unit in enumerate(("s a round", "server's peak MB")):
            ours, theirs = ([pair[place] for pair in told[side]] for side in ("fedstrata", "floor"))
            aim = Aim(sense="at most", limit=1.5) if place == 0 else None
            yield Row(part="echo", measured=work, unit=unit, ours=ours, other="plain grpcio", theirs=theirs, aim=aim)


def start(setting: Setting) -> Iterator[Row]:
    """Measure the help of the command line, and a small run as a whole."""
    helped = [_seconds(python("-m", "emulator", "--help"), setting) for _ in range(2 * setting.repeats + 1)]
    yield Row(part="start", measured="fedstrata --help", unit="s", ours=helped[1:], aim=Aim(sense="at most", limit=0.3))
    runs = [_whole_run(ROOT / "experiments" / "digits.yaml", setting) for _ in range(setting.repeats)]
    yield Row(part="start", measured="digits.yaml, whole run", unit="s", ours=runs, aim=Aim(sense="at most", limit=10))


def flute(setting: Setting) -> Iterator[Row]:
    """Measure the work LR_MNIST of FLUTE: whole runs, and for comparison Flower's whole simulation."""
    experiment, folder = HERE / "flute.yaml", setting.new_folder()
    words = ["--devices", "1000", "--cohort", "10", "--widths", "784", "10", "--batch", "10", "--rate", "0.03"]
    words += ["--work", str(folder / "work"), "--rounds", "100", "--out", str(folder / "out.json")]
    flower = [str(setting.peers), str(PEERS / "flower_train.py"), *words]
    measures: dict[str, Measure] = {"fedstrata": lambda: _whole_run(experiment, setting)}
    if setting.peers:
        write_work(experiment, folder / "work")
        measures["Flower simulation"] = lambda: _seconds(flower, setting, timeout_s=600)
    results = in_turn(setting, measures, setting.repeats)
    work = "1,000 devices, 100 rounds of 10, whole run"
    aims = {"Flower simulation": Aim(sense="at least", limit=10)}
    yield from alone_and_beside("flute", work, results, alone=Aim(sense="at most", limit=5), aims=aims, unit="s")


def _whole_run(experiment: Path, setting: Setting) -> float:
    words = ["run", str(experiment), "--quiet", "--out", str(setting.new_folder() / "run")]
    return _seconds(python("-m", "emulator", *words), setting)


def _seconds(command: list[str], setting: Setting, timeout_s: float = 120) -> float:
    folder, began = setting.new_folder(), time.perf_counter()
    output_of(command, timeout_s=timeout_s, folder=folder)
    return time.perf_counter() - began


def workers(setting: Setting) -> Iterator[Row]:
    """Measure BlazeFL's CNN work with several numbers of processes. Count the different models that the runs give."""
    experiment, folder = HERE / "workers.yaml", setting.new_folder()
    small = ["partition.devices=4", "training.local_epochs=1"] if setting.is_quick else []
    models: dict[str, set[str]] = {"fedstrata": set(), "BlazeFL": set()}

    def ours(processes: int) -> float:
        out = setting.new_folder()
        words = ["--device-processes", str(processes)]
        took = seconds_of_a_round(experiment, out, settings=small, warm_up=1, timeout_s=PART_S, words=words)
        models["fedstrata"].add(str(json.loads((out / "run" / "summary.json").read_text("utf-8"))["model_sha256"]))
        return took

    def theirs(processes: int) -> float:
        words = ["--work", str(folder / "work"), "--epochs", "1" if small else "5", "--workers", str(processes)]
        told = peer(setting, "blazefl_train.py", words, PART_S)
        models["BlazeFL"].add(json.loads(told)["sha256"])
        return median_of(told, 1)

    if setting.peers:
        write_work(experiment, folder / "work", small)
    for processes in WORKERS:
        measures: dict[str, Measure] = {"fedstrata": partial(ours, processes)}
        if setting.peers:
            measures["BlazeFL"] = partial(theirs, processes)
        work = f"{4 if small else 100} devices, CNN of BlazeFL, {processes} processes"
        yield from beside("workers", work, in_turn(setting, measures, 1 if small else min(2, setting.repeats)), {})
    counted = {name: [float(len(each))] for name, each in models.items() if each}
    yield from alone_and_beside("workers", "all these runs", counted, alone=ONE, aims={}, unit="different models")


GROWTH = """
name: growth
data: {{name: fashion-mnist}}
partition: {{kind: iid, devices: {devices}, examples_per_device: 50}}
model: {{name: mlp, hidden: [{hidden}]}}
method: {{name: random, clusters: {lps}}}
training: {{global_rounds: {rounds}, local_epochs: 1, batch_size: 25, optimiser: {{learning_rate: 0.05}}}}
"""
AXES: dict[Axis, list[tuple[int, int, int]]] = {
    "devices": [(100, 32, 1), (300, 32, 1), (1000, 32, 1)],
    "model": [(100, 32, 1), (100, 120, 1), (100, 400, 1), (100, 1200, 1)],
    "lps": [(100, 32, 1), (100, 32, 3), (100, 32, 10)],
}  # (devices, width of the hidden layer, LPSs)


def growth(setting: Setting) -> Iterator[Point]:
    """Measure cost and memory of a global round while devices, model size and LPSs grow. Each size is run once."""
    known: dict[tuple[int, int, int], Point] = {}
    for axis, sizes in AXES.items():
        for size in sizes[:: len(sizes) - 1] if setting.is_quick else sizes:
            if size not in known:
                try:
                    known[size] = _grown(setting, axis, *size)
                except ProgramError as error:
                    setting.note(f"growth at {size} is left out: {' '.join(str(error).split())[:500]}")
                    continue
            yield replace(known[size], axis=axis)


def _grown(setting: Setting, axis: Axis, devices: int, hidden: int, lps: int) -> Point:
    folder = setting.new_folder()
    text = GROWTH.format(devices=devices, hidden=hidden, lps=lps, rounds=6 if setting.is_quick else 8)
    (folder / "growth.yaml").write_text(text, encoding="utf-8")
    seen = observe(folder / "growth.yaml", folder, timeout_s=150)
    shutil.rmtree(folder)
    size = 4e-6 * ((784 + 1) * hidden + (hidden + 1) * 10)
    return Point(
        axis=axis, devices=devices, model_mb=size, lps=lps, wall_s=seen.round_s, cpu_s=seen.cpu_s, peak_mb=seen.peak_mb
    )


ROW_PARTS: dict[str, Callable[[Setting], Iterator[Row]]] = {
    "start": start,
    "ten": ten,
    "hundred": hundred,
    "modules": modules,
    "echo": echo,
    "flute": flute,
    "workers": workers,
}
PARTS = (*ROW_PARTS, "growth")
