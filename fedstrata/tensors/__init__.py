"""Tensors: their layout in a flat vector, their encoding as bytes, and their exact sums."""

from fedstrata.tensors.codec import CHUNK_BYTES, PayloadCodec
from fedstrata.tensors.digest import values_digest
from fedstrata.tensors.exact_sum import ExactSum
from fedstrata.tensors.layout import SMALL_BYTES, Flat, Layout, TensorSpec, taken
from fedstrata.tensors.own_values import own_vector

__all__ = [
    "CHUNK_BYTES",
    "SMALL_BYTES",
    "ExactSum",
    "Flat",
    "Layout",
    "PayloadCodec",
    "TensorSpec",
    "own_vector",
    "taken",
    "values_digest",
]
