"""Corrections: a method changes a device's gradients before the optimiser uses them. An example is the term that
FedProx adds.

A correction is elementwise. So a device gets the same bits, whether it trains alone or together with other devices of
its process. A correction is tested on a few numbers before it is used.
"""

from collections.abc import Callable
from functools import lru_cache

import torch

from fedstrata.errors import PluginError

Correct = Callable[..., torch.Tensor]  # (gradient, weights, *beside) → tensor, all of one shape
ELEMENTS = 32  # tensors to correct have a multiple of this size: leftover elements may be rounded otherwise
RULE = "a correction is an elementwise function of (gradient, weights, *beside)"


@lru_cache(maxsize=16)
def keeps_zeros(correct: Correct, beside: int) -> bool:
    """Check a correction on a few numbers. Return whether the correction returns zeros when all its arguments are
    zeros. Stacks of devices need this information, because the zeros that fill up their tensors must stay zero.

    `beside` is the number of further arguments of the correction, besides gradient and weights.

    Raises:
        PluginError: the result has another shape or type than the gradient. Or an element of the result depends on
            chance or on other elements of the arguments. Or the correction changes or returns an argument other than
            the gradient.
    """
    numbers = [
        torch.linspace(-1.0, 2.0 + place, 4 * ELEMENTS).sin().reshape(2, 2, ELEMENTS) for place in range(2 + beside)
    ]
    found = _tried(correct, numbers)
    part = _tried(correct, [tensor[1:, 1:].clone() for tensor in numbers])
    if not torch.equal(found[1:, 1:], part):
        raise PluginError(f"{RULE}; with {_name(correct)} an element's value depends on how many others there are")
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
            f"{RULE}; {_name(correct)} changes an argument other than the gradient: change only the gradient"
        )
    if any(found.data_ptr() == other.data_ptr() for other in others):
        raise PluginError(f"{RULE}; {_name(correct)} returns one of its arguments: return a copy")
    return found


def _name(correct: Correct) -> str:
    return getattr(correct, "__qualname__", "") or repr(correct)
