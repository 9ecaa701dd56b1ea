package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
)

// testMesh starts Leno by the objects of its chart, enrols pods, and looks at their calls.
func (b bench) testMesh(t *testing.T, r *report) {
	programs := os.Getenv("LENO_PROGRAMS")
	if programs == "" {
		t.Log("LENO_PROGRAMS is not set: no tests of Leno on Kubernetes. `make test-kubernetes` builds and names them.")
		return
	}
	before := b.traces(t)
	r.run(t, "Helm and leno install render the same objects", false, b.testSameObjects)
	r.run(t, "Leno starts: two controllers, and an agent on each node", true, func(t *testing.T) { b.startMesh(t, programs) })
	r.run(t, "pods are captured live, and a policy denies a path", false, b.testCapture)
	r.run(t, "an enforced namespace lets only known callers in", false, b.testEnforced)
	r.run(t, "a new pod is captured before its first program starts", false, func(t *testing.T) {
		b.kubectl(t, "rollout", "restart", "-n", "lab", "deployment/stock")
		b.kubectl(t, "rollout", "status", "-n", "lab", "deployment/stock", "--timeout=120s")
		b.calls(t, "node1", "/", "200")
		b.calls(t, "node1", "/secrets", "403")
	})
	r.run(t, "pods keep their policies when the agents are replaced", false, func(t *testing.T) {
		b.kubectl(t, "rollout", "restart", "-n", "leno-system", "daemonset/leno-agent")
		b.awaitRollout(t, "daemonset/leno-agent")
		b.calls(t, "node1", "/", "200")
		b.calls(t, "node1", "/secrets", "403")
	})
	r.run(t, "pods keep their policies when the controllers are replaced", false, func(t *testing.T) {
		b.kubectl(t, "rollout", "restart", "-n", "leno-system", "deployment/leno-controller")
		b.awaitRollout(t, "deployment/leno-controller")
		b.calls(t, "node1", "/secrets", "403")
		// A change still reaches the nodes.
		b.kubectl(t, "delete", "-f", "testdata/mesh-policy.yaml")
		b.calls(t, "node1", "/", "403")
		b.kubectl(t, "apply", "-f", "testdata/mesh-policy.yaml")
		b.calls(t, "node1", "/", "200")
	})
	r.run(t, "without agents, enforced pods are closed, and new ones wait", false, b.testWithoutAgents)
	b.testAround(t, r)
	b.testFaults(t, r)
	b.testWorkloads(t, r)
	// These mostly wait, each for its own pods.
	var parts sync.WaitGroup
	parts.Go(func() {
		b.testProbes(t, r)
		b.testCases(t, r)
	})
	parts.Go(func() { b.testExamples(t, r, programs) })
	parts.Wait()
	b.testServices(t, r)
	r.run(t, "pods without the label are as before", false, func(t *testing.T) {
		b.kubectl(t, "label", "namespace", "lab", "leno.dev/mesh-", "leno.dev/mode-")
		b.calls(t, "node1", "/secrets", "200")
		b.calls(t, "node2", "/secrets", "200")
		b.kubectl(t, "delete", "namespace", "lab", "--timeout=120s")
	})
	r.run(t, "leno uninstall leaves nothing on nodes, in pods and in the cluster", false, func(t *testing.T) { b.testUninstall(t, before) })
}

// library is a line of ldd: a library and its file, or the loader.
var library = regexp.MustCompile(`(?m)(/\S+) \(0x`)

// loadImage makes an image of programs, with the libraries that they need, and gives it to all nodes.
func (b bench) loadImage(t *testing.T, name string, programs ...string) {
	t.Helper()
	files := map[string]string{}
	for _, program := range programs {
		stripped := filepath.Join(t.TempDir(), filepath.Base(program))
		if output, err := exec.Command("strip", "-o", stripped, program).CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, output)
		}
		files["/usr/bin/"+filepath.Base(program)] = stripped
		// It fails for a program that needs no library.
		libraries, _ := exec.Command("ldd", program).Output()
		for _, found := range library.FindAllStringSubmatch(string(libraries), -1) {
			files[found[1]] = found[1]
		}
	}
	file := filepath.Join(t.TempDir(), "image.tar")
	arguments := []string{"image", name, file}
	for target, source := range files {
		arguments = append(arguments, source+"="+target)
	}
	b.run(t, append(arguments, "--", "/usr/bin/"+filepath.Base(programs[0]))...)
	b.run(t, "load-image", file)
}

func (b bench) startMesh(t *testing.T, programs string) {
	b.loadImage(t, "local/leno:1", filepath.Join(programs, "leno"), filepath.Join(programs, "leno-controller"), os.Getenv("LENO_CNI"))
	b.install(t)
	b.kubectl(t, "apply", "-f", "testdata/mesh.yaml")
	b.kubectl(t, "rollout", "status", "-n", "lab", "deployment/stock", "--timeout=120s")
	b.kubectl(t, "rollout", "status", "-n", "lab", "daemonset/front", "--timeout=120s")
}

// install applies the objects of Leno, and waits until all of it is ready.
func (b bench) install(t *testing.T) {
	t.Helper()
	b.kubectl(t, "apply", "--server-side", "-f", objects(t))
	for _, name := range []string{"deployment/leno-controller", "daemonset/leno-agent", "daemonset/leno-cni"} {
		if output, err := b.try("", "kubectl", "rollout", "status", "-n", "leno-system", name, "--timeout=120s"); err != nil {
			logs, _ := b.try("", "kubectl", "logs", "-n", "leno-system", name, "--all-pods", "--tail=30")
			pods, _ := b.try("", "kubectl", "describe", "pods", "-n", "leno-system")
			t.Fatalf("%v\n%s\n%s\n%s", err, output, pods, logs)
		}
	}
}

// front is the name and the address of the caller on a node.
func (b bench) front(t *testing.T, node string) (string, string) {
	t.Helper()
	output := b.kubectl(t, "get", "pods", "-n", "lab", "-l", "app=front", "--field-selector=spec.nodeName="+node, "-o", "jsonpath={.items[0].metadata.name} {.items[0].status.podIP}")
	name, address, _ := strings.Cut(output, " ")
	return name, address
}

// calls waits until a call from a node has this status. An answer of the program has the address of
// its caller.
func (b bench) calls(t *testing.T, node, path, status string) {
	t.Helper()
	name, address := b.front(t, node)
	eventually(t, func() error {
		answer, err := b.try("", "kubectl", "exec", "-n", "lab", name, "--", "/probe", "get", "http://stock"+path)
		if status == "200" {
			if err == nil && !strings.HasSuffix(answer, " "+address+"\n") {
				err = fmt.Errorf("the program sees another caller than %s: %s", address, answer)
			}
			return err
		}
		if err == nil {
			err = errors.New(answer)
		}
		if !strings.Contains(err.Error(), "status "+status) {
			return fmt.Errorf("%s from %s: %w", path, node, err)
		}
		return nil
	})
}

func (b bench) testCapture(t *testing.T) {
	b.kubectl(t, "apply", "-f", "testdata/mesh-policy.yaml")
	b.calls(t, "node1", "/secrets", "200")
	b.kubectl(t, "label", "namespace", "lab", "leno.dev/mesh=enabled")
	b.calls(t, "node1", "/secrets", "403")
	b.calls(t, "node2", "/secrets", "403")
	b.calls(t, "node1", "/", "200")
	b.kubectl(t, "wait", "-n", "lab", "policy/stock", "--for=condition=Accepted", "--timeout=120s")
}

func (b bench) testEnforced(t *testing.T) {
	b.kubectl(t, "label", "namespace", "lab", "leno.dev/mode=enforced")
	// The callee does not know callers on other nodes yet.
	b.calls(t, "node2", "/", "403")
	b.calls(t, "node2", "/metrics", "200")
	b.calls(t, "node1", "/", "200")
	b.calls(t, "node1", "/secrets", "403")
	// The kubelet's probes still pass.
	b.kubectl(t, "wait", "-n", "lab", "pod", "-l", "app=stock", "--for=condition=Ready", "--timeout=60s")
}

// testWithoutAgents takes the agents from all nodes, and brings them back.
func (b bench) testWithoutAgents(t *testing.T) {
	b.kubectl(t, "patch", "-n", "leno-system", "daemonset/leno-agent", `--patch={"spec": {"template": {"spec": {"nodeSelector": {"none": "none"}}}}}`)
	b.kubectl(t, "wait", "-n", "leno-system", "pod", "-l", "app.kubernetes.io/name=leno-agent", "--for=delete", "--timeout=120s")
	name, _ := b.front(t, "node1")
	if answer, err := b.try("", "kubectl", "exec", "-n", "lab", name, "--", "/probe", "get", "http://stock/"); err == nil || strings.Contains(answer, "status") {
		t.Errorf("a call without an agent: %s", answer)
	}
	b.startPod(t, "lab", "late", "node1")
	b.awaitEvent(t, "lab", "late", "Leno's agent of this node is away, and the namespace lab is enforced")
	b.kubectl(t, "patch", "-n", "leno-system", "daemonset/leno-agent", "--type=json", `--patch=[{"op": "remove", "path": "/spec/template/spec/nodeSelector/none"}]`)
	b.awaitRollout(t, "daemonset/leno-agent")
	b.awaitPod(t, "lab", "late")
	b.calls(t, "node1", "/", "200")
	b.calls(t, "node1", "/secrets", "403")
}
