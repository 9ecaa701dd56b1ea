// Go drives a gateway with grpc-go or with net/http: `go grpc ADDRESS`, `go http ADDRESS`. It prints a line for each case that passed.
package main

import (
	"bufio"
	"fmt"
	"log"
	"os"
	"time"
)

// A case that takes longer hangs.
const limit = 60 * time.Second

// Between the calls during a change, so that clients do not take the processors from what changes.
const pause = 2 * time.Millisecond

type test struct {
	name string
	run  func() error
}

func main() {
	log.SetFlags(0)
	if len(os.Args) != 3 {
		log.Fatal("usage: go grpc|http ADDRESS")
	}
	var tests []test
	var steady func() (string, error)
	switch os.Args[1] {
	case "grpc":
		tests, steady = grpcTests(os.Args[2])
	case "http":
		tests, steady = httpTests(os.Args[2])
	default:
		log.Fatalf("no client %q", os.Args[1])
	}
	for _, test := range tests {
		if err := test.run(); err != nil {
			log.Fatalf("%s: %v", test.name, err)
		}
		fmt.Println("passed", test.name)
	}
	change(steady)
}

// change calls again and again while the function's instances are replaced: until a line of input comes, and an answer of the new version.
func change(call func() (string, error)) {
	stop := make(chan struct{})
	go func() {
		_, _ = bufio.NewReader(os.Stdin).ReadString('\n')
		close(stop)
	}()
	versions := map[string]int{}
	for first := true; ; first = false {
		version, err := call()
		if err != nil {
			log.Fatalf("a call during the change, after %v: %v", versions, err)
		}
		versions[version]++
		if first {
			fmt.Println("steady")
		}
		select {
		case <-stop:
			if len(versions) != 2 {
				log.Fatalf("versions: %v", versions)
			}
			fmt.Println("passed change")
			return
		case <-time.After(pause):
		}
	}
}
