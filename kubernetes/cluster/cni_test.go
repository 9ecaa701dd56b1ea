package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

// A question of the CNI plug-in to the agent of its node.
type question struct {
	Command, ContainerID, Netns, Namespace, Pod, UID string
	Addresses                                        []string
}

// An agent stands in for Leno's agent on one node, and answers the plug-in.
type agent struct {
	listener net.Listener
	// answer decides about a pod.
	answer func(question) string
	lock   sync.Mutex
	seen   []question
}

// startAgent listens at the agent's socket of a node, which is among the files of this machine.
func (b bench) startAgent(t *testing.T, node string, answer func(question) string) *agent {
	t.Helper()
	socket := filepath.Join(b.folder, node, "run/leno/cni.sock")
	if err := os.MkdirAll(filepath.Dir(socket), 0o755); err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	a := &agent{listener: listener, answer: answer}
	go func() {
		for {
			connection, err := listener.Accept()
			if err != nil {
				return
			}
			go a.serve(connection)
		}
	}()
	return a
}

func (a *agent) serve(connection net.Conn) {
	defer connection.Close()
	line, err := bufio.NewReader(connection).ReadBytes('\n')
	var asked question
	if err == nil {
		err = json.Unmarshal(line, &asked)
	}
	if err != nil {
		// The plug-in then behaves as without an agent, and the test misses the question.
		return
	}
	a.lock.Lock()
	a.seen = append(a.seen, asked)
	a.lock.Unlock()
	fmt.Fprintln(connection, a.answer(asked))
}

// about are the questions about a pod, in their order.
func (a *agent) about(pod string) []question {
	a.lock.Lock()
	defer a.lock.Unlock()
	return slices.DeleteFunc(slices.Clone(a.seen), func(one question) bool { return one.Pod != pod })
}

func captured(question) string { return `{"result": "captured"}` }

// startPod makes a pod of the probe on a node, and its namespace.
func (b bench) startPod(t *testing.T, namespace, name, node string) {
	t.Helper()
	b.try("", "kubectl", "create", "namespace", namespace)
	overrides := fmt.Sprintf(`{"spec": {"nodeName": %q, "terminationGracePeriodSeconds": 1}}`, node)
	// The default service account of a new namespace appears a moment later.
	eventually(t, func() error {
		_, err := b.try("", "kubectl", "run", name, "-n", namespace, "--image=local/probe:1", "--image-pull-policy=Never",
			"--overrides="+overrides, "--", "serve", ":8080")
		return err
	})
}

func (b bench) awaitPod(t *testing.T, namespace, name string) {
	t.Helper()
	b.kubectl(t, "wait", "-n", namespace, "pod/"+name, "--for=condition=Ready", "--timeout=120s")
}

// awaitEvent waits until an event of a pod has a text.
func (b bench) awaitEvent(t *testing.T, namespace, name, text string) {
	t.Helper()
	eventually(t, func() error {
		events := b.kubectl(t, "get", "events", "-n", namespace, "--field-selector=involvedObject.name="+name, "-o", "jsonpath={.items[*].message}")
		if !strings.Contains(events, text) {
			return fmt.Errorf("events of %s do not have %q: %s", name, text, events)
		}
		return nil
	})
}

const network = "etc/cni/net.d/10-pods.conflist"

// testPlugin installs Leno's CNI plug-in on the nodes, starts pods with and without an agent, and
// removes the plug-in.
func (b bench) testPlugin(t *testing.T, r *report) {
	program := os.Getenv("LENO_CNI")
	if program == "" {
		t.Log("LENO_CNI is not set: no tests of the CNI plug-in. `make test-kubernetes` builds and names it.")
		return
	}
	before, err := os.ReadFile(filepath.Join(b.folder, "node1", network))
	if err != nil {
		t.Fatal(err)
	}
	r.run(t, "the CNI plug-in installs itself on both nodes", true, func(t *testing.T) { b.installPlugin(t, program) })
	r.run(t, "a pod starts once the agent has captured it", false, func(t *testing.T) {
		a := b.startAgent(t, "node1", captured)
		defer a.listener.Close()
		b.startPod(t, "shop", "cart", "node1")
		b.awaitPod(t, "shop", "cart")
		identity := b.kubectl(t, "get", "pod", "-n", "shop", "cart", "-o", "jsonpath={.metadata.uid} {.status.podIPs[*].ip}")
		asked := a.about("cart")
		if len(asked) != 1 {
			t.Fatalf("questions: %v", asked)
		}
		one := asked[0]
		if one.Command != "add" || one.Namespace != "shop" || one.UID+" "+strings.Join(one.Addresses, " ") != identity {
			t.Errorf("question %+v about the pod %s", one, identity)
		}
		b.run(t, "node", "1", "sh", "-c", "nsenter --net="+one.Netns+" ip -brief address | grep -F "+one.Addresses[0]+"/")
		b.kubectl(t, "delete", "pod", "-n", "shop", "cart")
		eventually(t, func() error {
			if asked := a.about("cart"); asked[len(asked)-1].Command != "del" {
				return fmt.Errorf("questions: %v", asked)
			}
			return nil
		})
	})
	r.run(t, "a pod that the agent refuses does not start, and an event has the reason", false, func(t *testing.T) {
		a := b.startAgent(t, "node1", func(question) string { return `{"result": "refused", "reason": "it has NET_ADMIN"}` })
		defer a.listener.Close()
		b.startPod(t, "shop", "admin", "node1")
		b.awaitEvent(t, "shop", "admin", "Leno refuses the pod shop/admin; it has NET_ADMIN")
		b.kubectl(t, "delete", "pod", "-n", "shop", "admin")
	})
	r.run(t, "without an agent, pods of enforced namespaces wait, and others start", false, b.testAbsentAgent)
	r.run(t, "the CNI plug-in comes back when another program writes its file", false, func(t *testing.T) {
		if err := os.WriteFile(filepath.Join(b.folder, "node1", network), before, 0o644); err != nil {
			t.Fatal(err)
		}
		b.awaitNetwork(t, func(text string) bool { return strings.Contains(text, `"leno-cni"`) })
	})
	r.run(t, "the CNI plug-in leaves nothing on a node", false, func(t *testing.T) { b.removePlugin(t, string(before)) })
}

// awaitNetwork waits until the network configurations of both nodes are as wanted.
func (b bench) awaitNetwork(t *testing.T, wanted func(string) bool) {
	t.Helper()
	for _, node := range []string{"node1", "node2"} {
		eventually(t, func() error {
			text, err := os.ReadFile(filepath.Join(b.folder, node, network))
			if err == nil && !wanted(string(text)) {
				err = fmt.Errorf("%s of %s: %s", network, node, text)
			}
			return err
		})
	}
}

func (b bench) installPlugin(t *testing.T, program string) {
	file := filepath.Join(t.TempDir(), "leno.tar")
	b.run(t, "image", "local/leno:1", file, program+"=/usr/bin/leno-cni", "--", "/usr/bin/leno-cni")
	b.run(t, "load-image", file)
	b.kubectl(t, "create", "namespace", "leno-system")
	b.kubectl(t, "apply", "-f", objects(t), "-l", "app.kubernetes.io/name=leno-cni")
	b.kubectl(t, "rollout", "status", "-n", "leno-system", "daemonset/leno-cni", "--timeout=120s")
	b.awaitNetwork(t, func(text string) bool { return strings.Contains(text, `"leno-cni"`) })
}

func (b bench) testAbsentAgent(t *testing.T) {
	list := filepath.Join(b.folder, "node1/var/lib/leno/enforced")
	if err := os.MkdirAll(filepath.Dir(list), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(list, []byte("shop\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	b.startPod(t, "shop", "stock", "node1")
	b.startPod(t, "blog", "post", "node1")
	b.startPod(t, "kube-system", "tool", "node1")
	b.awaitPod(t, "blog", "post")
	b.awaitPod(t, "kube-system", "tool")
	b.awaitEvent(t, "shop", "stock", "Leno's agent of this node is away, and the namespace shop is enforced")
	if ready := b.kubectl(t, "get", "node", "node1", "-o", `jsonpath={.status.conditions[?(@.type=="Ready")].status}`); ready != "True" {
		t.Errorf("node1 is ready: %s", ready)
	}
	a := b.startAgent(t, "node1", captured)
	b.awaitPod(t, "shop", "stock")
	a.listener.Close()
	// Removal does not wait for an agent.
	for _, pod := range [][2]string{{"shop", "stock"}, {"blog", "post"}, {"kube-system", "tool"}} {
		b.kubectl(t, "delete", "pod", "-n", pod[0], pod[1], "--timeout=120s")
	}
}

func (b bench) removePlugin(t *testing.T, before string) {
	b.kubectl(t, "patch", "-n", "leno-system", "daemonset/leno-cni", "--type=json",
		`--patch=[{"op": "add", "path": "/spec/template/spec/containers/0/args/-", "value": "--remove"}]`)
	b.kubectl(t, "rollout", "status", "-n", "leno-system", "daemonset/leno-cni", "--timeout=120s")
	b.awaitNetwork(t, func(text string) bool { return strings.Contains(text, `"leno-cni"`) })
	b.kubectl(t, "delete", "-n", "leno-system", "daemonset/leno-cni", "--cascade=foreground", "--timeout=120s")
	b.awaitNetwork(t, func(text string) bool { return !strings.Contains(text, "leno-cni") })
	text, err := os.ReadFile(filepath.Join(b.folder, "node1", network))
	if err != nil || string(text) != before {
		t.Errorf("%s was\n%s\nand is\n%s (%v)", network, before, text, err)
	}
	for _, folder := range []string{"etc/cni/net.d", "opt/cni/bin"} {
		for _, node := range []string{"node1", "node2"} {
			entries, err := os.ReadDir(filepath.Join(b.folder, node, folder))
			if err != nil {
				t.Fatal(err)
			}
			for _, entry := range entries {
				if strings.Contains(entry.Name(), "leno") {
					t.Errorf("%s is left in %s of %s", entry.Name(), folder, node)
				}
			}
		}
	}
	b.kubectl(t, "delete", "namespace", "shop", "blog", "--timeout=120s")
	b.startPod(t, "default", "after", "node1")
	b.awaitPod(t, "default", "after")
}
