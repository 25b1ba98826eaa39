"""The CSV form of all tables of the record. The fields of a row's class are the columns of the table's file.

Lines are written one at a time, because a long run has many rows.
"""

import csv
import io
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from itertools import chain
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Annotated, Any, Generic, Literal, TypeVar, get_args, get_type_hints

from pydantic import Field, NonNegativeFloat, PositiveInt, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as checked_dataclass

from fedstrata.errors import DataError
from fedstrata.process.regular_files import check_regular
from fedstrata.v1 import rounds_pb2 as pb

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T")
R = TypeVar("R", bound="DataclassInstance")
Amount = Annotated[NonNegativeFloat, Field(allow_inf_nan=False)]  # a number of seconds or joules, or ε


class Table(Generic[R]):
    """Describe a CSV file of the record, so that it can be written and read."""

    def __init__(self, row: type[R], *, later: Iterable[str] = ()) -> None:
        """Set the class of the rows. It is a dataclass of pydantic, which checks the values of a row. `later` names the
        columns that files of earlier releases lack.
        """
        self.columns = tuple(field.name for field in fields(row))
        self.later = frozenset(later)
        self._row = row
        self._adapter = TypeAdapter(row)

    @property
    def types(self) -> Mapping[str, type]:
        """The type of each column: int, float or str. Cells may be empty for any type."""
        hints = get_type_hints(self._row)
        kinds = {name: get_args(hint) or (hint,) for name, hint in hints.items()}
        return {name: next(each for each in kinds[name] if each is not NoneType) for name in hints}

    def values(self, row: R) -> list[Any]:
        """Return the values of a row in the order of the columns."""
        return [getattr(row, name) for name in self.columns]

    def lines(self, rows: Iterable[Iterable[object]]) -> Iterator[str]:
        """Yield the lines of the file. Each row is given as a list of cells in the order of the columns."""
        return csv_lines(self.columns, rows)

    def read(self, path: Path) -> tuple[R, ...]:
        """Read a file, and return its rows. An empty cell becomes None.

        Raises:
            DataError: the file is missing or malformed; the message is one line with the file, the row and the column.
        """
        table = csv_rows(path)
        if not table:
            raise DataError(f"{path} is empty; it must have at least a header row")
        header = table[0]
        missing = [name for name in self.columns if name not in header and name not in self.later]
        if missing:
            raise DataError(f"{path} has no column {missing[0]!r}")
        if twice := [name for place, name in enumerate(header) if name in header[:place]]:
            raise DataError(f"{path} has the column {twice[0]!r:.80} twice; remove one")
        return tuple(self._parsed(header, row, f"{path} row {line}") for line, row in enumerate(table[1:], start=2))

    def read_if_there(self, path: Path) -> tuple[R, ...]:
        """Return the rows of a file that only some runs write. If the file is missing, return no rows."""
        return self.read(path) if path.exists() else ()

    def _parsed(self, header: list[str], row: list[str], where: str) -> R:
        return checked(self._adapter, self._cells(header, row, where), where)

    def _cells(self, header: list[str], row: list[str], where: str) -> dict[str, str | None]:
        """Return the cells of a row by column. An empty cell becomes None."""
        if len(row) != len(header):
            raise DataError(f"{where}: {len(row)} fields, but the header has {len(header)}")
        return dict.fromkeys(self.later) | {name: cell or None for name, cell in zip(header, row, strict=True)}


@checked_dataclass(frozen=True, kw_only=True)
class OfRound:
    """Define the first columns of most tables: the round that a row describes."""

    tier: Literal["before", "lps", "gps"]
    """`before`: the questions before training; `lps`: an LPS round; `gps`: a global round."""
    global_round: PositiveInt | None
    """Global round, counted from 1; empty before training."""
    lps_round: PositiveInt | None
    """LPS round, counted from 1 over the whole run; empty in rows of other tiers."""
    lps_id: str | None
    """The cluster or, if clusters span LPSs, the LPS. Before training, in flows.csv only, the name of the question.
    Otherwise empty.
    """


BEFORE = ("before", "", "", "")  # values of these columns in rows about the time before training


def of_lps_round(row: pb.LpsRound) -> tuple[object, ...]:
    """Return the first four values of a row about an LPS round: tier, global round, LPS round and LPS."""
    return "lps", row.global_round + 1, row.lps_round + 1, row.home_id


def of_global_round(global_round: int) -> tuple[object, ...]:
    """Return the first four values of a row about a global round. The argument is counted from 0, and the value in the
    row from 1.
    """
    return "gps", global_round + 1, "", ""


def csv_lines(header: Iterable[str], rows: Iterable[Iterable[object]]) -> Iterator[str]:
    """Yield the lines of a CSV file, each with its line break."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for row in chain([header], rows):
        text.seek(0)
        text.truncate()
        writer.writerow(row)
        yield text.getvalue()


def csv_rows(path: Path) -> list[list[str]]:
    """Return all rows of a CSV file, except blank rows. Raises DataError if the file is missing or is not CSV."""
    try:
        return [row for row in csv.reader(io.StringIO(read_text(path), newline="")) if row]
    except csv.Error as error:
        raise DataError(f"{path} is not CSV: {error}") from None


def read_text(path: Path) -> str:
    """Return the text of a file of the record. Raises DataError if the file is missing or cannot be read."""
    try:
        check_regular(path)
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise DataError(f"{path} is missing; give the folder with the record of a run") from None
    except UnicodeDecodeError:
        raise DataError(f"{path} is not UTF-8 text") from None
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from None


def checked(kind: TypeAdapter[T], values: Mapping[str, Any], where: str) -> T:
    """Construct an object of the class `kind` from `values`, and return it. If a value is wrong, raise DataError with
    `where` and the first wrong key.
    """
    try:
        return kind.validate_python(values)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        message = first["msg"].removeprefix("Value error, ")
        said = f"{key}: {message}" if key else message
        raise DataError(f"{where}: {' '.join(said.split())}") from None


def as_seconds(duration_ns: int) -> str:
    """Return nanoseconds as an exact text in seconds, with nine decimal places."""
    return f"{duration_ns // 10**9}.{duration_ns % 10**9:09d}"
