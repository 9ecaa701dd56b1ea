package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

// Addresses. Clusters share no network, so that all use the same ones.
const (
	controlAddress = "10.77.0.1"
	nodeNetwork    = "10.77.0.0/24"
	podNetwork     = "10.78.0.0/16"
	serviceNetwork = "10.96.0.0/16"
	apiService     = "10.96.0.1"
	dnsService     = "10.96.0.10"
	apiPort        = 6443
)

func nodeAddress(node int) string { return fmt.Sprintf("10.77.0.%d", 10+node) }
func nodePods(node int) string    { return fmt.Sprintf("10.78.%d.0/24", node) }

// connect joins the nodes by a bridge on the control plane's machine. It also routes to the pods of
// each node from everywhere, and to Services from the control plane, by way of the first node.
func connect(control *machine, nodes []*machine) error {
	lines := []string{
		"link set lo up",
		"link add nodes type bridge",
		"addr add " + controlAddress + "/24 dev nodes",
		"link set nodes up",
	}
	for i, node := range nodes {
		end := fmt.Sprintf("node%d", i+1)
		lines = append(lines,
			fmt.Sprintf("link add %s type veth peer name eth0 netns %d", end, node.init.pid),
			fmt.Sprintf("link set %s master nodes up", end),
			fmt.Sprintf("route add %s via %s", nodePods(i+1), nodeAddress(i+1)))
	}
	if len(nodes) > 0 {
		lines = append(lines, fmt.Sprintf("route add %s via %s", serviceNetwork, nodeAddress(1)))
	} else {
		// Programs choose their own address by a route to that of the API server's Service.
		lines = append(lines, fmt.Sprintf("route add %s dev nodes", serviceNetwork))
	}
	if err := control.configure(lines); err != nil {
		return err
	}
	for i, node := range nodes {
		lines := []string{
			"link set lo up",
			fmt.Sprintf("addr add %s/24 dev eth0", nodeAddress(i+1)),
			"link set eth0 up",
			"route add default via " + controlAddress,
		}
		for j := range nodes {
			if j != i {
				lines = append(lines, fmt.Sprintf("route add %s via %s", nodePods(j+1), nodeAddress(j+1)))
			}
		}
		if err := node.configure(lines); err != nil {
			return err
		}
	}
	return nil
}

// configure runs commands of ip(8) in the network of the machine, and lets it forward packets.
func (m *machine) configure(lines []string) error {
	if _, err := m.run(networkOnly, strings.NewReader(strings.Join(lines, "\n")+"\n"), "ip", "-batch", "-"); err != nil {
		return err
	}
	return m.setting("net/ipv4/ip_forward", 1)
}

// setting changes a setting of the machine's network.
func (m *machine) setting(name string, value int) error {
	return m.within(networkOnly, func() error {
		return os.WriteFile("/proc/sys/"+name, []byte(strconv.Itoa(value)), 0o644)
	})
}
