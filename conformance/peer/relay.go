package main

import (
	"bufio"
	"bytes"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/url"
	"os"
	"time"
)

// serveRelay carries every connection through the outbound proxy by CONNECT, with the credentials that only this instance was given.
// So a tool that knows nothing of proxies speaks, byte for byte, to an outbound sidecar. The sidecar wants every request to name a callee;
// for HTTP/1.1 tools that can only name the address they connect to, -host replaces the Host of a connection's first request.
func serveRelay(arguments []string) error {
	flags := flag.NewFlagSet("relay", flag.ContinueOnError)
	to := flags.String("to", "", "authority to CONNECT to, host:port")
	host := flags.String("host", "", "Host of the first request")
	if err := flags.Parse(arguments); err != nil {
		return err
	}
	proxy, err := url.Parse(os.Getenv("HTTP_PROXY"))
	if err != nil || proxy.Host == "" || *to == "" {
		return fmt.Errorf("needs -to and a HTTP_PROXY")
	}
	listener, err := listen()
	if err != nil {
		return err
	}
	for {
		tool, err := listener.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer tool.Close()
			if err := relay(tool, proxy, *to, *host); err != nil {
				log.Printf("peer relay: %v", err)
			}
		}()
	}
}

// serveForward carries every connection to another address, for servers that the mesh cannot start.
func serveForward(arguments []string) error {
	flags := flag.NewFlagSet("forward", flag.ContinueOnError)
	to := flags.String("to", "", "address, host:port")
	if err := flags.Parse(arguments); err != nil {
		return err
	}
	listener, err := listen()
	if err != nil {
		return err
	}
	for {
		caller, err := listener.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer caller.Close()
			server, err := net.DialTimeout("tcp", *to, 5*time.Second)
			if err != nil {
				return
			}
			defer server.Close()
			go func() {
				_, _ = io.Copy(server, caller)
				_ = server.(*net.TCPConn).CloseWrite()
			}()
			_, _ = io.Copy(caller, server)
		}()
	}
}

func relay(tool net.Conn, proxy *url.URL, to, host string) error {
	// A connection that says nothing (a readiness probe) is not worth a tunnel; every protocol carried here begins with the client.
	said := bufio.NewReader(tool)
	if _, err := said.Peek(1); err != nil {
		return nil
	}
	first, err := head(said, host)
	if err != nil {
		return err
	}
	mesh, err := net.DialTimeout("tcp", proxy.Host, 5*time.Second)
	if err != nil {
		return err
	}
	defer mesh.Close()
	connect := &http.Request{Method: http.MethodConnect, URL: &url.URL{Opaque: to}, Host: to, Header: http.Header{}}
	if password, given := proxy.User.Password(); given {
		basic := &http.Request{Header: http.Header{}}
		basic.SetBasicAuth(proxy.User.Username(), password)
		connect.Header.Set("Proxy-Authorization", basic.Header.Get("Authorization"))
	}
	if err := connect.Write(mesh); err != nil {
		return err
	}
	answers := bufio.NewReader(mesh)
	answer, err := http.ReadResponse(answers, connect)
	if err != nil {
		return err
	}
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("CONNECT %s: %s", to, answer.Status)
	}
	if _, err := mesh.Write(first); err != nil {
		return err
	}
	go func() {
		_, _ = io.Copy(mesh, said)
		_ = mesh.(*net.TCPConn).CloseWrite()
	}()
	// Once the mesh has closed its half nothing useful can come from the tool any more: both suites and tools wait for a full close.
	_, err = io.Copy(tool, answers)
	return err
}

// head takes the head of an HTTP/1.1 request, with another Host; nothing where the Host may stay.
func head(said *bufio.Reader, host string) ([]byte, error) {
	var taken []byte
	for host != "" {
		line, err := said.ReadBytes('\n')
		if err != nil || len(taken) > 1<<16 {
			return nil, fmt.Errorf("no whole head of a request: %w", err)
		}
		if name, _, field := bytes.Cut(line, []byte(":")); field && bytes.EqualFold(name, []byte("host")) {
			line = []byte("Host: " + host + "\r\n")
		}
		taken = append(taken, line...)
		if len(bytes.TrimSpace(line)) == 0 {
			break
		}
	}
	return taken, nil
}
