from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ArrayHeader(_message.Message):
    __slots__ = ("name", "dtype", "shape")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    name: str
    dtype: str
    shape: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, name: _Optional[str] = ..., dtype: _Optional[str] = ..., shape: _Optional[_Iterable[int]] = ...) -> None: ...

class Answer(_message.Message):
    __slots__ = ("question", "arrays", "data", "trained_examples")
    QUESTION_FIELD_NUMBER: _ClassVar[int]
    ARRAYS_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    TRAINED_EXAMPLES_FIELD_NUMBER: _ClassVar[int]
    question: str
    arrays: _containers.RepeatedCompositeFieldContainer[ArrayHeader]
    data: bytes
    trained_examples: int
    def __init__(self, question: _Optional[str] = ..., arrays: _Optional[_Iterable[_Union[ArrayHeader, _Mapping]]] = ..., data: _Optional[bytes] = ..., trained_examples: _Optional[int] = ...) -> None: ...

class AnswerHeader(_message.Message):
    __slots__ = ("run_id", "device_id", "device_index", "arrays", "payload_bytes", "process_id", "trained_examples")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    DEVICE_ID_FIELD_NUMBER: _ClassVar[int]
    DEVICE_INDEX_FIELD_NUMBER: _ClassVar[int]
    ARRAYS_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_BYTES_FIELD_NUMBER: _ClassVar[int]
    PROCESS_ID_FIELD_NUMBER: _ClassVar[int]
    TRAINED_EXAMPLES_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    device_id: str
    device_index: int
    arrays: _containers.RepeatedCompositeFieldContainer[ArrayHeader]
    payload_bytes: int
    process_id: str
    trained_examples: int
    def __init__(self, run_id: _Optional[str] = ..., device_id: _Optional[str] = ..., device_index: _Optional[int] = ..., arrays: _Optional[_Iterable[_Union[ArrayHeader, _Mapping]]] = ..., payload_bytes: _Optional[int] = ..., process_id: _Optional[str] = ..., trained_examples: _Optional[int] = ...) -> None: ...

class AnswerPart(_message.Message):
    __slots__ = ("header", "data", "ask_again", "question")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    ASK_AGAIN_FIELD_NUMBER: _ClassVar[int]
    QUESTION_FIELD_NUMBER: _ClassVar[int]
    header: AnswerHeader
    data: bytes
    ask_again: AskAgain
    question: str
    def __init__(self, header: _Optional[_Union[AnswerHeader, _Mapping]] = ..., data: _Optional[bytes] = ..., ask_again: _Optional[_Union[AskAgain, _Mapping]] = ..., question: _Optional[str] = ...) -> None: ...

class AskAgain(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SubmitAnswerResponse(_message.Message):
    __slots__ = ("run_id",)
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    def __init__(self, run_id: _Optional[str] = ...) -> None: ...

class FetchAnswersRequest(_message.Message):
    __slots__ = ("run_id", "device_id", "process_id", "question", "from_index")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    DEVICE_ID_FIELD_NUMBER: _ClassVar[int]
    PROCESS_ID_FIELD_NUMBER: _ClassVar[int]
    QUESTION_FIELD_NUMBER: _ClassVar[int]
    FROM_INDEX_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    device_id: str
    process_id: str
    question: str
    from_index: int
    def __init__(self, run_id: _Optional[str] = ..., device_id: _Optional[str] = ..., process_id: _Optional[str] = ..., question: _Optional[str] = ..., from_index: _Optional[int] = ...) -> None: ...

class BundlePart(_message.Message):
    __slots__ = ("header", "answer", "question")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    QUESTION_FIELD_NUMBER: _ClassVar[int]
    header: BundleHeader
    answer: DeviceAnswer
    question: str
    def __init__(self, header: _Optional[_Union[BundleHeader, _Mapping]] = ..., answer: _Optional[_Union[DeviceAnswer, _Mapping]] = ..., question: _Optional[str] = ...) -> None: ...

class BundleHeader(_message.Message):
    __slots__ = ("run_id", "lps_id", "home_id", "term", "global_round", "answers", "answered_ns")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    LPS_ID_FIELD_NUMBER: _ClassVar[int]
    HOME_ID_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    GLOBAL_ROUND_FIELD_NUMBER: _ClassVar[int]
    ANSWERS_FIELD_NUMBER: _ClassVar[int]
    ANSWERED_NS_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    lps_id: str
    home_id: str
    term: int
    global_round: int
    answers: int
    answered_ns: int
    def __init__(self, run_id: _Optional[str] = ..., lps_id: _Optional[str] = ..., home_id: _Optional[str] = ..., term: _Optional[int] = ..., global_round: _Optional[int] = ..., answers: _Optional[int] = ..., answered_ns: _Optional[int] = ...) -> None: ...

class DeviceAnswer(_message.Message):
    __slots__ = ("device_index", "answer")
    DEVICE_INDEX_FIELD_NUMBER: _ClassVar[int]
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    device_index: int
    answer: Answer
    def __init__(self, device_index: _Optional[int] = ..., answer: _Optional[_Union[Answer, _Mapping]] = ...) -> None: ...

class SubmitAnswersResponse(_message.Message):
    __slots__ = ("run_id",)
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    def __init__(self, run_id: _Optional[str] = ...) -> None: ...
