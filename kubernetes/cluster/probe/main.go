// Command probe is the program of pods in the tests of the cluster. As a server it answers with its
// host name and the address of the client; as a client it reads a page, or resolves a name.
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

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "probe:", err)
		os.Exit(1)
	}
}

func run(arguments []string) error {
	if len(arguments) == 2 {
		switch arguments[0] {
		case "serve":
			return serve(arguments[1])
		case "get":
			return get(arguments[1])
		case "resolve":
			return resolve(arguments[1])
		}
	}
	return fmt.Errorf("usage: probe serve ADDRESS | get URL | resolve NAME")
}

func serve(address string) error {
	name, err := os.Hostname()
	if err != nil {
		return err
	}
	fmt.Println(name, "serves", address)
	return http.ListenAndServe(address, http.HandlerFunc(func(answer http.ResponseWriter, request *http.Request) {
		client, _, _ := net.SplitHostPort(request.RemoteAddr)
		fmt.Println("request from", client)
		fmt.Fprintln(answer, name, client)
	}))
}

func get(url string) error {
	client := http.Client{Timeout: 5 * time.Second}
	answer, err := client.Get(url)
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
