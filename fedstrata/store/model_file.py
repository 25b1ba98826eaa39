"""Models on disk, in the safetensors format. Models are read and written piece by piece, so that no whole model is in
memory.

The data of a file is the flat vector of the model's layout. The metadata have a digest, the SHA-256 of everything else
in the file. If the digest is wrong, an error names the file.
"""

import hashlib
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from threading import Lock
from weakref import finalize

import numpy as np

from fedstrata.errors import StateError, SupersededError
from fedstrata.process.descriptors import when_there_is_room
from fedstrata.process.fault_points import reach
from fedstrata.store.whole_files import write_aside
from fedstrata.tensors import Flat, Layout, values_digest
from fedstrata.tensors.codec import int8_scale

PIECE_ELEMENTS = 1 << 18
MAX_HEADER_BYTES = 16 << 20
DIGEST = "sha256"
_NO_DIGEST = "0" * 64


def pieces_of(size: int) -> Iterator[tuple[int, int]]:
    """Yield the start and the stop (exclusive) of each piece of a vector with `size` elements."""
    return ((start, min(start + PIECE_ELEMENTS, size)) for start in range(0, size, PIECE_ELEMENTS))


def joined(pieces: Iterable[Flat]) -> Flat:
    """Return one vector made of consecutive pieces; without pieces, an empty vector."""
    return np.concatenate([np.empty(0, np.float32), *pieces])


def write_model(
    path: Path, layout: Layout, pieces: Iterable[Flat], metadata: Mapping[str, str], *, durable: bool = True,
    digest: bytes = b"",
) -> None:  # fmt: skip
    """Write a flat vector, given as consecutive pieces, as a safetensors file. If the caller gives the file's `digest`,
    the digest is not computed.

    Raises:
        StateError: the file cannot be written. An old file at `path` is unchanged.
    """
    header = _header(layout, metadata, digest.decode() or _NO_DIGEST)
    hashed = hashlib.sha256(header)
    with write_aside(path, durable=durable) as file:
        file.write(header)
        for piece in pieces:
            data = _bytes_of(piece)
            if not digest:
                hashed.update(data)
            file.write(data)
            reach("state_write")
        if not digest:
            file.seek(0)
            file.write(_header(layout, metadata, hashed.hexdigest()))


def _header(layout: Layout, metadata: Mapping[str, str], digest: str) -> bytes:
    entries: dict[str, object] = {"__metadata__": {**metadata, DIGEST: digest}}
    for tensor, start in zip(layout.tensors, layout.starts, strict=True):
        offsets = [4 * start, 4 * (start + tensor.size)]
        entries[tensor.name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": offsets}
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


class AnyModel(ABC):
    """Define a model: a flat vector with a layout. A model is read piece by piece, from a file, from memory or from
    another model.
    """

    layout: Layout
    metadata: dict[str, str]  # metadata of the model's file

    @property
    @abstractmethod
    def digest(self) -> bytes:
        """The SHA-256 in the metadata of the model's file. It covers everything else in the file."""

    @abstractmethod
    def read(self, start: int, stop: int) -> Flat:
        """Return the elements from `start` to `stop` (exclusive) of the vector."""

    @abstractmethod
    def close(self) -> None:
        """Release what the model uses, such as an open file."""

    def values_digest(self) -> str:
        """Return the digest of names, shapes and values, without other metadata. Files of different runs with equal
        weights have equal digests.
        """
        return values_digest(
            (tensor.name, "float32", tensor.shape, self._bytes_at(start, tensor.size))
            for tensor, start in zip(self.layout.tensors, self.layout.starts, strict=True)
        )

    def _bytes_at(self, start: int, size: int) -> Iterator[memoryview]:
        """Yield the bytes of `size` elements, beginning at element `start`, piece by piece."""
        return (_bytes_of(self.read(start + a, start + b)) for a, b in pieces_of(size))

    def _computed_digest(self) -> str:
        """Compute the digest of the model's file, in hexadecimal. For this, zeros replace the digest in the
        metadata.
        """
        digest = hashlib.sha256(_header(self.layout, self.metadata, _NO_DIGEST))
        for piece in self.pieces():
            digest.update(_bytes_of(piece))
        return digest.hexdigest()

    def read_all(self) -> Flat:
        """Return the whole vector."""
        return self.read(0, self.layout.size)

    def pieces(self) -> Iterator[Flat]:
        """Yield the whole vector in consecutive pieces."""
        return (self.read(start, stop) for start, stop in pieces_of(self.layout.size))

    def scales(self) -> list[float]:
        """Return the scale of each tensor for the encoding `int8`, see `int8_scale`."""
        found = []
        for tensor, start in zip(self.layout.tensors, self.layout.starts, strict=True):
            parts = (self.read(start + a, start + b) for a, b in pieces_of(tensor.size))
            found.append(max(map(int8_scale, parts), default=0.0))
        return found


class ModelFile(AnyModel):
    """Read a model on disk. A read needs memory only for the requested elements."""

    def __init__(self, path: Path, layout: Layout) -> None:
        """Open the file, and check names, shapes and length. Raises StateError, which names the file, if they are not
        as the layout requires.
        """
        self.path = path
        self.layout = layout
        self._reading = Lock()
        try:
            self._file = when_there_is_room(lambda: path.open("rb"))
        except OSError as error:
            raise StateError(f"cannot open {path}: {error.strerror}") from None
        finalize(self, self._file.close)  # closes the file when nothing uses this object any more
        try:
            self.metadata, self._data_start, self._digest = self._read_header()
        except StateError:
            self._file.close()
            raise

    def _read_header(self) -> tuple[dict[str, str], int, str]:
        """Read and check the header. Return the metadata, the position of the first byte of data, and the digest in the
        file.
        """
        length = int.from_bytes(self._file.read(8), "little")
        if length > MAX_HEADER_BYTES:
            raise StateError(f"{self.path} is not a model file: its header would have {length} bytes")
        text = self._file.read(length)
        try:
            metadata = dict(json.loads(text)["__metadata__"])
        except (ValueError, KeyError, TypeError, RecursionError):
            raise StateError(f"{self.path} is damaged: its header cannot be read") from None
        digest = str(metadata.pop(DIGEST, ""))
        expected = _header(self.layout, metadata, digest)
        if expected[8:] != text:
            raise StateError(f"{self.path} has other tensors than this model")
        size = os.fstat(self._file.fileno()).st_size
        expected_size = 8 + length + self.layout.float32_bytes
        if size != expected_size:
            raise StateError(f"{self.path} has {size} bytes, expected {expected_size}; it may be truncated")
        return metadata, 8 + length, digest

    @property
    def digest(self) -> bytes:
        """The SHA-256 in the file's metadata, which covers everything else in the file. Only `verify` compares it with
        the content.
        """
        return self._digest.encode()

    def read(self, start: int, stop: int) -> Flat:
        """Return the elements from `start` to `stop` (exclusive) of the vector."""
        with self._reading:  # if the file were closed now, its descriptor could belong to another file
            if self._file.closed:
                raise SupersededError(f"{self.path.name} belongs to a round that is over; fetch the newest model")
            data = os.pread(self._file.fileno(), 4 * (stop - start), self._data_start + 4 * start)
        if len(data) != 4 * (stop - start):
            raise StateError(f"{self.path} was truncated while it was open")
        return np.frombuffer(data, "<f4")

    def verify(self) -> None:
        """Check that the content matches the digest in the metadata. If not, raise StateError, which names the file."""
        if self._computed_digest() != self._digest:
            raise StateError(f"{self.path} is altered: its content does not match its checksum")

    def check(self, metadata: Mapping[str, str]) -> None:
        """Check that the content and the metadata are as expected. If not, raise StateError, which names the file."""
        self.verify()
        if self.metadata != metadata:
            raise StateError(f"{self.path} has metadata {self.metadata}, expected {metadata}; was it renamed?")

    def close(self) -> None:
        """Close the file. Later reads raise SupersededError."""
        with self._reading:
            self._file.close()


class ModelInMemory(AnyModel):
    """Hold a model in memory, with the same functions as a model on disk."""

    def __init__(self, layout: Layout, flat: Flat, metadata: Mapping[str, str] | None = None) -> None:
        """Set the model's layout, its vector, and the metadata that its file would have."""
        self.layout = layout
        self._flat = flat
        self.metadata = dict(metadata or {})
        self._digest = self._computed_digest().encode() if metadata else b""  # computed here, because threads use it

    @property
    def digest(self) -> bytes:
        """The digest that a file with this model would have."""
        return self._digest or self._computed_digest().encode()

    def read(self, start: int, stop: int) -> Flat:
        """Return the elements from `start` to `stop` (exclusive) of the vector."""
        return self._flat[start:stop]

    def close(self) -> None:
        """Do nothing, because a model in memory needs no closing."""


def _bytes_of(values: Flat) -> memoryview:
    return np.ascontiguousarray(values, "<f4").data.cast("B")
