package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

// serve answers at several addresses, until it is asked to end: then it answers the requests that
// it has begun. An address may begin with `https:`, `grpc:` (the health service, without TLS) or
// `tcp:` (the server speaks first).
func serve(addresses []string) error {
	name, err := os.Hostname()
	if err != nil {
		return err
	}
	ended, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	failed := make(chan error, len(addresses))
	pages := &pages{name: name}
	var servers []*http.Server
	for _, one := range addresses {
		// `:8080` has no kind.
		kind, port, _ := strings.Cut(one, ":")
		listener, err := net.Listen("tcp", ":"+port)
		if err != nil {
			return err
		}
		server := &http.Server{Handler: pages}
		switch kind {
		case "https":
			certificate, err := selfSigned(name)
			if err != nil {
				return err
			}
			listener = tls.NewListener(listener, &tls.Config{Certificates: []tls.Certificate{certificate}})
		case "grpc":
			server.Handler, server.Protocols = http.HandlerFunc(health), new(http.Protocols)
			server.Protocols.SetUnencryptedHTTP2(true)
		case "tcp":
			go greet(listener, name)
			continue
		}
		servers = append(servers, server)
		go func() { failed <- server.Serve(listener) }()
	}
	fmt.Println(name, "serves", strings.Join(addresses, " "))
	select {
	case err := <-failed:
		return err
	case <-ended.Done():
	}
	limit, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	for _, server := range servers {
		err = errors.Join(err, server.Shutdown(limit))
	}
	fmt.Println(name, "ended")
	return err
}

// pages answers with the host's name and the client's address. /break makes /health fail from then
// on.
type pages struct {
	name   string
	broken atomic.Bool
}

func (p *pages) ServeHTTP(answer http.ResponseWriter, request *http.Request) {
	client, _, _ := net.SplitHostPort(request.RemoteAddr)
	fmt.Println("request from", client, request.URL.Path)
	switch request.URL.Path {
	case "/break":
		p.broken.Store(true)
	case "/health":
		if p.broken.Load() {
			http.Error(answer, "broken", http.StatusInternalServerError)
			return
		}
	}
	fmt.Fprintln(answer, p.name, client)
}

// health answers calls of gRPC's health service: SERVING.
func health(answer http.ResponseWriter, request *http.Request) {
	client, _, _ := net.SplitHostPort(request.RemoteAddr)
	fmt.Println("call from", client, request.URL.Path)
	io.Copy(io.Discard, request.Body)
	answer.Header().Set("Content-Type", "application/grpc")
	answer.Header().Set("Trailer", "Grpc-Status")
	answer.Write([]byte{0, 0, 0, 0, 2, 0x08, 1})
	answer.Header().Set("Grpc-Status", "0")
}

// greet speaks first on each connection, and then closes it.
func greet(listener net.Listener, name string) {
	for {
		connection, err := listener.Accept()
		if err != nil {
			fmt.Println(err)
			return
		}
		client, _, _ := net.SplitHostPort(connection.RemoteAddr().String())
		fmt.Println("connection from", client)
		fmt.Fprintln(connection, name, client)
		connection.Close()
	}
}

// selfSigned makes a certificate that clients take only without checking it, as the kubelet does.
func selfSigned(name string) (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(24 * time.Hour), DNSNames: []string{name}}
	signed, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	return tls.Certificate{Certificate: [][]byte{signed}, PrivateKey: key}, err
}
