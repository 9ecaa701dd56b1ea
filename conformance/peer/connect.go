package main

import (
	"bytes"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"syscall"

	"google.golang.org/protobuf/encoding/protowire"
)

// Field numbers and values of connectrpc.conformance.v1, whose Go types only the suite may import.
const (
	serverProtocol     = 1
	serverVersion      = 2
	serverReceiveLimit = 6
	serverHost         = 1
	serverPort         = 2
	serverCertificate  = 3
	clientVersion      = 2
	clientHost         = 6
	clientPort         = 7
	clientCertificate  = 8

	http1, http2 = 1, 2
	connect      = 1
	grpc         = 2

	// The suite's cases of too large messages are made for this limit. No other case comes near it.
	receiveLimit = 200 << 10
	largest      = 16 << 20
)

// target is where the suite's clients connect to in place of the server that the suite has in mind.
type target struct {
	host1, host2, hostGRPC, certificate string
	port                                uint
}

func targetFlags(name string) (*flag.FlagSet, *target) {
	to, flags := new(target), flag.NewFlagSet(name, flag.ContinueOnError)
	flags.UintVar(&to.port, "port", 0, "port of the clients' connections")
	flags.StringVar(&to.host1, "http1", "", "host for HTTP/1.1")
	flags.StringVar(&to.host2, "http2", "", "host for HTTP/2")
	flags.StringVar(&to.hostGRPC, "grpc", "", "host for gRPC, where it differs")
	flags.StringVar(&to.certificate, "certificate", "", "file of the certificate that clients trust, for TLS")
	return flags, to
}

func (to *target) host(protocol, version uint64) string {
	switch {
	case protocol == grpc && to.hostGRPC != "":
		return to.hostGRPC
	case version == http1:
		return to.host1
	default:
		return to.host2
	}
}

// answerConnectServer is the suite's server under test: it names a server that runs already, and stays until the suite ends it.
func answerConnectServer(arguments []string) error {
	flags, to := targetFlags("connect-server")
	if err := flags.Parse(arguments); err != nil {
		return err
	}
	request, err := readMessage(os.Stdin)
	if err != nil {
		return err
	}
	protocol, err := number(request, serverProtocol)
	if err != nil {
		return err
	}
	version, err := number(request, serverVersion)
	if err != nil {
		return err
	}
	response := appendString(nil, serverHost, to.host(protocol, version))
	response = appendNumber(response, serverPort, uint64(to.port))
	if to.certificate != "" {
		certificate, err := os.ReadFile(to.certificate)
		if err != nil {
			return err
		}
		response = appendString(response, serverCertificate, string(certificate))
	}
	if err := writeMessage(os.Stdout, response); err != nil {
		return err
	}
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGTERM, os.Interrupt)
	<-ended
	return nil
}

// runConnectClient is the suite's client under test: the suite's own client, sent to the target instead of to the suite's server.
func runConnectClient(arguments []string) error {
	flags, to := targetFlags("connect-client")
	program := flags.String("program", "", "the client")
	if err := flags.Parse(arguments); err != nil {
		return err
	}
	client := exec.Command(*program)
	client.Stdout, client.Stderr = os.Stdout, os.Stderr
	input, err := client.StdinPipe()
	if err != nil {
		return err
	}
	if err := client.Start(); err != nil {
		return err
	}
	for {
		request, err := readMessage(os.Stdin)
		if errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return err
		}
		version, err := number(request, clientVersion)
		if err != nil {
			return err
		}
		// Of a field that stands twice in a message, the last one counts.
		request = appendString(request, clientHost, to.host(0, version))
		request = appendNumber(request, clientPort, uint64(to.port))
		if err := writeMessage(input, request); err != nil {
			return err
		}
	}
	if err := input.Close(); err != nil {
		return err
	}
	return client.Wait()
}

// runConnectInstance becomes the suite's server, at the port that the environment gives.
func runConnectInstance(arguments []string) error {
	flags := flag.NewFlagSet("connect-instance", flag.ContinueOnError)
	program := flags.String("program", "", "the server")
	version := flags.Uint64("http", http2, "version of HTTP: 1 or 2")
	protocol := flags.Uint64("protocol", connect, "the suite's number of the protocol")
	if err := flags.Parse(arguments); err != nil {
		return err
	}
	request := appendNumber(appendNumber(nil, serverProtocol, *protocol), serverVersion, *version)
	var input bytes.Buffer
	if err := writeMessage(&input, appendNumber(request, serverReceiveLimit, receiveLimit)); err != nil {
		return err
	}
	// The server reads one message, and needs no more of its input. A pipe holds it until then.
	read, write, err := os.Pipe()
	if err != nil {
		return err
	}
	if _, err := write.Write(input.Bytes()); err != nil {
		return err
	}
	if err := syscall.Dup2(int(read.Fd()), 0); err != nil {
		return err
	}
	return syscall.Exec(*program, []string{*program, "-port", os.Getenv("PORT")}, os.Environ())
}

// readMessage reads a message behind its length, four bytes in network order.
func readMessage(from io.Reader) ([]byte, error) {
	var length [4]byte
	if _, err := io.ReadFull(from, length[:]); err != nil {
		return nil, err
	}
	size := binary.BigEndian.Uint32(length[:])
	if size > largest {
		return nil, fmt.Errorf("a message of %d bytes", size)
	}
	message := make([]byte, size)
	if _, err := io.ReadFull(from, message); err != nil {
		return nil, fmt.Errorf("a message broke off: %w", err)
	}
	return message, nil
}

func writeMessage(to io.Writer, message []byte) error {
	_, err := to.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(message))), message...))
	return err
}

func appendString(message []byte, field protowire.Number, value string) []byte {
	return protowire.AppendString(protowire.AppendTag(message, field, protowire.BytesType), value)
}

func appendNumber(message []byte, field protowire.Number, value uint64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(message, field, protowire.VarintType), value)
}

// number reads a numeric field; one that is not there is zero.
func number(message []byte, field protowire.Number) (value uint64, err error) {
	for len(message) > 0 {
		name, kind, read := protowire.ConsumeField(message)
		_ = kind
		if read < 0 {
			return 0, protowire.ParseError(read)
		}
		if name == field {
			_, _, tag := protowire.ConsumeTag(message)
			value, _ = protowire.ConsumeVarint(message[tag:])
		}
		message = message[read:]
	}
	return value, nil
}
