// Echo answers each call with its own body; or, if the path is `/to/NAME`, with what the function of that name answers. Start it as a function with
// `protocol: chain`.
package main

import (
	"log"
	"strings"

	"leno"
)

func main() {
	chain, err := leno.Open()
	if err != nil {
		log.Fatal(err)
	}
	for {
		call, err := chain.Next()
		if err != nil {
			log.Print(err)
			return
		}
		go func() {
			if err := handle(chain, call); err != nil {
				log.Print(err)
				call.Close()
			}
		}()
	}
}

func handle(chain *leno.Chain, call *leno.Call) error {
	name, found := strings.CutPrefix(call.Path, "/to/")
	if !found {
		return call.Answer(200, nil, call.Body())
	}
	pending, err := chain.Ask(call, leno.Head{Authority: name, Path: "/"}, call.Body())
	if err != nil {
		return err
	}
	answer, err := pending.Wait()
	if err != nil {
		return err
	}
	defer answer.Close()
	return call.Answer(answer.Status, nil, answer.Body())
}
