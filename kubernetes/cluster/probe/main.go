// Command probe is the program of pods in the tests of the cluster. As a server it answers with its
// host name and the address of the client, and prints all that reaches it. As a client it reads
// pages, resolves names, calls a server for a long time, and tries ways around the mesh.
package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"time"
)

const usage = `usage: probe COMMAND

  serve ADDRESS             answer HTTP, and datagrams at the same port
  get [OPTION] URL          read a page
        --header NAME=VALUE     send this field
        --from ADDRESS          from an address that may be another's
        --mark NUMBER           from a socket with a mark
  resolve NAME
  load URL                  call a server until the end, and print counts each second
  rush ADDRESS              call an address, which nothing may have yet, until there are 50 answers
  scan ADDRESS              print the open ports, and the beginning of their answer to a request
  send KIND ADDRESS         send a packet: udp, fragments, icmp, raw, sctp, packet, vsock`

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "probe:", err)
		os.Exit(1)
	}
}

func run(arguments []string) error {
	if len(arguments) < 2 {
		return fmt.Errorf("%s", usage)
	}
	last := arguments[len(arguments)-1]
	switch name := arguments[0]; {
	case name == "get":
		return get(arguments[1:])
	case name == "send" && len(arguments) == 3:
		return send(arguments[1], last)
	case len(arguments) != 2:
	case name == "serve":
		return serve(last)
	case name == "resolve":
		return resolve(last)
	case name == "load":
		return load(last)
	case name == "rush":
		return rush(last)
	case name == "scan":
		return scan(last)
	}
	return fmt.Errorf("%s", usage)
}

func serve(address string) error {
	name, err := os.Hostname()
	if err != nil {
		return err
	}
	if err := receive(address); err != nil {
		return err
	}
	fmt.Println(name, "serves", address)
	http.HandleFunc("/", func(answer http.ResponseWriter, request *http.Request) {
		client, _, _ := net.SplitHostPort(request.RemoteAddr)
		fmt.Println("request from", client, request.URL.Path)
		fmt.Fprintln(answer, name, client)
	})
	// A line for each request would be too many under load.
	for _, path := range []string{"/load/", "/open/"} {
		http.HandleFunc(path, func(http.ResponseWriter, *http.Request) {})
		http.HandleFunc(path+"stream", stream)
	}
	http.HandleFunc("/fields", func(answer http.ResponseWriter, request *http.Request) { request.Header.Write(answer) })
	return http.ListenAndServe(address, nil)
}

func get(arguments []string) error {
	dialer := net.Dialer{Timeout: 5 * time.Second}
	fields := http.Header{}
	for len(arguments) > 2 {
		option, value := arguments[0], arguments[1]
		arguments = arguments[2:]
		switch option {
		case "--header":
			name, text, _ := strings.Cut(value, "=")
			fields.Add(name, text)
		case "--from":
			dialer.LocalAddr = &net.TCPAddr{IP: net.ParseIP(value)}
			dialer.Control = transparent
		case "--mark":
			dialer.Control = marked(value)
		default:
			return fmt.Errorf("%s", usage)
		}
	}
	request, err := http.NewRequest(http.MethodGet, arguments[len(arguments)-1], nil)
	if err != nil {
		return err
	}
	request.Header = fields
	// A server on a busy machine is slow. An address that is none does not answer at all.
	client := http.Client{Timeout: patience, Transport: &http.Transport{DialContext: dialer.DialContext}}
	answer, err := client.Do(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("status %d", answer.StatusCode)
	}
	_, err = io.Copy(os.Stdout, answer.Body)
	return err
}

func resolve(name string) error {
	limit, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	addresses, err := net.DefaultResolver.LookupHost(limit, name)
	if err != nil {
		return err
	}
	fmt.Println(strings.Join(addresses, " "))
	return nil
}
