"""Train on a GPU. Check that three runs give the same bits, and that a device gets the same bits alone and in a stack
of devices. Measure how long training takes.

    python -m benchmarks.gpu
    python -m benchmarks.gpu --processor cpu --devices 2 --examples 32

Prints a line of JSON for each question as soon as it is answered, so that a run that is stopped leaves its answers. It
should take at most five minutes on one GPU. It has not yet run on a GPU. Needs torch and NumPy only, besides
Fedstrata.
"""

import argparse
import json
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from hashlib import sha256
from typing import Any

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from device.kernels import kernels
from device.stacked.training import Stacked
from device.training import LocalResult, OneByOne, Trainer, TrainingJob, limit_threads
from fedstrata.datasets import DatasetInfo, Examples
from fedstrata.experiment import ModelSettings, TrainingSettings
from fedstrata.models import build_model
from fedstrata.processors.cuda import Cuda
from fedstrata.tasks import CLASSIFICATION
from fedstrata.tensors.processor import CPU, Processor

INFO = DatasetInfo(input_shape=(1, 28, 28), num_classes=10)
BATCH, RATE, SEED = 32, 0.05, 1
ROUNDS = 3  # measured; one more warms up


def jobs_of(name: str, devices: int, examples: int, processor: Processor) -> list[TrainingJob]:
    """Return a training job for each device: one epoch on random images."""
    model = build_model(ModelSettings(name=name), INFO).of_run(SEED, processor)
    settings = {"batch_size": BATCH, "local_epochs": 1, "optimiser": {"learning_rate": RATE}}
    rng, start = np.random.default_rng(SEED), model.initial(SEED)
    return [
        TrainingJob(
            model=model, start=start, training=TrainingSettings.model_validate(settings), seed=SEED, device_index=index,
            lps_round=0, global_round=0, task=CLASSIFICATION,
            examples=Examples(
                inputs=rng.random((examples, *INFO.input_shape), dtype=np.float32), labels=rng.integers(0, 10, examples)
            ),
        )
        for index in range(devices)
    ]  # fmt: skip


def digest(results: Sequence[LocalResult]) -> str:
    """Return twelve digits of the SHA-256 of all weights and losses."""
    parts = [result.weights.tobytes() + result.train_loss.hex().encode() for result in results]
    return sha256(b"".join(parts)).hexdigest()[:12]


def seconds(work: Callable[[], object]) -> float:
    """Call `work` once to warm up, and then `ROUNDS` times. Return the shortest time. `work` must end with a read from
    the GPU.
    """
    times = []
    for _ in range(ROUNDS + 1):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return min(times[1:])


def plain(jobs: Sequence[TrainingJob], device: str) -> None:
    """Train each device by a plain PyTorch loop. All data are on the GPU from the beginning."""
    for job in jobs:
        weights = {name: each.requires_grad_() for name, each in job.model.tensors(job.start).items()}
        optimiser = torch.optim.SGD(weights.values(), lr=RATE)
        inputs, labels = (torch.tensor(each, device=device) for each in (job.examples.inputs, job.examples.labels))
        losses = []
        order = torch.tensor(np.random.default_rng(SEED).permutation(len(job.examples)), device=device)
        for batch in torch.split(order, BATCH):
            loss = cross_entropy(job.model.outputs(weights, inputs[batch]), labels[batch])
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            losses.append(loss.detach())
        torch.stack(losses).sum().item()


def answers(processor: Processor, device: str, devices: int, examples: int) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield each question with the function that answers it. `device` is torch's name of the processor."""

    def runs(name: str, trainer: Trainer, count: int) -> list[str]:
        return sorted({digest(trainer.train(jobs_of(name, count, examples, processor))) for _ in range(3)})

    for name in ("mlp", "cnn", "lenet5", "resnet18"):
        yield f"{name}: digests of three runs, which should be one", partial(runs, name, OneByOne(), 1)
    yield "mlp, stacked: digests of three runs, which should be one", partial(runs, "mlp", Stacked(), devices)

    dense, convolutions = (
        jobs_of(name, count, examples, processor) for name, count in (("mlp", 10 * devices), ("cnn", devices))
    )

    def company() -> list[str]:
        alone = [result for job in dense for result in Stacked().train([job])]
        backwards = Stacked().train(dense[::-1])[::-1]
        return sorted({digest(each) for each in (alone, Stacked().train(dense), backwards)})

    yield "mlp: digests alone, in a stack, and in a stack turned round, which should be one", company
    yield "seconds, cnn one by one", lambda: seconds(lambda: OneByOne().train(convolutions))
    yield "seconds, cnn by a plain loop of PyTorch", lambda: seconds(lambda: plain(convolutions, device))
    yield "seconds, mlp stacked", lambda: seconds(lambda: Stacked().train(dense))
    yield "seconds, mlp one by one", lambda: seconds(lambda: OneByOne().train(dense))


def main() -> int:
    """Answer all questions. A question that fails is answered by its error."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    processors: dict[str, Processor] = {"cuda": Cuda(), "cpu": CPU}
    parser.add_argument("--processor", default="cuda", choices=processors, help="processor to measure")
    parser.add_argument("--devices", type=int, default=10, help="devices with convolutions; ten times as many without")
    parser.add_argument("--examples", type=int, default=320, help="of a device")
    options = parser.parse_args()
    limit_threads()
    processor = processors[options.processor]
    if missing := processor.missing():
        parser.error(missing)
    processor.start()
    print(json.dumps({"processor": kernels(processor), "torch": torch.__version__}), flush=True)
    for question, answer in answers(processor, options.processor, options.devices, options.examples):
        try:
            found = answer()
        except (RuntimeError, NotImplementedError) as error:  # such as no deterministic kernel
            found = {"error": " ".join(str(error).split())[:200]}
        print(json.dumps({question: found}), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
