package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync/atomic"
	"time"
)

const (
	// pause between the requests of one kind.
	pause = 100 * time.Millisecond
	// patience with an answer, and with a stream that is silent. A busy machine is slow.
	patience = 30 * time.Second
)

// A tally counts the requests of one kind.
type tally struct {
	name           string
	passed, failed atomic.Int64
}

func (t *tally) count(err error) {
	if err == nil {
		t.passed.Add(1)
		return
	}
	t.failed.Add(1)
	fmt.Printf("%s failed %s: %v\n", time.Now().UTC().Format("15:04:05.000"), t.name, err)
}

// load calls a server until it is ended: with a new connection for each request, with a kept
// connection, and with one long answer. Once a second it prints the counts of each.
func load(url string) error {
	fresh, kept, stream := &tally{name: "fresh"}, &tally{name: "kept"}, &tally{name: "stream"}
	go repeat(fresh, func() error { return fetch(client(true), url) })
	one := client(false)
	go repeat(kept, func() error { return fetch(one, url) })
	go follow(stream, url+"stream")
	for {
		time.Sleep(time.Second)
		fmt.Print("counts")
		for _, one := range []*tally{fresh, kept, stream} {
			fmt.Printf(" %s %d %d", one.name, one.passed.Load(), one.failed.Load())
		}
		fmt.Println()
	}
}

func client(isFresh bool) *http.Client {
	return &http.Client{Timeout: patience, Transport: &http.Transport{DisableKeepAlives: isFresh, MaxConnsPerHost: 1}}
}

func repeat(t *tally, request func() error) {
	for {
		t.count(request())
		time.Sleep(pause)
	}
}

func fetch(client *http.Client, url string) error {
	// The client sends a POST once only, also if a kept connection has just ended.
	answer, err := client.Post(url, "", nil)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if _, err := io.Copy(io.Discard, answer.Body); err != nil {
		return err
	}
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("status %d", answer.StatusCode)
	}
	return nil
}

// follow reads an answer without an end. It counts the lines, and each end as a failure.
func follow(t *tally, url string) {
	for {
		t.count(lines(t, url))
		time.Sleep(pause)
	}
}

func lines(t *tally, url string) error {
	limit, cancel := context.WithCancel(context.Background())
	defer cancel()
	request, err := http.NewRequestWithContext(limit, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	watch := time.AfterFunc(patience, cancel)
	defer watch.Stop()
	transport := &http.Transport{DisableKeepAlives: true}
	answer, err := transport.RoundTrip(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("status %d", answer.StatusCode)
	}
	read := bufio.NewScanner(answer.Body)
	for read.Scan() {
		watch.Reset(patience)
		t.passed.Add(1)
	}
	return errors.Join(errors.New("the stream ended"), read.Err())
}

// stream sends a line from time to time until the client goes.
func stream(answer http.ResponseWriter, request *http.Request) {
	flusher := answer.(http.Flusher)
	for request.Context().Err() == nil {
		if _, err := io.WriteString(answer, "line\n"); err != nil {
			return
		}
		flusher.Flush()
		time.Sleep(pause)
	}
}
