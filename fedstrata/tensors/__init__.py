"""Tensors: their layout in a flat vector, their encoding as bytes, and their exact sums."""

from fedstrata.tensors.codec import CHUNK_BYTES, PayloadCodec
from fedstrata.tensors.digest import values_digest
from fedstrata.tensors.exact_sum import ExactSum
from fedstrata.tensors.layout import SMALL_BYTES, Flat, Layout, TensorSpec, taken
from fedstrata.tensors.stream_sums import Fold, OneSum, PartialSums, Route, RoutedSums, Sums

__all__ = [
    "CHUNK_BYTES",
    "SMALL_BYTES",
    "ExactSum",
    "Flat",
    "Fold",
    "Layout",
    "OneSum",
    "PartialSums",
    "PayloadCodec",
    "Route",
    "RoutedSums",
    "Sums",
    "TensorSpec",
    "taken",
    "values_digest",
]
