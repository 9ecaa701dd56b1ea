package main

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// testServices looks at calls to Services: which pods get them, and that no connection reaches the
// addresses of Services any more.
func (b bench) testServices(t *testing.T, r *report) {
	r.run(t, "calls of captured pods go to the endpoints that their agent chooses, without kube-proxy", false, b.testChoice)
	r.run(t, "pods of both nodes are rolled out under load, without a failed call", false, func(t *testing.T) {
		calls := b.startCalls(t, "services", "caller", "http://any/")
		b.kubectl(t, "rollout", "restart", "-n", "services", "deployment/web")
		b.kubectl(t, "rollout", "status", "-n", "services", "deployment/web", "--timeout=120s")
		calls.end(t)
	})
	r.run(t, "a Service without endpoints refuses calls, and gets them again", false, func(t *testing.T) {
		b.kubectl(t, "scale", "-n", "services", "deployment/web", "--replicas=0")
		b.expect(t, "services", "caller", map[string]string{"http://any/": "failed", "http://near/": "failed"})
		b.kubectl(t, "scale", "-n", "services", "deployment/web", "--replicas=4")
		b.expect(t, "services", "caller", map[string]string{"http://any/": isAllowed, "http://near/": isAllowed})
	})
	b.kubectl(t, "delete", "namespace", "services", "--ignore-not-found", "--wait=false")
}

func (b bench) testChoice(t *testing.T) {
	b.loadWorkload(t)
	b.kubectl(t, "apply", "-f", "testdata/services.yaml")
	b.kubectl(t, "rollout", "status", "-n", "services", "deployment/web", "--timeout=120s")
	b.kubectl(t, "wait", "-n", "services", "pod", "--all", "--for=condition=Ready", "--timeout=120s")
	b.expect(t, "services", "caller", map[string]string{"http://any/": isAllowed})

	// The nodes count the packets of connections to the addresses of these Services.
	addresses := strings.Fields(b.kubectl(t, "get", "services", "-n", "services", "-o", "jsonpath={.items[*].spec.clusterIP}"))
	rules := fmt.Sprintf(`table ip services { chain seen { type filter hook prerouting priority -300; ip daddr { %s } tcp flags syn counter; }; }`, strings.Join(addresses, ", "))
	for _, node := range []string{"node1", "node2"} {
		b.run(t, "node", node, "nft", rules)
		defer b.run(t, "node", node, "nft", "delete table ip services")
	}
	pods := map[string][]string{}
	for _, node := range []string{"node1", "node2"} {
		pods[node] = strings.Fields(b.kubectl(t, "get", "pods", "-n", "services", "-l", "app=web", "--field-selector=spec.nodeName="+node, "-o", "jsonpath={.items[*].metadata.name}"))
		if len(pods[node]) != 2 {
			t.Fatalf("pods: %v", pods)
		}
	}
	all := slices.Sorted(slices.Values(slices.Concat(pods["node1"], pods["node2"])))
	local := slices.Sorted(slices.Values(pods["node1"]))
	for service, wanted := range map[string][]string{"any": all, "node": local, "near": local} {
		if got := b.answering(t, service, 40); !slices.Equal(got, wanted) {
			t.Errorf("%s is answered by %v, not by %v", service, got, wanted)
		}
	}
	if got := b.answering(t, "sticky", 20); len(got) != 1 {
		t.Errorf("a Service with session affinity is answered by %v", got)
	}
	if got := b.answering(t, "own", 2); !slices.Equal(got, []string{"caller"}) {
		t.Errorf("the caller's own Service is answered by %v", got)
	}
	for _, node := range []string{"node1", "node2"} {
		counted := b.run(t, "node", node, "nft", "list table ip services")
		if !strings.Contains(counted, "counter packets 0 ") {
			t.Errorf("connections to the addresses of Services leave the pods of %s:\n%s", node, counted)
		}
	}
	listed := b.kubectl(t, "exec", "-n", "leno-system", b.names(t, "leno-agent", "node1")[0], "--", "/usr/bin/leno", "get", "services")
	for _, pattern := range []string{`services/any +\S+ +\S+ \(8080\) +node1 +local +ready`, `services/any +\S+ +\S+ \(8080\) +node2 +(clear|hbone) +ready`} {
		if !regexp.MustCompile(pattern).MatchString(listed) {
			t.Errorf("%s is not in\n%s", pattern, listed)
		}
	}
}

// answering are the pods that answer calls of a Service, each over a new connection.
func (b bench) answering(t *testing.T, service string, calls int) []string {
	t.Helper()
	arguments := []string{"exec", "-n", "services", "caller", "--", "/workload", "ask"}
	for number := range calls {
		arguments = append(arguments, fmt.Sprintf("http://%s/?%d", service, number))
	}
	found := map[string]bool{}
	_, texts := answers(b.kubectl(t, arguments...))
	for url, text := range texts {
		pod, _, _ := strings.Cut(text, " ")
		if pod == "" {
			t.Errorf("no answer from %s", url)
		}
		found[pod] = true
	}
	var pods []string
	for pod := range found {
		pods = append(pods, pod)
	}
	slices.Sort(pods)
	return pods
}
