package main

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// machineState is all that a cluster could leave behind, as text by kind.
func machineState(t *testing.T, prefix string) map[string]string {
	t.Helper()
	state := map[string]string{}
	for name, command := range map[string][]string{
		"interfaces": {"ip", "-o", "link"},
		"addresses":  {"ip", "-o", "addr"},
		"routes":     {"ip", "route", "show", "table", "all"},
		"rules":      {"ip", "rule"},
		"nftables":   {"nft", "list", "ruleset"},
		"files":      {"ls", "-A", "/etc", "/opt", "/run", "/var/lib", "/var/log"},
	} {
		output, err := exec.Command(command[0], command[1:]...).CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %v\n%s", command, err, output)
		}
		state[name] = string(output)
	}
	for _, name := range slices.Concat(slices.Collect(maps.Keys(tunables)), []string{"net/ipv4/ip_forward", "net/netfilter/nf_conntrack_max"}) {
		value, err := os.ReadFile("/proc/sys/" + name)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
		state[name] = string(value)
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	state["mounts"] = string(mounts)
	all, err := hierarchies()
	if err != nil {
		t.Fatal(err)
	}
	for _, one := range all {
		groups, err := filepath.Glob(filepath.Join(one.mount, prefix+"*"))
		if err != nil {
			t.Fatal(err)
		}
		state["control groups in "+one.mount] = strings.Join(groups, "\n")
	}
	for _, device := range []string{"/dev/null", "/dev/zero"} {
		info, err := os.Stat(device)
		if err != nil {
			t.Fatal(err)
		}
		state[device] = info.Mode().String()
	}
	return state
}

// unchanged checks that the machine is as it was. Other programs may change it for a while.
func unchanged(t *testing.T, before map[string]string, prefix string) {
	t.Helper()
	eventually(t, func() error {
		for kind, now := range machineState(t, prefix) {
			if before[kind] != now {
				return fmt.Errorf("%s differ; before:\n%s\nafter:\n%s", kind, before[kind], now)
			}
		}
		return nil
	})
}
