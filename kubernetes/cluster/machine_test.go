package main

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// standIns are programs in the place of Kubernetes', to test machines without it: those of the
// nodes run, and the API server fails.
var standIns = map[string]string{
	"kube-apiserver": "echo the disk is full; exit 3",
	"kubernetes":     "exit 1",
	"etcd":           "exec sleep 600",
	"containerd":     "exec sleep 600",
	"ctr":            "exit 1",
	"cni/bridge":     "exit 1",

	"containerd-shim-runc-v2": "exit 1",
	"images/pause.tar":        "exit 1",
	"images/coredns.tar":      "exit 1",
}

// TestMachines starts two nodes whose API server fails, looks at them, and ends them.
func TestMachines(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("not root: no test of machines")
	}
	programs := t.TempDir()
	for name, script := range standIns {
		file := filepath.Join(programs, name)
		err := os.MkdirAll(filepath.Dir(file), 0o755)
		if err == nil {
			err = os.WriteFile(file, []byte("#!/bin/sh\n"+script+"\n"), 0o755)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for name, source := range map[string]string{"cluster": ".", "probe": "./probe"} {
		build := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-o", filepath.Join(programs, name), source)
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if output, err := build.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, output)
		}
	}
	b := bench{programs, filepath.Join(t.TempDir(), "machines"), "leno-test-machines"}
	before := machineState(t, b.prefix)
	defer b.try("", "down")

	for range 2 {
		// The second start removes the rest of the first one.
		output, err := b.try("", "up", "--prefix", b.prefix)
		if err == nil || !strings.Contains(output, "control-apiserver has ended") || !strings.Contains(output, "  the disk is full") {
			t.Fatalf("start with an API server that fails: %v\n%s", err, output)
		}
	}
	if output, err := b.try("", "status"); err == nil || !strings.Contains(output, "did not start to the end") || !strings.Contains(output, "the disk is full") {
		t.Errorf("status: %v\n%s", err, output)
	}
	if output, err := b.try("", "kubectl", "get", "nodes"); err == nil || !strings.Contains(output, "did not start to the end") {
		t.Errorf("kubectl: %v\n%s", err, output)
	}
	b.testNetworks(t)
	t.Run("nodes", func(t *testing.T) { testTwoMachines(t, b) })

	b.run(t, "down")
	if members := b.members(t); len(members) > 0 {
		t.Errorf("processes %v still run", members)
	}
	if _, err := os.Lstat(b.folder); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%s is still there (%v)", b.folder, err)
	}
	unchanged(t, before, b.prefix)
}

func testTwoMachines(t *testing.T, b bench) {
	c := &cluster{folder: b.folder, programs: b.programs, began: time.Now()}
	if err := c.open(); err != nil {
		t.Fatal(err)
	}
	machines := map[string]*machine{}
	for _, name := range []string{control, "node1", "node2"} {
		found, err := c.machine(name)
		if err != nil {
			t.Fatal(err)
		}
		machines[name] = found
	}
	on := func(name string, arguments ...string) string {
		t.Helper()
		output, err := machines[name].run(everything, nil, arguments...)
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(output)
	}
	for name := range machines {
		if got := on(name, "hostname"); got != name {
			t.Errorf("host name of %s: %s", name, got)
		}
		if got := on(name, "sh", "-c", "echo "+name+" > /etc/cni/net.d/mine; cat /etc/cni/net.d/*"); got != name {
			t.Errorf("files of %s: %s", name, got)
		}
		// The machine's own values are not the kernel's, and a change does not reach the kernel.
		on(name, "sh", "-c", "echo 77 > /proc/sys/kernel/panic; test $(cat /proc/sys/kernel/panic) = 77")
	}
	if programs := on("node1", "sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' '\\n'"); strings.Count(programs, "sleep\n") != 1 {
		t.Errorf("node1 sees the processes:\n%s", programs)
	}
	if err := machines["node2"].start("probe", "probe", "serve", ":8080"); err != nil {
		t.Fatal(err)
	}
	for name, address := range map[string]string{"node1": ipv4.nodeAddress(1), control: ipv4.control} {
		eventually(t, func() error {
			answer, err := machines[name].run(everything, nil, "/opt/kubernetes/probe", "get", "http://"+ipv4.nodeAddress(2)+":8080/")
			if err == nil && answer != "node2 "+address+"\n" {
				err = errors.New("answer: " + answer)
			}
			return err
		})
	}
	// Its address is no address of this machine's network, which may lead to another server.
	output, _ := exec.Command(filepath.Join(b.programs, "probe"), "get", "http://"+ipv4.nodeAddress(2)+":8080/").CombinedOutput()
	if strings.Contains(string(output), "node2") {
		t.Errorf("reached from the machine's network: %s", output)
	}
}
