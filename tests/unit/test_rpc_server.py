"""What a child may send ahead of being read follows the largest payload that it has to send."""

import pytest

from fedstrata.rpc.server import HEADER_BYTES, LOOKAHEAD_BYTES, sent_ahead
from fedstrata.tensors import SMALL_BYTES

AHEAD, ESTIMATE = "grpc.http2.lookahead_bytes", "grpc.http2.bdp_probe"


@pytest.mark.parametrize("payload_bytes", [100_000, SMALL_BYTES])
def test_a_small_payload_is_sent_ahead_whole(payload_bytes: int) -> None:
    options = dict(sent_ahead(payload_bytes))
    assert options[AHEAD] == payload_bytes + HEADER_BYTES
    assert ESTIMATE not in options


@pytest.mark.parametrize("payload_bytes", [0, SMALL_BYTES + 1, 100_000_000])
def test_of_a_large_one_or_one_not_known_little_is_whatever_the_link_would_carry(payload_bytes: int) -> None:
    assert dict(sent_ahead(payload_bytes)) == {AHEAD: LOOKAHEAD_BYTES, ESTIMATE: 0}
