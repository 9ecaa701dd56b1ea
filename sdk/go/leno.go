// Package leno is for functions that hand each other memory: `protocol: chain`.
//
// It calls libleno by cgo: CGO_CFLAGS names the folder of leno.h, and CGO_LDFLAGS that of the library.
//
// A body that was received is a slice of the memory that it is in. It must only be read: writing to it ends the program. It is there until its call is
// answered, or its answer closed. To send it on without a copy, pass on the Body that it came as, or a part of it.
package leno

/*
#cgo LDFLAGS: -lleno
#include <stdlib.h>
#include <string.h>
#include "leno.h"
*/
import "C"

import (
	"errors"
	"runtime"
	"unsafe"
)

// What can go wrong. Other errors say what is invalid.
var (
	ErrEnded  = errors.New("the link to the node has ended")
	ErrFull   = errors.New("the arena is full")
	ErrFailed = errors.New("the call has failed")
	ErrClosed = errors.New("the call or answer is closed")
)

// Chain is the link to the node. Any goroutine may use it.
type Chain struct{ handle *C.leno_chain }

// Field is a header field. Its name is in lower case.
type Field struct{ Name, Value string }

// Head is what a call goes to. Without a method it is POST.
type Head struct {
	Method, Authority, Path string
	Fields                  []Field
}

// Body is a body to be sent. The zero value is none.
type Body struct {
	kind          C.int
	of            unsafe.Pointer
	start, length int
	bytes         []byte
	keep          any
}

// Bytes is a body that is copied.
func Bytes(bytes []byte) Body { return Body{kind: C.LENO_COPY, length: len(bytes), bytes: bytes} }

// Part is a part of a body, as of a slice.
func (body Body) Part(start, end int) Body {
	if start < 0 || end < start || end > body.length {
		panic("leno: this is no part of the body")
	}
	body.start, body.length = body.start+start, end-start
	return body
}

// Len is how many bytes it has.
func (body Body) Len() int { return body.length }

// Open waits until the node connects to where the variable PORT says.
func Open() (*Chain, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	handle := C.leno_open()
	if handle == nil {
		return nil, failure(C.LENO_INVALID)
	}
	return &Chain{handle}, nil
}

// WaitWhenFull chooses whether what needs memory waits while the arena is full, or fails with ErrFull.
func (chain *Chain) WaitWhenFull(wait bool) { C.leno_wait_when_full(chain.handle, C.bool(wait)) }

// Close frees it.
func (chain *Chain) Close() {
	C.leno_close(chain.handle)
	chain.handle = nil
}

// Next waits for the next call. The error is ErrEnded if there will be none.
func (chain *Chain) Next() (*Call, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var handle *C.leno_call
	if code := C.leno_next(chain.handle, &handle); code != C.LENO_OK {
		return nil, failure(code)
	}
	call := &Call{chain: chain, handle: handle}
	call.Method = text(C.leno_call_method(handle))
	call.Authority = text(C.leno_call_authority(handle))
	call.Path = text(C.leno_call_path(handle))
	return call, nil
}

// Call is a call, to be answered, forwarded or closed.
type Call struct {
	Method, Authority, Path string

	chain  *Chain
	handle *C.leno_call
}

// Fields are its other fields.
func (call *Call) Fields() []Field {
	return fields(func(into *C.leno_field, most C.size_t) C.size_t {
		return C.leno_call_fields(call.handle, into, most)
	})
}

// Bytes is its body, in place.
func (call *Call) Bytes() []byte { return view(C.leno_call_body(call.handle)) }

// Body is its body, to be passed on.
func (call *Call) Body() Body {
	return Body{kind: C.LENO_OF_CALL, of: unsafe.Pointer(call.handle), length: len(call.Bytes()), keep: call}
}

// IsCancelled says whether nobody waits for the answer any more.
func (call *Call) IsCancelled() bool { return bool(C.leno_call_is_cancelled(call.handle)) }

// Answer answers it, and closes it.
func (call *Call) Answer(status int, fields []Field, body Body) error {
	handle := call.handle
	if handle == nil {
		return ErrClosed
	}
	call.handle = nil
	lent := lend{}
	defer lent.free()
	array, given := lent.fields(fields), lent.body(body)
	return do(func() C.int {
		return C.leno_answer_call(call.chain.handle, handle, C.int(status), array, C.size_t(len(fields)), given)
	})
}

// Forward has another function answer it, and closes it.
func (call *Call) Forward(head Head, body Body) error {
	handle := call.handle
	if handle == nil {
		return ErrClosed
	}
	call.handle = nil
	lent := lend{}
	defer lent.free()
	to, given := lent.head(head), lent.body(body)
	return do(func() C.int { return C.leno_forward_call(call.chain.handle, handle, to, given) })
}

// Close closes it without an answer: it has failed. Nothing happens if it is closed.
func (call *Call) Close() {
	C.leno_call_free(call.handle)
	call.handle = nil
}

// Ask calls a function, for the sake of parent, or nil. Several calls may be under way at once.
func (chain *Chain) Ask(parent *Call, head Head, body Body) (*Pending, error) {
	var from *C.leno_call
	if parent != nil {
		from = parent.handle
	}
	lent := lend{}
	defer lent.free()
	to, given := lent.head(head), lent.body(body)
	pending := &Pending{}
	err := do(func() C.int { return C.leno_ask(chain.handle, from, to, given, &pending.handle) })
	if err != nil {
		return nil, err
	}
	return pending, nil
}

// Pending is a call that waits for its answer.
type Pending struct{ handle *C.leno_pending }

// Wait waits for the answer.
func (pending *Pending) Wait() (*Answer, error) {
	handle := pending.handle
	if handle == nil {
		return nil, ErrClosed
	}
	pending.handle = nil
	answer := &Answer{}
	err := do(func() C.int { return C.leno_wait(handle, &answer.handle) })
	if err != nil {
		return nil, err
	}
	answer.Status = int(C.leno_answer_status(answer.handle))
	return answer, nil
}

// Cancel cancels it. Nothing happens if its answer was taken.
func (pending *Pending) Cancel() {
	C.leno_pending_free(pending.handle)
	pending.handle = nil
}

// Answer is an answer, which has to be closed.
type Answer struct {
	Status int

	handle *C.leno_answer
}

// Fields are its fields.
func (answer *Answer) Fields() []Field {
	return fields(func(into *C.leno_field, most C.size_t) C.size_t {
		return C.leno_answer_fields(answer.handle, into, most)
	})
}

// Bytes is its body, in place.
func (answer *Answer) Bytes() []byte { return view(C.leno_answer_body(answer.handle)) }

// Body is its body, to be passed on.
func (answer *Answer) Body() Body {
	return Body{kind: C.LENO_OF_ANSWER, of: unsafe.Pointer(answer.handle), length: len(answer.Bytes()), keep: answer}
}

// Close frees it. Nothing happens if it is closed.
func (answer *Answer) Close() {
	C.leno_answer_free(answer.handle)
	answer.handle = nil
}

// Buffer is memory for a body, which is written in place until it is sent. It may be sent several times, and has to be closed.
type Buffer struct {
	handle *C.leno_buffer
	length int
}

// Buffer takes memory for a body. What is in it is left from before.
func (chain *Chain) Buffer(length int) (*Buffer, error) {
	handle := C.leno_buffer_new(chain.handle, C.size_t(length))
	if handle == nil {
		return nil, ErrFull
	}
	return &Buffer{handle, length}, nil
}

// Bytes is the memory.
func (buffer *Buffer) Bytes() []byte {
	return unsafe.Slice((*byte)(C.leno_buffer_data(buffer.handle)), buffer.length)
}

// Body is what is written, to be sent.
func (buffer *Buffer) Body() Body {
	return Body{kind: C.LENO_BUFFER, of: unsafe.Pointer(buffer.handle), length: buffer.length, keep: buffer}
}

// Close frees it once nobody reads it.
func (buffer *Buffer) Close() {
	C.leno_buffer_free(buffer.handle)
	buffer.handle = nil
}

// do calls a function, and asks on the same thread what was wrong.
func do(function func() C.int) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	return failure(function())
}

func failure(code C.int) error {
	switch code {
	case C.LENO_OK:
		return nil
	case C.LENO_ENDED:
		return ErrEnded
	case C.LENO_FULL:
		return ErrFull
	case C.LENO_FAILED:
		return ErrFailed
	}
	return errors.New(C.GoString(C.leno_error()))
}

func text(given C.leno_bytes) string { return string(view(given)) }

func view(given C.leno_bytes) []byte {
	return unsafe.Slice((*byte)(given.data), int(given.length))
}

func fields(read func(*C.leno_field, C.size_t) C.size_t) []Field {
	count := read(nil, 0)
	if count == 0 {
		return nil
	}
	array := (*C.leno_field)(C.calloc(count, C.sizeof_leno_field))
	defer C.free(unsafe.Pointer(array))
	read(array, count)
	var fields []Field
	for _, field := range unsafe.Slice(array, int(count)) {
		fields = append(fields, Field{text(field.name), text(field.value)})
	}
	return fields
}

// lend is memory that C sees during one call, in which nothing may point to memory of Go.
type lend struct{ memory []unsafe.Pointer }

func (lent *lend) free() {
	for _, memory := range lent.memory {
		C.free(memory)
	}
}

func (lent *lend) space(bytes C.size_t) unsafe.Pointer {
	memory := C.calloc(1, bytes+1)
	lent.memory = append(lent.memory, memory)
	return memory
}

func (lent *lend) copy(bytes []byte) unsafe.Pointer {
	memory := lent.space(C.size_t(len(bytes)))
	copy(unsafe.Slice((*byte)(memory), len(bytes)), bytes)
	return memory
}

func (lent *lend) text(text string) C.leno_bytes {
	return C.leno_bytes{(*C.uint8_t)(lent.copy([]byte(text))), C.size_t(len(text))}
}

func (lent *lend) fields(fields []Field) *C.leno_field {
	array := (*C.leno_field)(lent.space(C.size_t(len(fields)) * C.sizeof_leno_field))
	for place, field := range fields {
		unsafe.Slice(array, len(fields))[place] = C.leno_field{lent.text(field.Name), lent.text(field.Value)}
	}
	return array
}

func (lent *lend) head(head Head) *C.leno_head {
	if head.Method == "" {
		head.Method = "POST"
	}
	given := (*C.leno_head)(lent.space(C.sizeof_leno_head))
	given.method, given.authority, given.path = lent.text(head.Method), lent.text(head.Authority), lent.text(head.Path)
	given.fields, given.field_count = lent.fields(head.Fields), C.size_t(len(head.Fields))
	return given
}

func (lent *lend) body(body Body) *C.leno_body {
	of := body.of
	if body.kind == C.LENO_COPY {
		of = lent.copy(body.bytes)
	}
	given := (*C.leno_body)(lent.space(C.sizeof_leno_body))
	*given = C.leno_body{body.kind, of, C.size_t(body.start), C.size_t(body.length)}
	return given
}
