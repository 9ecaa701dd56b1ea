package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

const name = "grpc-go"

// bytesCodec sends bytes as they are.
type bytesCodec struct{}

func (bytesCodec) Name() string { return "proto" }

func (bytesCodec) Marshal(message any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(*message.(*[]byte))}, nil
}

func (bytesCodec) Unmarshal(data mem.BufferSlice, message any) error {
	*message.(*[]byte) = data.Materialize()
	return nil
}

type client struct{ *grpc.ClientConn }

func grpcTests(address string) ([]test, func() (string, error)) {
	connection, err := grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(bytesCodec{}), grpc.MaxCallRecvMsgSize(16<<20)))
	if err != nil {
		log.Fatal(err)
	}
	it := client{connection}
	return []test{
		{"unary", it.unary}, {"large", it.large}, {"metadata", it.metadata}, {"server streaming", it.down}, {"client streaming", it.up},
		{"bidirectional", it.both}, {"refused with details", it.fails("Refuse")}, {"failed late with details", it.fails("Late")},
		{"deadline before the head", it.deadline("Silent")}, {"deadline after the head", it.deadline("Quiet")}, {"cancel", it.cancel},
		{"unknown method", it.unknown}, {"a hundred at once", it.many},
	}, it.version
}

func (it client) call(context context.Context, method string, message []byte, options ...grpc.CallOption) ([]byte, error) {
	var response []byte
	err := it.Invoke(context, "/test.Calls/"+method, &message, &response, options...)
	return response, err
}

func (it client) stream(context context.Context, method string, description grpc.StreamDesc) (grpc.ClientStream, error) {
	return it.NewStream(context, &description, "/test.Calls/"+method)
}

func within() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), limit)
}

func (it client) unary() error {
	within, cancel := within()
	defer cancel()
	for range 100 {
		if response, err := it.call(within, "Unary", []byte("hello")); err != nil || string(response) != "hello" {
			return fmt.Errorf("%q, %w", response, err)
		}
	}
	return nil
}

func (it client) large() error {
	within, cancel := within()
	defer cancel()
	message := bytes.Repeat([]byte("0123456789abcdef"), 1<<18)
	response, err := it.call(within, "Unary", message)
	if err != nil || !bytes.Equal(response, message) {
		return fmt.Errorf("%d bytes, %w", len(response), err)
	}
	return nil
}

func (it client) metadata() error {
	within, cancel := within()
	defer cancel()
	text, binary := strings.Repeat("v", 9000), strings.Repeat("\x00\xff", 4500)
	var head, trailers metadata.MD
	context := metadata.AppendToOutgoingContext(within, "x-echo", text, "x-echo", "second", "x-echo-bin", binary)
	if _, err := it.call(context, "Unary", nil, grpc.Header(&head), grpc.Trailer(&trailers)); err != nil {
		return err
	}
	for _, fields := range []metadata.MD{head, trailers} {
		if got := fields["x-echo"]; len(got) != 2 || got[0] != text || got[1] != "second" {
			return fmt.Errorf("x-echo: %q", got)
		}
		if got := fields["x-echo-bin"]; len(got) != 1 || got[0] != binary {
			return fmt.Errorf("x-echo-bin: %q", got)
		}
	}
	return nil
}

func (it client) down() error {
	within, cancel := within()
	defer cancel()
	stream, err := it.stream(within, "Down", grpc.StreamDesc{ServerStreams: true})
	if err != nil {
		return err
	}
	message := []byte("1000 1000")
	if err := stream.SendMsg(&message); err != nil {
		return err
	}
	if err := stream.CloseSend(); err != nil {
		return err
	}
	for count := 0; ; count++ {
		var response []byte
		if err := stream.RecvMsg(&response); err == io.EOF && count == 1000 {
			return nil
		} else if err != nil || len(response) != 1000 {
			return fmt.Errorf("message %d: %d bytes, %w", count, len(response), err)
		}
	}
}

func (it client) up() error {
	within, cancel := within()
	defer cancel()
	stream, err := it.stream(within, "Up", grpc.StreamDesc{ClientStreams: true})
	if err != nil {
		return err
	}
	message := bytes.Repeat([]byte("u"), 1000)
	for range 1000 {
		if err := stream.SendMsg(&message); err != nil {
			return err
		}
	}
	if err := stream.CloseSend(); err != nil {
		return err
	}
	var response []byte
	if err := stream.RecvMsg(&response); err != nil || string(response) != "1000 1000000" {
		return fmt.Errorf("%q, %w", response, err)
	}
	return nil
}

func (it client) both() error {
	within, cancel := within()
	defer cancel()
	stream, err := it.stream(within, "Both", grpc.StreamDesc{ClientStreams: true, ServerStreams: true})
	if err != nil {
		return err
	}
	for number := range 50 {
		message, response := fmt.Appendf(nil, "message %d", number), []byte(nil)
		if err := stream.SendMsg(&message); err != nil {
			return err
		}
		if err := stream.RecvMsg(&response); err != nil || !bytes.Equal(message, response) {
			return fmt.Errorf("message %d: %q, %w", number, response, err)
		}
	}
	if err := stream.CloseSend(); err != nil {
		return err
	}
	var response []byte
	if err := stream.RecvMsg(&response); err != io.EOF {
		return fmt.Errorf("no end: %w", err)
	}
	return nil
}

func (it client) fails(method string) func() error {
	return func() error {
		within, cancel := within()
		defer cancel()
		_, err := it.call(within, method, nil)
		got := status.Convert(err)
		details := got.Proto().GetDetails()
		if got.Code() != codes.FailedPrecondition || got.Message() != "not now, café" || len(details) != 1 || len(details[0].GetValue()) != 9000 {
			return fmt.Errorf("%w, details: %d", err, len(details))
		}
		return nil
	}
}

func (it client) deadline(method string) func() error {
	return func() error {
		within, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
		defer cancel()
		if _, err := it.call(within, method, []byte("deadline "+name)); status.Code(err) != codes.DeadlineExceeded {
			return fmt.Errorf("ended with: %w", err)
		}
		return nil
	}
}

func (it client) cancel() error {
	within, cancel := within()
	defer cancel()
	stream, err := it.stream(within, "Quiet", grpc.StreamDesc{ServerStreams: true})
	if err != nil {
		return err
	}
	message, response := []byte("cancel "+name), []byte(nil)
	if err := stream.SendMsg(&message); err != nil {
		return err
	}
	if err := stream.RecvMsg(&response); err != nil {
		return err
	}
	cancel()
	if err := stream.RecvMsg(&response); status.Code(err) != codes.Canceled {
		return fmt.Errorf("ended with: %w", err)
	}
	for end := time.Now().Add(limit); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if response, err := it.call(context.Background(), "Ended", message); err != nil {
			return err
		} else if string(response) == "yes" {
			return nil
		}
	}
	return fmt.Errorf("the function does not learn of it")
}

func (it client) unknown() error {
	within, cancel := within()
	defer cancel()
	for _, method := range []string{"/test.Calls/Unknown", "/test.Unknown/Unary"} {
		var response []byte
		if err := it.Invoke(within, method, &response, &response); status.Code(err) != codes.Unimplemented {
			return fmt.Errorf("%s ended with: %w", method, err)
		}
	}
	return nil
}

func (it client) many() error {
	var all sync.WaitGroup
	failures := make(chan error, 100)
	for range 100 {
		all.Go(func() {
			if err := it.both(); err != nil {
				failures <- err
			}
		})
	}
	all.Wait()
	close(failures)
	return <-failures
}

func (it client) version() (string, error) {
	within, cancel := within()
	defer cancel()
	var head metadata.MD
	_, err := it.call(within, "Unary", []byte("hello"), grpc.Header(&head))
	return strings.Join(head["x-version"], ","), err
}
