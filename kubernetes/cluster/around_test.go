package main

import (
	"fmt"
	"regexp"
	"strings"
	"sync"
	"testing"
)

// testAround tries ways around the mesh, to the servers of servers.yaml.
func (b bench) testAround(t *testing.T, r *report) {
	r.run(t, "pods for ways around the mesh start", true, func(t *testing.T) {
		b.kubectl(t, "apply", "-f", "testdata/servers.yaml", "-f", "testdata/around.yaml")
		for _, namespace := range []string{"calm", "strict", "plain"} {
			b.kubectl(t, "wait", "-n", namespace, "pod", "--all", "--for=condition=Ready", "--timeout=120s")
		}
	})
	r.run(t, "the address of a pod, a NodePort and a hostPort are no ways around", false, b.testAddresses)
	r.run(t, "of a pod, only the ports of its program are open", false, b.testPorts)
	r.run(t, "forged fields, source addresses and marks give no identity", false, b.testForgeries)
	r.run(t, "nothing but TCP gets into an enforced pod, or out", false, b.testPackets)
	b.testIdentities(t, r)
}

// probe runs the probe in a pod.
func (b bench) probe(pod string, arguments ...string) (string, error) {
	namespace, name, _ := strings.Cut(pod, "/")
	return b.try("", append([]string{"kubectl", "exec", "-n", namespace, name, "--", "/probe"}, arguments...)...)
}

// answers waits until a pod gets an answer, or an error, with a text.
func (b bench) answers(t *testing.T, pod, url, text string) {
	t.Helper()
	eventually(t, func() error {
		output, err := b.probe(pod, "get", url)
		if !strings.Contains(output, text) {
			return fmt.Errorf("%s -> %s: %q (%v), not %q", pod, url, output, err, text)
		}
		return nil
	})
}

// address is the address of a pod.
func (b bench) address(t *testing.T, pod string) string {
	t.Helper()
	namespace, name, _ := strings.Cut(pod, "/")
	return b.kubectl(t, "get", "pod", "-n", namespace, name, "-o", "jsonpath={.status.podIP}")
}

// A way is a command of the probe in a pod, and a text of its output.
type way struct {
	pod, command, outcome string
}

const (
	denied   = "status 403"
	silent   = "i/o timeout"
	answered = "shop "
)

// tryAll tries all ways at the same time. The outcome "" is success. With "any", the other end shows
// it.
// The outcome "any": it does not matter here, because the other end shows it.
func (b bench) tryAll(t *testing.T, ways []way) {
	t.Helper()
	var wait sync.WaitGroup
	places := make(chan bool, 8)
	for _, one := range ways {
		wait.Go(func() {
			places <- true
			defer func() { <-places }()
			output, err := b.probe(one.pod, strings.Fields(one.command)...)
			// An error has the output.
			if err != nil {
				output = err.Error()
			}
			if one.outcome != "any" && (!strings.Contains(output, one.outcome) || one.outcome == "" && err != nil) {
				t.Errorf("%s %s: %q, not %q", one.pod, one.command, output, one.outcome)
			}
		})
	}
	wait.Wait()
}

func (b bench) testAddresses(t *testing.T) {
	strict, calm := "http://"+b.address(t, "strict/shop")+":8080", "http://"+b.address(t, "calm/shop")+":8080"
	var ways []way
	for _, pod := range []string{"plain/attacker", "plain/distant", "calm/thief", "strict/thief", "calm/near"} {
		ways = append(ways, way{pod, "get " + strict + "/", denied}, way{pod, "get " + strict + "/health", denied},
			way{pod, "get " + calm + "/", answered}, way{pod, "get " + calm + "/secrets", denied})
	}
	ways = append(ways,
		way{"strict/near", "get " + strict + "/", answered}, way{"strict/near", "get " + strict + "/secrets", denied},
		// Programs of the node reach the paths of probes, as the kubelet does.
		way{"plain/host", "get " + strict + "/", denied}, way{"plain/host", "get " + strict + "/health", answered},
		way{"plain/attacker", "get http://10.77.0.11:30777/", denied}, way{"plain/distant", "get http://10.77.0.12:30777/", denied},
		// kube-proxy replaces the client's address by the node's.
		way{"plain/attacker", "get http://10.77.0.11:30777/health", answered},
		way{"plain/distant", "get http://10.77.0.11:30082/", denied}, way{"plain/distant", "get http://10.77.0.11:30082/health", denied},
		way{"plain/attacker", "get http://10.77.0.11:30082/", denied},
		way{"plain/distant", "get http://10.77.0.11:30081/", answered}, way{"plain/distant", "get http://10.77.0.11:30081/secrets", denied},
		// Calls that leave the mesh are not judged.
		way{"strict/near", "get http://" + b.address(t, "plain/distant") + ":18080/", "distant "},
	)
	b.tryAll(t, ways)
}

// hbone is a line of a scan: without TLS there is no answer, or an alert.
var hbone = regexp.MustCompile(`(?m)^15008 "(no answer|\\x15\\x03).*\n`)

func (b bench) testPorts(t *testing.T) {
	for pod, wanted := range map[string]string{"strict/shop": "8080 \"HTTP/1.1 403 Forbidden\"\n", "calm/shop": "8080 \"HTTP/1.1 200 OK\"\n"} {
		open, err := b.probe("plain/attacker", "scan", b.address(t, pod))
		// Agents speak HBONE at this port, which takes certificates.
		if open = hbone.ReplaceAllString(open, ""); err != nil || open != wanted {
			t.Errorf("ports of %s: %q (%v), not %q", pod, open, err, wanted)
		}
	}
	// The agent has one port for other nodes, which takes certificates.
	open, err := b.probe("plain/attacker", "scan", "10.77.0.11")
	for line := range strings.Lines(open) {
		port, answer, _ := strings.Cut(line, " ")
		if strings.HasPrefix(port, "15") && (port != "15006" || !strings.Contains(answer, "400")) {
			t.Errorf("port %s of the node answers %s", port, answer)
		}
	}
	if err != nil || !strings.Contains(open, "10250 ") {
		t.Errorf("ports of the node: %q (%v)", open, err)
	}
}

func (b bench) testForgeries(t *testing.T) {
	address, near := b.address(t, "strict/shop"), b.address(t, "strict/near")
	strict, calm := "http://"+address+":8080", "http://"+b.address(t, "calm/shop")+":8080"
	const mark = "--mark 0x4c656e6f "
	const identity = "spiffe://leno.local/ns/strict/sa/near"
	const fields = "--header x-forwarded-client-cert=URI=" + identity + " --header baggage=k8s.namespace.name=strict,k8s.serviceaccount.name=near " +
		"--header x-leno-peer=" + identity + " --header forwarded=for=" + "10.78.1.1 --header x-forwarded-for=10.78.1.1 "
	var ways []way
	for _, pod := range []string{"plain/attacker", "plain/distant", "calm/thief", "strict/thief"} {
		ways = append(ways, way{pod, "get " + fields + strict + "/", denied}, way{pod, "get " + mark + strict + "/", denied},
			way{pod, "get " + mark + calm + "/secrets", denied})
	}
	// The answer to a forged address goes to the address, or the agent judges the pod itself.
	for _, source := range []string{near, "10.78.1.1", "10.77.0.11", address} {
		for pod, outcome := range map[string]string{"plain/attacker": silent, "plain/distant": silent, "calm/thief": denied, "strict/thief": "any"} {
			ways = append(ways, way{pod, "get --from " + source + " " + strict + "/forged", outcome})
		}
	}
	b.tryAll(t, ways)
	if seen := b.kubectl(t, "logs", "-n", "strict", "shop", "--tail=-1"); strings.Contains(seen, "/forged") {
		t.Errorf("a request from a forged address reached the program: %s", seen)
	}
	output, err := b.probe("strict/near", append(strings.Fields("get "+fields), strict+"/fields")...)
	if err != nil || !strings.Contains(output, "X-Forwarded-Client-Cert: By=spiffe://leno.local/ns/strict/sa/shop;URI="+identity+"\r\n") || strings.Contains(output, "X-Leno") {
		t.Errorf("fields that reach the program: %s (%v)", output, err)
	}
}

func (b bench) testPackets(t *testing.T) {
	ports := map[string]string{"strict/shop": "8080", "calm/shop": "8080", "plain/attacker": "18080"}
	kinds := map[string]string{
		"udp": "datagram of 8 bytes", "fragments": "datagram of 20000 bytes", "raw": "protocol 253 of 8 bytes",
		"sctp": "protocol 132 of 32 bytes", "packet": "protocol 253 of 8 bytes", "icmp": "",
	}
	var closed, open []way
	send := func(from, to string, ways *[]way, outcome string) {
		for kind := range kinds {
			*ways = append(*ways, way{from, "send " + kind + " " + b.address(t, to) + ":" + ports[to], outcome})
		}
	}
	for _, from := range []string{"plain/attacker", "plain/distant", "plain/host", "strict/thief", "calm/thief"} {
		send(from, "strict/shop", &closed, "any")
	}
	send("strict/thief", "calm/shop", &closed, "any")
	send("strict/thief", "plain/attacker", &closed, "any")
	// These show that the others could have got through.
	send("plain/attacker", "calm/shop", &open, "")
	send("calm/thief", "plain/attacker", &open, "")
	b.tryAll(t, append(closed, open...))
	arrived := map[string]string{}
	for pod := range ports {
		namespace, name, _ := strings.Cut(pod, "/")
		arrived[pod] = b.kubectl(t, "logs", "-n", namespace, name, "--tail=-1")
	}
	thief := b.address(t, "strict/thief")
	for _, kind := range kinds {
		if kind == "" {
			continue
		}
		if strings.Contains(arrived["strict/shop"], kind) {
			t.Errorf("the enforced pod got %s", kind)
		}
		for _, pod := range []string{"calm/shop", "plain/attacker"} {
			if !strings.Contains(arrived[pod], kind+" from ") {
				t.Errorf("%s did not get %s", pod, kind)
			}
			if strings.Contains(arrived[pod], kind+" from "+thief) {
				t.Errorf("%s got %s from an enforced pod", pod, kind)
			}
		}
	}
}
