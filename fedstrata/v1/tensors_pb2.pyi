from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Encoding(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ENCODING_UNSPECIFIED: _ClassVar[Encoding]
    ENCODING_FLOAT32: _ClassVar[Encoding]
    ENCODING_FLOAT16: _ClassVar[Encoding]
    ENCODING_BFLOAT16: _ClassVar[Encoding]
    ENCODING_INT8: _ClassVar[Encoding]
    ENCODING_EXACT: _ClassVar[Encoding]
ENCODING_UNSPECIFIED: Encoding
ENCODING_FLOAT32: Encoding
ENCODING_FLOAT16: Encoding
ENCODING_BFLOAT16: Encoding
ENCODING_INT8: Encoding
ENCODING_EXACT: Encoding

class TensorHeader(_message.Message):
    __slots__ = ("name", "shape", "scale")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    SCALE_FIELD_NUMBER: _ClassVar[int]
    name: str
    shape: _containers.RepeatedScalarFieldContainer[int]
    scale: float
    def __init__(self, name: _Optional[str] = ..., shape: _Optional[_Iterable[int]] = ..., scale: _Optional[float] = ...) -> None: ...

class WeightedTensors(_message.Message):
    __slots__ = ("name", "num_examples", "tensors")
    NAME_FIELD_NUMBER: _ClassVar[int]
    NUM_EXAMPLES_FIELD_NUMBER: _ClassVar[int]
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    name: str
    num_examples: int
    tensors: _containers.RepeatedCompositeFieldContainer[TensorHeader]
    def __init__(self, name: _Optional[str] = ..., num_examples: _Optional[int] = ..., tensors: _Optional[_Iterable[_Union[TensorHeader, _Mapping]]] = ...) -> None: ...

class PayloadHeader(_message.Message):
    __slots__ = ("encoding", "parts", "payload_bytes")
    ENCODING_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_BYTES_FIELD_NUMBER: _ClassVar[int]
    encoding: Encoding
    parts: _containers.RepeatedCompositeFieldContainer[WeightedTensors]
    payload_bytes: int
    def __init__(self, encoding: _Optional[_Union[Encoding, str]] = ..., parts: _Optional[_Iterable[_Union[WeightedTensors, _Mapping]]] = ..., payload_bytes: _Optional[int] = ...) -> None: ...
