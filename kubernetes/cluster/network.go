package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

const apiPort = 6443

// A family has the addresses of a cluster in one version of the protocol. Clusters share no network,
// so that all use the same ones.
type family struct {
	// The control plane's address, and the prefix of those of nodes.
	control string
	bits    int
	// The addresses of all pods, and those of Services, with the API server's and the name server's.
	pods, services, api, dns string
	// The addresses of a node, and of its pods.
	node, nodePods string
	// everything is the destination of a default route.
	everything string
	forwarding string
}

var (
	ipv4 = family{
		"10.77.0.1", 24, "10.78.0.0/16", "10.96.0.0/16", "10.96.0.1", "10.96.0.10",
		"10.77.0.%d", "10.78.%d.0/24", "0.0.0.0/0", "net/ipv4/ip_forward",
	}
	ipv6 = family{
		"fd77::1", 64, "fd78::/48", "fd96::/112", "fd96::1", "fd96::a",
		"fd77::%d", "fd78:0:0:%d::/64", "::/0", "net/ipv6/conf/all/forwarding",
	}
	// families are those of a cluster by their name for `up`. The first one is that of the nodes.
	families = map[string][]family{"ipv4": {ipv4}, "ipv6": {ipv6}, "dual": {ipv4, ipv6}}
)

// families of the cluster. One that was started without the choice has IPv4.
func (s settings) families() []family {
	if chosen, known := families[s.Families]; known {
		return chosen
	}
	return families["ipv4"]
}

// first is the family of the nodes' own traffic.
func (s settings) first() family { return s.families()[0] }

// each joins a value of each family.
func (s settings) each(value func(family) string) string {
	var values []string
	for _, one := range s.families() {
		values = append(values, value(one))
	}
	return strings.Join(values, ",")
}

func (f family) nodeAddress(node int) string { return fmt.Sprintf(f.node, 10+node) }
func (f family) podsOf(node int) string      { return fmt.Sprintf(f.nodePods, node) }

// nodeAddresses are those of a node in all families.
func (s settings) nodeAddresses(node int) string {
	return s.each(func(one family) string { return one.nodeAddress(node) })
}

// connect joins the nodes by a bridge on the control plane's machine, which routes to Services by way
// of the first node.
func connect(control *machine, nodes []*machine) error {
	lines := []string{"link set lo up", "link add nodes type bridge", "link set nodes up"}
	for _, one := range control.families() {
		lines = append(lines, one.add(one.control, "nodes"))
		if len(nodes) > 0 {
			lines = append(lines, fmt.Sprintf("route add %s via %s", one.services, one.nodeAddress(1)))
		} else {
			// Programs choose their own address by a route to that of the API server's Service.
			lines = append(lines, fmt.Sprintf("route add %s dev nodes", one.services))
		}
	}
	if err := control.configure(lines); err != nil {
		return err
	}
	for i, node := range nodes {
		if err := node.attach(control, i+1); err != nil {
			return err
		}
	}
	return nil
}

// attach joins the node with this number to the bridge, and routes to its pods, and from it to those
// of other nodes.
func (m *machine) attach(control *machine, number int) error {
	theirs := []string{
		fmt.Sprintf("link add %s type veth peer name eth0 netns %d", m.name, m.init.pid),
		fmt.Sprintf("link set %s master nodes up", m.name),
	}
	own := []string{"link set lo up", "link set eth0 up"}
	for _, one := range m.families() {
		// The route stays while a node is away.
		theirs = append(theirs, fmt.Sprintf("route replace %s via %s", one.podsOf(number), one.nodeAddress(number)))
		own = append(own, one.add(one.nodeAddress(number), "eth0"), fmt.Sprintf("route add %s via %s", one.everything, one.control))
		for other := 1; other <= m.Nodes; other++ {
			if other != number {
				own = append(own, fmt.Sprintf("route add %s via %s", one.podsOf(other), one.nodeAddress(other)))
			}
		}
	}
	if err := control.configure(theirs); err != nil {
		return err
	}
	return m.configure(own)
}

// add is the command of ip(8) that gives an address to an interface. No other machine has it: IPv6
// need not ask first.
func (f family) add(address, device string) string {
	line := fmt.Sprintf("addr add %s/%d dev %s", address, f.bits, device)
	if strings.Contains(address, ":") {
		line += " nodad"
	}
	return line
}

// configure runs commands of ip(8) in the network of the machine, and lets it forward packets.
func (m *machine) configure(lines []string) error {
	if _, err := m.run(networkOnly, strings.NewReader(strings.Join(lines, "\n")+"\n"), "ip", "-batch", "-"); err != nil {
		return err
	}
	for _, one := range m.families() {
		if err := m.setting(one.forwarding, 1); err != nil {
			return err
		}
	}
	return nil
}

// setting changes a setting of the machine's network.
func (m *machine) setting(name string, value int) error {
	return m.within(networkOnly, func() error {
		return os.WriteFile("/proc/sys/"+name, []byte(strconv.Itoa(value)), 0o644)
	})
}
