"""The name of a processor's arithmetic, by which records tell whether bits can be compared."""

import pytest
import torch

from device.kernels import kernels
from fedstrata.process.openblas import openblas_kernel


def test_the_name_has_openblas_variant_and_digits_of_torchs_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    here = kernels.__wrapped__()
    variant, digits = here.rsplit("-", 1)
    assert variant == openblas_kernel()
    assert len(digits) == 6
    assert kernels.__wrapped__() == here
    true_product = torch.Tensor.__matmul__
    monkeypatch.setattr(torch.Tensor, "__matmul__", lambda a, b: true_product(a.double(), b.double()).float())
    assert kernels.__wrapped__() != here
