"""Processors by name: what an experiment asks for, what a machine lacks, and what a GPU's start sets."""

import os
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from device.__main__ import options_of_process
from device.kernels import kernels
from emulator.commands import main as cli
from emulator.estimates.device_processes import share_arguments
from emulator.estimates.sizing import lacking_room, processor_memory
from emulator.sweeps.check_runs import check_room
from emulator.sweeps.file import load_sweep
from fedstrata.datasets import load_dataset
from fedstrata.errors import ExperimentError, PluginError, ResourceError
from fedstrata.experiment_file import parse_experiment
from fedstrata.models.module_source import drawing
from fedstrata.processors import Processor, lacking, memory_here, processor_of, started, with_memory
from fedstrata.processors.cuda import Cuda
from fedstrata.tensors.processor import CPU
from tests.support import apart
from tests.support.two_tasks import TWO_TASKS

SWEEP = """
base: {name: full, partition: {kind: iid, devices: 4, examples_per_device: 10}, method: fedavg,
       training: {global_rounds: 1}, devices: {processor: "tests.support.apart:Narrow"}}
seeds: [1]
cells: {all: {}}
"""
ON_A_GPU = parse_experiment(TWO_TASKS, overrides=["devices.processor=cuda"])


class Drawing(Processor):
    """The CPU, on which a module also draws from a generator of its own, as on a GPU."""

    def __init__(self) -> None:
        super().__init__("cpu")
        self.own = torch.Generator()

    def kind(self) -> str:
        return "Abacus 3"

    def generators(self) -> tuple[torch.Generator, ...]:
        return (*super().generators(), self.own)


def test_the_default_is_the_cpu_and_leaves_the_id_of_a_run_as_it_was() -> None:
    plain, named = (parse_experiment(TWO_TASKS, overrides=each) for each in ([], ["devices.processor=cpu"]))
    assert named.run_id == plain.run_id
    assert ON_A_GPU.run_id != plain.run_id
    assert processor_of(plain) is CPU


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("gpu", "devices.processor: no processor is called 'gpu'; a GPU of NVIDIA is cuda here"),
        ("cudaa", "devices.processor: no processor is called 'cudaa'; did you mean cuda[?] choose cpu, cuda, or your"),
        ("'pathlib:Path'", r"processor pathlib:Path must be a subclass of fedstrata.processors.Processor"),
    ],
)
def test_a_name_of_no_processor_is_refused(name: str, says: str) -> None:
    with pytest.raises(ExperimentError, match=says):
        parse_experiment(TWO_TASKS, overrides=[f"devices.processor={name}"])


def test_a_machine_says_if_it_lacks_a_build_a_driver_or_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", None)
    assert lacking(ON_A_GPU) == (
        f"devices.processor cuda: torch {torch.__version__} has no CUDA build; install one, or choose cpu"
    )
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ExperimentError, match=r"^devices\.processor cuda: .* CUDA 13\.0 finds no driver or no GPU; "):
        started(ON_A_GPU)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (600 << 20, 8 << 30))  # a context alone
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "H200")
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", "")
    with pytest.raises(
        ExperimentError, match=r"^devices\.processor cuda: H200 has 600 MB of free memory, .* needs 1024 MB"
    ):
        started(ON_A_GPU)


@pytest.mark.parametrize("is_wrapped", [False, True])
def test_a_gpu_without_room_for_a_process_is_named_in_one_line(
    monkeypatch: pytest.MonkeyPatch, is_wrapped: bool
) -> None:
    full = RuntimeError(
        "CUDA error: out of memory\nCompile with `TORCH_USE_CUDA_DSA` to enable device-side assertions."
    )

    def first_call() -> tuple[int, int]:
        if is_wrapped:  # torch does so if the first call of CUDA fails
            raise torch.cuda.DeferredCudaCallError("CUDA call failed lazily at initialization") from full
        raise full

    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", first_call)
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", "")
    said = (
        "devices.processor cuda has no memory left for a process, which takes 512 MB before it holds data; end other "
        "programs on it, or use fewer device processes"
    )
    with pytest.raises(ExperimentError, match=f"^{re.escape(said)}$"):
        started(ON_A_GPU)
    full.args = ("CUDA error: invalid argument",)
    with pytest.raises((RuntimeError, torch.cuda.DeferredCudaCallError)):
        started(ON_A_GPU)


def test_a_gpus_start_chooses_full_float32_and_the_same_bits_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    matmul.fp32_precision = cudnn.conv.fp32_precision = "tf32"  # type: ignore[attr-defined]  # `started` ends this
    monkeypatch.setattr(cudnn, "benchmark", True)
    monkeypatch.setattr(cudnn, "deterministic", False)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (4 << 30, 8 << 30))
    assert isinstance(started(ON_A_GPU), Cuda)
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    assert (matmul.fp32_precision, cudnn.conv.fp32_precision) == ("ieee", "ieee")  # type: ignore[attr-defined]
    assert (cudnn.benchmark, cudnn.deterministic) == (False, True)


def test_a_process_that_shares_a_gpu_keeps_to_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    """A share of half of 8 GiB is 4 GiB: 0.5 GiB for the context, and 3.5 / 8 for tensors."""
    set_here: list[float] = []
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (4 << 30, 8 << 30))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "H200")
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda *_: SimpleNamespace(total_memory=8 << 30))
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", set_here.append)
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", "")
    started(ON_A_GPU)
    started(ON_A_GPU, 0.5)
    assert set_here == [3.5 / 8]
    said = (
        "devices.processor cuda: a process's share of the memory of H200 is 819 MB, and a process needs 1024 MB; use "
        "fewer device processes"
    )
    with pytest.raises(ExperimentError, match=f"^{re.escape(said)}$"):
        started(ON_A_GPU, 0.1)


def test_only_processes_that_share_a_memory_are_told_their_share() -> None:
    plain = parse_experiment(TWO_TASKS)
    assert (share_arguments(plain, 4), share_arguments(ON_A_GPU, 1)) == ((), ())
    assert share_arguments(ON_A_GPU, 4) == ("--processor-share", "0.25")


@pytest.mark.parametrize("share", ["0", "1.5", "nan", "half"])
def test_a_wrong_share_is_refused(share: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        options_of_process().parse_args(["--experiment", "a", "--gps", "b:1", "--processor-share", share])
    assert f"{share!r} is no share of a memory; give a number above 0, and at most 1" in capsys.readouterr().err


@pytest.mark.parametrize(("memory", "fits"), [(62_720, True), (62_719, False)])
def test_a_run_whose_processes_need_more_than_the_processors_memory_is_refused_before_it_starts(
    memory: int, fits: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of two processes needs 10,560 bytes for 40 examples and 20,800 bytes for a training of 650 weights."""
    monkeypatch.setattr(apart.Apart, "memory", lambda _: memory)
    monkeypatch.setattr(apart.Apart, "processes", 2)
    own = ["model={name: mlp, hidden: []}", "devices.processor='tests.support.apart:Apart'"]
    experiment = parse_experiment(TWO_TASKS, overrides=own)
    dataset = load_dataset(experiment.data, experiment.seed)
    assert processor_memory(experiment, dataset, 2) == 31_360
    refused = (
        ""
        if fits
        else "devices.processor tests.support.apart:Apart: a process needs about 31.4 kB of its memory, and "
        "has 31.4 kB; use fewer device processes, or set a smaller training.batch_size, model or data set"
    )
    assert " ".join(lacking_room(experiment, dataset, 2).split()) == refused
    path, out = tmp_path / "own.yaml", tmp_path / "run"
    path.write_text(experiment.to_yaml(), encoding="utf-8")
    assert cli.execute(["check", str(path)]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "with about 31.4 kB of its memory for each of 2 processes" in told
    assert ("not on this machine: devices.processor tests.support.apart:Apart: a process needs" in told) is not fits
    if not fits:
        assert cli.execute(["run", str(path), "--out", str(out)]) == 2
        assert refused in " ".join(capsys.readouterr().err.split())
        assert not out.exists()


def test_a_sweep_whose_runs_do_not_fit_a_processor_together_is_refused_before_it_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of two processes of a run needs 31,360 bytes, as above. Two runs together need 125,440 bytes."""
    monkeypatch.setattr(apart.Apart, "processes", 2)
    own = ["model={name: mlp, hidden: []}", "devices.processor='tests.support.apart:Apart'"]
    (tmp_path / "own.yaml").write_text(parse_experiment(TWO_TASKS, overrides=own).to_yaml(), encoding="utf-8")
    path, out = tmp_path / "both.yaml", tmp_path / "out"
    path.write_text("base: own.yaml\nseeds: [1, 2]\ncells: {all: {}}\n", encoding="utf-8")
    runs = load_sweep(path).runs
    monkeypatch.setattr(apart.Apart, "memory", lambda _: 125_440)
    check_room(runs, 2)
    monkeypatch.setattr(apart.Apart, "memory", lambda _: 125_439)
    check_room(runs, 1)
    assert cli.execute(["sweep", str(path), "--out", str(out), "--jobs", "2"]) == 2
    assert (
        "error: all, seed 1: devices.processor tests.support.apart:Apart: a process needs about 31.4 kB of its memory, "
        "and has 31.4 kB; do fewer than 2 runs at the same time (--jobs), or set a smaller training.batch_size, model "
        "or data set"
    ) in " ".join(capsys.readouterr().err.split())
    assert not out.exists()


@pytest.mark.parametrize("memory", [0, 1.5, True, "8 GB"])
def test_an_own_processor_has_a_number_of_bytes(memory: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apart.Apart, "memory", lambda _: memory)
    experiment = parse_experiment(TWO_TASKS, overrides=["devices.processor='tests.support.apart:Apart'"])
    said = f"processor tests.support.apart:Apart: memory returns {memory!r}; return an integer above 0, or None"
    with pytest.raises(PluginError, match=f"^{re.escape(said)}$"):
        memory_here(experiment)


def test_a_gpus_kind_has_all_that_decides_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    part = SimpleNamespace(name="H200 MIG 1g", major=9, minor=0, multi_processor_count=16)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda *_: part)
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: 91002)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    said = f"H200 MIG 1g sm_90 with 16 multiprocessors, torch {torch.__version__}, CUDA 13.0, cuDNN 91002"
    assert Cuda().kind() == said


def test_a_record_names_the_kind_after_the_digits_of_its_bits() -> None:
    assert kernels(Drawing()) == f"{kernels()} on Abacus 3"


def test_all_generators_of_a_processor_have_the_seed_and_then_their_state_again() -> None:
    processor = Drawing()
    before = torch.default_generator.get_state(), processor.own.get_state()
    drawn = []
    for _ in range(2):
        with drawing(5, processor):
            drawn.append([torch.rand(3), torch.rand(3, generator=processor.own)])
    expected = torch.rand(3, generator=torch.Generator().manual_seed(5))
    assert all(torch.equal(each, expected) for draws in drawn for each in draws)
    assert torch.equal(torch.default_generator.get_state(), before[0])
    assert torch.equal(processor.own.get_state(), before[1])


@pytest.mark.parametrize(
    "error",
    [
        torch.cuda.OutOfMemoryError("CUDA out of memory"),
        RuntimeError("CUDA error: out of memory"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate"),
    ],
)
def test_a_full_gpu_is_named_with_its_device_even_if_own_code_failed_because_of_it(error: Exception) -> None:
    failed = PluginError("the module fails")
    failed.__cause__ = error
    said = r"^device-3: devices\.processor cuda has no memory left; .*(out of|ALLOC)"
    for raised in (error, failed):
        with pytest.raises(ResourceError, match=said), with_memory(ON_A_GPU, Cuda(), "device-3"):
            raise raised


def test_a_full_processor_is_known_in_a_torch_without_the_newer_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch, "OutOfMemoryError")  # it came with torch 2.5
    assert CPU.is_full(torch.cuda.OutOfMemoryError("full"))
    assert not CPU.is_full(MemoryError("full"))


@pytest.mark.parametrize("file", [TWO_TASKS, SWEEP])
def test_a_processor_that_is_full_in_a_try_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    monkeypatch.setattr(apart.Narrow, "room", 0)
    (tmp_path / "a.yaml").write_text(file, encoding="utf-8")
    narrow = [] if file == SWEEP else ["--set", "devices.processor=tests.support.apart:Narrow"]
    assert cli.execute(["check", str(tmp_path / "a.yaml"), "--try", *narrow]) == 4
    assert re.search(
        r"error: a try of the experiment: devices\.processor tests\.support\.apart:Narrow has no memory left; end "
        r"other programs on it, .* \(OutOfMemoryError: tried to allocate 40 beads\)$",
        " ".join(capsys.readouterr().err.split()),
    )


@pytest.mark.parametrize("taken", [-1, 0.5, True, "1 GB"])
def test_an_own_processor_takes_a_number_of_bytes_for_itself(taken: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apart.Apart, "context_bytes", taken)
    experiment = parse_experiment(TWO_TASKS, overrides=["devices.processor='tests.support.apart:Apart'"])
    said = f"processor tests.support.apart:Apart: context_bytes is {taken!r}; give an integer of at least 0"
    with pytest.raises(PluginError, match=f"^{re.escape(said)}$"):
        processor_of(experiment)


@pytest.mark.parametrize("error", [RuntimeError("CUDA error: invalid argument"), PluginError("the module fails")])
def test_other_errors_of_devices_stay_as_they_are(error: Exception) -> None:
    with pytest.raises(type(error), match=str(error)), with_memory(ON_A_GPU, Cuda(), "device-3"):
        raise error


def test_check_says_that_a_gpu_is_missing_here_and_a_run_ends_before_anything_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.version, "cuda", None)
    path, out = tmp_path / "gpu.yaml", tmp_path / "run"
    path.write_text(TWO_TASKS, encoding="utf-8")
    on_a_gpu = ["--set", "devices.processor=cuda"]
    assert cli.execute(["check", str(path), *on_a_gpu]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert re.search(
        r"computed on cuda, with about 5\d\d MB of its memory; not on this machine: devices.processor cuda: ", told
    )
    assert cli.execute(["run", str(path), "--out", str(out), *on_a_gpu]) == 2
    assert "devices.processor cuda: torch" in capsys.readouterr().err
    assert not out.exists()
