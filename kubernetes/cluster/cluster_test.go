package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// limit of a wait for a condition.
const limit = 2 * time.Minute

// A bench is a cluster under test, which is used as its users do: by the program.
type bench struct {
	programs, folder, prefix string
}

// try runs a command of the cluster.
func (b bench) try(input string, arguments ...string) (string, error) {
	cmd := exec.Command(filepath.Join(b.programs, "cluster"), append([]string{"--directory", b.folder}, arguments...)...)
	cmd.Stdin = strings.NewReader(input)
	output, err := cmd.CombinedOutput()
	if err != nil {
		return string(output), fmt.Errorf("cluster %s: %w\n%s", strings.Join(arguments, " "), err, output)
	}
	return string(output), nil
}

func (b bench) run(t *testing.T, arguments ...string) string {
	t.Helper()
	output, err := b.try("", arguments...)
	if err != nil {
		t.Fatal(err)
	}
	return output
}

func (b bench) kubectl(t *testing.T, arguments ...string) string {
	t.Helper()
	return b.run(t, append([]string{"kubectl"}, arguments...)...)
}

// eventually repeats a check until it succeeds.
func eventually(t *testing.T, check func() error) {
	t.Helper()
	for deadline := time.Now().Add(limit); ; time.Sleep(100 * time.Millisecond) {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
}

// members are the processes of the cluster: all that are in one of its control groups, and are not
// only waiting for this machine's first process to take notice of their end.
func (b bench) members(t *testing.T) []int {
	t.Helper()
	var found []int
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		var pid int
		if _, err := fmt.Sscanf(entry.Name(), "%d", &pid); err != nil {
			continue
		}
		groups, err := os.ReadFile(filepath.Join("/proc", entry.Name(), "cgroup"))
		state, _, _ := statusOf(pid)
		if err == nil && state != 'Z' && strings.Contains(string(groups), ":/"+b.prefix+"/") {
			found = append(found, pid)
		}
	}
	return found
}

// pods maps the node of each probe to its name and address.
func (b bench) pods(t *testing.T) map[string][2]string {
	t.Helper()
	var list struct {
		Items []struct {
			Metadata struct{ Name string }
			Spec     struct{ NodeName string }
			Status   struct{ PodIP string }
		}
	}
	output := b.kubectl(t, "get", "pods", "-n", "probes", "-o", "json")
	if err := json.Unmarshal([]byte(output), &list); err != nil {
		t.Fatal(err)
	}
	found := map[string][2]string{}
	for _, pod := range list.Items {
		found[pod.Spec.NodeName] = [2]string{pod.Metadata.Name, pod.Status.PodIP}
	}
	return found
}

// in runs the probe in the pod on a node.
func (b bench) in(t *testing.T, node string, arguments ...string) string {
	t.Helper()
	pod := b.pods(t)[node][0]
	return b.kubectl(t, append([]string{"exec", "-n", "probes", pod, "--", "/probe"}, arguments...)...)
}

func TestCluster(t *testing.T) {
	programs := os.Getenv("PROGRAMS")
	if programs == "" {
		t.Skip("PROGRAMS is not set: no tests on a cluster. `make test-kubernetes` runs them.")
	}
	b := bench{programs, filepath.Join(t.TempDir(), "first"), "leno-test-first"}
	second := bench{programs, filepath.Join(t.TempDir(), "second"), "leno-test-second"}
	before := machineState(t, "leno-test-")
	t.Cleanup(func() {
		for _, one := range []bench{b, second} {
			if output, err := one.try("", "down"); err != nil {
				t.Errorf("%v\n%s", err, output)
			}
		}
	})
	r := &report{began: time.Now()}
	if file := os.Getenv("REPORT"); file != "" {
		t.Cleanup(func() {
			if err := r.write(file, programs); err != nil {
				t.Error(err)
			}
		})
	}

	r.run(t, "two nodes start", true, func(t *testing.T) {
		t.Log(b.run(t, "up", "--nodes", "2", "--families", "dual", "--prefix", b.prefix))
		t.Log(b.run(t, "status"))
		file := strings.TrimSpace(b.run(t, "kubeconfig"))
		if _, err := os.Stat(file); err != nil {
			t.Fatal(err)
		}
	})
	r.run(t, "a second start changes nothing, one of another kind is refused", false, b.testRepeatedStart)
	r.run(t, "no process is in the network of the machine", false, b.testNetworks)
	r.run(t, "settings of the kernel stay as they are", false, func(t *testing.T) {
		for name := range tunables {
			if now := machineState(t, "leno-test-")[name]; now != before[name] {
				t.Errorf("%s was %q and is %q", name, before[name], now)
			}
		}
	})
	r.run(t, "an image of a local program runs on both nodes", true, b.testImage)
	r.run(t, "pods on different nodes talk, and see each other's address", false, func(t *testing.T) {
		for _, ends := range [][2]string{{"node1", "node2"}, {"node2", "node1"}} {
			from, to := b.pods(t)[ends[0]], b.pods(t)[ends[1]]
			if answer := b.in(t, ends[0], "get", "http://"+to[1]+":8080/"); answer != to[0]+" "+from[1]+"\n" {
				t.Errorf("%s -> %s: %q", ends[0], ends[1], answer)
			}
		}
	})
	r.run(t, "a Service has both pods behind it", false, func(t *testing.T) {
		address := b.kubectl(t, "get", "service", "-n", "probes", "probe", "-o", "jsonpath={.spec.clusterIP}")
		b.answeredByBoth(t, func() string { return b.in(t, "node1", "get", "http://"+address+"/") })
	})
	r.run(t, "names are resolved: a Service, its pods, and from its own namespace", false, b.testNames)
	r.run(t, "Services are reachable from the control plane's network", false, func(t *testing.T) {
		address := b.kubectl(t, "get", "service", "-n", "probes", "probe", "-o", "jsonpath={.spec.clusterIP}")
		b.answeredByBoth(t, func() string { return b.run(t, "run", filepath.Join(programs, "probe"), "get", "http://"+address+"/") })
	})
	r.run(t, "kubectl logs, exec and port-forward", false, b.testKubectl)
	r.run(t, "a token names its pod and node", false, b.testToken)
	r.run(t, "each node has its own files, processes and name", false, b.testNode)
	r.run(t, "a NetworkPolicy has no effect: the network of this cluster knows none", false, func(t *testing.T) {
		b.kubectl(t, "apply", "-f", "testdata/deny.yaml")
		defer b.kubectl(t, "delete", "-f", "testdata/deny.yaml")
		to := b.pods(t)["node2"]
		for range 10 {
			b.in(t, "node1", "get", "http://"+to[1]+":8080/")
		}
	})
	b.testPlugin(t, r)
	b.testMesh(t, r)
	r.run(t, "a second cluster runs beside the first one", false, func(t *testing.T) { testBeside(t, b, second) })
	r.run(t, "a component that fails is named, with the end of its log", false, func(t *testing.T) { testFailure(t, second) })
	r.run(t, "a process that ended is reported, and a new start mends the cluster", false, b.testMend)
	r.run(t, "a lost node is not ready", false, func(t *testing.T) {
		lost, err := readProcess(filepath.Join(b.folder, "process/node2"))
		if err != nil {
			t.Fatal(err)
		}
		if err := lost.kill(); err != nil {
			t.Fatal(err)
		}
		eventually(t, func() error {
			status := b.kubectl(t, "get", "node", "node2", "-o", `jsonpath={.status.conditions[?(@.type=="Ready")].status}`)
			if status != "Unknown" {
				return fmt.Errorf("node2 is ready: %s", status)
			}
			return nil
		})
	})
	r.run(t, "nothing is left at the end", false, func(t *testing.T) {
		b.run(t, "down")
		if members := b.members(t); len(members) > 0 {
			t.Errorf("processes %v still run", members)
		}
		if _, err := os.Lstat(b.folder); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is still there (%v)", b.folder, err)
		}
		unchanged(t, before, "leno-test-")
		b.run(t, "down")
	})
}

func (b bench) testRepeatedStart(t *testing.T) {
	members := b.members(t)
	if output := b.run(t, "up", "--nodes", "2", "--families", "dual", "--prefix", b.prefix); !strings.Contains(output, "up already") {
		t.Errorf("second start: %s", output)
	}
	output, err := b.try("", "up", "--nodes", "1", "--prefix", b.prefix)
	if err == nil || !strings.Contains(output, "runs with 2 nodes, families dual, not 1 node") {
		t.Errorf("start with another number of nodes: %v", err)
	}
	for _, pid := range members {
		// Programs that probes and containerd start for a moment may have ended.
		name, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
		if len(name) == 0 {
			t.Logf("process %d has ended", pid)
		}
	}
	b.run(t, "status")
}

func (b bench) testNetworks(t *testing.T) {
	own, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	names, found, err := (&cluster{folder: b.folder}).processes()
	if err != nil {
		t.Fatal(err)
	}
	pids := b.members(t)
	for _, name := range names {
		pids = append(pids, found[name].pid)
	}
	if len(pids) < len(names)+2 {
		t.Fatalf("only %d processes", len(pids))
	}
	for _, pid := range pids {
		network, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", pid))
		if err == nil && network == own {
			t.Errorf("process %d is in the network of the machine", pid)
		}
	}
}

func (b bench) testImage(t *testing.T) {
	program := filepath.Join(b.programs, "probe")
	build := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-o", program, "./probe")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if output, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, output)
	}
	var made [2][]byte
	for i := range made {
		file := filepath.Join(t.TempDir(), "probe.tar")
		b.run(t, "image", "local/probe:1", file, program+"=/probe", "--", "/probe")
		var err error
		if made[i], err = os.ReadFile(file); err != nil {
			t.Fatal(err)
		}
		if i == 1 {
			b.run(t, "load-image", file)
		}
	}
	if !bytes.Equal(made[0], made[1]) {
		t.Error("two images of the same program differ")
	}
	b.kubectl(t, "apply", "-f", "testdata/probe.yaml")
	b.kubectl(t, "rollout", "status", "-n", "probes", "daemonset/probe", "--timeout=120s")
	if pods := b.pods(t); len(pods) != 2 {
		t.Fatalf("pods: %v", pods)
	}
}

// answeredByBoth repeats a request until both pods have answered.
func (b bench) answeredByBoth(t *testing.T, request func() string) {
	t.Helper()
	missing := map[string]bool{}
	for _, pod := range b.pods(t) {
		missing[pod[0]] = true
	}
	eventually(t, func() error {
		name, _, _ := strings.Cut(request(), " ")
		delete(missing, name)
		if len(missing) > 0 {
			return fmt.Errorf("no answer from %v", missing)
		}
		return nil
	})
}

func (b bench) testNames(t *testing.T) {
	address := b.kubectl(t, "get", "service", "-n", "probes", "probe", "-o", "jsonpath={.spec.clusterIP}")
	for _, name := range []string{"probe", "probe.probes", "probe.probes.svc.cluster.local"} {
		for _, node := range []string{"node1", "node2"} {
			if answer := strings.TrimSpace(b.in(t, node, "resolve", name)); answer != address {
				t.Errorf("%s on %s: %q, not %s", name, node, answer, address)
			}
		}
	}
	var wanted []string
	for _, pod := range b.pods(t) {
		wanted = append(wanted, pod[1])
	}
	slices.Sort(wanted)
	eventually(t, func() error {
		answer := strings.Fields(b.in(t, "node1", "resolve", "each"))
		slices.Sort(answer)
		if !slices.Equal(answer, wanted) {
			return fmt.Errorf("each: %v, not %v", answer, wanted)
		}
		return nil
	})
	b.answeredByBoth(t, func() string { return b.in(t, "node2", "get", "http://probe/") })
}

func (b bench) testKubectl(t *testing.T) {
	pod := b.pods(t)["node2"]
	b.in(t, "node1", "get", "http://"+pod[1]+":8080/")
	logs := b.kubectl(t, "logs", "-n", "probes", pod[0])
	if !strings.Contains(logs, pod[0]+" serves :8080") || !strings.Contains(logs, "request from "+b.pods(t)["node1"][1]) {
		t.Errorf("logs: %s", logs)
	}
	output, err := b.try("", "kubectl", "exec", "-n", "probes", pod[0], "--", "/probe", "nonsense")
	var ended *exec.ExitError
	if !errors.As(err, &ended) || ended.ExitCode() != 1 || !strings.Contains(output, "usage: probe") {
		t.Errorf("exec of a program that fails: %v", err)
	}

	forward := exec.Command(filepath.Join(b.programs, "cluster"), "--directory", b.folder, "kubectl", "port-forward", "-n", "probes", pod[0], "18080:8080")
	if err := forward.Start(); err != nil {
		t.Fatal(err)
	}
	defer forward.Wait()
	defer forward.Process.Kill()
	eventually(t, func() error {
		answer, err := b.try("", "run", filepath.Join(b.programs, "probe"), "get", "http://127.0.0.1:18080/")
		if err == nil && !strings.HasPrefix(answer, pod[0]) {
			err = fmt.Errorf("port-forward: %q", answer)
		}
		return err
	})
}

func (b bench) testToken(t *testing.T) {
	pod := b.pods(t)["node2"][0]
	token := strings.TrimSpace(b.kubectl(t, "create", "token", "-n", "probes", "default", "--bound-object-kind=Pod", "--bound-object-name="+pod))
	review := fmt.Sprintf(`{"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": %q}}`, token)
	output, err := b.try(review, "kubectl", "create", "-f", "-", "-o", "json")
	if err != nil {
		t.Fatal(err)
	}
	var answer struct {
		Status struct {
			Authenticated bool
			User          struct {
				Username string
				Extra    map[string][]string
			}
		}
	}
	if err := json.Unmarshal([]byte(output), &answer); err != nil {
		t.Fatal(err)
	}
	user := answer.Status.User
	if !answer.Status.Authenticated || user.Username != "system:serviceaccount:probes:default" ||
		!slices.Equal(user.Extra["authentication.kubernetes.io/pod-name"], []string{pod}) ||
		!slices.Equal(user.Extra["authentication.kubernetes.io/node-name"], []string{"node2"}) {
		t.Errorf("review of the token: %s", output)
	}
}

func (b bench) testNode(t *testing.T) {
	for _, number := range []string{"1", "2"} {
		if name := strings.TrimSpace(b.run(t, "node", number, "hostname")); name != "node"+number {
			t.Errorf("host name %q", name)
		}
		b.run(t, "node", number, "sh", "-c", "test -S /run/containerd/containerd.sock && test -f /etc/cni/net.d/10-pods.conflist && test -x /opt/cni/bin/bridge")
		b.run(t, "node", number, "sh", "-c", "echo mine > /opt/cni/bin/of-node"+number)
		b.run(t, "node", number, "mkdir", "/sys/fs/bpf/of-node"+number)
		programs := b.run(t, "node", number, "sh", "-c", "cat /proc/[0-9]*/comm")
		if strings.Count(programs, "kubelet\n") != 1 || strings.Contains(programs, "kube-apiserver") {
			t.Errorf("processes of node %s: %s", number, programs)
		}
	}
	if files := b.run(t, "node", "2", "ls", "/opt/cni/bin"); strings.Contains(files, "of-node1") || !strings.Contains(files, "of-node2") {
		t.Errorf("files of node 2: %s", files)
	}
	if pins := b.run(t, "node", "2", "ls", "/sys/fs/bpf"); strings.Contains(pins, "of-node1") || !strings.Contains(pins, "of-node2") {
		t.Errorf("eBPF objects of node 2: %s", pins)
	}
	_, err := b.try("", "node", "2", "sh", "-c", "exit 7")
	var ended *exec.ExitError
	if !errors.As(err, &ended) || ended.ExitCode() != 7 {
		t.Errorf("exit status: %v", err)
	}
	if output, err := b.try("", "node", "3", "true"); err == nil || !strings.Contains(output, "node3: no such machine") {
		t.Errorf("a node that is not there: %s", output)
	}
}

// testBeside runs a control plane with fake nodes beside the first cluster.
func testBeside(t *testing.T, first, second bench) {
	defer second.try("", "down")
	// A cluster's control groups are no other cluster's.
	if output, err := second.try("", "up", "--control-only", "--prefix", first.prefix); err == nil || !strings.Contains(output, "choose another --prefix") {
		t.Errorf("a prefix in use: %s", output)
	}
	t.Log(second.run(t, "up", "--control-only", "--prefix", second.prefix))
	if namespaces := second.kubectl(t, "get", "namespaces"); strings.Contains(namespaces, "probes") {
		t.Errorf("namespaces of the second cluster: %s", namespaces)
	}
	t.Log(second.run(t, "fake-nodes", "20"))
	second.kubectl(t, "apply", "-f", "testdata/many.yaml")
	second.kubectl(t, "rollout", "status", "deployment/many", "--timeout=120s")
	second.run(t, "status")
	second.run(t, "down")
	if members := second.members(t); len(members) > 0 {
		t.Errorf("processes %v still run", members)
	}
	first.run(t, "status")
}

// testFailure starts a cluster whose data store fails.
func testFailure(t *testing.T, b bench) {
	programs := t.TempDir()
	entries, err := os.ReadDir(b.programs)
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		if err := os.Symlink(filepath.Join(b.programs, entry.Name()), filepath.Join(programs, entry.Name())); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"cluster", "etcd"} {
		if err := os.Remove(filepath.Join(programs, name)); err != nil {
			t.Fatal(err)
		}
	}
	// The program looks for the others beside itself.
	self, err := os.ReadFile(filepath.Join(b.programs, "cluster"))
	if err == nil {
		err = os.WriteFile(filepath.Join(programs, "cluster"), self, 0o755)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(programs, "etcd"), []byte("#!/bin/sh\necho the disk is full\nexit 3\n"), 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	broken := bench{programs, b.folder, b.prefix}
	output, err := broken.try("", "up", "--control-only", "--prefix", b.prefix)
	if err == nil || !strings.Contains(output, "control-etcd has ended") || !strings.Contains(output, "the disk is full") {
		t.Errorf("start with a data store that fails: %v\n%s", err, output)
	}
	if output, err := broken.try("", "kubectl", "get", "nodes"); err == nil || !strings.Contains(output, "did not start to the end") {
		t.Errorf("kubectl then: %s", output)
	}
	broken.run(t, "down")
	if members := broken.members(t); len(members) > 0 {
		t.Errorf("processes %v still run", members)
	}
}

func (b bench) testMend(t *testing.T) {
	proxy, err := readProcess(filepath.Join(b.folder, "process/node1-proxy"))
	if err != nil {
		t.Fatal(err)
	}
	if err := proxy.kill(); err != nil {
		t.Fatal(err)
	}
	if !proxy.gone(limit) {
		t.Fatal("kube-proxy does not end")
	}
	if output, err := b.try("", "status"); err == nil || !strings.Contains(output, "node1-proxy") || !strings.Contains(output, "has ended") {
		t.Errorf("status: %s", output)
	}
	t.Log(b.run(t, "up", "--nodes", "2", "--families", "dual", "--prefix", b.prefix))
	b.run(t, "status")
	b.kubectl(t, "wait", "--for=condition=Ready", "nodes", "--all", "--timeout=120s")
}
