// Peer is what the conformance suites talk to: upstreams that answer in a known way, and a relay that lets an outside tool's bytes
// enter the mesh through an outbound sidecar.
//
//	peer http [-tls DIR]      HTTP/1.1 and HTTP/2: a small page, and /headers, which answers with the header fields it received
//	peer websocket            echoes every message; negotiates permessage-deflate
//	peer chain                an application of several functions that call one another and copy no trace headers
//	peer relay -to AUTHORITY  carries TCP connections through the HTTP proxy that HTTP_PROXY names
//	peer forward -to ADDRESS  carries TCP connections to a server that is not of the mesh
//	peer run -program PATH    runs PATH with the arguments of each request and HTTPS_PROXY set
//	peer connect-instance     becomes the Connect suite's server
//	peer connect-server       names a running server to the Connect suite
//	peer connect-client       sends the Connect suite's client to another server than the suite's
//	peer h2spec -host NAME    h2spec with a name of the mesh as :authority
//	peer certificate DIR      writes ca.pem, cert.pem and key.pem for 127.0.0.1 and localhost
//
// Servers listen on 127.0.0.1 at $PORT.
package main

import (
	"fmt"
	"log"
	"net"
	"os"
)

func main() {
	log.SetFlags(0)
	if len(os.Args) < 2 {
		log.Fatal("usage: peer ROLE ...")
	}
	roles := map[string]func([]string) error{
		"http":             serveHTTP,
		"websocket":        serveWebSocket,
		"chain":            serveChain,
		"relay":            serveRelay,
		"forward":          serveForward,
		"run":              serveRuns,
		"connect-instance": runConnectInstance,
		"connect-server":   answerConnectServer,
		"connect-client":   runConnectClient,
		"h2spec":           runH2Spec,
		"certificate":      writeCertificate,
	}
	role, known := roles[os.Args[1]]
	if !known {
		log.Fatalf("peer: no role %q", os.Args[1])
	}
	if err := role(os.Args[2:]); err != nil {
		log.Fatalf("peer %s: %v", os.Args[1], err)
	}
}

// listen binds the port that the environment gives.
func listen() (net.Listener, error) {
	port := os.Getenv("PORT")
	if port == "" {
		return nil, fmt.Errorf("PORT is not set")
	}
	return net.Listen("tcp", net.JoinHostPort("127.0.0.1", port))
}
