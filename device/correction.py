"""Corrections: a method changes a device's gradients before the optimiser uses them. An example is the term that
FedProx adds.

A correction is elementwise. So a device gets the same bits, whether it trains alone or together with other devices of
its process. A correction is tested on a few numbers before it is used.
"""

from collections.abc import Callable
from functools import lru_cache

import torch

from fedstrata.errors import PluginError

Correct = Callable[..., torch.Tensor]  # of (gradient, weights, *beside), tensors of one shape; gives one more
ELEMENTS = 32  # what is corrected at once is a multiple of so many: a rest beside vector units may round otherwise
RULE = "a correction is an elementwise function of (gradient, weights, *beside)"


@lru_cache(maxsize=16)
def keeps_zeros(correct: Correct, beside: int) -> bool:
    """Check a correction on a few numbers. Return whether the correction leaves zeros unchanged. `beside` is the number
    of vectors that the correction gets in addition to gradient and weights.

    Raises:
        PluginError: the result has another shape or type than the gradient, or depends on other elements or on chance.
            Or the correction changes or returns an argument other than the gradient.
    """
    numbers = [
        torch.linspace(-1.0, 2.0 + place, 4 * ELEMENTS).sin().reshape(2, 2, ELEMENTS) for place in range(2 + beside)
    ]
    found = _tried(correct, numbers)
    part = _tried(correct, [tensor[1:, 1:].clone() for tensor in numbers])
    if not torch.equal(found[1:, 1:], part):
        raise PluginError(f"{RULE}; {_name(correct)} gives an element another value when fewer stand beside it")
    return not _tried(correct, [torch.zeros(2, 2, ELEMENTS)] * (2 + beside)).any()


def _tried(correct: Correct, numbers: list[torch.Tensor]) -> torch.Tensor:
    """Apply a correction to copies of these numbers, and return the result.

    Raises:
        PluginError: the result has another shape or type than the gradient. Or the correction changes or returns an
            argument other than the gradient.
    """
    gradient, *others = (tensor.clone() for tensor in numbers)
    found = correct(gradient, *others)
    if not isinstance(found, torch.Tensor) or found.shape != gradient.shape or found.dtype != torch.float32:
        told = f"{found.dtype} {tuple(found.shape)}" if isinstance(found, torch.Tensor) else type(found).__name__
        raise PluginError(f"{RULE}; {_name(correct)} gives {told} for a gradient of float32 {tuple(gradient.shape)}")
    if not all(map(torch.equal, others, numbers[1:])):
        raise PluginError(
            f"{RULE}; {_name(correct)} changes what it must leave alone: only the gradient may be changed"
        )
    if any(found.data_ptr() == other.data_ptr() for other in others):
        raise PluginError(f"{RULE}; {_name(correct)} gives one of its arguments back: give a copy of it")
    return found


def _name(correct: Correct) -> str:
    return getattr(correct, "__qualname__", "") or repr(correct)
