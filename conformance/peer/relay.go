package main

import (
	"bufio"
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
// So a tool that knows nothing of proxies speaks, byte for byte, to an outbound sidecar.
func serveRelay(arguments []string) error {
	flags := flag.NewFlagSet("relay", flag.ContinueOnError)
	to := flags.String("to", "", "authority to CONNECT to, host:port")
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
			if err := relay(tool, proxy, *to); err != nil {
				log.Printf("peer relay: %v", err)
			}
		}()
	}
}

func relay(tool net.Conn, proxy *url.URL, to string) error {
	// A connection that says nothing (a readiness probe) is not worth a tunnel; every protocol carried here begins with the client.
	first := make([]byte, 4096)
	count, err := tool.Read(first)
	if err != nil {
		return nil
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
	if _, err := mesh.Write(first[:count]); err != nil {
		return err
	}
	go func() {
		_, _ = io.Copy(mesh, tool)
		_ = mesh.(*net.TCPConn).CloseWrite()
	}()
	// Once the mesh has closed its half nothing useful can come from the tool any more: both suites and tools wait for a full close.
	_, err = io.Copy(tool, answers)
	return err
}
