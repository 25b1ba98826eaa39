"""A folder with the user's own tables: one for training and one for tests, or one table per device.

A table is a file or a folder of files (module `tables`). The tables `train` and `test` have the examples of all
devices. `test` may be missing. If `train` is missing, each table in the folder, or in its sub-folder `devices`, belongs
to one device. Such a table is a file, for example `name.csv`, or a sub-folder `name` with its own `train` and `test`.
The column `device` then has the names of the tables.
"""

import csv
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedstrata.datasets.examples import Dataset, Examples
from fedstrata.datasets.own_tables import (
    INPUTS,
    READERS,
    TARGETS,
    UNREAD,
    Array,
    Table,
    find_table,
    is_number,
    read_table,
)
from fedstrata.errors import DataError
from fedstrata.experiment import DataSettings

DEVICE = "device"
COLUMNS = (".csv", ".parquet")  # kinds of tables with columns, in which x is a name like any other
MISSING = {"", "nan", "<na>"}  # how programs write a missing value, in small letters
LARGEST = np.iinfo(np.int64).max


@dataclass(frozen=True, kw_only=True)
class Part:
    """Hold a table, its path, and the name of the device to which it belongs. The name is empty if all devices share
    the table.
    """

    path: Path
    table: Table
    device: str = ""

    @property
    def length(self) -> int:
        """Number of rows."""
        return len(next(iter(self.table.values())))


def load(settings: DataSettings) -> Dataset:
    """Return the data set of a folder.

    If the input is a single array, it has the shape (n, *input_shape). It contains floats, whole numbers, or uint8
    pixels. Pixels are scaled from 0…255 to [0, 1]. Several input columns become one float32 array, in which each row
    has the shape `data.input_shape`.

    Raises:
        DataError: a table or column is missing, or has values that do not fit its role.
    """
    if settings.folder is None:
        raise DataError("data.name folder needs data.folder; set it to the folder with the files")
    parts = _parts(settings.folder)
    roles = _Roles(settings, [*parts["train"], *parts["test"]])
    columns = roles.columns()
    train = roles.examples(parts["train"], columns)
    test = roles.examples(parts["test"], columns) if parts["test"] else train.part(np.empty(0, np.int64))
    return Dataset(
        train=train,
        test=test,
        num_classes=settings.num_classes or len(settings.classes or ()),
        names={name: [str(value) for value in values] for name, values in columns.items()},
        input_names=roles.inputs,
        target_names=roles.target,
    )


def _parts(folder: Path) -> dict[str, list[Part]]:
    """Return the tables for training and for tests."""
    if not folder.is_dir():
        raise DataError(f"there is no folder {folder.absolute()}; set data.folder to the folder with the files")
    if (train := find_table(folder, "train")) is not None:
        _check_read(folder.glob("test.*"))
        test = find_table(folder, "test")
        return {"train": [_part(train)], "test": [] if test is None else [_part(test)]}
    place = folder / "devices" if (folder / "devices").is_dir() else folder
    _check_read(place.iterdir())
    paths = sorted(
        path for path in place.iterdir() if path.name[0] != "." and (path.suffix in READERS or path.is_dir())
    )
    parts: dict[str, list[Part]] = {"train": [], "test": []}
    for path in paths:
        device = path.name if path.is_dir() else path.stem
        own = find_table(path, "train") if path.is_dir() else None
        parts["train"].append(_part(own or path, device))
        if own is not None and (test := find_table(path, "test")) is not None:
            parts["test"].append(_part(test, device))
    names = [part.device for part in parts["train"]]
    if twice := {name for name in names if names.count(name) > 1}:
        raise DataError(f"{place} has several tables named {', '.join(sorted(twice))}; keep one table for each device")
    if not names:
        raise DataError(
            f"{folder} contains neither a table train nor a table for each device; tables are folders, or files of "
            f"the kinds {', '.join(READERS)}"
        )
    return parts


def _check_read(paths: Iterable[Path]) -> None:
    """Raise DataError if one of the files seems to be a table, but has a suffix that this module does not read."""
    for path in sorted(paths):
        kind = path.suffix.lower()
        if path.name[0] != "." and path.is_file() and (kind in UNREAD or (kind in READERS and kind != path.suffix)):
            raise DataError(f"{path} is no table of the kinds {', '.join(READERS)}; convert, rename or move it")


def _part(path: Path, device: str = "") -> Part:
    part = Part(path=path, table=read_table(path), device=device)
    if device and DEVICE in part.table:
        raise DataError(
            f"{path} has a column {DEVICE}, but the names of the files become this column; rename the column"
        )
    return part


class _Roles:
    """Hold which arrays of the tables are inputs, further inputs (`data.more`), targets, and discrete columns
    (`data.columns`).
    """

    def __init__(self, settings: DataSettings, parts: Sequence[Part]) -> None:
        self._parts = parts
        self._settings = settings
        known = list(parts[0].table)
        self.target = settings.target if settings.target is not None else tuple({TARGETS} & set(known))
        other = {*self.target, *settings.more, *settings.columns}
        left = tuple(name for name in known if name not in other)
        is_table = parts[0].path.suffix in COLUMNS and all(parts[0].table[name].ndim == 1 for name in left)
        self.inputs = settings.inputs or (left if is_table or INPUTS not in known else (INPUTS,))
        if not self.inputs:
            raise DataError(f"{parts[0].path} has no column left for the input; name the columns in data.inputs")
        if not self.target and (settings.num_classes or settings.classes):
            self.target = (TARGETS,)
        for part in parts:
            self._check(part)

    def _check(self, part: Part) -> None:
        wanted = {*self.inputs, *self.target, *self._settings.more, *self._settings.columns}
        if missing := sorted(wanted - set(part.table)):
            there = ", ".join(list(part.table)[:8]) + (" …" if len(part.table) > 8 else "")
            advice = "" if part is self._parts[0] else "; give all tables the same columns"
            advice += ", or set data.inputs" if advice and set(missing) <= set(self.inputs) else ""
            raise DataError(f"{part.path} has no array or column {' or '.join(missing)}; it has {there}{advice}")
        if set(part.table) != set(self._parts[0].table) and self._settings.inputs is None:
            one, other = self._parts[0], part
            name = sorted(set(one.table) ^ set(other.table))[0]
            has, lacks = (one, other) if name in one.table else (other, one)
            raise DataError(
                f"{lacks.path} has no column {name}, but {has.path} has; give all tables the same columns, or set "
                "data.inputs"
            )

    def columns(self) -> Mapping[str, Array]:
        """Return the sorted values of each discrete column over all tables."""
        found = {}
        for name in self._settings.columns:
            arrays = self._discrete(name, self._parts)
            found[name] = values = np.unique(np.concatenate(arrays))
            twice = {str(value) for value in values} & {f"{value}.0" for value in values}
            alike = _alike(values)
            if alike:
                raise DataError(
                    f"column {name} has both {alike[0]!r:.40} and {alike[1]!r:.40} in {self._parts[0].path.parent}; "
                    "write the value alike everywhere"
                )
            if twice and len(self._kinds(name)) > 1:
                raise DataError(
                    f"column {name} has both {min(twice)[:-2]} and {min(twice)} in {self._parts[0].path.parent}; write "
                    "the number alike everywhere"
                )
        if self._parts[0].device:
            found[DEVICE] = np.unique([part.device for part in self._parts])
        return found

    def _kinds(self, name: str) -> set[str]:
        """Return the kinds of types that an array has in the tables, as letters: the `dtype.kind` of NumPy, such as
        `f` for floats.
        """
        return {part.table[name].dtype.kind for part in self._parts}

    def _discrete(self, name: str, parts: Sequence[Part]) -> list[Array]:
        """Return a discrete column of these tables, one array per table. Equal values are written alike in all tables.

        If the column has dates in all tables, all dates get the finest unit of any table. If it is text in some tables
        and not in others, CSV files give the text of their cells unchanged.
        """
        kinds, arrays = self._kinds(name), [_of_column(part, name) for part in parts]
        if kinds == {"M"}:
            unit = np.result_type(*{part.table[name].dtype for part in self._parts})
            return [part.table[name].astype(unit).astype(str) for part in parts]
        if "U" in kinds and len(kinds) > 1:
            return [_cells(part, name) if part.path.suffix == ".csv" else array
                    for part, array in zip(parts, arrays, strict=True)]  # fmt: skip
        return arrays

    def examples(self, parts: Sequence[Part], columns: Mapping[str, Array]) -> Examples:
        """Return the examples of these tables, one table after another."""
        more = {name: _joined([self._whole_or_float(part, name) for part in parts]) for name in self._settings.more}
        numbered = {
            name: np.searchsorted(
                values,
                np.concatenate(
                    self._discrete(name, parts) if name in self._settings.columns else [*map(_named, parts)]
                ),
            ).astype(np.int64)
            for name, values in columns.items()
        }
        self._check_bytes(parts)
        inputs = _joined([self._input(part) for part in parts])
        targets = _joined([self._targets(part) for part in parts]) if self.target else None
        try:
            if targets is not None and targets.dtype == np.int64 and targets.ndim == 1:
                return Examples(inputs=inputs, labels=targets, more=more, columns=numbered)
            return Examples(inputs=inputs, targets=targets, more=more, columns=numbered)
        except DataError as error:
            raise DataError(f"cannot use {parts[0].path}: {error}") from None

    def _input(self, part: Part) -> Array:
        first = part.table[self.inputs[0]]
        if len(self.inputs) == 1 and first.ndim > 1:
            return first if first.dtype == np.uint8 else self._whole_or_float(part, self.inputs[0])
        return self._side_by_side(part, self.inputs, self._settings.input_shape or ())

    def _check_bytes(self, parts: Sequence[Part]) -> None:
        """Raise DataError if only some of the tables have bytes in their array of inputs, because only bytes are
        scaled.
        """
        name = self.inputs[0]
        kinds = {part.table[name].dtype == np.uint8: part for part in parts if part.table[name].ndim > 1}
        if len(self.inputs) == 1 and len(kinds) > 1:
            raise DataError(
                f"{kinds[True].path} has {name} in bytes (uint8), which are scaled from 0…255 to 0…1, but "
                f"{kinds[False].path} has {kinds[False].table[name].dtype}; give all tables the same type"
            )

    def _whole_or_float(self, part: Part, name: str) -> Array:
        """Return an array as int64 if it has whole numbers in all tables, and as float32 otherwise."""
        array = _numbers(part, name)
        is_whole = all(each.table[name].dtype.kind in "iu" for each in self._parts)
        return _int64(part, name, array) if is_whole else _floats(part, name)

    def _targets(self, part: Part) -> Array:
        settings, first = self._settings, part.table[self.target[0]]
        if settings.classes is not None:
            return _label_numbers(part, self.target[0], settings.classes)
        is_array = len(self.target) == 1 and (first.ndim > 1 or not settings.target_shape)
        if settings.num_classes is None:
            return _floats(part, self.target[0]) if is_array else self._side_by_side(
                part, self.target, settings.target_shape
            )  # fmt: skip
        whole = [_whole(part, name) for name in self.target]
        return whole[0] if is_array else np.stack(whole, axis=1)

    def _side_by_side(self, part: Part, names: Sequence[str], shape: tuple[int, ...]) -> Array:
        """Join columns into one float32 array, in which each row has the given shape. If the shape does not have as
        many numbers as there are columns, return the columns side by side, shape (n, number of columns).
        """
        if wide := [name for name in names if part.table[name].ndim > 1 and len(names) > 1]:
            raise DataError(
                f"{part.path}: {wide[0]} has several values per row, so it is not joined to other columns; choose it "
                "alone in data.inputs or data.target, and name further inputs in data.more"
            )
        stacked = np.stack([_floats(part, name) for name in names], axis=1)
        fits = stacked.ndim == 2 and stacked.shape[1] == np.prod(shape, dtype=np.int64)
        return stacked.reshape(part.length, *shape) if fits else stacked


def _joined(arrays: Sequence[Array]) -> Array:
    """Join arrays along their first axis. A single array is returned unchanged, so it may stay in its file."""
    if len({array.shape[1:] for array in arrays}) > 1:
        raise DataError(
            f"the tables have rows of different shapes, {arrays[0].shape[1:]} and others; make the shapes equal"
        )
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


def _named(part: Part) -> Array:
    return np.repeat(np.array([part.device]), part.length)


def _alike(values: Array) -> list[str]:
    """Return two different values that look alike. They differ only in spaces at their ends, in invisible characters,
    or in the characters with which Unicode writes an accent. If there are no such values, return an empty list.
    """
    known: dict[str, str] = {}
    for value in map(str, values):
        seen = unicodedata.normalize("NFC", value)
        plain = seen if seen.isascii() else "".join(each for each in seen if unicodedata.category(each) != "Cf")
        plain = plain.strip()
        if known.setdefault(plain, value) != value:
            return [known[plain], value]
    return []


def _of_column(part: Part, name: str) -> Array:
    """Return a discrete column: whole numbers as integers, other values as text. Raises DataError if a value is
    missing.
    """
    column = part.table[name]
    if column.ndim != 1:
        raise DataError(f"{part.path}: column {name} must have one value per example; its shape is {column.shape}")
    kind = column.dtype.kind
    if kind == "S":
        try:
            column, kind = np.char.decode(column, "utf-8"), "U"
        except UnicodeDecodeError:
            raise DataError(f"{part.path}: column {name} has bytes that are not UTF-8; write text") from None
    if kind not in "iufbUOmM":
        raise DataError(f"{part.path}: column {name} has the type {column.dtype}; write numbers, dates or text")
    missing = (
        np.flatnonzero(~np.isfinite(column)) if kind in "fmM"
        else [row for row, text in enumerate(column.astype(str).tolist()) if text.strip().lower() in MISSING]
        if kind in "UO" else []
    )  # fmt: skip
    if len(missing):
        row = int(missing[0])
        raise DataError(
            f"{part.path}, {_place(part, row)}, column {name}: {str(column[row])!r} is no value; fill the cell, or "
            "remove the row"
        )
    if kind == "f" and (np.abs(column) >= 2**53).any():
        raise DataError(
            f"{part.path}: column {name} has {np.abs(column).max():.0f}; numbers of that size lose digits here: write "
            "a letter in front of each"
        )
    is_whole = kind in "ib" or (kind == "u" and column.max() <= LARGEST)
    is_whole = is_whole or (kind == "f" and bool((column == np.rint(column)).all()))
    return column.astype(np.int64) if is_whole else column.astype(str)


def _cells(part: Part, name: str) -> Array:
    """Return the cells of a column of a CSV file as they are in the file."""
    with part.path.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.reader(file)
        place = [each.strip() for each in next(reader)].index(name)
        return np.array([cells[place] for cells in reader if cells])


def _int64(part: Part, name: str, array: Array) -> Array:
    """Return whole numbers as int64. Raises DataError if a number is too large."""
    if array.dtype.kind in "uf" and max(array.max(initial=0).item(), -array.min(initial=0).item()) > LARGEST:
        raise DataError(f"{part.path}: {name} has {np.abs(array).max()}; the largest whole number is {LARGEST}")
    return array.astype(np.int64, copy=False)


def _numbers(part: Part, name: str) -> Array:
    """Return a column of numbers. If the column has text, NaN or Inf, raise DataError, which names the place."""
    array = part.table[name]
    if array.dtype.kind in "US" and part.path.suffix == ".csv":
        texts = array.tolist()
        row = next((row for row, text in enumerate(texts) if not is_number(text)), None)
        if row is not None:
            advice = "correct the cell" if texts[row] else "remove the row, fill the cell"
            raise DataError(
                f"{part.path}, {_place(part, row)}, column {name}: {texts[row]!r:.40} is not a number; {advice}, or "
                "give the column another role (data.columns, or data.target with data.classes)"
            )
        array = np.array([float(text) for text in texts])
    if array.dtype.kind not in "iufb":
        raise DataError(
            f"{part.path}: column {name} must contain numbers, not {array.dtype}; convert it, or name labels in "
            "data.classes"
        )
    if array.dtype.kind == "f" and array.ndim == 1 and not np.isfinite(array).all():
        place = _place(part, int(np.flatnonzero(~np.isfinite(array))[0]))
        raise DataError(f"{part.path}, {place}, column {name}: NaN or Inf; remove the row, or fill the cell")
    return array


def _place(part: Part, row: int) -> str:
    """Return, as text for a message, where a row of a table is. `row` is counted from 0. In the text, rows are counted
    from 1. For a CSV file, the text has the line of the file, because a file may contain empty lines.
    """
    if part.path.suffix != ".csv":
        return f"row {row + 1}"
    with part.path.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.reader(file)
        lines = [reader.line_num for cells in reader if cells]
    return f"line {lines[row + 1]}"


def _floats(part: Part, name: str) -> Array:
    array = _numbers(part, name)
    if array.dtype == np.float32:
        return array
    with np.errstate(over="ignore"):  # a value too large for float32 becomes Inf, which Examples refuses
        return array.astype(np.float32)


def _whole(part: Part, name: str) -> Array:
    array = _numbers(part, name)
    if array.dtype.kind == "f" and not (array == np.rint(array)).all():
        raise DataError(
            f"cannot use {part.path}: {name} must contain whole numbers, not {array.dtype}; to learn other numbers, "
            "remove data.num_classes and set task: regression"
        )
    return _int64(part, name, array)


def _label_numbers(part: Part, name: str, classes: Sequence[str]) -> Array:
    texts = part.table[name].astype(str)
    if not np.isin(texts, classes).all():
        texts = _of_column(part, name).astype(str)  # 3, not 3.0
    unknown = np.setdiff1d(texts, np.array(classes))
    if len(unknown):
        raise DataError(f"{part.path}: {name} has {str(unknown[0])!r:.40}, which is not in data.classes; add it there")
    return np.array([classes.index(str(text)) for text in texts], np.int64)
