package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// outage is how long a part of the cluster is away.
const outage = 5 * time.Second

// testFaults takes parts of the cluster and of Leno away, one after the other, under load.
func (b bench) testFaults(t *testing.T, r *report) {
	r.run(t, "pods of both nodes load permissive and enforced ones", true, func(t *testing.T) {
		b.kubectl(t, "apply", "-f", "testdata/load.yaml")
		for _, namespace := range []string{"calm", "strict", "plain"} {
			b.kubectl(t, "wait", "-n", namespace, "pod", "--all", "--for=condition=Ready", "--timeout=120s")
		}
		b.underLoad(t, func() {})
	})
	r.run(t, "without the API server, no request fails", false, func(t *testing.T) {
		b.unharmed(t, func() {
			b.away(t, "control-apiserver", func() { time.Sleep(outage) })
			b.awaitServer(t)
		})
		b.stillFollows(t)
	})
	r.run(t, "without etcd, no request fails", false, func(t *testing.T) {
		b.unharmed(t, func() {
			b.away(t, "control-etcd", func() { time.Sleep(outage) })
			b.awaitServer(t)
		})
		b.stillFollows(t)
	})
	r.run(t, "the controller that leads is killed, and no request fails", false, func(t *testing.T) {
		b.unharmed(t, func() {
			b.killPod(t, "leno-system", b.leader(t), "leno-controller")
			b.stillFollows(t)
		})
	})
	r.run(t, "without controllers, no request fails", false, func(t *testing.T) {
		b.unharmed(t, func() {
			b.kubectl(t, "scale", "-n", "leno-system", "deployment/leno-controller", "--replicas=0")
			b.kubectl(t, "wait", "-n", "leno-system", "pod", "-l", "app.kubernetes.io/name=leno-controller", "--for=delete", "--timeout=120s")
			time.Sleep(outage)
			b.kubectl(t, "scale", "-n", "leno-system", "deployment/leno-controller", "--replicas=2")
			b.awaitRollout(t, "deployment/leno-controller")
			b.stillFollows(t)
		})
	})
	r.run(t, "the kubelet starts again, and no request fails", false, func(t *testing.T) {
		b.unharmed(t, func() {
			b.away(t, "node1-kubelet", func() {})
			b.kubectl(t, "wait", "node/node1", "--for=condition=Ready", "--timeout=120s")
			b.stillFollows(t)
		})
	})
	r.run(t, "the agents are replaced, and no request fails, not even a long one", false, func(t *testing.T) {
		// The long answers end, and with them the agents that drain.
		defer b.renewLoad(t)
		b.unharmed(t, func() { b.replaceAgents(t) })
	})
	r.run(t, "an agent is killed", false, func(t *testing.T) {
		b.underLoad(t, func() {
			b.killPod(t, "leno-system", b.names(t, "leno-agent", "node1")[0], "leno")
		})
		b.stillFollows(t)
	})
	r.run(t, "a node without a network comes back", false, b.testPartition)
	r.run(t, "the machine of a node ends, and starts again", false, b.testEndedNode)
	r.run(t, "the authority is removed, and replaced", false, b.testAuthority)
	r.run(t, "an agent whose token has ended does not join", false, b.testExpiredToken)
	r.run(t, "the clock of a node is wrong", false, b.testClock)
	r.run(t, "a broken policy among good ones stops nothing", false, b.testBroken)
	r.run(t, "a kind that is removed takes its policies along, and comes back", false, b.testRemovedKind)
	r.run(t, "the CNI plug-in is removed from a node, and comes back", false, b.testRemovedPlugin)
	r.run(t, "500 pods come and go, and no request fails", false, b.testCrowd)
	r.run(t, "without Leno, enforced pods stay closed until it comes back", false, b.testWithoutLeno)
	r.run(t, "of pods that come and go nothing is left", false, b.testChurn)
	r.run(t, "the pods under load end", false, func(t *testing.T) {
		b.kubectl(t, "delete", "namespace", "calm", "strict", "plain", "--timeout=120s")
	})
}

func (b bench) testBroken(t *testing.T) {
	broken := `{"apiVersion": "leno.dev/v1alpha1", "kind": "Policy", "metadata": {"name": "broken", "namespace": "plain"},
		"spec": {"functions": ["none"], "authorization": {"rules": [{"from": [{"addresses": ["no address"]}]}]}}}`
	b.unharmed(t, func() {
		if _, err := b.try(broken, "kubectl", "apply", "-f", "-"); err != nil {
			t.Fatal(err)
		}
		b.kubectl(t, "wait", "-n", "plain", "policy/broken", "--for=condition=Accepted=False", "--timeout=120s")
		b.stillFollows(t)
	})
	b.kubectl(t, "delete", "policy", "-n", "plain", "broken")
}

func (b bench) testRemovedKind(t *testing.T) {
	b.underLoad(t, func() {
		b.kubectl(t, "delete", "customresourcedefinition", "policies.leno.dev", "--timeout=120s")
		// No policy: all requests are allowed in a permissive namespace, and none in an enforced one.
		b.answers(t, "calm/near", "http://10.96.7.1/secrets", answered)
		b.answers(t, "strict/near", "http://10.96.7.2/", denied)
		b.kubectl(t, "apply", "--server-side", "-f", "../chart/definitions")
		b.kubectl(t, "wait", "customresourcedefinition/policies.leno.dev", "--for=condition=Established", "--timeout=120s")
		b.kubectl(t, "apply", "-f", "testdata/servers.yaml", "-f", "testdata/mesh-policy.yaml")
		b.answers(t, "calm/near", "http://10.96.7.1/secrets", denied)
		b.answers(t, "strict/near", "http://10.96.7.2/", answered)
	})
}

func (b bench) testRemovedPlugin(t *testing.T) {
	program := filepath.Join(b.folder, "node1/opt/cni/bin/leno-cni")
	if err := os.Remove(program); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error { _, err := os.Stat(program); return err })
	b.runPod(t, "strict/known", "near", "get", "http://10.96.7.2/")
	b.awaitPhase(t, "strict/known", "Succeeded")
	b.removePod(t, "strict/known")
}

// A footprint is what Leno keeps on a node for its pods.
type footprint struct {
	pins, files, networks int
	memory                int64
}

func (b bench) footprint(t *testing.T, node string) footprint {
	t.Helper()
	agents := b.processesOf(t, "leno-system", b.names(t, "leno-agent", node)[0], "leno")
	if len(agents) != 1 {
		t.Fatalf("the agent of %s has the processes %v", node, agents)
	}
	pins := b.run(t, "node", strings.TrimPrefix(node, "node"), "sh", "-c", "ls /sys/fs/bpf/leno/*/pods")
	found := footprint{pins: len(strings.Fields(pins)), memory: agents[0].memory()}
	folder := fmt.Sprintf("/proc/%d/fd", agents[0].pid)
	files, err := os.ReadDir(folder)
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		found.files++
		if target, _ := os.Readlink(filepath.Join(folder, file.Name())); strings.HasPrefix(target, "net:") {
			found.networks++
		}
	}
	return found
}

// testChurn starts and ends pods on both nodes.
func (b bench) testChurn(t *testing.T) {
	b.kubectl(t, "delete", "-f", "testdata/load.yaml", "--now", "--timeout=120s")
	nodes := []string{"node1", "node2"}
	before := map[string]footprint{}
	settled := func(check func(string, footprint) error) {
		eventually(t, func() error {
			for _, node := range nodes {
				if err := check(node, b.footprint(t, node)); err != nil {
					return err
				}
			}
			return nil
		})
	}
	settled(func(node string, now footprint) error {
		earlier := before[node]
		before[node] = now
		if now.files != earlier.files {
			return fmt.Errorf("the agent of %s has %d files after %d", node, now.files, earlier.files)
		}
		return nil
	})
	b.kubectl(t, "apply", "-f", "testdata/churn.yaml")
	for _, replicas := range []string{"16", "0", "16", "0"} {
		b.kubectl(t, "scale", "-n", "calm", "deployment/churn", "--replicas="+replicas)
		if replicas != "0" {
			b.kubectl(t, "rollout", "status", "-n", "calm", "deployment/churn", "--timeout=180s")
			continue
		}
		b.kubectl(t, "wait", "-n", "calm", "pod", "-l", "app=churn", "--for=delete", "--timeout=180s")
	}
	settled(func(node string, now footprint) error {
		if now.pins > before[node].pins || now.files > before[node].files || now.networks > before[node].networks {
			return fmt.Errorf("the agent of %s kept %+v before the pods, and %+v after them", node, before[node], now)
		}
		t.Logf("%s: %+v before, %+v after 32 pods on both nodes", node, before[node], now)
		return nil
	})
	b.kubectl(t, "delete", "-f", "testdata/churn.yaml", "--timeout=120s")
}

// leader is the controller that holds the Lease.
func (b bench) leader(t *testing.T) string {
	t.Helper()
	return b.kubectl(t, "get", "lease", "-n", "leno-system", "leno-controller", "-o", "jsonpath={.spec.holderIdentity}")
}

func (b bench) awaitServer(t *testing.T) {
	t.Helper()
	eventually(t, func() error {
		_, err := b.try("", "kubectl", "get", "--raw", "/readyz")
		return err
	})
}

// stillFollows changes a policy, and waits until both nodes follow.
func (b bench) stillFollows(t *testing.T) {
	t.Helper()
	for _, path := range []string{"/later", "/health"} {
		b.kubectl(t, "patch", "policy", "-n", "calm", "shop", "--type=json",
			`--patch=[{"op": "replace", "path": "/spec/authorization/rules/0/to/0/paths/0", "value": "`+path+`"}]`)
		b.answers(t, "calm/near", "http://10.96.7.1"+path, "status 403")
	}
	b.kubectl(t, "patch", "policy", "-n", "calm", "shop", "--type=json",
		`--patch=[{"op": "replace", "path": "/spec/authorization/rules/0/to/0/paths/0", "value": "/secrets"}]`)
	b.kubectl(t, "wait", "-n", "calm", "policy/shop", "--for=condition=Programmed", "--timeout=120s")
}
