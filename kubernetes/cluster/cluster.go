package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

const (
	control    = "control"
	maxNodes   = 100
	logExcerpt = 15
	// waitLimit is generous: machines of tests are slow and shared.
	waitLimit = 2 * time.Minute
)

// A cluster is a folder: configuration, certificates, logs, and the files of each machine.
type cluster struct {
	folder string
	// programs is the folder of the programs to run.
	programs string
	settings
	began time.Time
	lock  *os.File
}

// settings are kept in the folder for later commands.
type settings struct {
	Prefix      string `json:"prefix"`
	Nodes       int    `json:"nodes"`
	ControlOnly bool   `json:"controlOnly"`
	// Families are the versions of the Internet Protocol: ipv4, ipv6, or dual.
	Families string `json:"families"`
	// Whole is set once `up` has succeeded.
	Whole bool `json:"whole"`
}

// A failure of a component, with the end of its log.
type failure struct {
	what string
	log  string
}

func (f failure) Error() string {
	return f.what + "; the last lines of its log:\n" + lastLines(f.log, logExcerpt)
}

func (c *cluster) path(elements ...string) string {
	return filepath.Join(append([]string{c.folder}, elements...)...)
}
func (c *cluster) program(name string) string { return filepath.Join(c.programs, name) }
func (c *cluster) logFile(name string) string { return c.path("log", name) }
func (c *cluster) processFile(name string) string {
	return c.path("process", name)
}
func (c *cluster) kubeconfig() string { return c.path("admin.conf") }

// nodes names the nodes.
func (c *cluster) nodes() []string {
	if c.ControlOnly {
		return nil
	}
	names := make([]string, c.Nodes)
	for i := range names {
		names[i] = fmt.Sprintf("node%d", i+1)
	}
	return names
}

// open reads the settings of the cluster. The error is fs.ErrNotExist if there is none.
func (c *cluster) open() error {
	data, err := os.ReadFile(c.path("cluster.json"))
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, &c.settings); err != nil {
		return fmt.Errorf("%s: %w", c.path("cluster.json"), err)
	}
	// `down` removes the control groups of this name: without a name, it would remove those of others.
	if !isPrefix(c.Prefix) {
		return fmt.Errorf("%s: the prefix %q may have letters, digits, - and _", c.path("cluster.json"), c.Prefix)
	}
	return nil
}

// running opens the cluster for a command that needs it to be up.
func (c *cluster) running() error {
	err := c.open()
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("no cluster in %s; start one: cluster up --directory %s", c.folder, c.folder)
	}
	if err != nil {
		return err
	}
	if !c.Whole {
		return fmt.Errorf("the cluster in %s did not start to the end; start it again: cluster up --directory %s", c.folder, c.folder)
	}
	return nil
}

func (c *cluster) save() error {
	data, err := json.MarshalIndent(c.settings, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(c.path("cluster.json"), append(data, '\n'), 0o644)
}

// acquire makes sure that no other command changes the same cluster.
func (c *cluster) acquire() error {
	folder, err := os.Open(c.folder)
	if err != nil {
		return err
	}
	if err := syscall.Flock(int(folder.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		folder.Close()
		return fmt.Errorf("another command is changing the cluster in %s", c.folder)
	}
	// Kept open, and so locked, until this program ends.
	c.lock = folder
	return nil
}

// processes lists the recorded processes by name: machines first, in the order of their names.
func (c *cluster) processes() (names []string, found map[string]process, err error) {
	found = map[string]process{}
	files, err := os.ReadDir(c.path("process"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, nil, err
	}
	for _, file := range files {
		p, err := readProcess(c.processFile(file.Name()))
		if err != nil {
			return nil, nil, err
		}
		names = append(names, file.Name())
		found[file.Name()] = p
	}
	slices.SortStableFunc(names, func(a, b string) int { return strings.Count(a, "-") - strings.Count(b, "-") })
	return names, found, nil
}

// ended returns the name of a recorded process that has ended, if there is one.
func (c *cluster) ended() (string, error) {
	names, found, err := c.processes()
	if err != nil {
		return "", err
	}
	for _, name := range names {
		if !found[name].alive() {
			return name, nil
		}
	}
	return "", nil
}

// say reports progress, with the seconds since the command began.
func (c *cluster) say(format string, arguments ...any) {
	fmt.Printf("%6.1f s  %s\n", time.Since(c.began).Seconds(), fmt.Sprintf(format, arguments...))
}

// await repeats a check until it succeeds. It gives up at the limit, or when a process of the
// cluster has ended; component names the process whose log explains a time-out.
func (c *cluster) await(what, component string, limit time.Duration, check func() error) error {
	for deadline := time.Now().Add(limit); ; time.Sleep(25 * time.Millisecond) {
		err := check()
		if err == nil {
			return nil
		}
		if name, failed := c.ended(); failed != nil {
			return failed
		} else if name != "" {
			return failure{name + " has ended", c.logFile(name)}
		}
		if time.Now().After(deadline) {
			return failure{fmt.Sprintf("%s: not after %v (%v); see %s", what, limit, err, component), c.logFile(component)}
		}
	}
}
