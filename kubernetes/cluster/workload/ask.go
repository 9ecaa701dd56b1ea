package main

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"
)

// clients of one request, each over a new connection.
var clients = http.Client{
	Timeout:   5 * time.Second,
	Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}},
}

// ask calls several URLs at once, and prints a line for each, in their order: the URL, the status,
// and the answer; or the URL, `failed`, and the error. `tcp://HOST:PORT` reads what a server says.
func ask(urls []string) error {
	lines := make([]string, len(urls))
	var all sync.WaitGroup
	for i, one := range urls {
		all.Go(func() {
			status, text := answer(one)
			lines[i] = fmt.Sprintf("%s %s %s\n", one, status, strings.TrimSpace(text))
		})
	}
	all.Wait()
	_, err := os.Stdout.WriteString(strings.Join(lines, ""))
	return err
}

func answer(address string) (status, text string) {
	parsed, err := url.Parse(address)
	if err == nil && parsed.Scheme == "tcp" {
		text, err = listen(parsed.Host)
		status = "said"
	} else if err == nil {
		status, text, err = fetch(address)
	}
	if err != nil {
		return "failed", err.Error()
	}
	return status, text
}

func fetch(address string) (status, text string, err error) {
	answer, err := clients.Get(address)
	if err != nil {
		return "", "", err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	return fmt.Sprint(answer.StatusCode), string(body), err
}

func listen(address string) (string, error) {
	connection, err := net.DialTimeout("tcp", address, 5*time.Second)
	if err != nil {
		return "", err
	}
	defer connection.Close()
	if err := connection.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
		return "", err
	}
	text, err := io.ReadAll(connection)
	if err == nil && len(text) == 0 {
		err = io.ErrUnexpectedEOF
	}
	return string(text), err
}

// hold makes a request of HTTP/1.1 at HOST:PORT, and keeps the connection. It prints the first line of
// the answer, and what ends the connection, or that nothing did.
func hold(address string) error {
	connection, err := net.DialTimeout("tcp", address, 5*time.Second)
	if err != nil {
		return err
	}
	defer connection.Close()
	if err := connection.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
		return err
	}
	if _, err := fmt.Fprintf(connection, "GET / HTTP/1.1\r\nHost: %s\r\n\r\n", address); err != nil {
		return err
	}
	reader := bufio.NewReader(connection)
	line, err := reader.ReadString('\n')
	if err != nil {
		return err
	}
	fmt.Print(line)
	_, err = io.Copy(io.Discard, reader)
	if err == nil {
		fmt.Println("closed by the server")
		return nil
	}
	return err
}

// load calls a URL until its input ends, in turns over a new connection and over one that is kept.
// It prints each failure, and at the end how many calls there were.
func load(address string, input io.Reader) error {
	ended := make(chan struct{})
	go func() {
		io.Copy(io.Discard, input)
		close(ended)
	}()
	// A busy machine is slow.
	const patience = 30 * time.Second
	kept := http.Client{Timeout: patience}
	fresh := http.Client{Timeout: patience, Transport: &http.Transport{DisableKeepAlives: true}}
	failures := 0
	for count := 0; ; count++ {
		select {
		case <-ended:
			fmt.Printf("%d calls, %d failed\n", count, failures)
			return nil
		case <-time.After(5 * time.Millisecond):
		}
		client, name := &kept, "kept"
		if count%2 == 0 {
			client, name = &fresh, "new"
		}
		answer, err := client.Get(address)
		if err == nil {
			_, err = io.Copy(io.Discard, answer.Body)
			answer.Body.Close()
			if answer.StatusCode != http.StatusOK {
				err = fmt.Errorf("status %d", answer.StatusCode)
			}
		}
		if err != nil {
			failures++
			fmt.Println(time.Now().UTC().Format(time.TimeOnly), "on a", name, "connection:", err)
		}
	}
}
