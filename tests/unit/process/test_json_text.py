"""JSON: no number makes a writer fail, and every reader takes what is written."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.runs.progress import JsonLines
from fedstrata.page.feed import to_json
from fedstrata.process.json_text import json_text
from fedstrata.v1 import gps_service_pb2 as pb

DOCUMENTS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


def test_what_is_no_number_is_null_and_all_else_is_as_it_is() -> None:
    document = {"a": [1.5, math.nan, (math.inf, -0.0)], "b": {"c": -math.inf, "d": True, "e": 10**30}}
    assert json_text(document) == '{"a": [1.5, null, [null, -0.0]], "b": {"c": null, "d": true, "e": %s}}' % 10**30


def _refuse(constant: str) -> None:
    raise ValueError(constant)


@given(DOCUMENTS)
def test_every_document_is_read_back_by_a_strict_reader(document: object) -> None:
    json.loads(json_text(document), parse_constant=_refuse)
    json.loads(to_json(document), parse_constant=_refuse)


def test_a_state_with_a_number_that_is_none_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    waits = [pb.Wait(name="device-000", what="its update", seconds=math.inf)]
    clusters = [pb.ClusterStatus(home_id="lps-0", is_evaluated=True, loss=math.nan, headline=0.5)]
    JsonLines().show(pb.RunStatus(waits=waits, clusters=clusters, seconds=2))
    said = json.loads(capsys.readouterr().out, parse_constant=_refuse)
    assert said["waits"] == [{"name": "device-000", "what": "its update", "seconds": None}]
    assert said["clusters"][0]["loss"] is None
