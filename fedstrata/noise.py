"""Gaussian noise for differential privacy: where it comes from, what seals it, and how it lies on a grid of integers.

A key makes a stream of numbers (SHAKE-256). For research a key is a hash of the seed, the noise's owner and the round:
a run can be repeated, and whoever has the experiment file can take the noise off again. For protection a key is made
from a secret that the system's entropy gave and that never leaves its owner's folder. There, before anything is
released, the secret and the hash of what each round releases are on disk: a process that dies and does a round again
adds the same noise to the same values, so that many deaths average nothing out, and releases nothing else.
"""

import hashlib
import json
import math
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fedstrata.errors import RunStoppedError, StateError
from fedstrata.store import read_sealed, write_sealed

Normals = NDArray[np.float64]
Integers = NDArray[np.int64]
PIECE = 1 << 14  # numbers drawn at once
BEFORE_TRAINING = -1
SECRET_BYTES = 32
FAR = 35.0  # deviations from which on a normal tail is taken by its series, which is exact to 10⁻⁸ there


class Noise(Protocol):
    """The source of the noise of one device or LPS."""

    def key(self, lps_round: int, released: bytes) -> bytes:
        """Return the key for what is released in a round, -1 before training; `released` is its bytes before the noise.

        Raises:
            RunStoppedError: something else was released in this round, and one release is accounted for.
            StateError: the disk is full or refuses, or what was kept there is damaged.
        """


class ResearchNoise:
    """Noise that is a function of the experiment."""

    def __init__(self, seed: int, owner: str) -> None:
        self._address = f"fedstrata noise for research\0{seed}\0{owner}\0"

    def key(self, lps_round: int, released: bytes) -> bytes:
        """Return the key for the seed, the owner and the round; the released values do not change it."""
        return hashlib.sha256(f"{self._address}{lps_round}".encode()).digest()


class SealedNoise:
    """Noise under a secret, which is on disk before the first of it is used; so is the hash of each release."""

    def __init__(self, path: Path, run_id: str, owner: str) -> None:
        """`path` is the owner's own file; it is made with the first key."""
        self._path = path
        self._owner = {"run_id": run_id, "owner": owner}
        self._kept: tuple[bytes, dict[str, str]] | None = None

    def key(self, lps_round: int, released: bytes) -> bytes:
        """Return the key for the secret, the round and the released values."""
        secret, known = self._kept = self._kept or self._read()
        about, found = str(lps_round), hashlib.sha256(released).hexdigest()
        if known.get(about, found) != found:
            raise RunStoppedError(
                f"{self._path}: round {lps_round + 1} has released other values before, and a second release under "
                "privacy is accounted for nowhere; begin the run anew"
            )
        if about not in known:
            self._write(secret, {**known, about: found})
        return hashlib.sha256(b"fedstrata noise\0" + secret + f"{about}\0{found}".encode()).digest()

    def _read(self) -> tuple[bytes, dict[str, str]]:
        if not self._path.exists():
            return secrets.token_bytes(SECRET_BYTES), {}
        try:
            document = json.loads(read_sealed(self._path))
            secret, known = bytes.fromhex(document.pop("secret")), dict(document.pop("released"))
        except (ValueError, KeyError, TypeError, AttributeError):
            raise StateError(f"{self._path}: it is no file of noise; put it back, or begin the run anew") from None
        if document != self._owner:
            raise StateError(f"{self._path}: noise of {document}; {self._owner} expected")
        return secret, known

    def _write(self, secret: bytes, known: dict[str, str]) -> None:
        document = {**self._owner, "secret": secret.hex(), "released": known}
        write_sealed(self._path, json.dumps(document).encode())
        self._kept = secret, known


def normals(key: bytes, size: int) -> Normals:
    """Return so many standard normal numbers under a key: each the sum of two by Box and Muller's transform, over √2.

    The low bits of a single transform are a function of few words and have been used to take noise off; those of a
    sum of two are not known to be of use (Holohan & Braghin 2021). Only multiples of a grid's step leave a device.
    """
    found = np.empty(size)
    for number, start in enumerate(range(0, size, PIECE)):
        pairs = (min(PIECE, size - start) + 1) // 2
        drawn = hashlib.shake_256(key + number.to_bytes(8, "little")).digest(pairs * 4 * 8)
        words = np.frombuffer(drawn, "<u8").reshape(4, pairs)
        uniform = ((words >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
        radius, angle = np.sqrt(-2 * np.log(uniform[:2])), 2 * np.pi * uniform[2:]
        both = np.concatenate([(radius * np.cos(angle)).sum(axis=0), (radius * np.sin(angle)).sum(axis=0)])
        found[start : start + PIECE] = both[: min(PIECE, size - start)]
    found /= math.sqrt(2)
    return found


def on_grid(key: bytes, size: int, deviation: float, grid: float) -> Integers:
    """Gaussian noise of a standard deviation, rounded to multiples of 1 / grid, as integers."""
    return np.rint(normals(key, size) * (deviation * grid)).astype(np.int64)


def delta_of(noise_multiplier: float, epsilon: float) -> float:
    """δ of one Gaussian release with noise of so many times its sensitivity (Balle & Wang 2018, Theorem 8)."""
    half, shift = 1 / (2 * noise_multiplier), epsilon * noise_multiplier
    if half + shift < FAR:
        return _phi(half - shift) - math.exp(epsilon) * _phi(-half - shift)
    return _phi(half - shift) - math.exp(epsilon + _log_far_phi(half + shift))


def noise_multiplier_of(epsilon: float, delta: float) -> float:
    """Return the least noise, as a multiple of the sensitivity, that makes one Gaussian release (ε, δ)-private.

    Exact for all ε, other than √(2 ln(1.25/δ)) / ε, which holds below 1 only.
    """
    return _least(lambda multiplier: delta_of(multiplier, epsilon) <= delta, above=1e-3, within=1e-12)


def epsilon_of(noise_multiplier: float, delta: float) -> float:
    """ε at a δ of one Gaussian release with noise of so many times its sensitivity; a little more, never less."""
    if delta_of(noise_multiplier, 0.0) <= delta:
        return 0.0
    return _least(lambda epsilon: delta_of(noise_multiplier, epsilon) <= delta, above=0.0, within=1e-9)


def _least(is_enough: Callable[[float], bool], *, above: float, within: float) -> float:
    """Return the least number that is enough, by doubling and halving; a little more, by a share of it, never less."""
    low, high = above, 1.0
    while not is_enough(high):
        low, high = high, 2 * high
    while high - low > within * high:
        middle = (low + high) / 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return high


def _log_far_phi(x: float) -> float:
    """Return the logarithm of the standard normal distribution function at −x, x at least `FAR`, where it underflows
    soon.
    """
    return -x * x / 2 - math.log(x * math.sqrt(2 * math.pi)) + math.log1p(-1 / x**2 + 3 / x**4)


def _phi(x: float) -> float:
    """Return the standard normal distribution function."""
    return math.erfc(-x / math.sqrt(2)) / 2
