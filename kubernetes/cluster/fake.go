package main

import (
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"strconv"
	"strings"
)

const maxFakeNodes = 1000

// stages are the files of kwok's module that say how fake nodes and pods behave: at once as wished.
var stages = []string{
	"node/fast/node-initialize.yaml", "node/heartbeat-with-lease/node-heartbeat-with-lease.yaml",
	"pod/fast/pod-ready.yaml", "pod/fast/pod-complete.yaml", "pod/fast/pod-delete.yaml",
}

// fakeNodes adds nodes that kwok plays. Pods that are scheduled to them seem to run, and have no
// processes.
func (c *cluster) fakeNodes(number string) error {
	wanted, err := strconv.Atoi(number)
	if err != nil || wanted < 1 || wanted > maxFakeNodes {
		return mistake(fmt.Sprintf("fake-nodes %s: it must be 1 to %d", number, maxFakeNodes))
	}
	if err := c.running(); err != nil {
		return err
	}
	head, err := c.machine(control)
	if err != nil {
		return err
	}
	if err := head.startKwok(); err != nil {
		return err
	}
	client, err := c.api()
	if err != nil {
		return err
	}
	resources := map[string]string{"cpu": "64", "memory": "256Gi", "pods": "500"}
	for i := 1; i <= wanted; i++ {
		name := fmt.Sprintf("fake%d", i)
		err := client.do(http.MethodPost, "/api/v1/nodes", map[string]any{
			"apiVersion": "v1", "kind": "Node",
			"metadata": map[string]any{
				"name":        name,
				"annotations": map[string]string{"kwok.x-k8s.io/node": "fake"},
				"labels": map[string]string{
					"kubernetes.io/hostname": name, "type": "fake", "topology.kubernetes.io/zone": fmt.Sprintf("zone-%d", i%3),
				},
			},
			"spec":   map[string]any{"taints": c.fakeTaints()},
			"status": map[string]any{"allocatable": resources, "capacity": resources},
		}, nil)
		// One that exists is one of an earlier call.
		if err != nil && !strings.Contains(err.Error(), "409 Conflict") {
			return err
		}
	}
	err = c.await("the fake nodes are not ready", control+"-kwok", waitLimit, func() error {
		ready, err := client.readiness()
		for i := 1; i <= wanted && err == nil; i++ {
			name := fmt.Sprintf("fake%d", i)
			if reason, known := ready[name]; !known || reason != "" {
				err = fmt.Errorf("%s: %s", name, reason)
			}
		}
		return err
	})
	if err == nil {
		c.say("%s", count(wanted, "fake node is ready", "fake nodes are ready"))
	}
	return err
}

// fakeTaints keep pods of a cluster with real nodes away, unless they tolerate it.
func (c *cluster) fakeTaints() []map[string]string {
	if c.ControlOnly {
		return nil
	}
	return []map[string]string{{"key": "kwok.x-k8s.io/node", "value": "fake", "effect": "NoSchedule"}}
}

// startKwok starts kwok, unless it runs.
func (m *machine) startKwok() error {
	running, err := readProcess(m.processFile(m.name + "-kwok"))
	if err == nil && running.alive() {
		return nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if _, err := os.Stat(m.program("kwok")); err != nil {
		return fmt.Errorf("%s is not built; type: make kubernetes", m.program("kwok"))
	}
	administrator, err := os.ReadFile(m.kubeconfig())
	if err == nil {
		err = os.WriteFile(m.path("etc/kubernetes/kwok.conf"), administrator, 0o600)
	}
	if err != nil {
		return err
	}
	return m.start("kwok", "kwok", "--kubeconfig=/etc/kubernetes/kwok.conf", "--config=/opt/kubernetes/kwok.yaml",
		"--manage-all-nodes=false", "--manage-nodes-with-annotation-selector=kwok.x-k8s.io/node=fake",
		"--node-ip="+m.first().control, "--cidr=10.100.0.0/14", "--node-lease-duration-seconds=40")
}
