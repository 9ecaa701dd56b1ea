package main

import (
	"encoding/json"
	"flag"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"time"
)

// serveHTTP answers every request with a page long enough to need more than one DATA frame under a tiny window, and `/headers` with
// the header fields it received: a JSON object of lists, names in lower case, in the order in which one name's fields arrived.
func serveHTTP(arguments []string) error {
	flags := flag.NewFlagSet("http", flag.ContinueOnError)
	tls := flags.String("tls", "", "serve TLS with cert.pem and key.pem of this folder")
	if err := flags.Parse(arguments); err != nil {
		return err
	}
	listener, err := listen()
	if err != nil {
		return err
	}
	routes := http.NewServeMux()
	routes.HandleFunc("/headers", answerHeaders)
	routes.HandleFunc("/", answerPage)
	server := &http.Server{Handler: routes, ReadHeaderTimeout: 10 * time.Second, Protocols: new(http.Protocols)}
	server.Protocols.SetHTTP1(true)
	if *tls != "" {
		server.Protocols.SetHTTP2(true)
		return server.ServeTLS(listener, filepath.Join(*tls, "cert.pem"), filepath.Join(*tls, "key.pem"))
	}
	server.Protocols.SetUnencryptedHTTP2(true)
	return server.Serve(listener)
}

func answerPage(response http.ResponseWriter, request *http.Request) {
	// An upstream that answers before it has read the body resets the stream, and the suites would see the reset instead.
	_, _ = io.Copy(io.Discard, request.Body)
	response.Header().Set("content-type", "text/plain")
	_, _ = io.WriteString(response, strings.Repeat("conformance ", 8))
}

func answerHeaders(response http.ResponseWriter, request *http.Request) {
	response.Header().Set("content-type", "application/json")
	_ = json.NewEncoder(response).Encode(received(request))
}

func received(request *http.Request) map[string][]string {
	headers := make(map[string][]string, len(request.Header))
	for name, values := range request.Header {
		headers[strings.ToLower(name)] = values
	}
	return headers
}
