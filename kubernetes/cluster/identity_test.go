package main

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// testIdentities tries to get the identity of another pod, or to be judged by no one.
func (b bench) testIdentities(t *testing.T, r *report) {
	r.run(t, "a pod with the address of an ended one has its own identity", false, b.testReusedAddress)
	r.run(t, "labels of a pod give no identity", false, b.testLabels)
	r.run(t, "ephemeral containers have the identity of their pod", false, b.testEphemeral)
	r.run(t, "a new pod is judged from its first packet, in both directions", false, b.testFirstPackets)
	r.run(t, "once the status says so, no request is unjudged", false, b.testEnrolment)
}

// runPod makes a pod on the first node that runs the probe once.
func (b bench) runPod(t *testing.T, pod, account string, arguments ...string) {
	t.Helper()
	namespace, name, _ := strings.Cut(pod, "/")
	overrides := fmt.Sprintf(`{"spec": {"nodeName": "node1", "serviceAccountName": %q, "terminationGracePeriodSeconds": 1}}`, account)
	b.kubectl(t, append([]string{"run", name, "-n", namespace, "--image=local/probe:1", "--image-pull-policy=Never", "--restart=Never",
		// Functions with the same account would exclude each other.
		"--labels=leno.dev/function=" + account, "--overrides=" + overrides, "--"}, arguments...)...)
}

func (b bench) removePod(t *testing.T, pod string) {
	t.Helper()
	namespace, name, _ := strings.Cut(pod, "/")
	b.kubectl(t, "delete", "pod", "-n", namespace, name, "--now", "--timeout=120s")
}

func (b bench) awaitPhase(t *testing.T, pod, phase string) {
	t.Helper()
	namespace, name, _ := strings.Cut(pod, "/")
	b.kubectl(t, "wait", "-n", namespace, "pod/"+name, "--for=jsonpath={.status.phase}="+phase, "--timeout=120s")
}

// runPodAt makes a pod on the first node that has this address, once it is free.
func (b bench) runPodAt(t *testing.T, address, pod, account string, arguments ...string) {
	t.Helper()
	folder := filepath.Join(b.folder, "node1/var/lib/cni/networks/pods")
	before := netip.MustParseAddr(address).Prev().String()
	eventually(t, func() error {
		if _, err := os.Stat(filepath.Join(folder, address)); !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("%s is still a pod's (%v)", address, err)
		}
		// The next pod gets the address after this one.
		if err := os.WriteFile(filepath.Join(folder, "last_reserved_ip.0"), []byte(before), 0o644); err != nil {
			return err
		}
		b.runPod(t, pod, account, arguments...)
		b.awaitPhase(t, pod, "Running")
		if now := b.address(t, pod); now != address {
			// The kubelet needed two attempts.
			b.removePod(t, pod)
			return fmt.Errorf("%s has %s, not %s", pod, now, address)
		}
		return nil
	})
}

func (b bench) testReusedAddress(t *testing.T) {
	b.runPod(t, "strict/first", "near", "load", "http://10.96.7.2/load/")
	eventually(t, func() error {
		if passed := b.counts(t, "strict/first")["fresh"].passed; passed < 5 {
			return fmt.Errorf("%d requests of the first pod passed", passed)
		}
		return nil
	})
	address := b.address(t, "strict/first")
	b.removePod(t, "strict/first")
	b.runPodAt(t, address, "strict/second", "thief", "load", "http://10.96.7.2/load/")
	eventually(t, func() error {
		for kind, count := range b.counts(t, "strict/second") {
			if count.passed > 0 {
				t.Errorf("%d requests of the second pod passed (%s)", count.passed, kind)
			}
			if count.failed < 5 {
				return fmt.Errorf("only %d requests of the second pod (%s)", count.failed, kind)
			}
		}
		return nil
	})
	b.removePod(t, "strict/second")
}

func (b bench) testLabels(t *testing.T) {
	b.kubectl(t, "label", "pod", "-n", "strict", "thief", "--overwrite", "app=near", "leno.dev/function=near")
	thief := "http://" + b.address(t, "calm/thief") + ":18080/secrets"
	for _, label := range []string{"leno.dev/function=near", "leno.dev/function=shop"} {
		b.kubectl(t, "label", "pod", "-n", "calm", "thief", "--overwrite", label, "app=near")
		if label == "leno.dev/function=shop" {
			// The pod has the policies of its new function, so the label has arrived.
			b.answers(t, "plain/attacker", thief, denied)
		} else {
			b.answers(t, "plain/attacker", thief, "thief ")
		}
		b.tryAll(t, []way{{"strict/thief", "get http://10.96.7.2/", denied}, {"calm/thief", "get http://10.96.7.2/", denied}, {"strict/near", "get http://10.96.7.2/", answered}})
	}
	// The rule means the account of the older pod of the function.
	eventually(t, func() error {
		message := b.kubectl(t, "get", "policy", "-n", "strict", "shop", "-o", `jsonpath={.status.conditions[?(@.type=="Accepted")].message}`)
		if !strings.Contains(message, "thief") {
			return fmt.Errorf("no warning of another account of the function: %s", message)
		}
		return nil
	})
	for _, namespace := range []string{"calm", "strict"} {
		b.kubectl(t, "label", "pod", "-n", namespace, "thief", "leno.dev/function-", "app=thief", "--overwrite")
	}
}

func (b bench) testEphemeral(t *testing.T) {
	for pod, outcome := range map[string]string{"near": answered, "thief": denied} {
		b.kubectl(t, "debug", "-n", "strict", "pod/"+pod, "--image=local/probe:1", "--image-pull-policy=Never", "--container=debugger", "--profile=general", "--", "/probe", "serve", ":19090")
		eventually(t, func() error {
			output, err := b.try("", "kubectl", "exec", "-n", "strict", pod, "-c", "debugger", "--", "/probe", "get", "http://10.96.7.2/")
			if !strings.Contains(output, outcome) {
				return fmt.Errorf("an ephemeral container of %s: %s (%v), not %s", pod, output, err, outcome)
			}
			return nil
		})
	}
	b.tryAll(t, []way{{"plain/attacker", "get http://" + b.address(t, "strict/near") + ":19090/", denied}})
}

func (b bench) testFirstPackets(t *testing.T) {
	// An address that was free for a while.
	b.runPod(t, "strict/early", "shop", "serve", ":8080")
	b.awaitPhase(t, "strict/early", "Running")
	address := b.address(t, "strict/early")
	b.removePod(t, "strict/early")
	done := make(chan string)
	go func() {
		output, _ := b.probe("plain/attacker", "rush", address+":8080")
		done <- output
	}()
	time.Sleep(time.Second)
	b.runPodAt(t, address, "strict/early", "shop", "serve", ":8080")
	output := <-done
	if !strings.Contains(output, "403 Forbidden") || strings.Contains(output, "200 OK") {
		t.Errorf("answers of a new pod: %s", output)
	}
	t.Log(output)
	b.removePod(t, "strict/early")

	sink := b.address(t, "plain/attacker") + ":18080"
	b.runPod(t, "strict/known", "near", "get", "http://10.96.7.2/")
	b.runPod(t, "strict/unknown", "thief", "get", "http://10.96.7.2/")
	b.runPod(t, "strict/eager", "thief", "send", "udp", sink)
	b.awaitPhase(t, "strict/known", "Succeeded")
	b.awaitPhase(t, "strict/unknown", "Failed")
	b.awaitPhase(t, "strict/eager", "Failed")
	eager := b.address(t, "strict/eager")
	if seen := b.kubectl(t, "logs", "-n", "plain", "attacker", "--tail=-1"); strings.Contains(seen, "from "+eager) {
		t.Errorf("a datagram of a new enforced pod arrived: %s", seen)
	}
	for _, pod := range []string{"known", "unknown", "eager"} {
		b.removePod(t, "strict/"+pod)
	}
}

// testEnrolment enrols a namespace under load.
func (b bench) testEnrolment(t *testing.T) {
	b.kubectl(t, "create", "namespace", "late")
	defer b.kubectl(t, "delete", "namespace", "late", "--timeout=120s")
	policy := `{"apiVersion": "leno.dev/v1alpha1", "kind": "Policy", "metadata": {"name": "shop", "namespace": "late"},
		"spec": {"functions": ["shop"], "authorization": {"rules": [{"name": "other", "to": [{"paths": ["/other"]}]}]}}}`
	if _, err := b.try(policy, "kubectl", "apply", "-f", "-"); err != nil {
		t.Fatal(err)
	}
	b.kubectl(t, "create", "serviceaccount", "-n", "late", "shop")
	b.runPod(t, "late/shop", "shop", "serve", ":8080")
	b.awaitPhase(t, "late/shop", "Running")
	b.kubectl(t, "wait", "-n", "late", "policy/shop", `--for=jsonpath={.status.conditions[?(@.type=="Programmed")].reason}=NoTargets`, "--timeout=120s")
	address := b.address(t, "late/shop")
	b.runPod(t, "plain/caller", "default", "load", "http://"+address+":8080/load/")
	defer b.removePod(t, "plain/caller")
	eventually(t, func() error {
		if passed := b.counts(t, "plain/caller")["kept"].passed; passed < 5 {
			return fmt.Errorf("%d requests before the enrolment", passed)
		}
		return nil
	})
	b.kubectl(t, "label", "namespace", "late", "leno.dev/mesh=enabled", "leno.dev/mode=enforced")
	b.kubectl(t, "wait", "-n", "late", "policy/shop", `--for=jsonpath={.status.conditions[?(@.type=="Programmed")].reason}=Programmed`, "--timeout=120s")
	ways := []way{}
	for range 5 {
		ways = append(ways, way{"plain/attacker", "get http://" + address + ":8080/", denied})
	}
	b.tryAll(t, ways)
	// The caller prints its counts once a second. A kind whose request has failed must not pass again.
	var before map[string]tally
	eventually(t, func() error {
		before = b.counts(t, "plain/caller")
		for kind, now := range before {
			if now.failed == 0 {
				return fmt.Errorf("%s goes on: %v", kind, now)
			}
		}
		return nil
	})
	eventually(t, func() error {
		for kind, now := range b.counts(t, "plain/caller") {
			if now.passed > before[kind].passed {
				t.Fatalf("%d requests passed after the enrolment (%s)", now.passed-before[kind].passed, kind)
			}
			if now.failed < before[kind].failed+5 {
				return fmt.Errorf("%s goes on: %v", kind, now)
			}
		}
		return nil
	})
}
