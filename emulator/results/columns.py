"""Hold the tables of a record. Columns are NumPy arrays. A table can become a pandas data frame, and notebooks show it
as HTML.
"""

import html
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from emulator.shipped.extras import needed

if TYPE_CHECKING:
    import pandas

ROWS_SHOWN = 20


@dataclass(frozen=True, kw_only=True, eq=False)
class Table(Mapping[str, NDArray[Any]]):
    """Hold a table: map the names of columns to arrays of shape (rows,). A missing number is NaN (in a column of whole
    numbers, 0). A missing text is empty.
    """

    columns: Mapping[str, NDArray[Any]]
    """The columns by name. The table itself is the same mapping."""

    def __post_init__(self) -> None:
        if len({len(column) for column in self.columns.values()}) > 1:
            raise ValueError("the columns of a table are equally long")

    def __getitem__(self, name: str) -> NDArray[Any]:
        if name not in self.columns:
            raise KeyError(f"no column {name!r}; there are {', '.join(self.columns)}")
        return self.columns[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.columns)

    def __len__(self) -> int:
        """Return the number of columns."""
        return len(self.columns)

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        return len(next(iter(self.columns.values()), ()))

    def to_numpy(self) -> NDArray[Any]:
        """Return the table as a structured array of shape (rows,) with one field per column."""
        names, columns = list(self.columns), list(self.columns.values())
        rows = np.empty(self.num_rows, dtype=[(name, column.dtype) for name, column in self.columns.items()])
        for name, column in zip(names, columns, strict=True):
            rows[name] = column
        return rows

    def to_pandas(self) -> "pandas.DataFrame":
        """Return the table as a data frame. Raises MissingPackageError if pandas is not installed."""
        return needed("pandas").DataFrame(dict(self.columns))

    def _repr_html_(self) -> str:
        """Return the first rows as HTML, which notebooks show."""
        shown = [column[:ROWS_SHOWN].tolist() for column in self.columns.values()]
        more = self.num_rows - ROWS_SHOWN
        rest = f"<p>and {more} more rows</p>" if more > 0 else ""
        return html_table(list(self.columns), list(zip(*shown, strict=True))) + rest


@dataclass(frozen=True, kw_only=True, eq=False)
class Matrix:
    """Hold a symmetric matrix of shape (N, N) with values for pairs of devices. Row i and column i belong to device
    `ids[i]`.
    """

    ids: tuple[str, ...]
    """Device ids."""
    values: NDArray[np.float64]
    """Values, float64 of shape (N, N)."""

    def __getitem__(self, pair: tuple[str, str]) -> float:
        """Return the value for two devices. The pair has their ids."""
        row, column = (self.ids.index(name) for name in pair)
        return float(self.values[row, column])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return np.array(self.values, dtype=dtype, copy=copy)

    def to_pandas(self) -> "pandas.DataFrame":
        """Return a data frame with device ids as index and columns. Raises MissingPackageError if pandas is not
        installed.
        """
        return needed("pandas").DataFrame(self.values, index=list(self.ids), columns=list(self.ids))

    def _repr_html_(self) -> str:
        """Return the first rows and columns as HTML, which notebooks show."""
        ids = self.ids[:ROWS_SHOWN]
        rows = [(name, *row) for name, row in zip(ids, self.values[: len(ids), : len(ids)].tolist(), strict=True)]
        more = len(self.ids) - len(ids)
        return html_table(["", *ids], rows) + (f"<p>and {more} more devices</p>" if more else "")


def table_of(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, type]) -> Table:
    """Return the table with these rows. `columns` maps the name of each column to its type: int, float or str."""
    absent = {float: np.nan, str: "", int: 0}

    def column(name: str, kind: type) -> NDArray[Any]:
        values = [absent[kind] if row[name] is None else row[name] for row in rows]
        return np.array(values, dtype=np.str_ if kind is str else kind)

    return Table(columns={name: column(name, kind) for name, kind in columns.items()})


def html_table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return a table as HTML. Texts are escaped."""
    head = "".join(f"<th>{html.escape(name)}</th>" for name in header)
    body = "".join("<tr>" + "".join(f"<td>{html.escape(_text(cell))}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _text(cell: object) -> str:
    if isinstance(cell, float):
        return "" if np.isnan(cell) else f"{cell:.4g}"
    return str(cell)
