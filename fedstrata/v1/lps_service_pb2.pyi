from fedstrata.v1 import rounds_pb2 as _rounds_pb2
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SubmitEvaluationRequest(_message.Message):
    __slots__ = ("run_id", "cluster_id", "evaluation")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    EVALUATION_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    cluster_id: str
    evaluation: _rounds_pb2.Evaluation
    def __init__(self, run_id: _Optional[str] = ..., cluster_id: _Optional[str] = ..., evaluation: _Optional[_Union[_rounds_pb2.Evaluation, _Mapping]] = ...) -> None: ...

class SubmitEvaluationResponse(_message.Message):
    __slots__ = ("run_id",)
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    def __init__(self, run_id: _Optional[str] = ...) -> None: ...
