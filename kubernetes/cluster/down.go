package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// down ends the cluster and removes all that belongs to it.
func (c *cluster) down() error {
	err := c.open()
	if errors.Is(err, fs.ErrNotExist) {
		c.say("no cluster in %s", c.folder)
		return nil
	}
	if err != nil {
		return err
	}
	if err := c.acquire(); err != nil {
		return err
	}
	if err := c.remove(); err != nil {
		return err
	}
	c.say("the cluster in %s is gone", c.folder)
	return nil
}

// remove ends the machines, and with them all of their processes, mounts and interfaces. Then it
// removes control groups and files. An error lists the things that are left.
func (c *cluster) remove() error {
	names, found, err := c.processes()
	if err != nil {
		return err
	}
	var left []string
	for _, name := range names {
		if err := found[name].kill(); err != nil {
			left = append(left, fmt.Sprintf("process %d (%s): %v", found[name].pid, name, err))
		}
	}
	for _, name := range names {
		if !found[name].gone(30 * time.Second) {
			left = append(left, fmt.Sprintf("process %d (%s) does not end", found[name].pid, name))
		}
	}
	groups, err := c.removeControlGroups("")
	if err != nil {
		return err
	}
	for _, group := range groups {
		left = append(left, "control group "+group)
	}
	mounts, err := mountsBelow(c.folder)
	if err != nil {
		return err
	}
	for _, mount := range mounts {
		if err := syscall.Unmount(mount, 0); err != nil {
			left = append(left, fmt.Sprintf("mount %s: %v", mount, err))
		}
	}
	if len(left) > 0 {
		return fmt.Errorf("cannot remove:\n  %s\nEnd what uses them, and repeat: cluster down --directory %s", strings.Join(left, "\n  "), c.folder)
	}
	return os.RemoveAll(c.folder)
}

// mountsBelow lists the mounts in a folder as this program sees them, the innermost first.
func mountsBelow(folder string) ([]string, error) {
	data, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	var found []string
	for line := range strings.Lines(string(data)) {
		if at := strings.Fields(line)[4]; strings.HasPrefix(at, filepath.Clean(folder)+"/") {
			found = append([]string{at}, found...)
		}
	}
	return found, nil
}
