package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func TestSettings(t *testing.T) {
	good := settings{Nodes: 3, Families: "dual"}
	if err := good.complete("/var/lib/first"); err != nil || good.Prefix != "first" {
		t.Errorf("%+v: %v", good, err)
	}
	control := settings{Nodes: 2, ControlOnly: true, Families: "ipv4"}
	if err := control.complete("/var/lib/first"); err != nil || control.Nodes != 0 {
		t.Errorf("%+v: %v", control, err)
	}
	for wanted, one := range map[string]settings{
		"it must be 1 to 100":      {Nodes: 0},
		"--nodes 101":              {Nodes: 101},
		"--nodes -1":               {Nodes: -1},
		`--prefix "a/b"`:           {Nodes: 1, Prefix: "a/b"},
		`--prefix ".."`:            {Nodes: 1, Prefix: ".."},
		"letters, digits, - and _": {Nodes: 1, Prefix: "a b"},
		`--families "ipv5"`:        {Nodes: 1, Families: "ipv5"},
	} {
		var wrong mistake
		if err := one.complete("/var/lib/first"); !errors.As(err, &wrong) || !strings.Contains(err.Error(), wanted) {
			t.Errorf("%+v: %v, and not an error with %s", one, err, wanted)
		}
	}
}

func TestWrongCommandsAreRefused(t *testing.T) {
	folder := t.TempDir()
	for wanted, arguments := range map[string][]string{
		"no command":                {},
		`no command "start"`:        {"start"},
		"not defined: -node":        {"up", "--node", "2"},
		"wrong number of arguments": {"down", "now"},
		"load-image: wrong number":  {"load-image"},
		"no cluster in " + folder:   {"--directory", folder, "kubectl", "get", "pods"},
		"which node":                {"node", "1"},
		"it must be FILE=PATH":      {"image", "a", "b", "c", "--", "d"},
		"after -- the program":      {"image", "a", "b", "c=/d"},
	} {
		if err := command(arguments); err == nil || !strings.Contains(err.Error(), wanted) {
			t.Errorf("%v: %v, and not an error with %s", arguments, err, wanted)
		}
	}
}

func TestOtherFoldersAreNotTaken(t *testing.T) {
	c := &cluster{folder: t.TempDir()}
	if err := c.empty(); err != nil {
		t.Error(err)
	}
	if err := os.WriteFile(c.path("mine"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := c.empty(); err == nil {
		t.Error("a folder with a file is taken for a cluster's")
	}
	// Ending a cluster that is none removes nothing.
	if err := c.down(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(c.path("mine")); err != nil {
		t.Error(err)
	}
}

func TestSettingsWithoutPrefixAreRefused(t *testing.T) {
	for _, prefix := range []string{"", "..", "a/b", "."} {
		c := &cluster{folder: t.TempDir(), settings: settings{Prefix: prefix, Nodes: 1}}
		if err := c.save(); err != nil {
			t.Fatal(err)
		}
		if err := c.down(); err == nil || !strings.Contains(err.Error(), "prefix") {
			t.Errorf("%q: %v", prefix, err)
		}
	}
}

func TestOneCommandAtATime(t *testing.T) {
	first := &cluster{folder: t.TempDir()}
	if err := first.acquire(); err != nil {
		t.Fatal(err)
	}
	second := &cluster{folder: first.folder}
	if err := second.acquire(); err == nil || !strings.Contains(err.Error(), "another command") {
		t.Errorf("a second command: %v", err)
	}
	first.lock.Close()
	if err := second.acquire(); err != nil {
		t.Error(err)
	}
}

func TestOnlyOwnProcessesAreEnded(t *testing.T) {
	cmd := exec.Command("sleep", "600")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	defer cmd.Process.Kill()
	own, err := newProcess(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "process", "sleep")
	if err := os.Mkdir(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := own.write(file); err != nil {
		t.Fatal(err)
	}
	if read, err := readProcess(file); err != nil || read != own {
		t.Errorf("%v: %v, not %v", err, read, own)
	}
	// A process with the same identifier that started at another time belongs to another program.
	other := process{own.pid, own.start - 1}
	if err := other.kill(); err != nil || other.alive() || !own.alive() {
		t.Errorf("%v: other alive %v, own alive %v", err, other.alive(), own.alive())
	}
	if err := own.kill(); err != nil {
		t.Error(err)
	}
	if !own.gone(limit) {
		t.Error("the process does not end")
	}
	if err := own.kill(); err != nil {
		t.Errorf("a process that has ended: %v", err)
	}
	if err := os.WriteFile(file, []byte("1\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := readProcess(file); err == nil {
		t.Error("a file without a time of start is read")
	}
}

func TestFailureShowsTheEndOfTheLog(t *testing.T) {
	file := filepath.Join(t.TempDir(), "log")
	if err := os.WriteFile(file, []byte("first\n"+strings.Repeat("line\n", logExcerpt-1)+"last\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	text := failure{"etcd has ended", file}.Error()
	if strings.Contains(text, "first") || !strings.Contains(text, "last") || !strings.Contains(text, file) {
		t.Error(text)
	}
	if text := (failure{"etcd has ended", file + "2"}).Error(); !strings.Contains(text, "no log") {
		t.Error(text)
	}
}
