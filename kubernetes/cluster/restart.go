package main

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
)

// restart ends all processes of a node at once, as if its machine lost its power, and starts it again
// with the disk that it had.
func (c *cluster) restart(node string) error {
	if err := c.running(); err != nil {
		return err
	}
	name := "node" + strings.TrimPrefix(node, "node")
	if !slices.Contains(c.nodes(), name) {
		return mistake(fmt.Sprintf("restart %s: the cluster has %s", node, c.settings))
	}
	number, err := strconv.Atoi(strings.TrimPrefix(name, "node"))
	if err != nil {
		return err
	}
	if err := c.acquire(); err != nil {
		return err
	}
	head, err := c.machine(control)
	if err != nil {
		return err
	}
	names, found, err := c.processes()
	if err != nil {
		return err
	}
	// The first process of the node takes the others along.
	for _, one := range names {
		if machine, _, _ := strings.Cut(one, "-"); machine != name {
			continue
		}
		if err := found[one].kill(); err != nil {
			return err
		}
		if !found[one].gone(waitLimit) {
			return fmt.Errorf("%s does not end", one)
		}
		if err := os.Remove(c.processFile(one)); err != nil {
			return err
		}
	}
	// The kubelet would look for the containers of these.
	left, err := c.removeControlGroups(name)
	if err != nil {
		return err
	}
	if len(left) > 0 {
		return fmt.Errorf("cannot remove the control groups %v", left)
	}
	again := &machine{cluster: c, name: name}
	// It is in memory on usual machines.
	if err := os.RemoveAll(again.path("run")); err != nil {
		return err
	}
	if err := again.boot(); err != nil {
		return err
	}
	if err := again.attach(head, number); err != nil {
		return err
	}
	if err := again.startRuntime(); err != nil {
		return err
	}
	if err := again.startNode(number); err != nil {
		return err
	}
	c.say("%s has started again", name)
	return nil
}
