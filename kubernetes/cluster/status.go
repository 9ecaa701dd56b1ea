package main

import (
	"errors"
	"fmt"
	"io/fs"
)

// status lists the processes of the cluster and its nodes. It fails unless all of them run.
func (c *cluster) status() error {
	err := c.open()
	if errors.Is(err, fs.ErrNotExist) {
		fmt.Printf("no cluster in %s\n", c.folder)
		return status(1)
	}
	if err != nil {
		return err
	}
	names, found, err := c.processes()
	if err != nil {
		return err
	}
	good := c.Whole
	fmt.Printf("%s in %s\n", c.settings, c.folder)
	if !c.Whole {
		fmt.Println("did not start to the end")
	}
	var total int64
	for _, name := range names {
		one := found[name]
		if !one.alive() {
			good = false
			fmt.Printf("  %-20s has ended; the last lines of its log:\n%s\n", name, lastLines(c.logFile(name), logExcerpt))
			continue
		}
		total += one.memory()
		fmt.Printf("  %-20s pid %-8d %5d MiB\n", name, one.pid, one.memory()>>20)
	}
	fmt.Printf("  %-33s %5d MiB\n", "together", total>>20)
	if good && !c.ControlOnly {
		client, err := c.api()
		if err != nil {
			return err
		}
		ready, err := client.readiness()
		if err != nil {
			return err
		}
		for _, name := range c.nodes() {
			reason, known := ready[name]
			switch {
			case !known:
				reason = "not registered"
			case reason == "":
				fmt.Printf("  %s is ready\n", name)
				continue
			}
			good = false
			fmt.Printf("  %s is not ready: %s\n", name, reason)
		}
	}
	if !good {
		return status(1)
	}
	return nil
}
