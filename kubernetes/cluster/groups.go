package main

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// A hierarchy of control groups: one of version 2, or one of each controller of version 1.
type hierarchy struct {
	mount   string
	version int
}

func hierarchies() ([]hierarchy, error) {
	file, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	defer file.Close()
	var found []hierarchy
	for lines := bufio.NewScanner(file); lines.Scan(); {
		before, after, _ := strings.Cut(lines.Text(), " - ")
		mount := strings.Fields(before)[4]
		switch strings.Fields(after)[0] {
		case "cgroup":
			found = append(found, hierarchy{mount, 1})
		case "cgroup2":
			found = append(found, hierarchy{mount, 2})
		}
	}
	if len(found) == 0 {
		return nil, errors.New("no control groups are mounted; mount them: mount -t cgroup2 none /sys/fs/cgroup")
	}
	return found, nil
}

// makeControlGroups makes the control group of the machine in each hierarchy. It returns the one of
// version 2 in which the machine's processes start, if there is such a hierarchy.
func (m *machine) makeControlGroups() (*os.File, error) {
	all, err := hierarchies()
	if err != nil {
		return nil, err
	}
	var start *os.File
	for _, one := range all {
		levels := []string{filepath.Join(one.mount, m.Prefix), filepath.Join(one.mount, m.Prefix, m.name)}
		for _, level := range levels {
			if err := os.MkdirAll(level, 0o755); err != nil {
				return nil, err
			}
			if one.version == 1 {
				err = inheritProcessors(level)
			} else {
				err = passControllers(filepath.Dir(level))
			}
			if err != nil {
				return nil, err
			}
		}
		if one.version == 2 {
			if err := passControllers(levels[1]); err != nil {
				return nil, err
			}
			// The kubelet shares the machine's group among pods, so that no process may be in it.
			group := filepath.Join(levels[1], "system")
			if err := os.MkdirAll(group, 0o755); err != nil {
				return nil, err
			}
			if start, err = os.Open(group); err != nil {
				return nil, err
			}
		}
	}
	return start, nil
}

// inheritProcessors gives a new group of version 1's `cpuset` the processors and memory of its
// parent: without, no process can enter it.
func inheritProcessors(group string) error {
	for _, name := range []string{"cpuset.cpus", "cpuset.mems"} {
		value, err := os.ReadFile(filepath.Join(filepath.Dir(group), name))
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err == nil {
			err = os.WriteFile(filepath.Join(group, name), value, 0o644)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// passControllers lets the children of a group of version 2 use all controllers of the group.
func passControllers(group string) error {
	available, err := os.ReadFile(filepath.Join(group, "cgroup.controllers"))
	if err != nil {
		return err
	}
	for _, controller := range strings.Fields(string(available)) {
		if err := os.WriteFile(filepath.Join(group, "cgroup.subtree_control"), []byte("+"+controller), 0o644); err != nil {
			return fmt.Errorf("%s: cannot pass on the controller %s: %w", group, controller, err)
		}
	}
	return nil
}

// controlGroups lists the groups of a machine of this cluster, or of all without a name, the
// innermost first.
func (c *cluster) controlGroups(machine string) ([]string, error) {
	all, err := hierarchies()
	if err != nil {
		return nil, err
	}
	var found []string
	for _, one := range all {
		begin := len(found)
		err := filepath.WalkDir(filepath.Join(one.mount, c.Prefix, machine), func(name string, entry fs.DirEntry, err error) error {
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			if err == nil && entry.IsDir() {
				found = append(found, name)
			}
			return err
		})
		if err != nil {
			return nil, err
		}
		slices.Reverse(found[begin:])
	}
	return found, nil
}

// removeControlGroups removes groups, and returns those that remain.
func (c *cluster) removeControlGroups(machine string) (left []string, err error) {
	// The kernel empties a group a moment after the end of its last process.
	for deadline := time.Now().Add(5 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		groups, err := c.controlGroups(machine)
		if err != nil || len(groups) == 0 {
			return nil, err
		}
		left = nil
		for _, group := range groups {
			if err := os.Remove(group); err != nil && !errors.Is(err, fs.ErrNotExist) {
				left = append(left, group)
			}
		}
		if len(left) == 0 {
			return nil, nil
		}
		if time.Now().After(deadline) {
			return left, nil
		}
	}
}

// machineID is stable for a machine of a cluster, as the kubelet reports it.
func machineID(folder, name string) string {
	sum := sha256.Sum256([]byte(folder + "\x00" + name))
	return hex.EncodeToString(sum[:16])
}
