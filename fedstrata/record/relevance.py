"""relevance.csv: the relevance matrix of the first grouping. The first row and the first column have device ids."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedstrata.errors import DataError
from fedstrata.methods.profiles.relevance import Matrix
from fedstrata.record.tables import csv_lines, csv_rows


@dataclass(frozen=True, kw_only=True, eq=False)
class Relevance:
    """Hold the relevance matrix R. It has shape (N, N), is symmetric, and has values in [0, 1]. Row and column i belong
    to the device `ids[i]`.
    """

    ids: tuple[str, ...]
    matrix: Matrix

    def __post_init__(self) -> None:
        size = len(self.ids)
        if self.matrix.shape != (size, size):
            raise DataError(f"{size} device ids need a matrix of {size} × {size}, not {self.matrix.shape}")
        if len(set(self.ids)) != size:
            raise DataError("a device id is twice in the header")
        if not np.isfinite(self.matrix).all() or self.matrix.min() < -1e-9 or self.matrix.max() > 1 + 1e-9:
            raise DataError("every relevance must be a number from 0 to 1, and one is not")
        if not np.allclose(self.matrix, self.matrix.T, rtol=0, atol=1e-6):
            raise DataError("the relevance matrix is not symmetric")


def relevance_csv(relevance: Matrix, ids: Sequence[str]) -> Iterator[str]:
    """Return the lines of relevance.csv. Numbers have enough digits that reading them gives the same bits."""
    rows = ([device_id, *(repr(float(value)) for value in row)] for device_id, row in zip(ids, relevance, strict=True))
    return csv_lines(["device", *ids], rows)


def read_relevance(path: Path) -> Relevance | None:
    """Return the matrix in a file. If the file is missing or has no device, return None. Raises DataError if the file
    is malformed.
    """
    table = csv_rows(path) if path.exists() else []
    ids = tuple(table[0][1:]) if table else ()
    if not ids:
        return None
    if tuple(row[0] for row in table[1:]) != ids:
        raise DataError(f"{path}: the first column must name the devices of the header, in its order")
    for line, row in enumerate(table[1:], start=2):
        if len(row) != len(ids) + 1:
            raise DataError(f"{path} row {line}: {len(row) - 1} numbers, but the header has {len(ids)} devices")
    try:
        matrix = np.array([row[1:] for row in table[1:]], dtype=np.float64)
    except ValueError as error:
        raise DataError(f"{path}: {error}") from None
    try:
        return Relevance(ids=ids, matrix=matrix)
    except DataError as error:
        raise DataError(f"{path}: {error}") from None
