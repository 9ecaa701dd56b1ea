// Command workload is the program of pods in the tests of kinds of workloads. As a server it speaks
// several protocols, and answers with its host name and the client's address. As a client it prints
// what servers answer.
package main

import (
	"fmt"
	"os"
)

const usage = `usage: workload COMMAND
  serve ADDRESS …   answer at :PORT, https:PORT, grpc:PORT (the health service), and tcp:PORT, where
                    the server speaks first
  ask URL …         call each URL, and print its status and answer
  hold HOST:PORT    make a request, keep the connection, and print how it ends
  load URL          call a URL until the end of the input, and print the failures`

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "workload:", err)
		os.Exit(1)
	}
}

func run(arguments []string) error {
	if len(arguments) >= 2 {
		switch first, all := arguments[1], arguments[1:]; arguments[0] {
		case "serve":
			return serve(all)
		case "ask":
			return ask(all)
		case "hold":
			return hold(first)
		case "load":
			return load(first, os.Stdin)
		}
	}
	return fmt.Errorf("%s", usage)
}
