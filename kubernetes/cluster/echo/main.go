// Command echo is the program of the pods in the test of the table of cases. As a server it answers
// with the head of the request, or with the answer that the request asks for. As a client it sends
// requests that it reads from its input, one a line, and writes the answers to its output.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"time"
)

// limit of an exchange.
const limit = 10 * time.Second

// A head is a request as the server got it.
type head struct {
	Method  string              `json:"method"`
	Path    string              `json:"path"`
	Headers map[string][]string `json:"headers"`
}

// A wish is the answer that a request asks for, in the field `x-answer`.
type wish struct {
	Status  int                 `json:"status"`
	Headers map[string][]string `json:"headers"`
}

// A call is a request to send.
type call struct {
	// Address is where to connect.
	Address string `json:"address"`
	// Bytes are sent as they are, if there are any. Else the request goes over HTTP/2.
	Bytes     string              `json:"bytes"`
	Method    string              `json:"method"`
	Authority string              `json:"authority"`
	Path      string              `json:"path"`
	Headers   map[string][]string `json:"headers"`
}

// An answer is a response, or the reason why there is none.
type answer struct {
	Status  int                 `json:"status"`
	Headers map[string][]string `json:"headers"`
	Body    string              `json:"body"`
	Error   string              `json:"error"`
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "echo:", err)
		os.Exit(1)
	}
}

func run(arguments []string) error {
	switch {
	case len(arguments) > 1 && arguments[0] == "serve":
		failed := make(chan error)
		for _, port := range arguments[1:] {
			go func() { failed <- serve(":" + port) }()
		}
		return <-failed
	case len(arguments) == 1 && arguments[0] == "call":
		return callAll(os.Stdin, os.Stdout)
	}
	return fmt.Errorf("usage: echo serve PORT … | call")
}

func serve(address string) error {
	server := http.Server{Addr: address, Handler: http.HandlerFunc(reply), Protocols: new(http.Protocols), DisableGeneralOptionsHandler: true, ReadHeaderTimeout: limit}
	server.Protocols.SetHTTP1(true)
	server.Protocols.SetUnencryptedHTTP2(true)
	return server.ListenAndServe()
}

func reply(writer http.ResponseWriter, request *http.Request) {
	status := http.StatusOK
	if text := request.Header.Get("x-answer"); text != "" {
		var wished wish
		if err := json.Unmarshal([]byte(text), &wished); err != nil {
			http.Error(writer, err.Error(), http.StatusBadRequest)
			return
		}
		for name, values := range wished.Headers {
			for _, value := range values {
				writer.Header().Add(name, value)
			}
		}
		status = wished.Status
	}
	headers := map[string][]string{}
	for name, values := range request.Header {
		headers[strings.ToLower(name)] = values
	}
	text, err := json.Marshal(head{request.Method, request.RequestURI, headers})
	if err != nil {
		status = http.StatusInternalServerError
	}
	writer.WriteHeader(status)
	// The client sees a body that breaks off.
	_, _ = writer.Write(text)
}

// callAll sends the requests of the input, one after the other.
func callAll(input io.Reader, output io.Writer) error {
	lines := bufio.NewScanner(input)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var one call
		if err := json.Unmarshal(lines.Bytes(), &one); err != nil {
			return err
		}
		got, err := send(one)
		if err != nil {
			got = answer{Error: err.Error()}
		}
		text, err := json.Marshal(got)
		if err != nil {
			return err
		}
		if _, err := fmt.Fprintf(output, "%s\n", text); err != nil {
			return err
		}
	}
	return lines.Err()
}

func send(one call) (answer, error) {
	if one.Bytes != "" {
		return sendBytes(one)
	}
	transport := http.Transport{Protocols: new(http.Protocols)}
	transport.Protocols.SetUnencryptedHTTP2(true)
	defer transport.CloseIdleConnections()
	request, err := http.NewRequest(one.Method, "http://"+one.Address+one.Path, nil)
	if err != nil {
		return answer{}, err
	}
	request.Host = one.Authority
	for name, values := range one.Headers {
		request.Header[http.CanonicalHeaderKey(name)] = values
	}
	client := http.Client{Transport: &transport, Timeout: limit, CheckRedirect: func(*http.Request, []*http.Request) error {
		return http.ErrUseLastResponse
	}}
	response, err := client.Do(request)
	if err != nil {
		return answer{}, err
	}
	return read(response)
}

func sendBytes(one call) (answer, error) {
	connection, err := net.DialTimeout("tcp", one.Address, limit)
	if err != nil {
		return answer{}, err
	}
	defer connection.Close()
	if err := connection.SetDeadline(time.Now().Add(limit)); err != nil {
		return answer{}, err
	}
	if _, err := io.WriteString(connection, one.Bytes); err != nil {
		return answer{}, err
	}
	response, err := http.ReadResponse(bufio.NewReader(connection), &http.Request{Method: one.Method})
	if err != nil {
		return answer{}, err
	}
	return read(response)
}

func read(response *http.Response) (answer, error) {
	defer response.Body.Close()
	headers := map[string][]string{}
	for name, values := range response.Header {
		headers[strings.ToLower(name)] = values
	}
	body, err := io.ReadAll(response.Body)
	return answer{Status: response.StatusCode, Headers: headers, Body: string(body)}, err
}
