package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// A process that this program started. The time of its start tells it apart from a later process
// with the same identifier.
type process struct {
	pid   int
	start uint64
}

// statusOf reads the state of a process and the time of its start, in clock ticks after boot.
func statusOf(pid int) (state byte, start uint64, err error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, 0, err
	}
	// The name of the program, in parentheses, may contain spaces and parentheses.
	fields := strings.Fields(string(data[bytes.LastIndexByte(data, ')')+1:]))
	if len(fields) < 20 {
		return 0, 0, fmt.Errorf("process %d: unexpected /proc/%d/stat", pid, pid)
	}
	start, err = strconv.ParseUint(fields[19], 10, 64)
	return fields[0][0], start, err
}

func newProcess(pid int) (process, error) {
	_, start, err := statusOf(pid)
	return process{pid, start}, err
}

// alive reports whether the process still runs; a zombie does not.
func (p process) alive() bool {
	state, start, err := statusOf(p.pid)
	return err == nil && start == p.start && state != 'Z' && state != 'X'
}

// kill ends the process by SIGKILL, unless it has ended.
func (p process) kill() error {
	// The handle refers to one process, even if its identifier is given to another one.
	handle, err := os.FindProcess(p.pid)
	if err != nil {
		return err
	}
	defer handle.Release()
	if !p.alive() {
		return nil
	}
	if err := handle.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	return nil
}

// gone waits until the process has ended, at most for the given time.
func (p process) gone(limit time.Duration) bool {
	for deadline := time.Now().Add(limit); p.alive(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			return false
		}
	}
	return true
}

// memory is the resident set in bytes.
func (p process) memory() int64 {
	data, _ := os.ReadFile(fmt.Sprintf("/proc/%d/statm", p.pid))
	fields := strings.Fields(string(data))
	if len(fields) < 2 {
		return 0
	}
	pages, _ := strconv.ParseInt(fields[1], 10, 64)
	return pages * int64(os.Getpagesize())
}

// write records the process in a file, which appears at once with its contents.
func (p process) write(file string) error {
	partial := filepath.Join(filepath.Dir(filepath.Dir(file)), filepath.Base(file)+".partial")
	if err := os.WriteFile(partial, fmt.Appendf(nil, "%d %d\n", p.pid, p.start), 0o644); err != nil {
		return err
	}
	return os.Rename(partial, file)
}

func readProcess(file string) (p process, err error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return p, err
	}
	if _, err = fmt.Sscanf(string(data), "%d %d\n", &p.pid, &p.start); err != nil {
		return p, fmt.Errorf("%s: not a process identifier and the time of its start: %w", file, err)
	}
	return p, nil
}

// lastLines returns the end of a file, indented, for an error.
func lastLines(file string, count int) string {
	data, err := os.ReadFile(file)
	if err != nil {
		return "  (no log: " + err.Error() + ")"
	}
	lines := strings.Split(strings.TrimRight(string(data), "\n"), "\n")
	lines = lines[max(0, len(lines)-count):]
	return "  " + strings.Join(lines, "\n  ") + "\n  (" + filepath.Clean(file) + ")"
}
