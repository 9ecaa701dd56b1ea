package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// testWorkloads looks at pods of each kind of owner, and at ways to use them.
func (b bench) testWorkloads(t *testing.T, r *report) {
	started := false
	r.run(t, "pods of each kind of workload start", false, func(t *testing.T) {
		b.startWorkloads(t)
		started = true
	})
	defer b.kubectl(t, "delete", "namespace", "work", "--ignore-not-found", "--wait=false")
	if !started {
		return
	}
	r.run(t, "they are captured live, and nothing in them changes", false, b.testKinds)
	r.run(t, "pods and Services with addresses of IPv6 and IPv4", false, b.testFamilies)
	r.run(t, "a second network of a pod is no way around", false, b.testSecondNetwork)
	r.run(t, "init containers and sidecars of enforced pods call, and are judged", false, b.testInitContainers)
	r.run(t, "Jobs and CronJobs complete, and leave nothing on the node", false, b.testJobs)
	r.run(t, "a pod of a StatefulSet keeps its name and identity when it moves", false, b.testStatefulSet)
	r.run(t, "a connection that a client keeps ends with its pod", false, b.testKeptConnection)
	r.run(t, "ten pods are rolled out under load, without a failed call", false, b.testRollout)
	r.run(t, "scaled to none and back, and deleted at once", false, b.testScale)
	r.run(t, "kubectl logs, exec and port-forward of an enforced pod", false, b.testTools)
	r.run(t, "a pod in the network of its node is left alone, and the controller says so", false, b.testHostNetwork)
}

const (
	isAllowed = "200"
	isDenied  = "403"
)

// expect has the program in a pod call URLs, until each has the wanted status. It returns the answers.
func (b bench) expect(t *testing.T, namespace, pod string, wanted map[string]string) map[string]string {
	t.Helper()
	var texts map[string]string
	urls := slices.Sorted(maps.Keys(wanted))
	eventually(t, func() error {
		output, err := b.try("", append([]string{"kubectl", "exec", "-n", namespace, pod, "--", "/workload", "ask"}, urls...)...)
		if err != nil {
			return err
		}
		var found map[string]string
		found, texts = answers(output)
		for _, url := range urls {
			if found[url] != wanted[url] {
				err = errors.Join(err, fmt.Errorf("%s is %s, not %s: %s", url, found[url], wanted[url], texts[url]))
			}
		}
		return err
	})
	return texts
}

// answers reads the lines of `workload ask`: the status and the text of each URL.
func answers(output string) (statuses, texts map[string]string) {
	statuses, texts = map[string]string{}, map[string]string{}
	for line := range strings.Lines(output) {
		url, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		statuses[url], texts[url], _ = strings.Cut(rest, " ")
	}
	return statuses, texts
}

// podIP is the address of a pod.
func (b bench) podIP(t *testing.T, namespace, pod string) string {
	t.Helper()
	return b.kubectl(t, "get", "pod", "-n", namespace, pod, "-o", "jsonpath={.status.podIP}")
}

// servers are the URLs of a pod or more of each kind.
var servers = []string{
	"http://bare", "http://replica", "http://daemon", "http://web-0.web:8080", "http://web-1.web:8080", "http://many",
	"http://several", "http://several:81", "http://several:82", "http://alias",
}

// hostPort is a port of node 1 that leads to a pod.
const hostPort = "http://10.77.0.11:18080"

// fixed is the part of the pods of a namespace that nothing may change.
func (b bench) fixed(t *testing.T, namespace string) string {
	t.Helper()
	var list struct {
		Items []struct {
			Metadata struct {
				Name, UID           string
				Labels, Annotations map[string]string
			}
			Spec   json.RawMessage
			Status struct {
				PodIP                                    string
				ContainerStatuses, InitContainerStatuses []struct {
					ContainerID  string
					RestartCount int
				}
			}
		}
	}
	if err := json.Unmarshal([]byte(b.kubectl(t, "get", "pods", "-n", namespace, "-o", "json")), &list); err != nil {
		t.Fatal(err)
	}
	var lines []string
	for _, pod := range list.Items {
		lines = append(lines, fmt.Sprintf("%+v %s %+v", pod.Metadata, pod.Spec, pod.Status))
	}
	return strings.Join(lines, "\n")
}

// loadWorkload builds the program of the pods, and gives its image to the nodes.
func (b bench) loadWorkload(t *testing.T) {
	program := filepath.Join(b.programs, "workload")
	build := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-o", program, "./workload")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if output, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, output)
	}
	file := filepath.Join(t.TempDir(), "workload.tar")
	b.run(t, "image", "local/workload:1", file, program+"=/workload", "--", "/workload")
	b.run(t, "load-image", file)
}

func (b bench) startWorkloads(t *testing.T) {
	b.loadWorkload(t)
	b.kubectl(t, "apply", "-f", "testdata/workloads.yaml", "-f", "testdata/workloads-policy.yaml")
	// Twenty pods need their time on a busy machine. Those of controllers appear a moment later.
	for owner, ready := range map[string]string{
		"replicaset/replica": "readyReplicas=1", "daemonset/daemon": "numberReady=1", "statefulset/web": "readyReplicas=2", "deployment/many": "readyReplicas=10",
	} {
		field, count, _ := strings.Cut(ready, "=")
		b.kubectl(t, "wait", "-n", "work", owner, "--for=jsonpath={.status."+field+"}="+count, "--timeout=300s")
	}
	b.kubectl(t, "wait", "-n", "work", "pod", "--all", "--for=condition=Ready", "--timeout=300s")
}

func (b bench) testKinds(t *testing.T) {
	before := b.fixed(t, "work")
	caller := b.podIP(t, "work", "caller")
	check := func(page, secrets, port string) {
		t.Helper()
		wanted := map[string]string{hostPort + "/": port, hostPort + "/secrets": secrets, hostPort + "/metrics": isAllowed}
		for _, server := range servers {
			wanted[server+"/"], wanted[server+"/secrets"] = page, secrets
		}
		texts := b.expect(t, "work", "caller", wanted)
		for _, server := range servers {
			if text := texts[server+"/"]; !strings.HasSuffix(text, " "+caller) {
				t.Errorf("the program at %s sees another client than %s: %s", server, caller, text)
			}
		}
	}
	check(isAllowed, isAllowed, isAllowed)
	// The node replaces the address of a client that uses a port of its own node, so that the agent
	// does not know the caller.
	b.kubectl(t, "label", "namespace", "work", "leno.dev/mesh=enabled")
	check(isAllowed, isDenied, isDenied)
	b.kubectl(t, "label", "namespace", "work", "leno.dev/mode=enforced")
	b.expect(t, "work", "far", map[string]string{"http://bare/": isDenied, "http://bare/metrics": isAllowed})
	check(isAllowed, isDenied, isDenied)
	if after := b.fixed(t, "work"); after != before {
		t.Errorf("the pods were\n%s\nand are\n%s", before, after)
	}
}

// testInitContainers makes the same pod again, now in an enforced namespace.
func (b bench) testInitContainers(t *testing.T) {
	statuses, _ := answers(b.kubectl(t, "logs", "-n", "work", "several", "-c", "first"))
	if statuses["http://bare/secrets"] != isAllowed {
		t.Errorf("an init container before the enrolment: %v", statuses)
	}
	b.kubectl(t, "delete", "pod", "-n", "work", "several")
	b.kubectl(t, "apply", "-f", "testdata/workloads.yaml")
	b.awaitPod(t, "work", "several")
	statuses, texts := answers(b.kubectl(t, "logs", "-n", "work", "several", "-c", "first"))
	// Its account is not the one that may call.
	wanted := map[string]string{"http://127.0.0.1:8082/": isAllowed, "http://bare/": isDenied, "http://bare/secrets": isDenied, "http://bare/metrics": isAllowed}
	if !maps.Equal(statuses, wanted) {
		t.Errorf("an init container: %v, not %v", statuses, wanted)
	}
	if address := b.podIP(t, "work", "several"); texts["http://bare/metrics"] != "bare "+address {
		t.Errorf("its callee saw %q, not %s", texts["http://bare/metrics"], address)
	}
	b.expect(t, "work", "caller", map[string]string{"http://several/": isAllowed, "http://several:82/": isAllowed, "http://several:82/secrets": isDenied})
}

// nodeState lists the networks of pods on node 1, the eBPF objects of Leno, and the networks that
// the agent holds.
func (b bench) nodeState(t *testing.T) []string {
	t.Helper()
	return strings.Fields(b.run(t, "node", "1", "sh", "-c", `ls -d /run/netns/*; find /sys/fs/bpf/leno
		for pid in $(pidof leno); do readlink /proc/$pid/fd/* | grep '^net:' | sort -u; done`))
}

func (b bench) testJobs(t *testing.T) {
	before := b.nodeState(t)
	b.kubectl(t, "apply", "-f", "testdata/jobs.yaml")
	b.kubectl(t, "create", "job", "-n", "work", "now", "--from=cronjob/often")
	for _, job := range []string{"once", "now"} {
		b.kubectl(t, "wait", "-n", "work", "job/"+job, "--for=condition=Complete", "--timeout=120s")
		output := b.kubectl(t, "logs", "-n", "work", "-l", "job-name="+job, "-c", "server")
		if allowed := strings.Count(output, "http://bare/ 200 bare "); allowed == 0 || allowed != strings.Count(output, "http://bare/secrets 403") {
			t.Errorf("calls of the Job %s: %s", job, output)
		}
	}
	eventually(t, func() error {
		more := slices.DeleteFunc(b.nodeState(t), func(one string) bool { return slices.Contains(before, one) })
		if len(more) > 0 {
			return fmt.Errorf("left on the node: %v", more)
		}
		return nil
	})
	// The CronJob's Job goes with it.
	b.kubectl(t, "delete", "-f", "testdata/jobs.yaml")
}

// moveWeb moves the StatefulSet to a node.
func (b bench) moveWeb(t *testing.T, node string) {
	t.Helper()
	b.kubectl(t, "patch", "-n", "work", "statefulset/web", fmt.Sprintf(`--patch={"spec": {"template": {"spec": {"nodeSelector": {"kubernetes.io/hostname": %q}}}}}`, node))
	b.kubectl(t, "rollout", "status", "-n", "work", "statefulset/web", "--timeout=120s")
}

func (b bench) testStatefulSet(t *testing.T) {
	b.moveWeb(t, "node2")
	// An agent does not know callers on other nodes yet.
	b.expect(t, "work", "caller", map[string]string{
		"http://web-0.web:8080/": isDenied, "http://web-0.web:8080/secrets": isDenied, "http://web-0.web:8080/metrics": isAllowed,
	})
	b.expect(t, "work", "web-0", map[string]string{"http://web-1.web:8080/own": isAllowed, "http://web-1.web:8080/": isDenied, "http://bare/own": isDenied})
	b.moveWeb(t, "node1")
	texts := b.expect(t, "work", "caller", map[string]string{"http://web-0.web:8080/": isAllowed, "http://web-0.web:8080/secrets": isDenied})
	if text := texts["http://web-0.web:8080/"]; text != "web-0 "+b.podIP(t, "work", "caller") {
		t.Errorf("web-0.web answers %q", text)
	}
	b.expect(t, "work", "web-0", map[string]string{"http://bare/own": isAllowed, "http://bare/": isDenied})
}

// A series is calls of a pod, one after the other, until its end.
type series struct {
	cmd    *exec.Cmd
	input  io.Closer
	output *strings.Builder
}

func (b bench) startCalls(t *testing.T, namespace, pod, url string) *series {
	t.Helper()
	output := new(strings.Builder)
	cmd := exec.Command(filepath.Join(b.programs, "cluster"), "--directory", b.folder, "kubectl", "exec", "-i", "-n", namespace, pod, "--", "/workload", "load", url)
	cmd.Stdout, cmd.Stderr = output, output
	input, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	return &series{cmd, input, output}
}

var counted = regexp.MustCompile(`(?m)^(\d+) calls, (\d+) failed$`)

// end ends the calls; none of them may have failed.
func (s *series) end(t *testing.T) {
	t.Helper()
	s.input.Close()
	err := s.cmd.Wait()
	found := counted.FindStringSubmatch(s.output.String())
	if err != nil || found == nil || found[1] == "0" || found[2] != "0" {
		t.Errorf("calls: %v\n%s", err, s.output)
		return
	}
	t.Log(found[0])
}

func (b bench) testKeptConnection(t *testing.T) {
	var output strings.Builder
	held := exec.Command(filepath.Join(b.programs, "cluster"), "--directory", b.folder, "kubectl", "exec", "-n", "work", "caller", "--", "/workload", "hold", "replica:80")
	reader, writer := io.Pipe()
	// One writer for both, so that only one goroutine writes.
	both := io.MultiWriter(writer, &output)
	held.Stdout, held.Stderr = both, both
	if err := held.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		held.Wait()
		writer.Close()
	}()
	lines := bufio.NewScanner(reader)
	// The first line comes with the answer.
	if lines.Scan(); lines.Text() != "HTTP/1.1 200 OK" {
		t.Fatal(output.String())
	}
	b.kubectl(t, "delete", "pod", "-n", "work", "-l", "app=replica")
	for lines.Scan() {
	}
	if !strings.HasSuffix(output.String(), "closed by the server\n") {
		t.Errorf("a connection that is kept: %s", &output)
	}
}

func (b bench) testRollout(t *testing.T) {
	calls := b.startCalls(t, "work", "caller", "http://many/")
	b.kubectl(t, "rollout", "restart", "-n", "work", "deployment/many")
	b.kubectl(t, "rollout", "status", "-n", "work", "deployment/many", "--timeout=120s")
	calls.end(t)
	b.expect(t, "work", "caller", map[string]string{"http://many/": isAllowed, "http://many/secrets": isDenied})
}

func (b bench) testScale(t *testing.T) {
	b.kubectl(t, "scale", "-n", "work", "replicaset/replica", "--replicas=0")
	b.expect(t, "work", "caller", map[string]string{"http://replica/": "failed"})
	b.kubectl(t, "scale", "-n", "work", "replicaset/replica", "--replicas=1")
	b.expect(t, "work", "caller", map[string]string{"http://replica/": isAllowed, "http://replica/secrets": isDenied})
	gone := b.kubectl(t, "get", "pods", "-n", "work", "-l", "app in (daemon, replica)", "-o", "jsonpath={.items[*].metadata.uid}")
	b.kubectl(t, "delete", "pod", "-n", "work", "-l", "app in (daemon, replica)", "--grace-period=0", "--force")
	b.expect(t, "work", "caller", map[string]string{"http://daemon/": isAllowed, "http://daemon/secrets": isDenied, "http://replica/secrets": isDenied})
	eventually(t, func() error {
		for _, one := range b.nodeState(t) {
			for _, uid := range strings.Fields(gone) {
				if strings.Contains(one, uid) {
					return fmt.Errorf("a pod that was deleted has left %s", one)
				}
			}
		}
		return nil
	})
}

func (b bench) testTools(t *testing.T) {
	if logs := b.kubectl(t, "logs", "-n", "work", "bare"); !strings.Contains(logs, "request from "+b.podIP(t, "work", "caller")) {
		t.Errorf("logs: %s", logs)
	}
	forward := exec.Command(filepath.Join(b.programs, "cluster"), "--directory", b.folder, "kubectl", "port-forward", "-n", "work", "pod/bare", "18080:8080")
	if err := forward.Start(); err != nil {
		t.Fatal(err)
	}
	defer forward.Wait()
	defer forward.Process.Kill()
	// The connection begins in the pod: nothing is judged.
	eventually(t, func() error {
		answer, err := b.try("", "run", filepath.Join(b.programs, "probe"), "get", "http://127.0.0.1:18080/secrets")
		if err == nil && answer != "bare 127.0.0.1\n" {
			err = fmt.Errorf("port-forward: %q", answer)
		}
		return err
	})
}

func (b bench) testHostNetwork(t *testing.T) {
	b.expect(t, "work", "caller", map[string]string{"http://10.77.0.11:18081/": isAllowed, "http://10.77.0.11:18081/secrets": isAllowed})
	logs := b.kubectl(t, "logs", "-n", "leno-system", "deployment/leno-controller", "--all-pods")
	if !strings.Contains(logs, "it has the network of its node (hostNetwork)") || !strings.Contains(logs, "work/host") {
		t.Errorf("the controller's logs do not name the pod work/host: %s", logs)
	}
	// The API server refuses such pods without Leno's help.
	b.kubectl(t, "label", "namespace", "work", "pod-security.kubernetes.io/enforce=baseline")
	eventually(t, func() error {
		output, err := b.try("", "kubectl", "run", "host2", "-n", "work", "--image=local/workload:1", "--dry-run=server", `--overrides={"spec": {"hostNetwork": true}}`)
		if err == nil || !strings.Contains(output, "violates PodSecurity") {
			return fmt.Errorf("a pod in the network of its node: %s", output)
		}
		return nil
	})
}
