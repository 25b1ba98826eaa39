"""Name the arithmetic of this processor, so that records tell between which runs bits can be compared."""

from functools import cache
from hashlib import sha256

import torch

from fedstrata.process.openblas import openblas_kernel


@cache
def kernels() -> str:
    """Return the kernel of NumPy's OpenBLAS and six digits that depend on torch's bits, such as SkylakeX-3fa9c1.

    torch's libraries choose their code by the processor's maker and model, and do not name their choice. The digits are
    of a digest of products, convolutions and exponentials.
    """
    draw = torch.Generator().manual_seed(0)
    examples, weights = torch.randn(32, 784, generator=draw), torch.randn(784, 200, generator=draw)
    images, filters = torch.randn(8, 3, 16, 16, generator=draw), torch.randn(6, 3, 5, 5, generator=draw)
    outputs = examples @ weights
    results = outputs, outputs.T @ examples, torch.conv2d(images, filters), torch.softmax(outputs, dim=1)
    digest = sha256(b"".join(each.contiguous().numpy().tobytes() for each in results))
    return f"{openblas_kernel() or 'unknown'}-{digest.hexdigest()[:6]}"
