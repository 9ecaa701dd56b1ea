"""Functions that hand each other memory: ``protocol: chain``.

There is nothing to build: this file calls ``libleno.so`` by ctypes. It looks for it where ``LENO_LIBRARY`` says, else where the system looks for libraries.

    import leno

    chain = leno.Chain()
    for call in chain:
        call.answer(200, body=call.body)

A body that was received is a read-only view of the memory that it is in, for as long as its call or answer is open. Passed on as ``body=call.body`` or
``body=call.body[3:7]`` it is not copied; bytes are, once. A ``Buffer`` is written in place.
"""

import ctypes
import os
from ctypes import POINTER, byref, c_bool, c_char_p, c_int, c_size_t, c_uint8, c_void_p

__all__ = ["Answer", "Buffer", "Call", "Chain", "Failed", "Full", "LenoError", "Pending", "wait_any"]

_NONE, _COPY, _BUFFER, _OF_CALL, _OF_ANSWER = range(5)
_OK, _ENDED, _FULL, _FAILED, _INVALID = range(5)


class LenoError(Exception):
    """Something was not done. The text says why."""


class Full(LenoError):
    """This program's arena is full."""


class Failed(LenoError):
    """Whoever had to answer has failed."""


class _Bytes(ctypes.Structure):
    _fields_ = [("data", c_void_p), ("length", c_size_t)]


class _Field(ctypes.Structure):
    _fields_ = [("name", _Bytes), ("value", _Bytes)]


class _Head(ctypes.Structure):
    _fields_ = [
        ("method", _Bytes),
        ("authority", _Bytes),
        ("path", _Bytes),
        ("fields", POINTER(_Field)),
        ("field_count", c_size_t),
    ]


class _Body(ctypes.Structure):
    _fields_ = [("kind", c_int), ("of", c_void_p), ("start", c_size_t), ("length", c_size_t)]


_library = ctypes.CDLL(os.environ.get("LENO_LIBRARY", "libleno.so"))


def _function(name, result, *arguments):
    function = getattr(_library, name)
    function.restype, function.argtypes = result, arguments
    return function


_open = _function("leno_open", c_void_p)
_wait_when_full = _function("leno_wait_when_full", None, c_void_p, c_bool)
_close = _function("leno_close", None, c_void_p)
_error = _function("leno_error", c_char_p)
_next = _function("leno_next", c_int, c_void_p, POINTER(c_void_p))
_call_method = _function("leno_call_method", _Bytes, c_void_p)
_call_authority = _function("leno_call_authority", _Bytes, c_void_p)
_call_path = _function("leno_call_path", _Bytes, c_void_p)
_call_body = _function("leno_call_body", _Bytes, c_void_p)
_call_fields = _function("leno_call_fields", c_size_t, c_void_p, POINTER(_Field), c_size_t)
_call_is_cancelled = _function("leno_call_is_cancelled", c_bool, c_void_p)
_call_free = _function("leno_call_free", None, c_void_p)
_answer_call = _function(
    "leno_answer_call", c_int, c_void_p, c_void_p, c_int, POINTER(_Field), c_size_t, POINTER(_Body)
)
_forward_call = _function("leno_forward_call", c_int, c_void_p, c_void_p, POINTER(_Head), POINTER(_Body))
_ask = _function("leno_ask", c_int, c_void_p, c_void_p, POINTER(_Head), POINTER(_Body), POINTER(c_void_p))
_wait = _function("leno_wait", c_int, c_void_p, POINTER(c_void_p))
_wait_any = _function(
    "leno_wait_any", c_int, POINTER(c_void_p), c_size_t, POINTER(c_size_t), POINTER(c_void_p)
)
_pending_free = _function("leno_pending_free", None, c_void_p)
_answer_status = _function("leno_answer_status", c_int, c_void_p)
_answer_body = _function("leno_answer_body", _Bytes, c_void_p)
_answer_fields = _function("leno_answer_fields", c_size_t, c_void_p, POINTER(_Field), c_size_t)
_answer_free = _function("leno_answer_free", None, c_void_p)
_buffer_new = _function("leno_buffer_new", c_void_p, c_void_p, c_size_t)
_buffer_data = _function("leno_buffer_data", c_void_p, c_void_p)
_buffer_free = _function("leno_buffer_free", None, c_void_p)


def _check(code):
    if code != _OK:
        kind = {_FULL: Full, _FAILED: Failed}.get(code, LenoError)
        raise kind(_error().decode())


def _copy(given):
    return ctypes.string_at(given.data, given.length) if given.length else b""


def _lend(data, keep):
    """Bytes, as C sees them, for as long as ``keep`` is there."""
    data = data.encode() if isinstance(data, str) else bytes(data)
    keep.append(data)
    return _Bytes(ctypes.cast(c_char_p(data), c_void_p), len(data))


def _fields(headers, keep):
    pairs = list(headers.items() if hasattr(headers, "items") else headers or ())
    fields = (_Field * len(pairs))(*(_Field(_lend(name, keep), _lend(value, keep)) for name, value in pairs))
    keep.append(fields)
    return fields, len(pairs)


def _head(method, authority, path, headers, keep):
    fields, count = _fields(headers, keep)
    return _Head(_lend(method, keep), _lend(authority, keep), _lend(path, keep), fields, count)


def _read_fields(function, handle):
    count = function(handle, None, 0)
    fields = (_Field * count)()
    function(handle, fields, count)
    return [(_copy(field.name).decode(), _copy(field.value)) for field in fields]


class _View:
    """A part of a body that was received, where it is. It is copied by ``bytes``."""

    def __init__(self, owner, start, length):
        self._owner, self._start, self._length = owner, start, length

    def __len__(self):
        return self._length

    def __getitem__(self, index):
        if not isinstance(index, slice):
            return self.memory()[index]
        start, stop, step = index.indices(self._length)
        if step != 1:
            return bytes(self.memory()[index])
        return _View(self._owner, self._start + start, max(0, stop - start))

    def __bytes__(self):
        return bytes(self.memory())

    def memory(self):
        """A read-only memoryview. It must not be used once the call or answer is closed."""
        given = self._owner._received()
        if not self._length:
            return memoryview(b"")
        array = (c_uint8 * self._length).from_address(given.data + self._start)
        return memoryview(array).toreadonly().cast("B")


class Buffer:
    """Memory for a body, in place: ``buffer.memory`` can be written until it is sent. It may be sent several times."""

    def __init__(self, chain, length):
        self._handle = _buffer_new(chain._handle, length)
        if not self._handle:
            raise Full(_error().decode())
        self._length = length

    def __len__(self):
        return self._length

    @property
    def memory(self):
        """A memoryview, for as long as the buffer is there."""
        if not self._length:
            return memoryview(bytearray())
        return memoryview((c_uint8 * self._length).from_address(_buffer_data(self._handle))).cast("B")

    def __del__(self):
        if getattr(self, "_handle", None):
            _buffer_free(self._handle)


def _body(body, keep):
    keep.append(body)
    if body is None:
        return _Body(_NONE, None, 0, 0)
    if isinstance(body, Buffer):
        return _Body(_BUFFER, body._handle, 0, len(body))
    if isinstance(body, _View):
        return _Body(body._owner._kind, body._owner._open(), body._start, len(body))
    data = _lend(body, keep)
    return _Body(_COPY, data.data, 0, data.length)


class Call:
    """A call, to be answered or forwarded. If it is not, it has failed."""

    _kind = _OF_CALL

    def __init__(self, chain, handle):
        self._chain, self._handle = chain, handle
        self.method = _copy(_call_method(handle)).decode()
        self.authority = _copy(_call_authority(handle)).decode()
        self.path = _copy(_call_path(handle)).decode()

    def _open(self):
        if not self._handle:
            raise LenoError("the call is closed")
        return self._handle

    def _received(self):
        return _call_body(self._open())

    @property
    def headers(self):
        """Names and values (bytes), in order."""
        return _read_fields(_call_fields, self._open())

    @property
    def body(self):
        return _View(self, 0, self._received().length)

    @property
    def is_cancelled(self):
        """Whether nobody waits for the answer any more."""
        return _call_is_cancelled(self._open())

    def answer(self, status, headers=(), body=None):
        keep = []
        fields, count = _fields(headers, keep)
        body, handle = _body(body, keep), self._open()
        self._handle = None
        _check(_answer_call(self._chain._handle, handle, status, fields, count, byref(body)))

    def forward(self, authority, path, method="POST", headers=(), body=None):
        """Has another function answer."""
        keep = []
        head = _head(method, authority, path, headers, keep)
        body, handle = _body(body, keep), self._open()
        self._handle = None
        _check(_forward_call(self._chain._handle, handle, byref(head), byref(body)))

    def call(self, authority, path, method="POST", headers=(), body=None):
        """Calls a function for the sake of this call."""
        return self._chain._ask(self._open(), authority, path, method, headers, body)

    def __del__(self):
        if getattr(self, "_handle", None):
            _call_free(self._handle)


class Answer:
    """An answer. Its body is there until it is closed."""

    _kind = _OF_ANSWER

    def __init__(self, handle):
        self._handle = handle
        self.status = _answer_status(handle)

    def _open(self):
        if not self._handle:
            raise LenoError("the answer is closed")
        return self._handle

    def _received(self):
        return _answer_body(self._open())

    @property
    def headers(self):
        """Names and values (bytes), in order."""
        return _read_fields(_answer_fields, self._open())

    @property
    def body(self):
        return _View(self, 0, self._received().length)

    def close(self):
        handle, self._handle = self._handle, None
        if handle:
            _answer_free(handle)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def __del__(self):
        if getattr(self, "_handle", None):
            _answer_free(self._handle)


class Pending:
    """A call that waits for its answer. If it is dropped, it is cancelled."""

    def __init__(self, handle):
        self._handle = handle

    def wait(self):
        answer = c_void_p()
        handle, self._handle = self._handle, None
        if not handle:
            raise LenoError("the answer was taken")
        _check(_wait(handle, byref(answer)))
        return Answer(answer.value)

    def __del__(self):
        if getattr(self, "_handle", None):
            _pending_free(self._handle)


def wait_any(pending):
    """Waits for the first answer to any of these calls, takes that call out of the list, and returns at which place it was, and the answer."""
    if not all(one._handle for one in pending):
        raise LenoError("the answer was taken")
    handles = (c_void_p * len(pending))(*(one._handle for one in pending))
    which, answer = c_size_t(len(pending)), c_void_p()
    code = _wait_any(handles, len(pending), byref(which), byref(answer))
    for one, handle in zip(pending, handles):
        one._handle = handle
    if which.value < len(pending):
        pending.pop(which.value)
    _check(code)
    return which.value, Answer(answer.value)


class Chain:
    """The link to the node. Waits until it connects, where the variable PORT says. Many threads may use it."""

    def __init__(self, wait_when_full=False):
        self._handle = _open()
        if not self._handle:
            raise LenoError(_error().decode())
        _wait_when_full(self._handle, wait_when_full)

    def next(self):
        """The next call; None: the link has ended."""
        call = c_void_p()
        code = _next(self._handle, byref(call))
        if code == _ENDED:
            return None
        _check(code)
        return Call(self, call.value)

    def __iter__(self):
        return iter(self.next, None)

    def buffer(self, length):
        return Buffer(self, length)

    def call(self, authority, path, method="POST", headers=(), body=None):
        """Calls a function. Several calls may be under way at once."""
        return self._ask(None, authority, path, method, headers, body)

    def _ask(self, parent, authority, path, method, headers, body):
        keep, pending = [], c_void_p()
        head, body = _head(method, authority, path, headers, keep), _body(body, keep)
        _check(_ask(self._handle, parent, byref(head), byref(body), byref(pending)))
        return Pending(pending.value)

    def __del__(self):
        if getattr(self, "_handle", None):
            _close(self._handle)
