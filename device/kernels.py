"""Name a processor's arithmetic. Bits of two runs can be compared if their records have the same names."""

from functools import cache
from hashlib import sha256

import torch

from fedstrata.process.openblas import openblas_kernel
from fedstrata.tensors.processor import CPU, Processor, read


@cache
def kernels(processor: Processor = CPU) -> str:
    """Return a name such as SkylakeX-3fa9c1: the kernel of NumPy's OpenBLAS, then six digits that depend on the bits of
    torch's results. If the processor is not the CPU, the processor's name and versions follow.

    torch's libraries choose their code by the processor's maker and model, and do not name their choice. The digits
    come from a digest of the results of products, convolutions and exponentials.
    """
    draw = torch.Generator().manual_seed(0)
    shapes = (32, 784), (784, 200), (8, 3, 16, 16), (6, 3, 5, 5)
    drawn = (torch.randn(shape, generator=draw) for shape in shapes)
    examples, weights, images, filters = (processor.tensor(each.numpy()) for each in drawn)
    outputs = examples @ weights
    results = outputs, outputs.T @ examples, torch.conv2d(images, filters), torch.softmax(outputs, dim=1)
    digest = sha256(b"".join(read(each.contiguous()).tobytes() for each in results))
    kind = processor.kind()
    return f"{openblas_kernel() or 'unknown'}-{digest.hexdigest()[:6]}{f' on {kind}' if kind else ''}"
