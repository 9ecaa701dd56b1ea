package main

import (
	"context"
	"encoding/binary"
	"flag"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/summerwind/h2spec"
	"github.com/summerwind/h2spec/config"
	"golang.org/x/net/dns/dnsmessage"
)

// runH2Spec runs all cases with a name of the mesh as :authority. h2spec itself can only name the host that it connects to, and a sidecar
// knows its callees by name, so every name means the loopback address here.
func runH2Spec(arguments []string) error {
	flags := flag.NewFlagSet("h2spec", flag.ContinueOnError)
	host := flags.String("host", "", "host of :authority")
	port := flags.Int("port", 0, "port on the loopback address")
	junit := flags.String("junit", "", "result")
	if err := flags.Parse(arguments); err != nil {
		return err
	}
	net.DefaultResolver = &net.Resolver{PreferGo: true, Dial: dialLoopbackNames}
	passed, err := h2spec.Run(&config.Config{
		Host: *host, Port: *port, Path: "/", Timeout: 2 * time.Second, MaxHeaderLen: 4000, Strict: true, JUnitReport: *junit,
	})
	if err == nil && !passed {
		return fmt.Errorf("some cases failed")
	}
	return err
}

func dialLoopbackNames(context.Context, string, string) (net.Conn, error) {
	client, server := net.Pipe()
	go func() {
		defer server.Close()
		for answerLoopback(server) == nil {
		}
	}()
	return client, nil
}

// answerLoopback answers one query, framed as DNS over TCP is: A is 127.0.0.1, of everything else there is none.
func answerLoopback(stream io.ReadWriter) error {
	var length [2]byte
	if _, err := io.ReadFull(stream, length[:]); err != nil {
		return err
	}
	query := make([]byte, binary.BigEndian.Uint16(length[:]))
	if _, err := io.ReadFull(stream, query); err != nil {
		return err
	}
	var message dnsmessage.Message
	if err := message.Unpack(query); err != nil {
		return err
	}
	message.Response, message.Authoritative, message.Additionals = true, true, nil
	for _, question := range message.Questions {
		if question.Type == dnsmessage.TypeA {
			message.Answers = append(message.Answers, dnsmessage.Resource{
				Header: dnsmessage.ResourceHeader{Name: question.Name, Type: dnsmessage.TypeA, Class: question.Class, TTL: 60},
				Body:   &dnsmessage.AResource{A: [4]byte{127, 0, 0, 1}},
			})
		}
	}
	answer, err := message.Pack()
	if err != nil {
		return err
	}
	_, err = stream.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(answer))), answer...))
	return err
}
