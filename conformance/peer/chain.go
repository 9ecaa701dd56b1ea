package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
)

// seen is what one function of the chain received.
type seen struct {
	Function string              `json:"function"`
	Headers  map[string][]string `json:"headers"`
}

// gate lets nobody pass before a number of requests stand in front of it, so that an instance surely has them in hand at once.
type gate struct {
	mutex   sync.Mutex
	waiting int
	open    chan struct{}
}

// meet waits until `count` callers wait, at most ten seconds.
func (g *gate) meet(count int) error {
	g.mutex.Lock()
	if g.open == nil {
		g.open = make(chan struct{})
	}
	open := g.open
	if g.waiting++; g.waiting >= count {
		close(open)
		g.waiting, g.open = 0, nil
	}
	g.mutex.Unlock()
	select {
	case <-open:
		return nil
	case <-time.After(10 * time.Second):
		g.mutex.Lock()
		if g.open == open {
			g.waiting--
		}
		g.mutex.Unlock()
		return fmt.Errorf("fewer than %d requests came together within ten seconds", count)
	}
}

// serveChain is an application that knows nothing of tracing. `GET <prefix>/call/b/c` makes this function call `http://b/call/c` and
// answer with what it received itself, followed by b's answer. It copies no header from the request to the call, unless the query says
// `copy=1` (an application that propagates the trace context itself). With `meet=N` it calls on only when it has N requests in hand.
func serveChain([]string) error {
	listener, err := listen()
	if err != nil {
		return err
	}
	name := os.Getenv("FUNCTION")
	client := &http.Client{Transport: &http.Transport{Proxy: http.ProxyFromEnvironment}, Timeout: 20 * time.Second}
	door := new(gate)
	handler := http.HandlerFunc(func(response http.ResponseWriter, request *http.Request) {
		trail := []seen{{Function: name, Headers: received(request)}}
		further, err := callOn(client, door, request)
		if err != nil {
			http.Error(response, fmt.Sprintf("%s: %v", name, err), http.StatusBadGateway)
			return
		}
		response.Header().Set("content-type", "application/json")
		_ = json.NewEncoder(response).Encode(append(trail, further...))
	})
	server := &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second}
	return server.Serve(listener)
}

func callOn(client *http.Client, door *gate, request *http.Request) ([]seen, error) {
	_, callees, _ := strings.Cut(request.URL.Path, "/call/")
	query := request.URL.Query()
	if count := query.Get("meet"); count != "" {
		number, err := strconv.Atoi(count)
		if err != nil || number < 1 || number > 64 {
			return nil, fmt.Errorf("meet=%q is not a number from 1 to 64", count)
		}
		if err := door.meet(number); err != nil {
			return nil, err
		}
	}
	if callees == "" {
		return nil, nil
	}
	callee, rest, _ := strings.Cut(callees, "/")
	url := "http://" + callee + "/call/" + rest
	if query.Get("copy") != "" {
		url += "?copy=1"
	}
	call, err := http.NewRequestWithContext(request.Context(), http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	if query.Get("copy") != "" {
		for _, name := range []string{"Traceparent", "Tracestate"} {
			call.Header[name] = request.Header[name]
		}
	}
	answer, err := client.Do(call)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(io.LimitReader(answer.Body, 1<<20))
	if err != nil {
		return nil, err
	}
	if answer.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s answered %s: %s", callee, answer.Status, body)
	}
	var trail []seen
	if err := json.Unmarshal(body, &trail); err != nil {
		return nil, fmt.Errorf("%s answered something else: %w", callee, err)
	}
	return trail, nil
}
