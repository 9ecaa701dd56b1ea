package main

import (
	"fmt"
	"net"
	"strings"
	"testing"
)

// testFamilies calls pods of the namespace `work`, which is enforced, by their addresses of IPv6.
func (b bench) testFamilies(t *testing.T) {
	b.kubectl(t, "apply", "-f", "testdata/families.yaml")
	second := func(pod string) string {
		return b.kubectl(t, "get", "pod", "-n", "work", pod, "-o", "jsonpath={.status.podIPs[1].ip}")
	}
	direct := "http://" + net.JoinHostPort(second("bare"), "8080")
	near, far := map[string]string{}, map[string]string{}
	for _, server := range []string{direct, "http://bare6", "http://both", "http://web6:8080"} {
		near[server+"/"], near[server+"/secrets"] = isAllowed, isDenied
		far[server+"/"], far[server+"/metrics"] = isDenied, isAllowed
	}
	for pod, wanted := range map[string]map[string]string{"caller": near, "far": far} {
		texts := b.expect(t, "work", pod, wanted)
		address := second(pod)
		if strings.Count(address, ":") < 2 {
			t.Fatalf("the second address of the pod %s is %q, not one of IPv6", pod, address)
		}
		for url, status := range wanted {
			if status == isAllowed && !strings.Contains(url, "both") && !strings.HasSuffix(texts[url], " "+address) {
				t.Errorf("the program at %s sees another client than %s: %s", url, address, texts[url])
			}
		}
	}
}

// addInterface gives a pod on node 1 another interface, which a bridge of the node joins with others
// of the same name.
func (b bench) addInterface(t *testing.T, pod, device, address string) {
	t.Helper()
	b.run(t, "node", "1", "sh", "-ec", fmt.Sprintf(`
		for file in /run/netns/*; do
			if nsenter --net=$file ip -o addr | grep -qF " %s/"; then network=${file##*/}; fi
		done
		ip link show all-%[2]s >/dev/null 2>&1 || ip link add all-%[2]s type bridge
		ip link set all-%[2]s up
		ip link add %[2]s-%[4]s type veth peer name %[2]s netns $network
		ip link set %[2]s-%[4]s master all-%[2]s up
		ip -n $network addr add %[3]s/24 dev %[2]s
		ip -n $network link set %[2]s up`, b.podIP(t, "nets", pod), device, address, pod))
}

// testSecondNetwork has two pods call each other over a second network, and over a third one that
// they get when the first of them is captured already.
func (b bench) testSecondNetwork(t *testing.T) {
	b.kubectl(t, "apply", "-f", "testdata/networks.yaml")
	b.awaitPod(t, "nets", "twice")
	b.awaitPod(t, "nets", "near")
	b.addInterface(t, "twice", "net1", "10.99.0.2")
	b.addInterface(t, "near", "net1", "10.99.0.3")
	check := func(network, page, secrets string) {
		t.Helper()
		to := "http://" + network + ".2:8080"
		texts := b.expect(t, "nets", "near", map[string]string{to + "/": page, to + "/secrets": secrets, to + "/open": isAllowed})
		if text := texts[to+"/open"]; text != "twice "+network+".3" {
			t.Errorf("the program sees another client: %s", text)
		}
		from := "http://" + network + ".3:8080/"
		if text := b.expect(t, "nets", "twice", map[string]string{from: isAllowed})[from]; text != "near "+network+".2" {
			t.Errorf("the program outside of the mesh sees another client: %s", text)
		}
	}
	check("10.99.0", isAllowed, isAllowed)
	b.kubectl(t, "label", "pod", "-n", "nets", "twice", "leno.dev/mesh=enabled")
	check("10.99.0", isDenied, isDenied)
	b.kubectl(t, "label", "pod", "-n", "nets", "twice", "leno.dev/mode=enforced")
	check("10.99.0", isDenied, isDenied)
	b.addInterface(t, "twice", "net2", "10.98.0.2")
	b.addInterface(t, "near", "net2", "10.98.0.3")
	check("10.98.0", isDenied, isDenied)
	b.kubectl(t, "delete", "namespace", "nets", "--wait=false")
}
