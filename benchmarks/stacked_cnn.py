"""Three ways to train the `cnn` model of many devices: one by one, vmap, and convolutions unfolded to matrix products.

    python -m benchmarks.stacked_cnn --devices 16

Forward and backward of one batch of 32 images of 28 × 28 for each device, on one thread: CPU time, and whether a
device's gradients are the same bits in stacks of every size from 1 to all. docs/decisions/stacked-training.md.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch.func import grad, vmap
from torch.nn.functional import cross_entropy, max_pool2d, relu, unfold

from device.training import limit_threads
from fedstrata.datasets import DatasetInfo
from fedstrata.experiment import ModelSettings
from fedstrata.models import build_model

MODEL = build_model(ModelSettings(name="cnn"), DatasetInfo(input_shape=(1, 28, 28), num_classes=10))
NAMES = list(MODEL.layout.names)
KERNEL, PADDING = 5, 2
Weights = dict[str, torch.Tensor]  # by name, each (devices, *shape)
Way = Callable[[Weights, torch.Tensor, torch.Tensor], list[torch.Tensor]]  # gradients, each (devices, *shape)


def one_by_one(weights: Weights, inputs: torch.Tensor, labels: torch.Tensor) -> list[torch.Tensor]:
    """As the devices train now."""
    gradients = []
    for device in range(len(inputs)):
        own = {name: tensor[device].clone().requires_grad_() for name, tensor in weights.items()}
        loss = cross_entropy(MODEL.logits(own, inputs[device]), labels[device])
        gradients.append(torch.autograd.grad(loss, list(own.values())))
    return [torch.stack(each) for each in zip(*gradients, strict=True)]


def by_vmap(weights: Weights, inputs: torch.Tensor, labels: torch.Tensor) -> list[torch.Tensor]:
    """The same function over a leading axis."""

    def loss(own: Weights, images: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        return cross_entropy(MODEL.logits(own, images), wanted)

    found = vmap(grad(loss))(weights, inputs, labels)
    return [found[name] for name in NAMES]


def unfolded(weights: Weights, inputs: torch.Tensor, labels: torch.Tensor) -> list[torch.Tensor]:
    """Convolutions as batched products of patches and kernels; autograd over all devices at once."""
    leaves = {name: tensor.clone().requires_grad_() for name, tensor in weights.items()}
    maps = inputs
    for layer in ("conv1", "conv2"):
        maps = max_pool(relu(convolved(maps, leaves[f"{layer}.weight"], leaves[f"{layer}.bias"])))
    features = maps.flatten(2)
    layers = [name.removesuffix(".weight") for name in NAMES if name.startswith("fc") and name.endswith(".weight")]
    for number, layer in enumerate(layers, 1):
        weight, bias = leaves[f"{layer}.weight"], leaves[f"{layer}.bias"][:, None]
        features = torch.baddbmm(bias, features, weight.transpose(1, 2))
        features = features if number == len(layers) else relu(features)
    losses = cross_entropy(features.flatten(0, 1), labels.flatten(), reduction="none").reshape(labels.shape)
    return list(torch.autograd.grad(losses.mean(1).sum(), list(leaves.values())))


def convolved(images: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Images (D, n, c, h, w) and kernels (D, o, c, 5, 5) to maps (D, n, o, h, w)."""
    devices, rows, _, height, width = images.shape
    patches = unfold(images.flatten(0, 1), KERNEL, padding=PADDING)
    patches = patches.reshape(devices, rows, *patches.shape[1:])  # (D, n, c·25, h·w)
    products = torch.matmul(weight.flatten(2)[:, None], patches) + bias[:, None, :, None]
    return products.reshape(*products.shape[:3], height, width)


def max_pool(maps: torch.Tensor) -> torch.Tensor:
    """2 × 2, for (D, n, c, h, w)."""
    pooled: torch.Tensor = max_pool2d(maps.flatten(0, 1), 2)
    return pooled.reshape(*maps.shape[:2], *pooled.shape[1:])


def cpu_ms(way: Way, work: tuple[Weights, torch.Tensor, torch.Tensor], repeats: int) -> float:
    """Median CPU time of a call."""
    times = []
    for _ in range(repeats + 1):
        started = time.process_time()
        way(*work)
        times.append((time.process_time() - started) * 1e3)
    return statistics.median(times[1:])


def part_of(
    work: tuple[Weights, torch.Tensor, torch.Tensor], part: slice
) -> tuple[Weights, torch.Tensor, torch.Tensor]:
    """Some of the devices."""
    weights, inputs, labels = work
    return {name: tensor[part] for name, tensor in weights.items()}, inputs[part], labels[part]


def differing(way: Way, work: tuple[Weights, torch.Tensor, torch.Tensor], devices: int) -> list[int]:
    """The sizes of stacks in which some device's gradients are not the bits that it has alone."""
    alone = [way(*part_of(work, slice(device, device + 1))) for device in range(devices)]
    sizes = []
    for size in range(2, devices + 1):
        stacked = way(*part_of(work, slice(0, size)))
        same = all(torch.equal(whole[device], own[0])
                   for device in range(size) for whole, own in zip(stacked, alone[device], strict=True))  # fmt: skip
        sizes += [] if same else [size]
    return sizes


def main() -> None:
    """Print time and equality of each way."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    limit_threads()
    generator = torch.Generator().manual_seed(0)
    inputs = torch.rand(options.devices, 32, 1, 28, 28, generator=generator)
    labels = torch.randint(0, 10, (options.devices, 32), generator=generator)
    drawn = [MODEL.layout.views(MODEL.initial(seed)) for seed in range(options.devices)]
    weights = {name: torch.stack([torch.tensor(each[name]) for each in drawn]) for name in NAMES}
    work = (weights, inputs, labels)
    for name, way in (("one by one", one_by_one), ("vmap", by_vmap), ("unfolded", unfolded)):
        sizes = differing(way, work, options.devices)
        told = f"differ in stacks of {', '.join(map(str, sizes))}" if sizes else "are the same in every stack"
        print(f"{name:>11}: {cpu_ms(way, work, options.repeats):7.1f} ms of CPU a step; bits {told}", flush=True)


if __name__ == "__main__":
    main()
