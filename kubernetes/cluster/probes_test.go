package main

import (
	"fmt"
	"maps"
	"strings"
	"sync"
	"testing"
)

// testProbes looks at the kubelet's probes of an enforced pod whose policy refuses all clients.
func (b bench) testProbes(t *testing.T, r *report) {
	r.run(t, "probes of each kind pass in an enforced pod, and fail at closed ports", false, b.testProbeKinds)
	r.run(t, "the paths of probes let no other client in", false, b.testProbePaths)
	r.run(t, "a liveness probe that fails restarts its container, whose hook is called", false, b.testLiveness)
	b.kubectl(t, "delete", "namespace", "probed", "--wait=false")
}

// isReady maps the containers of a pod to whether they are ready.
func (b bench) isReady(t *testing.T, pod string) map[string]string {
	t.Helper()
	output := b.kubectl(t, "get", "pod", "-n", "probed", pod, "-o", `jsonpath={range .status.containerStatuses[*]}{.name} {.ready}{"\n"}{end}`)
	found := map[string]string{}
	for line := range strings.Lines(output) {
		name, ready, _ := strings.Cut(strings.TrimSpace(line), " ")
		found[name] = ready
	}
	return found
}

func (b bench) testProbeKinds(t *testing.T) {
	b.kubectl(t, "apply", "-f", "testdata/probes.yaml")
	b.awaitPod(t, "probed", "all")
	b.awaitPod(t, "probed", "stranger")
	b.awaitPod(t, "probed", "far")
	// The kubelet probes from its node, and the programs see its address.
	gateway := "10.78.1.1"
	for container, text := range map[string]string{
		"http": "request from " + gateway + " /ready", "https": "request from " + gateway + " /ready",
		"tcp": "connection from " + gateway, "grpc": "call from " + gateway + " /grpc.health.v1.Health/Check",
		"exec": "request from 127.0.0.1",
	} {
		count := func() int { return strings.Count(b.kubectl(t, "logs", "-n", "probed", "all", "-c", container), text) }
		before := count()
		eventually(t, func() error {
			if now := count(); before == 0 || now <= before {
				return fmt.Errorf("the container %s was probed %d times, and is not any more", container, before)
			}
			return nil
		})
	}
	for container, ready := range b.isReady(t, "all") {
		if ready != "true" {
			t.Errorf("the container %s is not ready", container)
		}
	}
	for port, container := range map[string]string{"7001": "tcp", "7002": "http", "7003": "grpc"} {
		b.awaitEvent(t, "probed", "closed", ":"+port)
		if ready := b.isReady(t, "closed"); ready[container] != "false" {
			t.Errorf("the container %s is ready, without a program at port %s", container, port)
		}
	}
}

func (b bench) testProbePaths(t *testing.T) {
	address := b.podIP(t, "probed", "all")
	denied := map[string]string{"https://" + address + ":8443/ready": "failed", "tcp://" + address + ":7000": "failed"}
	for _, path := range []string{"/started", "/ready", "/health", "/health?x=1", "/stop", "/"} {
		denied["http://"+address+":8080"+path] = isDenied
	}
	denied["http://"+address+":8080/open"] = isAllowed
	// A program in the network of the pod's node has the kubelet's address, and may do what it may. Of
	// a port with a TCP probe, that is to connect.
	fromNode := maps.Clone(denied)
	for _, path := range []string{"/started", "/ready", "/health", "/stop"} {
		fromNode["http://"+address+":8080"+path] = isAllowed
	}
	fromNode["https://"+address+":8443/ready"] = isAllowed
	// Each takes as long as a client waits for an answer.
	var all sync.WaitGroup
	all.Go(func() { b.expect(t, "probed", "stranger", denied) })
	all.Go(func() { b.expect(t, "probed", "far", denied) })
	all.Go(func() { b.askFromNode(t, "1", fromNode) })
	all.Go(func() { b.askFromNode(t, "2", denied) })
	all.Wait()
}

// askFromNode calls URLs from the network of a node.
func (b bench) askFromNode(t *testing.T, node string, wanted map[string]string) {
	t.Helper()
	arguments := []string{"node", node, "/opt/kubernetes/workload", "ask"}
	for url := range wanted {
		arguments = append(arguments, url)
	}
	eventually(t, func() error {
		output, err := b.try("", arguments...)
		if err != nil {
			return err
		}
		if found, _ := answers(output); !maps.Equal(found, wanted) {
			return fmt.Errorf("from node %s: %v, not %v", node, found, wanted)
		}
		return nil
	})
}

func (b bench) testLiveness(t *testing.T) {
	b.kubectl(t, "exec", "-n", "probed", "all", "-c", "exec", "--", "/workload", "ask", "http://127.0.0.1:8080/break")
	eventually(t, func() error {
		count := b.kubectl(t, "get", "pod", "-n", "probed", "all", "-o", `jsonpath={.status.containerStatuses[?(@.name=="http")].restartCount}`)
		if count == "0" {
			return fmt.Errorf("the container was not restarted")
		}
		return nil
	})
	// Before that, the kubelet has called the hook.
	eventually(t, func() error {
		logs, err := b.try("", "kubectl", "logs", "-n", "probed", "all", "-c", "http", "--previous")
		if err == nil && !strings.Contains(logs, "request from 10.78.1.1 /stop") {
			err = fmt.Errorf("no call of the hook: %s", logs)
		}
		return err
	})
	b.awaitPod(t, "probed", "all")
}
