package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"strings"
	"sync/atomic"
	"time"
)

type browser struct {
	*http.Client
	base    string
	version string
	// connections is the number of those that were opened.
	connections *atomic.Int32
}

func httpTests(address string) ([]test, func() (string, error)) {
	var tests []test
	var clients []browser
	for _, version := range []string{"HTTP/1.1", "HTTP/2.0"} {
		transport := &http.Transport{Protocols: new(http.Protocols), ExpectContinueTimeout: limit}
		transport.Protocols.SetHTTP1(version == "HTTP/1.1")
		transport.Protocols.SetUnencryptedHTTP2(version == "HTTP/2.0")
		it := browser{&http.Client{Transport: transport, Timeout: limit}, "http://" + address, version, new(atomic.Int32)}
		clients = append(clients, it)
		tests = append(tests,
			test{"one connection, " + version, it.kept}, test{"large, " + version, it.large}, test{"streamed with trailers, " + version, it.streamed},
			test{"fields, " + version, it.fields}, test{"told to continue, " + version, it.continued},
			test{"deadline, " + version, it.deadline}, test{"cancel, " + version, it.cancel})
	}
	turn := 0
	return tests, func() (string, error) {
		turn++
		response, _, err := clients[turn%2].send(context.Background(), http.MethodPost, "/echo", strings.NewReader("hello"))
		if err != nil || response.StatusCode != http.StatusOK {
			return "", fmt.Errorf("%v, %w", response, err)
		}
		return response.Header.Get("x-version"), nil
	}
}

func (it browser) request(context context.Context, method, path string, body io.Reader) (*http.Request, error) {
	counted := httptrace.WithClientTrace(context, &httptrace.ClientTrace{GotConn: func(got httptrace.GotConnInfo) {
		if !got.Reused {
			it.connections.Add(1)
		}
	}})
	return http.NewRequestWithContext(counted, method, it.base+path, body)
}

func (it browser) send(context context.Context, method, path string, body io.Reader) (*http.Response, []byte, error) {
	request, err := it.request(context, method, path, body)
	if err != nil {
		return nil, nil, err
	}
	return it.do(request)
}

func (it browser) do(request *http.Request) (*http.Response, []byte, error) {
	response, err := it.Do(request)
	if err != nil {
		return nil, nil, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if response.Proto != it.version {
		return nil, nil, fmt.Errorf("came over %s", response.Proto)
	}
	return response, body, err
}

func (it browser) kept() error {
	for range 100 {
		response, body, err := it.send(context.Background(), http.MethodPost, "/echo", strings.NewReader("hello"))
		if err != nil || response.StatusCode != http.StatusOK || string(body) != "hello" {
			return fmt.Errorf("%v, %q, %w", response, body, err)
		}
	}
	if opened := it.connections.Load(); opened != 1 {
		return fmt.Errorf("%d connections", opened)
	}
	return nil
}

func (it browser) large() error {
	sent := bytes.Repeat([]byte("0123456789abcdef"), 1<<18)
	_, body, err := it.send(context.Background(), http.MethodPost, "/echo", bytes.NewReader(sent))
	if err != nil || !bytes.Equal(body, sent) {
		return fmt.Errorf("%d bytes, %w", len(body), err)
	}
	return nil
}

// streamed sends each part when the one before has come back.
func (it browser) streamed() error {
	read, write := io.Pipe()
	request, err := it.request(context.Background(), http.MethodPost, "/echo", read)
	if err != nil {
		return err
	}
	request.Header.Set("TE", "trailers")
	go func() { _, _ = io.WriteString(write, "0123456789") }()
	response, err := it.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	part := make([]byte, 10)
	for range 100 {
		if _, err := io.ReadFull(response.Body, part); err != nil {
			return err
		}
		if _, err := io.WriteString(write, "0123456789"); err != nil {
			return err
		}
	}
	if err := write.Close(); err != nil {
		return err
	}
	rest, err := io.ReadAll(response.Body)
	if err != nil || len(rest) != 10 || response.Trailer.Get("x-end") != "here" {
		return fmt.Errorf("%q, %v, %w", rest, response.Trailer, err)
	}
	return nil
}

func (it browser) fields() error {
	request, err := it.request(context.Background(), http.MethodGet, "/fields/101", nil)
	if err != nil {
		return err
	}
	for number := range 15 {
		request.Header.Add("x-echo", fmt.Sprintf("%01000d", number))
	}
	response, _, err := it.do(request)
	if err != nil || len(response.Header.Values("x-field")) != 101 || len(response.Header.Values("x-echo")) != 15 {
		return fmt.Errorf("%v, %w", response, err)
	}
	return nil
}

func (it browser) continued() error {
	told := false
	context := httptrace.WithClientTrace(context.Background(), &httptrace.ClientTrace{Got100Continue: func() { told = true }})
	request, err := it.request(context, http.MethodPost, "/echo", strings.NewReader("hello"))
	if err != nil {
		return err
	}
	request.Header.Set("Expect", "100-continue")
	_, body, err := it.do(request)
	if err != nil || string(body) != "hello" || !told {
		return fmt.Errorf("%q, told: %v, %w", body, told, err)
	}
	return nil
}

func (it browser) deadline() error {
	within, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
	defer cancel()
	if _, _, err := it.send(within, http.MethodGet, "/quiet/deadline", nil); !errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("ended with: %w", err)
	}
	return nil
}

func (it browser) cancel() error {
	within, cancel := context.WithCancel(context.Background())
	name := "cancel-go-" + it.version[5:6]
	request, err := it.request(within, http.MethodGet, "/quiet/"+name, nil)
	if err != nil {
		cancel()
		return err
	}
	response, err := it.Do(request)
	cancel()
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if _, err := io.ReadAll(response.Body); !errors.Is(err, context.Canceled) {
		return fmt.Errorf("ended with: %w", err)
	}
	return it.learns(name)
}

func (it browser) learns(name string) error {
	for end := time.Now().Add(limit); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if _, body, err := it.send(context.Background(), http.MethodGet, "/ended/"+name, nil); err != nil {
			return err
		} else if string(body) == "yes" {
			return nil
		}
	}
	return fmt.Errorf("the function does not learn of it")
}
