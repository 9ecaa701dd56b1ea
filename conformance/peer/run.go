package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"time"
)

// outcome of one run of the program.
type outcome struct {
	Code   int    `json:"code"`
	Output string `json:"output"`
}

// serveRuns runs one program with the arguments that a POST's body lists as a JSON array, as a child of this instance and with its proxy
// credentials in HTTPS_PROXY, where clients of protocols other than plain HTTP look for them.
func serveRuns(arguments []string) error {
	flags := flag.NewFlagSet("run", flag.ContinueOnError)
	program := flags.String("program", "", "program to run")
	limit := flags.Duration("limit", time.Minute, "time after which the program is ended")
	if err := flags.Parse(arguments); err != nil {
		return err
	}
	listener, err := listen()
	if err != nil {
		return err
	}
	handler := http.HandlerFunc(func(response http.ResponseWriter, request *http.Request) {
		var list []string
		if err := json.NewDecoder(http.MaxBytesReader(response, request.Body, 1<<16)).Decode(&list); err != nil {
			http.Error(response, err.Error(), http.StatusBadRequest)
			return
		}
		within, cancel := context.WithTimeout(request.Context(), *limit)
		defer cancel()
		command := exec.CommandContext(within, *program, list...)
		command.Env = append(os.Environ(), "HTTPS_PROXY="+os.Getenv("HTTP_PROXY"))
		output, err := command.CombinedOutput()
		if err != nil && command.ProcessState == nil {
			http.Error(response, err.Error(), http.StatusInternalServerError)
			return
		}
		if within.Err() != nil {
			output = fmt.Appendf(output, "\nended after %v", *limit)
		}
		_ = json.NewEncoder(response).Encode(outcome{Code: command.ProcessState.ExitCode(), Output: string(output)})
	})
	server := &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second}
	return server.Serve(listener)
}
