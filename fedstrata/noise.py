"""Gaussian noise for differential privacy: the keys, the random numbers, and the rounding to integers.

A key determines a stream of numbers (SHAKE-256). For research, a key is a hash of the seed, the sender's name and the
round. So a run can be repeated, but everybody with the experiment file can compute and remove the noise.

For protection, a key comes from a random secret that never leaves its owner's folder. Before each release, the owner
writes two things to disk: the secret, and the hash of the values to be released. If the process is killed and repeats a
round, it adds the same noise to the same values. It never releases other values in this round. The same holds in
another attempt of the run. So nobody can average the noise of several restarts or attempts.
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
PIECE = 1 << 14  # number of draws at once
BEFORE_TRAINING = -1
SECRET_BYTES = 32
FAR = 35.0  # from this many deviations on, a series gives the normal tail, exact to 10⁻⁸


class Noise(Protocol):
    """Make the keys from which the noise of one device or LPS is drawn."""

    def key(self, lps_round: int, released: bytes) -> bytes:
        """Return the key for the release of an LPS round. For a release before training, `lps_round` is -1. `released`
        are the values without noise, as bytes, or a digest of these values.

        Raises:
            RunStoppedError: other values were already released in this round, and ε covers only one release per round.
            StateError: the disk refuses to write, or the kept file is damaged.
        """


class ResearchNoise:
    """Compute keys of noise from the experiment file alone. So everybody can repeat the run, but can also compute the
    noise.
    """

    def __init__(self, seed: int, owner: str) -> None:
        self._address = f"fedstrata noise for research\0{seed}\0{owner}\0"

    def key(self, lps_round: int, released: bytes) -> bytes:
        """Return the key for the seed, the owner and the round. It does not depend on the released values."""
        return hashlib.sha256(f"{self._address}{lps_round}".encode()).digest()


class SealedNoise:
    """Make keys of noise from a secret. The secret and the hash of each release are written to disk before the values
    are released.
    """

    def __init__(self, path: Path, run_id: str, owner: str) -> None:
        """Use the owner's file `path`. If the file is missing, the first call of `key` creates it."""
        self._path = path
        self._owner = {"run_id": run_id, "owner": owner}
        self._kept: tuple[bytes, dict[str, str]] | None = None

    def key(self, lps_round: int, released: bytes) -> bytes:
        """Return the key, a hash of the secret, the round and the released values."""
        secret, known = self._kept = self._kept or self._read()
        about, found = str(lps_round), hashlib.sha256(released).hexdigest()
        if known.get(about, found) != found:
            when = "before training" if lps_round == BEFORE_TRAINING else f"in LPS round {lps_round + 1}"
            raise RunStoppedError(
                f"{self._path}: other values were released {when}, and ε does not cover a second release; give the "
                "run another seed"
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
            raise StateError(
                f"{self._path} is not a file of noise; put the right file back, or give the run another seed"
            ) from None
        if document != self._owner:
            raise StateError(
                f"{self._path} has the noise of {document}; expected {self._owner}; put the right file back"
            )
        return secret, known

    def _write(self, secret: bytes, known: dict[str, str]) -> None:
        document = {**self._owner, "secret": secret.hex(), "released": known}
        write_sealed(self._path, json.dumps(document).encode())
        self._kept = secret, known


def normals(key: bytes, size: int) -> Normals:
    """Return `size` standard normal numbers that follow from a key.

    Each number is the sum of two Box-Muller transforms, divided by √2. The low bits of a single transform depend on few
    random words, and a known attack uses these bits to remove the noise. No such attack is known for the sum of two
    transforms (Holohan & Braghin 2021). Devices send the noise rounded to a grid (`on_grid`).
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
    """Return Gaussian noise with this standard deviation, as integers in units of 1 / grid."""
    return np.rint(normals(key, size) * (deviation * grid)).astype(np.int64)


def delta_of(noise_multiplier: float, epsilon: float) -> float:
    """Return the δ of one release with Gaussian noise for this ε. The standard deviation of the noise is
    `noise_multiplier` times the sensitivity (Balle & Wang 2018, Theorem 8).
    """
    half, shift = 1 / (2 * noise_multiplier), epsilon * noise_multiplier
    if half + shift < FAR:
        return _phi(half - shift) - math.exp(epsilon) * _phi(-half - shift)
    return _phi(half - shift) - math.exp(epsilon + _log_far_phi(half + shift))


def noise_multiplier_of(epsilon: float, delta: float) -> float:
    """Return the smallest noise multiplier with which one release with Gaussian noise is (ε, δ)-private. The noise
    multiplier is the standard deviation of the noise divided by the sensitivity.

    The result is exact for all ε. The usual formula √(2 ln(1.25/δ)) / ε is not used: it holds only for ε below 1.
    """
    return _least(lambda multiplier: delta_of(multiplier, epsilon) <= delta, above=1e-3, within=1e-12)


def epsilon_of(noise_multiplier: float, delta: float) -> float:
    """Return the ε of one release with Gaussian noise for this δ, rounded up. The standard deviation of the noise is
    `noise_multiplier` times the sensitivity.
    """
    if delta_of(noise_multiplier, 0.0) <= delta:
        return 0.0
    return _least(lambda epsilon: delta_of(noise_multiplier, epsilon) <= delta, above=0.0, within=1e-9)


def _least(is_enough: Callable[[float], bool], *, above: float, within: float) -> float:
    """Return the smallest number above `above` for which `is_enough` is true. The search doubles an upper limit, then
    halves the interval. The result is never too small. It is too large by at most the fraction `within`.
    """
    low, high = above, 1.0
    while not is_enough(high):
        low, high = high, 2 * high
    while high - low > within * high:
        middle = (low + high) / 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return high


def _log_far_phi(x: float) -> float:
    """Return the logarithm of the standard normal distribution function at −x, for x of at least `FAR`. For large x the
    function itself is rounded to 0, but its logarithm is not.
    """
    return -x * x / 2 - math.log(x * math.sqrt(2 * math.pi)) + math.log1p(-1 / x**2 + 3 / x**4)


def _phi(x: float) -> float:
    """Return the standard normal distribution function."""
    return math.erfc(-x / math.sqrt(2)) / 2
