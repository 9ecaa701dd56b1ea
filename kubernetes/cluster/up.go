package main

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
)

// up starts the cluster. One of the same kind that runs is left as it is; the rest of one that has
// failed is removed first.
func (c *cluster) up(wanted settings) error {
	if err := c.present(wanted.ControlOnly); err != nil {
		return err
	}
	if err := os.MkdirAll(c.folder, 0o755); err != nil {
		return err
	}
	if err := c.acquire(); err != nil {
		return err
	}
	switch err := c.open(); {
	case errors.Is(err, fs.ErrNotExist):
		if err := c.empty(); err != nil {
			return err
		}
	case err != nil:
		return err
	default:
		name, err := c.ended()
		if err != nil {
			return err
		}
		if c.Whole && name == "" {
			had := c.settings
			had.Whole = false
			if had == wanted {
				c.say("the cluster in %s is up already", c.folder)
				return nil
			}
			return fmt.Errorf("the cluster in %s runs with %s, not %s; end it first: cluster down --directory %s", c.folder, had, wanted, c.folder)
		}
		c.say("removing the rest of a cluster that did not run to its end")
		if err := c.remove(); err != nil {
			return err
		}
		if err := os.MkdirAll(c.folder, 0o755); err != nil {
			return err
		}
		c.lock.Close()
		if err := c.acquire(); err != nil {
			return err
		}
	}
	c.settings = wanted
	if groups, err := c.controlGroups(""); err != nil {
		return err
	} else if len(groups) > 0 {
		return fmt.Errorf("the control group %s exists: it belongs to another cluster, or to none; choose another --prefix, or remove it", groups[len(groups)-1])
	}
	if err := c.save(); err != nil {
		return err
	}
	for _, folder := range []string{"log", "process"} {
		if err := os.MkdirAll(c.path(folder), 0o755); err != nil {
			return err
		}
	}
	if err := c.start(); err != nil {
		return err
	}
	c.Whole = true
	return c.save()
}

// start starts all machines and components.
func (c *cluster) start() error {
	head := &machine{cluster: c, name: control}
	if err := head.boot(); err != nil {
		return err
	}
	var nodes []*machine
	for _, name := range c.nodes() {
		node := &machine{cluster: c, name: name}
		if err := node.boot(); err != nil {
			return err
		}
		nodes = append(nodes, node)
	}
	if err := connect(head, nodes); err != nil {
		return err
	}
	ca, err := c.certify(head)
	if err != nil {
		return err
	}
	if err := c.startServers(head); err != nil {
		return err
	}
	// Nodes prepare themselves while the API server starts.
	prepared := atOnce(nodes, (*machine).startRuntime)
	if err := c.awaitServers(); err != nil {
		return err
	}
	c.say("the API server is ready")
	if err := c.startControllers(head); err != nil {
		return err
	}
	if c.ControlOnly {
		return c.awaitAccounts()
	}
	if err := <-prepared; err != nil {
		return err
	}
	for i, node := range nodes {
		err := node.setUp(i+1, ca)
		if err == nil {
			err = node.startNode(i + 1)
		}
		if err != nil {
			return err
		}
	}
	if err := c.startDNS(head); err != nil {
		return err
	}
	if err := c.awaitNodes(); err != nil {
		return err
	}
	c.say("%s", count(len(nodes), "node is ready", "nodes are ready"))
	if err := c.awaitDNS(); err != nil {
		return err
	}
	c.say("the name server is ready")
	return c.awaitAccounts()
}

// awaitAccounts waits until pods can be made: the controllers have to make an account for them.
func (c *cluster) awaitAccounts() error {
	api, err := c.api()
	if err != nil {
		return err
	}
	if err := c.await("the controllers are not ready", control+"-controllers", waitLimit, func() error {
		return api.get("/api/v1/namespaces/default/serviceaccounts/default", nil)
	}); err != nil {
		return err
	}
	c.say("the controllers are ready")
	return nil
}

// atOnce calls a function for each machine, all at the same time; the channel gives their errors.
func atOnce(machines []*machine, do func(*machine) error) <-chan error {
	results := make(chan error, len(machines))
	for _, one := range machines {
		go func() { results <- do(one) }()
	}
	joined := make(chan error, 1)
	go func() {
		var all error
		for range machines {
			all = errors.Join(all, <-results)
		}
		joined <- all
	}()
	return joined
}

// commands that a cluster needs besides its own programs, and their Debian packages.
var (
	commands     = map[string]string{"ip": "iproute2"}
	nodeCommands = map[string]string{"runc": "runc", "nft": "nftables", "iptables": "iptables", "mount": "mount"}
)

// present checks that everything is there that a cluster needs, before anything is changed.
func (c *cluster) present(controlOnly bool) error {
	if os.Geteuid() != 0 {
		return errors.New("a cluster makes namespaces, mounts and control groups, and has to run as root")
	}
	needed := maps.Clone(commands)
	if !controlOnly {
		maps.Copy(needed, nodeCommands)
	}
	var missing []string
	for command, packaged := range needed {
		if _, err := exec.LookPath(command); err != nil {
			missing = append(missing, packaged)
		}
	}
	if len(missing) > 0 {
		slices.Sort(missing)
		return fmt.Errorf("missing packages; type: apt-get install %s", strings.Join(missing, " "))
	}
	programs := []string{"kubernetes", "etcd"}
	if !controlOnly {
		programs = append(programs, "containerd", "containerd-shim-runc-v2", "ctr", "cni/bridge", "images/pause.tar", "images/coredns.tar")
	}
	for _, one := range programs {
		if _, err := os.Stat(c.program(one)); err != nil {
			return fmt.Errorf("%s is not built; type: make kubernetes", c.program(one))
		}
	}
	return nil
}

// empty refuses a folder that has other contents, which `down` would remove.
func (c *cluster) empty() error {
	entries, err := os.ReadDir(c.folder)
	if err == nil && len(entries) > 0 {
		return fmt.Errorf("%s is not empty and not a cluster's: choose another --directory", c.folder)
	}
	return err
}

func (s settings) String() string {
	text := count(s.Nodes, "node", "nodes")
	if s.ControlOnly {
		text = "a control plane only"
	}
	if s.Families != "ipv4" {
		text += ", families " + s.Families
	}
	return text
}

func count(number int, one, many string) string {
	if number == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", number, many)
}
