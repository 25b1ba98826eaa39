"""Tables: named arrays with equal numbers of rows, from a file or a folder of files.

- `name.npz`, read by NumPy;
- `name/` with `.npy` files, which NumPy maps into memory. Their rows are read when they are needed;
- `name.csv` with a header, read by Python's own reader: one array per column;
- `name.parquet`, and `name/` as written by Hugging Face's `save_to_disk`, read by pyarrow;
- `name/` with a folder of images for each class, read by Pillow.
"""

import csv
import json
import re
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedstrata.errors import DataError
from fedstrata.process.regular_files import check_regular

Array = NDArray[Any]
Table = Mapping[str, Array]
INPUTS, TARGETS = "x", "y"  # default names of the arrays
PICTURES = (".png", ".jpg", ".jpeg", ".jfif", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm", ".jp2")
OF_SYSTEMS = {"Thumbs.db", "desktop.ini"}  # files that Windows adds to folders of images
# Beginnings of cells that float reads as if they were other texts, such as 01, +1, 1_1 and digits of other scripts.
CODE = re.compile(r"[+-]?0[0-9]|\+|.*[_\x80-\U0010ffff]")
# exceptions that NumPy and zipfile raise for a damaged, encrypted or oversized archive
DAMAGE = (OSError, ValueError, EOFError, MemoryError, RuntimeError, zipfile.BadZipFile, zlib.error)


def find_table(folder: Path, name: str) -> Path | None:
    """Return the file or folder of a table. If the table is missing, return None. Raises DataError if several files or
    folders have its name.
    """
    found = [path for path in (*(folder / f"{name}{ending}" for ending in READERS), folder / name) if path.exists()]
    if len(found) > 1:
        raise DataError(f"there are {found[0]} and {found[1]}; keep one of them")
    return found[0] if found else None


def read_table(path: Path) -> Table:
    """Return the arrays of a file or folder by name.

    Raises:
        DataError: the table is missing, damaged or empty, its arrays have different numbers of rows, or a package is
            missing.
    """
    try:
        if not path.is_dir():
            check_regular(path)
        table = READERS.get(path.suffix, _folder)(path)
    except FileNotFoundError as error:
        raise DataError(f"there is no {error.filename or path}") from None
    except UnicodeDecodeError:
        raise DataError(f"cannot use {path}: its text is not in UTF-8; save it as UTF-8") from None
    except (DataError, csv.Error, *DAMAGE) as error:
        said = getattr(error, "strerror", None) or " ".join(str(error).split())
        if "pickle" in said:  # NumPy advises to load such a file although this may execute code
            said = "it has no arrays, or arrays of Python objects; save numbers or text with numpy.savez or numpy.save"
        raise DataError(f"cannot use {getattr(error, 'filename', None) or path}: {said}") from None
    lengths = {name: len(array) if array.ndim else 0 for name, array in table.items()}
    if len(set(lengths.values())) > 1:
        raise DataError(f"cannot use {path}: its arrays have different numbers of rows: {lengths}")
    if not table or not next(iter(lengths.values())):
        raise DataError(f"cannot use {path}: it has no rows")
    return table


def _npz(path: Path) -> Table:
    with path.open("rb") as file:  # if NumPy gets the path, it leaves a damaged file open
        arrays = np.load(file, allow_pickle=False)
        if not isinstance(arrays, np.lib.npyio.NpzFile):
            raise DataError("it is a single array; write it with numpy.savez(file, x=inputs, y=labels)")
        found = {name: arrays[name] for name in arrays.files}
    if others := [name for name, array in found.items() if not isinstance(array, np.ndarray)]:
        raise DataError(f"its member {others[0]} is not an array; write the file with numpy.savez")
    return found


def _csv(path: Path) -> Table:
    """Return the columns of a CSV file, with numbers as float64 and text unchanged. The first line of the file has the
    names.
    """
    with path.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.reader(file, strict=True)
        names = [name.strip() for name in next(reader, [])]
        if len(names) == 1 and {";", "\t"} & set(names[0]):
            raise DataError("its columns are not separated by commas; save it with commas")
        if not all(names):
            raise DataError(f"column {names.index('') + 1} has no name; add one, or save pandas data with index=False")
        if _are_values(names):
            raise DataError(
                f"its first line has values, {', '.join(names[:5])}, and no names; add a line with a name for each "
                "column"
            )
        if twice := [name for name, number in Counter(names).items() if number > 1]:
            some = ", ".join(f"{name:.40}" for name in twice[:5]) + (" …" if len(twice) > 5 else "")
            raise DataError(f"several columns have the same name: {some}; give each column a name of its own")
        rows = []
        for row in reader:
            if row and len(row) != len(names):
                raise DataError(
                    f"line {reader.line_num} has {len(row)} values, but the first line has {len(names)} names"
                )
            if row:
                rows.append(row)
    return {name: _numbers_or_text(column) for name, column in zip(names, zip(*rows, strict=True), strict=False)}


def _are_values(names: Sequence[str]) -> bool:
    """Return whether the cells of a file's first line are values and not names of columns. They are values if all are
    numbers, except if they are 0, 1, 2, … or 1, 2, 3, …
    """
    counted = ([str(first + number) for number in range(len(names))] for first in (0, 1))
    return all(is_number(name) for name in names) and list(names) not in counted


def is_number(text: str) -> bool:
    """Return whether a text is a number, in the notation of Python."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def _numbers_or_text(column: tuple[str, ...]) -> Array:
    """Return a column as float64 if all its cells are numbers, and as text otherwise.

    The column also stays text if one of its cells looks like a code, such as 01, +1 or 1_000. It also stays text if
    different cells would become the same number, such as 1.1 and 1.10. Only whole numbers may have further zeros: 1
    and 1.0 become the same number.
    """
    try:
        numbers = np.array([float(value) for value in column])
    except ValueError:
        return np.array(column)
    if any(CODE.match(value.strip()) for value in column):
        return np.array(column)
    parts = (value.strip().partition(".") for value in column)
    different = {whole if set(rest) <= {"0"} else f"{whole}.{rest}" for whole, _, rest in parts}
    return np.array(column) if len(different) > len(np.unique(numbers)) else numbers


def _parquet(path: Path) -> Table:
    parquet = _package("pyarrow.parquet", "pyarrow")
    return _columns(parquet.read_table(path), path)


def _saved(path: Path) -> Table:
    """Return the columns of a data set that Hugging Face's `datasets` has saved. The columns are in files with Arrow
    streams. The file state.json has the names of these files.
    """
    arrow = _package("pyarrow", "pyarrow")
    try:
        files = [each["filename"] for each in json.loads((path / "state.json").read_text("utf-8"))["_data_files"]]
    except (KeyError, TypeError):
        files = []
    if not files or any(Path(name).name != name for name in files):
        raise DataError("its state.json must list files in the same folder")
    tables = []
    for name in files:
        with arrow.memory_map(str(path / name)) as source:
            tables.append(arrow.ipc.open_stream(source).read_all())
    return _columns(arrow.concat_tables(tables), path)


def _columns(table: Any, path: Path) -> Table:
    if len(set(table.column_names)) < len(table.column_names):
        raise DataError("several columns have the same name; give each column a name of its own")
    return {name: _arrow_column(name, table.column(name), path) for name in table.column_names}


def _arrow_column(name: str, column: Any, path: Path) -> Array:
    """Return an Arrow column as an array. Lists of equal length become rows, at any depth."""
    if column.null_count:
        raise DataError(f"column {name} has {column.null_count} empty values; fill them, or remove their rows")
    kind = str(column.type)
    if kind.startswith(("list", "fixed_size_list", "large_list")):
        rows = column.to_pylist()
        try:
            return np.array(rows)
        except ValueError:
            raise DataError(f"the lists in column {name} have different lengths; pad them") from None
    values: Array = column.to_numpy()
    return values.astype(str) if values.dtype == object else values


def _folder(path: Path) -> Table:
    if not path.is_dir():
        raise DataError(f"its kind is unknown; use one of {', '.join(READERS)}, or a folder")
    if (path / "state.json").is_file():
        return _saved(path)
    files = sorted(path.glob("*.npy"))
    for each in files:
        check_regular(each)
    return {each.stem: np.load(each, mmap_mode="r", allow_pickle=False) for each in files} or _pictures(path)


def _pictures(path: Path) -> Table:
    """Return images of one size, uint8 of shape (n, channels, height, width), and the name of each image's folder."""
    image = _package("PIL.Image", "pillow")
    files = sorted(each for each in path.glob("*/*") if each.name not in OF_SYSTEMS and not _is_hidden(each))
    if not any(file.suffix.lower() in PICTURES for file in files):
        raise DataError("it has no .npy files, no saved data set, and no folders of images")
    lone = [each for each in path.iterdir() if each.suffix.lower() in PICTURES and not _is_hidden(each)]
    if others := lone + [each for each in files if each.suffix.lower() not in PICTURES]:
        raise DataError(
            f"{others[0]} is no image in the folder of a class; convert it to one of {', '.join(PICTURES)}, or move it"
        )
    arrays = []
    for file in files:
        check_regular(file)
        try:
            with image.open(file) as opened:
                array = _pixels(file, opened)
        except (image.DecompressionBombError, SyntaxError, *DAMAGE) as error:  # Pillow has no class for damaged files
            raise DataError(f"{file} is no image, or a damaged or too large one: {error}") from None
        arrays.append(array[None] if array.ndim == 2 else array.transpose(2, 0, 1))
        if arrays[-1].shape != arrays[0].shape:
            raise DataError(
                f"{file} has shape {arrays[-1].shape}, and {files[0]} has {arrays[0].shape}; give all images the same "
                "size and colours"
            )
    return {INPUTS: np.stack(arrays), TARGETS: np.array([file.parent.name for file in files])}


def _is_hidden(path: Path) -> bool:
    return path.name.startswith(".") or path.parent.name.startswith(".")


def _pixels(file: Path, opened: Any) -> Array:
    """Return the pixels of an image: grey, or red, green and blue. Raises DataError if the image has more than 8 bits
    per channel, several frames, or transparent pixels.
    """
    if opened.mode[0] in "IF":
        raise DataError(f"{file} has more than 8 bits per pixel; scale it to 8, or write arrays (x.npy)")
    if getattr(opened, "n_frames", 1) > 1 and opened.format != "MPO":  # phones add previews in this format
        raise DataError(f"{file} has {opened.n_frames} images; save each in a file of its own")
    if opened.has_transparency_data and opened.convert("RGBA").getchannel("A").getextrema()[0] < 255:
        raise DataError(f"{file} has transparent pixels; give it a background")
    return np.asarray(opened if opened.mode == "L" else opened.convert("RGB"))


def _package(module: str, package: str) -> Any:
    from importlib import import_module

    try:
        return import_module(module)
    except ImportError:
        raise DataError(f"it needs {package}, which is not installed here; pip install {package}") from None


# Kinds of tables that are not read.
UNREAD = (".tsv", ".npy", ".xls", ".xlsx", ".ods", ".arrow", ".feather", ".jsonl", ".gz", ".zip", ".h5", ".mat", ".pkl")
READERS: Mapping[str, Callable[[Path], Table]] = {".npz": _npz, ".csv": _csv, ".parquet": _parquet}
