"""The masks of a device. Every two devices of a round share a mask: one adds the mask to its update, and the other
subtracts it.

X25519 gives two devices a common secret. HKDF-SHA256 derives a key from this secret for one round and one roster.
ChaCha20 with this key gives one number modulo 2⁶⁴ per weight. Updates are integers on the grid of exact sums. So all
masks cancel exactly when the updates are added (docs/decisions/secure-aggregation.md).
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from hashlib import sha256

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

from fedstrata.errors import OutdatedError, PayloadError, RosterError
from fedstrata.experiment import Experiment
from fedstrata.experiment.privacy import MOST_MASKED
from fedstrata.privacy.updates import weight_of
from fedstrata.process.quoting import quoted
from fedstrata.rounds import ReceivedModel, Shield, Update
from fedstrata.rounds.mask_keys import keys_in, roster_digest
from fedstrata.rounds.models_and_updates import Compute
from fedstrata.tensors import ExactSum, Flat, PayloadCodec
from fedstrata.trust.mask_proofs import Proofs
from fedstrata.v1 import rounds_pb2 as pb

Words = NDArray[np.uint64]
PIECE = 1 << 15  # numbers drawn at once
NONCE = bytes(16)  # and the counter before it: a key is used for one round alone


class Masks(Shield):
    """Mask the updates of one device. The device has a new key for each global round in which it takes part."""

    growth = 2  # integers of 8 bytes

    def __init__(self, experiment: Experiment, device_id: str, proofs: Proofs) -> None:
        """Draw the device's first key from the system's entropy."""
        settings = experiment.secure_aggregation
        self._min_devices = settings.min_devices if settings else 0
        self._run_id, self._device_id = experiment.run_id, device_id
        self._known_devices = frozenset(experiment.device_ids())
        most_devices = min(experiment.device_count, MOST_MASKED)  # of a round, with those that drop out of it
        self._most_examples = most_devices * weight_of(experiment, experiment.most_examples)
        self._proofs = proofs
        self._rounds_per_global = experiment.training.lps_rounds_per_global_round
        self._next_key_after = -1  # the newest round after which this device has made a key
        self._secrets: dict[bytes, X25519PrivateKey] = {}  # by public key: the newest, and the one before it
        self._public_key = b""  # by which the roster known has this device
        self._renew_key()
        _ = self.key  # a process that cannot sign it is told now
        self._shared: dict[bytes, bytes] = {}  # by others' keys: secrets with the key in the roster known
        self._others: dict[str, bytes] = {}  # keys by device
        self._hidden: dict[bytes, bytes] = {}  # the digest of what was masked, by what its masks are of
        deadline = experiment.deadlines.lps
        self._may_shrink = deadline.deadline_s is not None or deadline.quorum_ratio < 1
        self._masked_for: dict[int, bytes] = {}  # by round, the digest of the devices that it masked for first
        self._devices = b""
        self._max_examples = 0
        self.digest = b""  # of the roster known

    @property
    def key(self) -> pb.MaskKey:
        """Return the newest key of this device, signed by its process."""
        return self._proofs.key_of(self._device_id, next(reversed(self._secrets)))

    def _renew_key(self) -> None:
        """Make a key for the next global round. The old key is deleted when a roster has the new key."""
        secret = X25519PrivateKey.generate()
        self._secrets[secret.public_key().public_bytes_raw()] = secret

    def take(self, roster: pb.Roster) -> None:
        """Mask updates for the devices of this roster from now on.

        Raises:
            PayloadError: the roster is not allowed, because it cannot hide this device's update.
            RosterError: a key in the roster does not belong to its device, or counts no more. This device waits for
                another roster.
        """
        keys = {member.device_id: member.public_key for member in roster.members}
        if not self._min_devices <= len(keys) == len(roster.members) <= MOST_MASKED:
            raise PayloadError(
                f"asked to mask an update among {len(roster.members)} devices; expected each once, "
                f"{self._min_devices} to {MOST_MASKED}"
            )
        if strangers := sorted(keys.keys() - self._known_devices):
            raise PayloadError(f"asked to mask an update among {quoted(*strangers)}, who are not of this experiment")
        if not 0 < roster.max_examples <= self._most_examples:
            raise PayloadError(
                f"asked to mask an update for a sum over {roster.max_examples} examples, where the devices of a round "
                f"have at most {self._most_examples}: this LPS lies"
            )
        own = keys.pop(self._device_id, b"")
        if own not in self._secrets:
            raise PayloadError(f"asked to mask an update among {len(roster.members)} devices without this one's key")
        for device_id, key in keys_in(roster):
            try:
                self._proofs.check(device_id, key)
            except (PayloadError, OutdatedError) as error:
                raise RosterError(f"{error}; this device waits for a roster without it") from None
        self._devices = sha256("\n".join(sorted((*keys, self._device_id))).encode()).digest()
        self._others, self._max_examples, self.digest = keys, roster.max_examples, roster_digest(roster)
        known = self._shared if own == self._public_key else {}
        self._shared, self._public_key = {key: known[key] for key in keys.values() if key in known}, own
        newest = next(reversed(self._secrets))
        self._secrets = {key: self._secrets[key] for key in dict.fromkeys((own, newest))}

    def mark(self, request: pb.FetchModelRequest) -> None:
        request.mask_key.CopyFrom(self.key)
        request.roster_digest = self.digest

    async def trained_from(self, received: ReceivedModel, home_id: str, cluster: int, compute: Compute) -> bytes:
        return bytes(await compute(partial(received.trained_from, home_id, cluster)))

    async def hidden(self, update: Update, compute: Compute) -> Update:
        masked: Update = await compute(partial(self.masked, update))
        return masked

    def masked(self, update: Update) -> Update:
        """Return a masked update. The values are multiplied by the number of examples, converted to the integers of an
        exact sum, and added to the masks. If a value is too large or is not finite, the result has no values, only the
        reason.

        Raises:
            PayloadError: the same masks have already hidden another update. The difference of the two masked updates
                would contain no masks.
            RosterError: the update of this round was already masked for other devices, although `deadlines.lps`
                excludes no device. The sums over the two lists of devices would reveal the update.
        """
        if self._masked_for.setdefault(update.round, self._devices) != self._devices and not self._may_shrink:
            raise RosterError(
                f"asked to mask the update of round {update.round + 1} for other devices than before, where "
                "deadlines.lps lets none be left out: the two sums would tell it; this device waits for the others"
            )
        if self._next_key_after < update.round and (update.round + 1) % self._rounds_per_global == 0:
            self._next_key_after = update.round
            self._renew_key()  # shown as the next round is asked for
        codec = PayloadCodec(update.codec.layout, "exact")
        total = ExactSum(codec.layout.size, self._max_examples)
        try:
            total.add(as_received(update), update.num_examples)
        except PayloadError:  # which values these are would tell of the update
            unfit = f"values beyond ±{total.limit:g}, or not finite; training has diverged"
            return replace(update, codec=codec, note=pb.UpdateHeader(roster_digest=self.digest, unfit=unfit))
        sums = total.sums()
        del total
        self._add_masks(sums.view(np.uint64), update)
        note = pb.UpdateHeader(roster_digest=self.digest)
        return replace(update, codec=codec, read=lambda start, stop: sums[start:stop], note=note)

    def _add_masks(self, words: Words, update: Update) -> None:
        about = f"{self._run_id}\0{update.round}\0".encode() + update.trained_from
        found = sha256(words.tobytes()).digest()
        if self._hidden.setdefault(self.digest + about, found) != found:
            raise PayloadError(
                f"asked for another update under the same masks in round {update.round}, which shows both: its LPS lies"
            )
        for device_id, public_key in self._others.items():
            fold = np.add if self._device_id < device_id else np.subtract
            pair = "\0".join(sorted((self._device_id, device_id)))  # whose masks they are, whoever shows which key
            key = self._key_with(public_key, f"{pair}\0".encode() + about)
            for at, drawn in stream(key, len(words)):
                here = words[at : at + len(drawn)]
                fold(here, drawn, out=here)

    def _key_with(self, public_key: bytes, about: bytes) -> bytes:
        """Return the key that this device shares with another device. The key is for the present roster and for what
        `about` describes, such as the round.
        """
        shared = self._shared.get(public_key)
        if shared is None:
            secret = self._secrets[self._public_key]
            shared = self._shared[public_key] = secret.exchange(X25519PublicKey.from_public_bytes(public_key))
        return HKDF(SHA256(), 32, salt=self.digest, info=b"fedstrata masks\0" + about).derive(shared)


def stream(key: bytes, length: int) -> Iterator[tuple[int, Words]]:
    """Yield `length` random numbers modulo 2⁶⁴ in pieces. They depend only on the key. Each piece comes with the index
    of its first number. The next piece overwrites the memory of this piece.
    """
    cipher = Cipher(ChaCha20(key, NONCE), mode=None).encryptor()
    zeros, drawn = bytes(8 * PIECE), bytearray(8 * PIECE)
    for at in range(0, length, PIECE):
        count = min(PIECE, length - at)
        cipher.update_into(memoryview(zeros)[: 8 * count], memoryview(drawn)[: 8 * count])
        yield at, np.frombuffer(drawn, "<u8", count)


def as_received(update: Update) -> Flat:
    """Return an update's values as the parent would receive them without masks: encoded for the link, then decoded."""
    codec, at = update.codec, 0
    flat = np.empty(codec.layout.size, np.float32)
    for chunk in codec.chunks(update.read):
        values = codec.decode(chunk, at)
        start = at // codec.element_bytes
        flat[start : start + len(values)] = values
        at += len(chunk)
    return flat
