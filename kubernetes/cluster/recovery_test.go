package main

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// isReadyNode is the condition of a node for `kubectl wait`.
const isReadyNode = `--for=jsonpath={.status.conditions[?(@.type=="Ready")].status}=`

// unharmedOnFirst does something while the second node is lost. No request of the first one may fail.
func (b bench) unharmedOnFirst(t *testing.T, do func()) {
	t.Helper()
	for what, number := range b.underLoad(t, do) {
		if !strings.Contains(what, "load2") {
			t.Errorf("%s: %d failed on the node that was there\n%s", what, number, b.failures(what))
		}
	}
}

// followsOnSecond waits until the agent of the second node follows changes.
func (b bench) followsOnSecond(t *testing.T) {
	t.Helper()
	b.kubectl(t, "label", "pod", "-n", "plain", "distant", "leno.dev/mesh=enabled", "leno.dev/mode=enforced")
	distant := "http://" + b.address(t, "plain/distant") + ":18080/"
	b.answers(t, "plain/attacker", distant, denied)
	b.kubectl(t, "label", "pod", "-n", "plain", "distant", "leno.dev/mesh-", "leno.dev/mode-")
	b.answers(t, "plain/attacker", distant, "distant ")
}

// testPartition takes the network of the second node away.
func (b bench) testPartition(t *testing.T) {
	b.unharmedOnFirst(t, func() {
		b.run(t, "run", "ip", "link", "set", "node2", "down")
		defer b.run(t, "run", "ip", "link", "set", "node2", "up")
		b.kubectl(t, "wait", "node/node2", isReadyNode+"Unknown", "--timeout=120s")
	})
	b.kubectl(t, "wait", "node/node2", isReadyNode+"True", "--timeout=120s")
	b.stillFollows(t)
	b.followsOnSecond(t)
}

// testEndedNode ends all processes of the second node at once, and starts it again.
func (b bench) testEndedNode(t *testing.T) {
	b.unharmedOnFirst(t, func() {
		lost, err := readProcess(filepath.Join(b.folder, "process/node2"))
		if err == nil {
			err = lost.kill()
		}
		if err != nil {
			t.Fatal(err)
		}
		b.kubectl(t, "wait", "node/node2", isReadyNode+"Unknown", "--timeout=120s")
		b.run(t, "restart", "2")
		b.kubectl(t, "wait", "node/node2", isReadyNode+"True", "--timeout=120s")
		for _, pod := range []string{"calm/load2", "strict/load2", "plain/distant"} {
			namespace, name, _ := strings.Cut(pod, "/")
			b.awaitPod(t, namespace, name)
		}
		b.awaitRollout(t, "daemonset/leno-agent")
	})
	b.stillFollows(t)
	b.followsOnSecond(t)
}

// testCrowd starts and ends pods on nodes that only seem to be, many more than a machine has.
func (b bench) testCrowd(t *testing.T) {
	controllers := map[string]int64{}
	for _, name := range b.names(t, "leno-controller", "") {
		controllers[name] = b.processesOf(t, "leno-system", name, "leno-controller")[0].memory()
	}
	b.run(t, "fake-nodes", "5")
	b.kubectl(t, "apply", "-f", "testdata/crowd.yaml")
	began := time.Now()
	b.unharmed(t, func() {
		for _, phases := range []string{strings.Repeat("Running ", 500), ""} {
			b.kubectl(t, "scale", "-n", "calm", "deployment/crowd", fmt.Sprintf("--replicas=%d", strings.Count(phases, " ")))
			// One request for all: `kubectl wait` makes one for each pod.
			eventually(t, func() error {
				now := b.kubectl(t, "get", "pods", "-n", "calm", "-l", "app=crowd", "-o", "jsonpath={range .items[*]}{.status.phase} {end}")
				if now != phases {
					return fmt.Errorf("the pods are %s", now)
				}
				return nil
			})
		}
		t.Logf("500 pods came and went in %v", time.Since(began).Round(time.Second))
	})
	b.stillFollows(t)
	for name, memory := range controllers {
		now := b.processesOf(t, "leno-system", name, "leno-controller")[0].memory()
		t.Logf("%s: %d MiB before, %d MiB after", name, memory>>20, now>>20)
		if now > memory+64<<20 {
			t.Errorf("%s has grown from %d to %d MiB", name, memory>>20, now>>20)
		}
	}
	b.kubectl(t, "delete", "-f", "testdata/crowd.yaml", "--timeout=120s")
	for i := 1; i <= 5; i++ {
		b.kubectl(t, "delete", "node", fmt.Sprintf("fake%d", i))
	}
}

// testWithoutLeno deletes the namespace of Leno, and installs it anew.
func (b bench) testWithoutLeno(t *testing.T) {
	closed := func() {
		t.Helper()
		if output, err := b.probe("strict/near", "get", "http://10.96.7.2/"); err == nil {
			t.Errorf("a call of an enforced pod without Leno: %s", output)
		}
	}
	b.kubectl(t, "delete", "namespace", "leno-system", "--timeout=180s")
	b.answers(t, "calm/near", "http://10.96.7.1/secrets", answered)
	closed()
	b.runPod(t, "strict/known", "near", "get", "http://10.96.7.2/")
	b.awaitEvent(t, "strict", "known", "Leno's agent of this node is away, and the namespace strict is enforced")
	b.kubectl(t, "label", "namespace", "strict", "leno.dev/mesh-", "leno.dev/mode-")
	// No one is there to release the pods.
	closed()
	b.install(t)
	b.answers(t, "strict/thief", "http://10.96.7.2/secrets", answered)
	// It has started, perhaps before the agent released its callee.
	b.kubectl(t, "wait", "-n", "strict", "pod/known", "--for=jsonpath={.status.containerStatuses[0].state.terminated.exitCode}", "--timeout=120s")
	b.removePod(t, "strict/known")
	b.kubectl(t, "label", "namespace", "strict", "leno.dev/mesh=enabled", "leno.dev/mode=enforced")
	b.answers(t, "strict/thief", "http://10.96.7.2/", denied)
	b.renewLoad(t)
	b.underLoad(t, func() { b.stillFollows(t) })
}
