from fedstrata.v1 import rounds_pb2 as _rounds_pb2
from fedstrata.v1 import tensors_pb2 as _tensors_pb2
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SubmitEvaluationRequest(_message.Message):
    __slots__ = ("run_id", "home_id", "evaluation")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    HOME_ID_FIELD_NUMBER: _ClassVar[int]
    EVALUATION_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    home_id: str
    evaluation: _rounds_pb2.Evaluation
    def __init__(self, run_id: _Optional[str] = ..., home_id: _Optional[str] = ..., evaluation: _Optional[_Union[_rounds_pb2.Evaluation, _Mapping]] = ...) -> None: ...

class SubmitEvaluationResponse(_message.Message):
    __slots__ = ("run_id",)
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    def __init__(self, run_id: _Optional[str] = ...) -> None: ...

class HeldModelPart(_message.Message):
    __slots__ = ("header", "data")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    header: HeldModelHeader
    data: bytes
    def __init__(self, header: _Optional[_Union[HeldModelHeader, _Mapping]] = ..., data: _Optional[bytes] = ...) -> None: ...

class HeldModelHeader(_message.Message):
    __slots__ = ("run_id", "device_id", "home_id", "round", "payload", "sha256")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    DEVICE_ID_FIELD_NUMBER: _ClassVar[int]
    HOME_ID_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    device_id: str
    home_id: str
    round: int
    payload: _tensors_pb2.PayloadHeader
    sha256: str
    def __init__(self, run_id: _Optional[str] = ..., device_id: _Optional[str] = ..., home_id: _Optional[str] = ..., round: _Optional[int] = ..., payload: _Optional[_Union[_tensors_pb2.PayloadHeader, _Mapping]] = ..., sha256: _Optional[str] = ...) -> None: ...

class SubmitModelResponse(_message.Message):
    __slots__ = ("run_id",)
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    def __init__(self, run_id: _Optional[str] = ...) -> None: ...
