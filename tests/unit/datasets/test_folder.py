"""Folders of a user's own files: tables of each kind, a table for each device, and one line for each mistake."""

import json
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedstrata.datasets import Dataset, load_dataset
from fedstrata.errors import DataError
from fedstrata.experiment import DataSettings

HEADER = "heat,load,region,fault"


def write(folder: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def loaded(folder: Path, **said: Any) -> Dataset:
    settings = {"input_shape": (2,), "num_classes": 2, "target": "fault", "columns": ("region",), **said}
    return load_dataset(DataSettings.model_validate({"name": "folder", "folder": folder, **settings}), 0)


def test_a_csv_file_for_each_device_gives_inputs_labels_and_columns(tmp_path: Path) -> None:
    files = {"b.csv": f"{HEADER}\n1,2,south,1\n", "a.csv": f"{HEADER}\n3,4.5,north,0\n5,6,south,1\n"}
    data = loaded(write(tmp_path, files))
    assert data.train.inputs.tolist() == [[3, 4.5], [5, 6], [1, 2]]
    assert data.train.inputs.dtype == np.float32
    assert data.train.labels.tolist() == [0, 1, 1]
    assert data.names == {"region": ["north", "south"], "device": ["a", "b"]}
    assert data.train.columns["region"].tolist() == [0, 1, 1]
    assert data.train.columns["device"].tolist() == [0, 0, 1]
    assert len(data.test) == 0


def test_a_folder_for_each_device_may_have_tests(tmp_path: Path) -> None:
    rows = {"devices/a/train.csv": "1,2,x,1", "devices/a/test.csv": "3,4,y,0", "devices/b/train.csv": "5,6,y,1"}
    data = loaded(write(tmp_path, {name: f"{HEADER}\n{row}\n" for name, row in rows.items()}))
    assert data.train.inputs.tolist() == [[1, 2], [5, 6]]
    assert data.test.inputs.tolist() == [[3, 4]]
    assert data.test.columns == {"region": [1], "device": [0]}


def test_one_csv_file_may_have_targets_of_any_numbers_and_chosen_inputs(tmp_path: Path) -> None:
    write(tmp_path, {"train.csv": "user,t0,t1,t2,t3,low,high\n12,1,2,3,4,.5,1\n7,5,6,7,8,.25,2\n"})
    said = {"inputs": ("t3", "t2", "t1", "t0"), "input_shape": (2, 2), "target": ("low", "high"), "target_shape": (2,)}
    data = loaded(tmp_path, **said, columns=("user",), num_classes=None)
    assert data.train.inputs.tolist() == [[[4, 3], [2, 1]], [[8, 7], [6, 5]]]
    assert data.train.targets is not None
    assert data.train.targets.tolist() == [[0.5, 1], [0.25, 2]]
    assert data.train.columns["user"].tolist() == [1, 0]
    assert data.values("user") == ["7", "12"]


def test_text_labels_are_numbered_as_the_experiment_says(tmp_path: Path) -> None:
    write(tmp_path, {"train.csv": "a,b,fault\n1,2,loose\n3,4,sound\n"})
    data = loaded(tmp_path, columns=(), num_classes=None, classes=("sound", "loose"))
    assert data.train.labels.tolist() == [1, 0]
    assert data.num_classes == 2
    with pytest.raises(DataError, match=r"train.csv: fault has 'loose', which is not in data.classes; add it there"):
        loaded(tmp_path, columns=(), num_classes=None, classes=("sound", "bent"))


def test_whole_numbers_in_a_csv_file_may_be_classes(tmp_path: Path) -> None:
    write(tmp_path, {"train.csv": "a,b,fault\n1,2,7\n3,4,5\n"})
    for classes in (("5", "7"), ("5.0", "7.0")):
        data = loaded(tmp_path, columns=(), num_classes=None, classes=classes)
        assert data.train.labels.tolist() == [1, 0]


def test_an_underscore_makes_a_cell_text_in_a_column_and_a_number_in_an_input(tmp_path: Path) -> None:
    write(tmp_path, {"train.csv": f"{HEADER}\n1_0,2,1_11,1\n3,4,11_1,0\n"})
    data = loaded(tmp_path)
    assert data.names["region"] == ["11_1", "1_11"]
    assert data.train.inputs.tolist() == [[10, 2], [3, 4]]


def test_a_device_has_the_whole_name_of_its_folder(tmp_path: Path) -> None:
    write(tmp_path, {f"site.{name}/train.csv": f"{HEADER}\n1,2,x,1\n" for name in "ab"})
    assert loaded(tmp_path).names["device"] == ["site.a", "site.b"]


@pytest.mark.parametrize("array", ["heat", "fault"])
def test_numbers_as_text_are_refused_outside_csv(tmp_path: Path, array: str) -> None:
    arrays = {"heat": np.ones((2, 2)), "fault": np.array([0, 1])}
    np.savez(tmp_path / "train.npz", **arrays | {array: arrays[array].astype(int).astype(str)})
    with pytest.raises(DataError, match=f"column {array} must contain numbers, not <U.*; convert it, or name labels"):
        loaded(tmp_path, inputs=("heat",), columns=())


def test_arrays_of_an_npz_have_the_roles_that_the_experiment_gives_them(tmp_path: Path) -> None:
    tokens, mask = np.array([[5, 7], [1, 0], [2, 2]], np.uint16), np.array([[1, 1], [1, 0], [1, 1]], np.float64)
    np.savez(tmp_path / "train.npz", x=tokens, y=np.array([[7, 2], [-100, 4], [2, -100]]), mask=mask, who=[4, 9, 4])
    said = {"target": None, "target_shape": (2,), "num_classes": 8, "more": ("mask",), "columns": ("who",)}
    data = loaded(tmp_path, **said)
    assert data.train.inputs.dtype == np.int64
    assert data.train.more["mask"].dtype == np.float32
    assert data.train.columns["who"].tolist() == [0, 1, 0]
    assert data.values("who") == ["4", "9"]


def test_a_folder_of_npy_files_stays_in_its_files(tmp_path: Path) -> None:
    (tmp_path / "train").mkdir()
    np.save(tmp_path / "train" / "x.npy", np.arange(6, dtype=np.float32).reshape(3, 2))
    np.save(tmp_path / "train" / "y.npy", np.array([0, 1, 0]))
    data = loaded(tmp_path, target=None, columns=())
    assert isinstance(data.train.stored, np.memmap)
    assert data.train.part(np.array([2])).inputs.tolist() == [[4, 5]]


def test_a_parquet_file_may_have_lists(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow", reason="pip install pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(
        arrow.table({"x": [[1, 2], [3, 4]], "fault": [1, 0], "region": ["n", "s"]}), tmp_path / "train.parquet"
    )
    data = loaded(tmp_path)
    assert data.train.inputs.tolist() == [[1, 2], [3, 4]]
    assert data.train.inputs.dtype == np.int64
    assert data.train.labels.tolist() == [1, 0]
    parquet.write_table(
        arrow.table({"x": [[1, 2], [3]], "fault": [1, 0], "region": ["n", "s"]}), tmp_path / "train.parquet"
    )
    with pytest.raises(DataError, match="the lists in column x have different lengths; pad them"):
        loaded(tmp_path)
    parquet.write_table(
        arrow.table({"x": [1.0, None], "fault": [1, 0], "region": ["n", "s"]}), tmp_path / "train.parquet"
    )
    with pytest.raises(DataError, match="column x has 1 empty values; fill them, or remove their rows"):
        loaded(tmp_path)


def test_a_saved_data_set_of_hugging_face_is_read(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow", reason="pip install pyarrow")
    folder = tmp_path / "train"
    folder.mkdir()
    parts = [arrow.table({"input_ids": [[5, 7]], "label": [1]}), arrow.table({"input_ids": [[1, 0]], "label": [0]})]
    names = [f"data-0000{number}-of-00002.arrow" for number in range(2)]
    for name, part in zip(names, parts, strict=True):
        with arrow.OSFile(str(folder / name), "wb") as file, arrow.ipc.new_stream(file, part.schema) as stream:
            stream.write_table(part)
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": name} for name in names]}))
    data = loaded(tmp_path, inputs=("input_ids",), target="label", columns=())
    assert data.train.inputs.tolist() == [[5, 7], [1, 0]]
    assert data.train.labels.tolist() == [1, 0]
    for said in ({"_data_files": [{"filename": "../../etc/passwd"}]}, {}, [1]):
        (folder / "state.json").write_text(json.dumps(said))
        with pytest.raises(DataError, match=r"its state\.json must list files in the same folder"):
            loaded(tmp_path, inputs=("input_ids",), target="label", columns=())
    for name in ("train.parquet", "train.npz", "train.csv"):
        (tmp_path / "damaged" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "damaged" / name).write_bytes(bytes(range(128, 256)))
        with pytest.raises(DataError, match=f"cannot use .*{name}: "):
            loaded(tmp_path / "damaged")
        (tmp_path / "damaged" / name).unlink()


def test_a_folder_of_images_for_each_class_is_read(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image", reason="pip install pillow")
    for name, grey in (("cat/1.png", 51), ("dog/1.png", 255), ("dog/2.png", 0)):
        (tmp_path / "train" / name).parent.mkdir(parents=True, exist_ok=True)
        image.fromarray(np.full((2, 3), grey, np.uint8)).save(tmp_path / "train" / name)
    said = {"input_shape": (1, 2, 3), "num_classes": None, "classes": ("cat", "dog"), "target": None, "columns": ()}
    data = loaded(tmp_path, **said)
    assert data.train.scale == 255
    assert data.train.take(np.array([0])).inputs.tolist() == [[[[np.float32(0.2)] * 3] * 2]]
    assert data.train.labels.tolist() == [0, 1, 1]
    image.fromarray(np.zeros((3, 3), np.uint8)).save(tmp_path / "train" / "dog" / "3.png")
    with pytest.raises(DataError, match=r"3.png has shape \(1, 3, 3\), and .*1.png has \(1, 2, 3\); give all images"):
        loaded(tmp_path, **said)
    image.fromarray(np.full((2, 3), 300, np.uint16)).save(tmp_path / "train" / "dog" / "3.png")
    with pytest.raises(DataError, match=r"3.png has more than 8 bits per pixel; scale it to 8, or write arrays"):
        loaded(tmp_path, **said)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"train.csv": "heat,load,fault\n1,2,1\n"}, "train.csv has no array or column region; it has heat, load"),
        ({"train.csv": f"{HEADER}\n1,2,n,1\n1,hot,n,1\n"}, "train.csv, line 3, column load: 'hot' is not a number"),
        ({"train.csv": f"{HEADER}\n\n1,2,n,1\n\n1,hot,n,1\n"}, "train.csv, line 5, column load: 'hot' is not"),
        ({"train.csv": f"{HEADER}\n1,,n,1\n"},
         "train.csv, line 2, column load: '' is not a number; remove the row, fill the cell, or"),
        ({"train.csv": f"{HEADER}\n1,2,n,1\n1,nan,n,1\n"},
         "line 3, column load: NaN or Inf; remove the row, or fill the cell"),
        ({"train.csv": f"{HEADER}\n1,2,n,1\n1,2,n\n"}, "line 3 has 3 values, but the first line has 4 names"),
        ({"train.csv": f"{HEADER}\n1,2,n,0.5\n"}, "fault must contain whole numbers, not float64; to learn"),
        ({"train.csv": f"{HEADER}\n1,2,n,1e300\n"}, r"train.csv: fault has 1e\+300; the largest whole number is 922"),
        ({"train.csv": f"{HEADER}\n1,2,n,2\n"}, "holds label 2; with num_classes 2, labels must be from 0 to 1"),
        ({"train.csv": f"{HEADER}\n"}, "train.csv: it has no rows"),
        ({"train.csv": f"{HEADER}\n1,2,{10**20},1\n1,2,{10**21},1\n"},
         "column region has 1000000000000000000000; numbers of that size lose digits here: write a letter in front"),
        ({"train.csv": f"{HEADER}\n1,2,1.0,1\n1,2,n,1\n", "test.csv": f"{HEADER}\n1,2,1,1\n"},
         "column region has both 1 and 1.0 in .*; write the number alike everywhere"),
        *(({"train.csv": f"{HEADER}\n1,2,n,1\n\n1,2,{cell},1\n"},
           f"train.csv, line 4, column region: '{cell}' is no value; fill the cell, or remove the row")
          for cell in ("", "  ", "nan", "NaN", "<NA>")),
        ({"train.csv": f"{HEADER}\n1,2,3,1\n1,2,nan,1\n"}, "train.csv, line 3, column region: 'nan' is no value"),
        ({"train.csv": f"{HEADER}\n1,2,n,1\n1,2, n,1\n"},
         "column region has both ' n' and 'n' in .*; write the value alike everywhere"),
        ({"a.csv": f"{HEADER}\n1,2,süd,1\n", "b.csv": f"{HEADER}\n1,2,su\u0308d,1\n"},
         "column region has both 'su"),
        ({"train.csv": "0.576,0.391,0,1\n0.37,0.981,1,1\n"},
         "its first line has values, 0.576, 0.391, 0, 1, and no names; add a line with a name for each column"),
        ({"train.csv": "1,1\n2,0\n"}, "its first line has values, 1, 1, and no names"),
        ({"train.csv": f"{HEADER}\n1,2,n,1\n", "test.tsv": ""},
         "test.tsv is no table of the kinds .npz, .csv, .parquet; convert, rename or move it"),
        ({"a.csv": f"{HEADER}\n1,2,n,1\n", "b.CSV": f"{HEADER}\n1,2,n,1\n"}, "b.CSV is no table of the kinds"),
        ({"a.csv": f"{HEADER}\n1,2,n,1\n", "b.csv.gz": ""}, "b.csv.gz is no table of the kinds"),
        ({"train.csv": HEADER.replace(",", ";")}, "its columns are not separated by commas; save it with commas"),
        ({"train.csv": "heat,heat\n1,2\n"}, "several columns have the same name: heat; give each column a name of its"),
        ({"train.csv": ",".join(["heat"] * 3 + [f"{name}" for name in "abcdefgabcdefg"]) + "\n"},
         "several columns have the same name: heat, a, b, c, d …; give"),
        ({"train.csv": ",heat\n0,2\n"}, "column 1 has no name; add one, or save pandas data with index=False"),
        ({"train.csv": "", "train.npz": ""}, "there are .*train.npz and .*train.csv; keep one"),
        ({"a.csv": f"{HEADER}\n1,2,n,1\n", "b.csv": f"{HEADER}\n"}, "b.csv: it has no rows"),
        ({"a.csv": f"{HEADER}\n1,2,n,1\n", "b.csv": f"{HEADER},wind\n1,2,n,1,9\n"},
         "a.csv has no column wind, but .*b.csv has; give all tables the same columns, or set data.inputs"),
        ({"a.csv": f"{HEADER}\n1,2,n,1\n", "b.csv": "heat,load,region\n1,2,n\n"},
         "b.csv has no array or column fault; it has heat, load, region; give all tables the same columns$"),
        ({"a.csv": f"{HEADER}\n1,2,n,1\n", "b.csv": "heat,region,fault\n1,n,2\n"},
         "b.csv has no array or column load; it has heat, region, fault; give all tables .*, or set data.inputs"),
        ({"train.csv": "heat,load,wind,region,fault\n1,2,3,n,1\n"},
         r"folder has examples of shape \(3,\) in 2 classes, but .* declares shape \(2,\) in 2 classes; correct "
         r"data.input_shape, or choose columns in data.inputs \(the input columns are heat, load, wind\)"),
        ({"train.csv": "x,y,z,region,fault\n1,2,3,n,1\n"},
         r"or choose columns in data.inputs \(the input columns are x, y, z\)"),
        ({"a.csv": f"{HEADER}\n1,2,n,1\n", "a/train.csv": f"{HEADER}\n1,2,n,1\n"}, "several tables named a"),
        ({"a.csv": "heat,device,region,fault\n1,2,n,1\n"}, "has a column device, but the names of the files"),
        ({"a.txt": "1"}, "contains neither a table train nor a table for each device"),
    ],
)  # fmt: skip
def test_a_mistake_is_said_in_one_line(tmp_path: Path, files: dict[str, str], message: str) -> None:
    write(tmp_path, files)
    with pytest.raises(DataError, match=message) as refused:
        loaded(tmp_path)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("targets", "advice"),
    [
        (np.int64([[0], [2]]), r"or for task classification, .* write y\[:, 0\] in place of y$"),
        (np.float64([[1, 0, 0], [0, 0, 1]]), r"or for task classification, .* write y.argmax\(1\) in place of y$"),
        (np.int64([[1, 0], [0, 1]]), "correct data.target_shape$"),
    ],
    ids=["column", "one-hot", "pairs"],
)
def test_labels_in_another_form_are_refused_with_the_code_that_makes_labels(
    tmp_path: Path, targets: Any, advice: str
) -> None:
    np.savez(tmp_path / "train.npz", x=np.ones((2, 4)), y=targets)
    said = {"input_shape": (4,), "num_classes": 3, "target": None, "columns": ()}
    with pytest.raises(DataError, match=advice):
        loaded(tmp_path, **said)
    np.savez(tmp_path / "train.npz", x=np.ones((2, 4)), y=np.float32([0, 2]))
    assert loaded(tmp_path, **said).train.labels.tolist() == [0, 2]


def test_a_folder_that_is_missing_is_named_with_its_whole_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match=f"there is no folder {tmp_path}/readings; set data.folder to the folder with"):
        loaded(Path("readings"))


def test_a_csv_file_in_another_encoding_is_refused(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text(f"{HEADER}\n1,2,süd,1\n", encoding="latin-1")
    with pytest.raises(DataError, match=r"cannot use .*train.csv: its text is not in UTF-8; save it as UTF-8"):
        loaded(tmp_path)


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyarrow.parquet", None)
    write(tmp_path, {"train.parquet": ""})
    with pytest.raises(DataError, match="it needs pyarrow, which is not installed here; pip install pyarrow"):
        loaded(tmp_path)


@pytest.mark.parametrize(
    "owners",
    [
        ("1", "01"),
        ("1.1", "1.10"),
        ("7", "+7"),
        ("1e3", "1000"),
        ("0", "00"),
        ("90071992547409931", "90071992547409932"),
        ("1", "๑"),
    ],
)
def test_owners_that_are_written_differently_are_different(tmp_path: Path, owners: tuple[str, str]) -> None:
    write(tmp_path, {"train.csv": f"{HEADER}\n1,2,{owners[0]},1\n3,4,{owners[1]},0\n5,6,{owners[0]},1\n"})
    data = loaded(tmp_path)
    assert sorted(data.names["region"]) == sorted(owners)
    rows = [data.train.inputs[data.train.columns["region"] == place] for place in range(2)]
    assert sorted(map(len, rows)) == [1, 2]


def test_an_owner_keeps_its_leading_zeros_and_a_number_may_have_them(tmp_path: Path) -> None:
    write(tmp_path, {"train.csv": f"{HEADER}\n01,2.50,007,01\n3,2.5,010,0\n"})
    data = loaded(tmp_path)
    assert data.names["region"] == ["007", "010"]
    assert data.train.inputs.tolist() == [[1, 2.5], [3, 2.5]]
    assert data.train.labels.tolist() == [1, 0]


@pytest.mark.parametrize("first", [0, 1])
def test_names_of_columns_may_count(tmp_path: Path, first: int) -> None:
    names = [str(first + place) for place in range(3)]
    write(tmp_path, {"train.csv": f"{','.join(names)}\n.5,.6,1\n"})
    assert loaded(tmp_path, target=names[2], columns=()).train.inputs.tolist() == [[0.5, np.float32(0.6)]]


def test_a_column_called_x_is_one_of_the_inputs_and_an_array_called_x_is_the_input(tmp_path: Path) -> None:
    write(tmp_path, {"table/train.csv": "x,z,fault\n1,2,0\n"})
    assert loaded(tmp_path / "table", columns=()).train.inputs.tolist() == [[1, 2]]
    np.savez(tmp_path / "train.npz", x=np.ones((2, 2)), y=[0, 1], note=[7, 8])
    assert loaded(tmp_path, target=None, columns=()).train.inputs.tolist() == [[1, 1], [1, 1]]


def test_an_array_with_several_values_per_row_is_not_joined_to_columns(tmp_path: Path) -> None:
    np.savez(tmp_path / "train.npz", p=np.ones((2, 2)), q=np.ones(2), fault=[0, 1])
    for said in ({}, {"inputs": ("q", "p")}):
        with pytest.raises(DataError, match=r"train.npz: p has several values per row, so it is not joined to other"):
            loaded(tmp_path, columns=(), **said)


def test_bytes_in_some_tables_only_are_refused(tmp_path: Path) -> None:
    """Bytes are scaled to 0…1, so they cannot be joined to numbers that are not scaled."""
    said = {"target": None, "columns": ()}
    np.savez(tmp_path / "a.npz", x=np.uint8([[0, 248], [3, 4]]), y=[0, 1])
    for other in (np.float32([[0.5, 0.99]]), np.int64([[0, 200]]), np.array([[True, False]])):
        np.savez(tmp_path / "b.npz", x=other, y=[0])
        with pytest.raises(
            DataError, match=r"a.npz has x in bytes \(uint8\), .* but .*b.npz has .*; give all tables the"
        ):
            loaded(tmp_path, **said)
    np.savez(tmp_path / "b.npz", x=np.uint8([[255, 0]]), y=[0])
    assert loaded(tmp_path, **said).train.scaled().inputs.max() == 1.0


def test_images_beside_arrays_are_refused(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image", reason="pip install pillow")
    (tmp_path / "a" / "train" / "cat").mkdir(parents=True)
    image.fromarray(np.full((2, 3), 248, np.uint8)).save(tmp_path / "a" / "train" / "cat" / "1.png")
    np.savez(tmp_path / "b.npz", x=np.full((1, 1, 2, 3), 0.99, np.float32), y=["cat"])
    with pytest.raises(DataError, match=r"a/train has x in bytes \(uint8\), .* but .*b.npz has float32"):
        loaded(tmp_path, input_shape=(1, 2, 3), num_classes=None, classes=("cat", "dog"), target=None, columns=())


def test_whole_numbers_beside_fractions_are_numbers(tmp_path: Path) -> None:
    said = {"target": None, "columns": (), "more": ("age",)}
    for name, dtype in (("a", np.int16), ("b", np.float64)):
        np.savez(tmp_path / f"{name}.npz", x=np.array([[1, 2]], dtype), y=[0], age=np.array([3], dtype))
    data = loaded(tmp_path, **said)
    assert data.train.inputs.dtype == data.train.more["age"].dtype == np.float32
    assert data.train.inputs.tolist() == [[1, 2], [1, 2]]
    np.savez(tmp_path / "train.npz", x=[[1, 2]], y=[0], age=[3])
    np.savez(tmp_path / "test.npz", x=[[0.5, 2]], y=[0], age=[3.5])
    data = loaded(tmp_path, **said)
    assert data.train.inputs.dtype == data.test.inputs.dtype == np.float32


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ("cat/notes.txt", "cat/notes.txt is no image in the folder of a class; convert it to one of .*, or move it"),
        ("cat/2.heic", "cat/2.heic is no image in the folder of a class"),
        ("cat/more/2.png", "cat/more is no image in the folder of a class"),
        ("2.png", "train/2.png is no image in the folder of a class"),
        ("cat/2.tif", ""),
        ("cat/2.PNG", ""),
        ("cat/.DS_Store", ""),
        ("cat/Thumbs.db", ""),
        (".ipynb_checkpoints/1.png", ""),
    ],
)
def test_every_file_of_a_class_is_read_or_refused(tmp_path: Path, file: str, message: str) -> None:
    image = pytest.importorskip("PIL.Image", reason="pip install pillow")
    for name in ("cat/1.png", file):
        path = tmp_path / "train" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        kind = {".png": "PNG", ".tif": "TIFF"}.get(path.suffix.lower())
        if kind:
            image.fromarray(np.full((2, 3), 9, np.uint8)).save(path, kind)
        else:
            path.write_text("?")
    said = {"input_shape": (1, 2, 3), "num_classes": None, "classes": ("cat", "dog"), "target": None, "columns": ()}
    if message:
        with pytest.raises(DataError, match=message):
            loaded(tmp_path, **said)
    else:
        assert len(loaded(tmp_path, **said).train) == (2 if "2." in file else 1)


def test_images_with_more_than_pixels_are_refused(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image", reason="pip install pillow")
    path = tmp_path / "train" / "cat"
    path.mkdir(parents=True)
    said = {"input_shape": (3, 2, 3), "num_classes": None, "classes": ("cat", "dog"), "target": None, "columns": ()}
    pixels = np.full((2, 3, 4), 255, np.uint8)
    image.fromarray(pixels).save(path / "1.png")
    assert loaded(tmp_path, **said).train.stored.max() == 255
    pixels[0, 0, 3] = 0
    image.fromarray(pixels).save(path / "1.png")
    with pytest.raises(DataError, match=r"1.png has transparent pixels; give it a background"):
        loaded(tmp_path, **said)
    (path / "1.png").unlink()
    one, other = (image.fromarray(np.full((2, 3), grey, np.uint8)) for grey in (1, 2))
    one.save(path / "1.tif", save_all=True, append_images=[other])
    with pytest.raises(DataError, match=r"1.tif has 2 images; save each in a file of its own"):
        loaded(tmp_path, **said)


def test_a_member_of_an_npz_that_is_no_array_is_named(tmp_path: Path) -> None:
    np.savez(tmp_path / "train.npz", x=np.zeros((2, 2), np.float32), y=np.zeros(2, np.int64))
    with zipfile.ZipFile(tmp_path / "train.npz", "a") as archive:
        archive.writestr("readme.txt", "not an array")
    with pytest.raises(DataError, match=r"train\.npz: its member readme\.txt is not an array; write the file with"):
        loaded(tmp_path, input_shape=(2,), num_classes=2)


@pytest.mark.parametrize("name", ["train.npz", "train.csv", "train.parquet", "device-a.csv"])
@pytest.mark.parametrize("target", [None, "/dev/zero"])
def test_a_pipe_and_a_device_are_no_tables(tmp_path: Path, name: str, target: str | None) -> None:
    path = tmp_path / name
    os.mkfifo(path) if target is None else path.symlink_to(target)
    with pytest.raises(DataError, match="it is a pipe or a device, not a regular file"):
        loaded(tmp_path, input_shape=(2,), num_classes=2)


def test_a_pipe_among_arrays_and_images_is_no_table(tmp_path: Path) -> None:
    (tmp_path / "train" / "cats").mkdir(parents=True)
    os.mkfifo(tmp_path / "train" / "cats" / "a.png")
    with pytest.raises(DataError, match="it is a pipe or a device"):
        loaded(tmp_path, input_shape=(2,), num_classes=2)
    os.mkfifo(tmp_path / "train" / "x.npy")
    with pytest.raises(DataError, match="it is a pipe or a device"):
        loaded(tmp_path, input_shape=(2,), num_classes=2)


def test_owners_are_written_alike_in_all_tables(tmp_path: Path) -> None:
    said = {"train.csv": f"{HEADER}\n1,2,1.50,1\n3,4,1e3,0\n", "test.csv": f"{HEADER}\n1,2,1.50,1\n3,4,east,0\n"}
    data = loaded(write(tmp_path, said))
    assert data.names["region"] == ["1.50", "1e3", "east"]
    assert data.test.columns["region"].tolist() == [0, 2]
    with pytest.raises(DataError, match=r"region has both 1 and 1.0 in .*; write the number alike everywhere"):
        loaded(write(tmp_path, {"train.csv": f"{HEADER}\n1,2,1.0,1\n3,4,1,0\n"} | {"test.csv": said["test.csv"]}))


def of_arrays(folder: Path, *owners: np.ndarray[Any, Any], x: Any = np.float32([[1], [2]])) -> Dataset:  # noqa: B008
    """The data set of a table for training and, with a second column of owners, a table for tests."""
    for name, column in zip(("train", "test"), owners, strict=False):
        np.savez(folder / f"{name}.npz", x=x, y=[0, 1], site=column)
    return loaded(folder, input_shape=(1,), target=None, columns=("site",))


def test_dates_of_several_units_large_numbers_and_bytes_are_owners(tmp_path: Path) -> None:
    days = np.array(["2026-01-01", "2026-01-02"], "M8[D]")
    data = of_arrays(tmp_path, days, days.astype("M8[s]"))
    assert data.names["site"] == ["2026-01-01T00:00:00", "2026-01-02T00:00:00"]
    assert of_arrays(tmp_path, days, days).names["site"] == ["2026-01-01", "2026-01-02"]
    large = np.array([2**63, 2**63 + 1], np.uint64)
    assert of_arrays(tmp_path, large, large).names["site"] == ["9223372036854775808", "9223372036854775809"]
    towns = np.array(["Köln", "Ulm"])
    assert of_arrays(tmp_path, np.char.encode(towns, "utf-8"), towns).names["site"] == ["Köln", "Ulm"]


@pytest.mark.parametrize(
    ("owners", "message"),
    [
        (np.array(["NaT", "2026-01-01"], "M8[D]"), "train.npz, row 1, column site: 'NaT' is no value; fill the cell"),
        (np.array([1, np.inf]), "train.npz, row 2, column site: 'inf' is no value"),
        (np.array([1j, 2]), "column site has the type complex128; write numbers, dates or text"),
        (np.array([(1, 2), (3, 4)], "i4,i4"), "column site has the type .*; write numbers, dates or text"),
        (np.array([b"K\xf6ln", b"Ulm"]), "column site has bytes that are not UTF-8; write text"),
        (np.array(["Ulm", "Ulm\u200b"]), "column site has both 'Ulm' and .* write the value alike everywhere"),
    ],
)
def test_owners_that_are_no_values_or_look_alike_are_refused(
    tmp_path: Path, owners: np.ndarray[Any, Any], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        of_arrays(tmp_path, owners)


def test_whole_numbers_beyond_int64_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"x has 9223372036854775808; the largest whole number is 9223372036854775807"):
        of_arrays(tmp_path, np.array([1, 2]), x=np.array([[1], [2**63]], np.uint64))


def test_the_image_that_cannot_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    image = pytest.importorskip("PIL.Image", reason="pip install pillow")
    path = tmp_path / "train" / "cat"
    path.mkdir(parents=True)
    for name in ("1", "2"):
        image.fromarray(np.arange(600, dtype=np.uint8).reshape(20, 30)).save(path / f"{name}.png")
    said = {"input_shape": (1, 20, 30), "num_classes": None, "classes": ("cat", "dog"), "target": None, "columns": ()}
    assert len(loaded(tmp_path, **said).train) == 2
    monkeypatch.setattr(image, "MAX_IMAGE_PIXELS", 200)
    with pytest.raises(DataError, match=r"1.png is no image, or a damaged or too large one: Image size \(600 pixels\)"):
        loaded(tmp_path, **said)
    monkeypatch.undo()
    (path / "2.png").write_bytes((path / "1.png").read_bytes()[:-30])
    with pytest.raises(DataError, match=r"2.png is no image, or a damaged or too large one: image file is truncated"):
        loaded(tmp_path, **said)
    (path / "2.png").unlink()
    (path / "2.png").symlink_to("absent.png")
    with pytest.raises(DataError, match=r"there is no .*2.png"):
        loaded(tmp_path, **said)
