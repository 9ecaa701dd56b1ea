package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// objects renders the chart of Leno with the image of the tests, and other values, into a file.
func objects(t *testing.T, values ...string) string {
	t.Helper()
	return written(t, leno(t, append([]string{"install", "--dry-run", "--image=local/leno:1"}, set(values)...)...))
}

// written is a file with a manifest. kubectl takes a name with a comma, as those of tests have, for
// several.
func written(t *testing.T, manifest string) string {
	t.Helper()
	file, err := os.CreateTemp("", "objects-*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Remove(file.Name()) })
	_, err = file.WriteString(manifest)
	if err := errors.Join(err, file.Close()); err != nil {
		t.Fatal(err)
	}
	return file.Name()
}

// set are the options for values of the chart.
func set(values []string) (options []string) {
	for _, value := range values {
		options = append(options, "--set", value)
	}
	return options
}

func leno(t *testing.T, arguments ...string) string {
	t.Helper()
	return programOutput(t, filepath.Join(os.Getenv("LENO_PROGRAMS"), "leno"), arguments...)
}

func programOutput(t *testing.T, program string, arguments ...string) string {
	t.Helper()
	cmd := exec.Command(program, arguments...)
	output, err := cmd.Output()
	if err != nil {
		text := ""
		if ended, ok := err.(*exec.ExitError); ok {
			text = string(ended.Stderr)
		}
		t.Fatalf("%s %s: %v\n%s", program, strings.Join(arguments, " "), err, text)
	}
	return string(output)
}

// parsed are the objects of a manifest, as JSON, by kind and name. The API server reads the YAML.
func (b bench) parsed(t *testing.T, manifest string) map[string]string {
	t.Helper()
	output := b.kubectl(t, "create", "--dry-run=client", "--validate=ignore", "-f", written(t, manifest), "-o", "json")
	found := map[string]string{}
	for decoder := json.NewDecoder(strings.NewReader(output)); decoder.More(); {
		var object struct {
			Kind     string
			Metadata struct{ Name string }
			Items    []json.RawMessage
		}
		var text json.RawMessage
		if err := decoder.Decode(&text); err != nil {
			t.Fatal(err)
		}
		texts := []json.RawMessage{text}
		if err := json.Unmarshal(text, &object); err != nil {
			t.Fatal(err)
		}
		if object.Kind == "List" {
			texts = object.Items
		}
		for _, text := range texts {
			var value any
			if err := json.Unmarshal(text, &object); err != nil {
				t.Fatal(err)
			}
			if err := json.Unmarshal(text, &value); err != nil {
				t.Fatal(err)
			}
			sorted, _ := json.Marshal(value)
			found[object.Kind+"/"+object.Metadata.Name] = string(sorted)
		}
	}
	return found
}

// testSameObjects compares the objects that Helm renders with those of `leno install`.
func (b bench) testSameObjects(t *testing.T) {
	helm := filepath.Join(b.programs, "helm")
	for _, values := range [][]string{
		{},
		{"dashboards=true", "resourceQuota=true", "definitions.keep=false", "controller.replicas=3", "agent.priorityClassName="},
		{"cni.enabled=false", "networkPolicy=false", "definitions.install=false", "agent.nodeSelector.disk=ssd"},
	} {
		values = append(values, "createNamespace=true", "image=registry.example/leno:1")
		arguments := append([]string{"template", "leno", "../chart", "--namespace=leno-system"}, set(values)...)
		byHelm := b.parsed(t, programOutput(t, helm, append(arguments, "--no-hooks")...))
		byLeno := b.parsed(t, leno(t, append([]string{"install", "--dry-run"}, set(values)...)...))
		for name, object := range byHelm {
			if byLeno[name] != object {
				t.Errorf("%v: Helm has %s\n%s\nand Leno\n%s", values, name, object, byLeno[name])
			}
			delete(byLeno, name)
		}
		if len(byLeno) > 0 {
			t.Errorf("%v: Helm lacks %v", values, byLeno)
		}
		hooks := b.parsed(t, programOutput(t, helm, append(arguments, "--show-only=templates/release.yaml")...))
		for name, object := range b.parsed(t, leno(t, append([]string{"uninstall", "--dry-run"}, set(values)...)...)) {
			if hooks[name] != object {
				t.Errorf("%v: Helm has the hook %s\n%s\nand Leno\n%s", values, name, hooks[name], object)
			}
		}
	}
	// The API server of a cluster that enforces Pod Security warns of other pods.
	b.kubectl(t, "create", "namespace", "restricted")
	b.kubectl(t, "label", "namespace", "restricted", "pod-security.kubernetes.io/warn=restricted")
	for name, object := range b.parsed(t, leno(t, "install", "--dry-run", "--image=x")+leno(t, "uninstall", "--dry-run", "--image=x")) {
		if name == "Deployment/leno-controller" || name == "Job/leno-release" {
			object = strings.ReplaceAll(object, `"namespace":"leno-system"`, `"namespace":"restricted"`)
			output, err := b.try(object, "kubectl", "create", "--dry-run=server", "-f", "-")
			if err != nil || strings.Contains(output, "Warning") {
				t.Errorf("%s: %s (%v)", name, output, err)
			}
		}
	}
	b.kubectl(t, "delete", "namespace", "restricted", "--timeout=120s")
}

// traces are the objects of the cluster and the files of its nodes that could be Leno's.
func (b bench) traces(t *testing.T) map[string][]string {
	t.Helper()
	found := map[string][]string{}
	for _, kind := range []string{"namespaces", "clusterroles", "clusterrolebindings", "customresourcedefinitions", "priorityclasses", "validatingwebhookconfigurations", "mutatingwebhookconfigurations"} {
		for _, name := range strings.Fields(b.kubectl(t, "get", kind, "-o", "name")) {
			if strings.Contains(name, "leno") {
				found["cluster"] = append(found["cluster"], name)
			}
		}
	}
	// Labels on namespaces are the user's.
	nodes := b.kubectl(t, "get", "nodes", "-o", "jsonpath={range .items[*]}{.metadata.name} {.metadata.labels} {.metadata.annotations} {.metadata.finalizers}{'\\n'}{end}")
	for _, line := range strings.Split(nodes, "\n") {
		if strings.Contains(line, "leno") {
			found["marks of nodes"] = append(found["marks of nodes"], line)
		}
	}
	for _, node := range []string{"1", "2"} {
		files := b.run(t, "node", node, "sh", "-c", "find /etc/cni /opt/cni /run /var/lib /sys/fs/bpf -xdev -name '*leno*' -not -path '*/kubelet/*' -not -path '*/containerd/*' -not -path '*/containers/*' 2>/dev/null; cat /etc/cni/net.d/*; ls /opt/cni/bin /sys/fs/bpf; ip rule; ip -6 rule; ip route show table all type local table 3 2>/dev/null; true")
		found["node"+node] = strings.Split(strings.TrimSpace(files), "\n")
	}
	return found
}

// network is what a captured pod's network has more.
func (b bench) network(t *testing.T, namespace, name, node string) string {
	t.Helper()
	pid := b.processesOf(t, namespace, name, "probe")[0].pid
	script := "ip rule; ip -6 rule; ip route show table all | grep -v ' expires '; cat /proc/sys/net/ipv4/tcp_fwmark_accept; ss -Hlnt | awk '{print $1, $4}' | sort"
	output, err := exec.Command("nsenter", "-t", fmt.Sprint(pid), "-n", "sh", "-c", script).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, output)
	}
	return string(output)
}

// testUninstall removes Leno with captured pods, and compares nodes and cluster with those before the
// installation.
func (b bench) testUninstall(t *testing.T, before map[string][]string) {
	pods := [][3]string{{"leave-calm", "calm1", "node1"}, {"leave-strict", "strict1", "node1"}, {"leave-strict", "strict2", "node2"}}
	networks := map[string]string{}
	for _, pod := range pods {
		b.startPod(t, pod[0], pod[1], pod[2])
		b.awaitPod(t, pod[0], pod[1])
		networks[pod[1]] = b.network(t, pod[0], pod[1], pod[2])
	}
	b.kubectl(t, "label", "namespace", "leave-calm", "leno.dev/mesh=enabled")
	b.kubectl(t, "label", "namespace", "leave-strict", "leno.dev/mesh=enabled", "leno.dev/mode=enforced")
	for _, pod := range pods {
		eventually(t, func() error {
			if now := b.network(t, pod[0], pod[1], pod[2]); now == networks[pod[1]] {
				return fmt.Errorf("%s is not captured: %s", pod[1], now)
			}
			return nil
		})
	}
	began := time.Now()
	output := b.run(t, "run", filepath.Join(os.Getenv("LENO_PROGRAMS"), "leno"), "uninstall", "--kubectl", filepath.Join(b.programs, "kubectl"), "--delete-documents", "--timeout=3m")
	t.Logf("leno uninstall took %.1f s\n%s", time.Since(began).Seconds(), output)
	for _, pod := range pods {
		if now := b.network(t, pod[0], pod[1], pod[2]); now != networks[pod[1]] {
			t.Errorf("the network of %s was\n%s\nand is\n%s", pod[1], networks[pod[1]], now)
		}
		// Nothing holds it, and nothing lets it through but itself.
		b.answers(t, "leave-calm/calm1", "http://"+b.address(t, pod[0]+"/"+pod[1])+":8080/", pod[1])
	}
	b.startPod(t, "leave-strict", "later", "node2")
	b.awaitPod(t, "leave-strict", "later")
	b.kubectl(t, "label", "namespace", "leave-calm", "leave-strict", "leno.dev/mesh-", "leno.dev/mode-")
	after := b.traces(t)
	for part, lines := range after {
		if !slices.Equal(lines, before[part]) {
			t.Errorf("%s was\n%s\nand is\n%s", part, strings.Join(before[part], "\n"), strings.Join(lines, "\n"))
		}
	}
	b.kubectl(t, "delete", "namespace", "leave-calm", "leave-strict", "--timeout=120s")
}
