// Command cluster runs Kubernetes clusters for tests on one machine. Each node is a set of
// namespaces, and nothing listens in the machine's own network.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"leno.dev/kubernetes/cluster/image"
)

const usage = `cluster runs a Kubernetes cluster for tests, as root.

usage: cluster [--directory D] COMMAND

  up [--nodes N] [--control-only] [--prefix P] [--families F]
                        start a cluster: control plane, N nodes (2), a name server
  down                  end it, and remove all that belongs to it
  status                list the processes and nodes; fails unless all of them run
  kubeconfig            print the path of the administrator's configuration
  kubectl ARGUMENT …    run kubectl as the administrator
  run PROGRAM …         run a program in the control plane's network, from which the API server,
                        nodes, pods and Services can be reached; KUBECONFIG is set
  node N PROGRAM …      run a program on node N: its network, processes, /etc, /opt, /run, /var
  restart N             end all processes of node N at once, and start it again
  load-image FILE …     give images (tar files) to all nodes
  fake-nodes N          add N nodes without machines, whose pods only seem to run (kwok)
  image NAME:TAG OUT FILE=PATH … -- PROGRAM [ARGUMENT …]
                        write an image from local files to the tar file OUT
  build FOLDER          build all programs into FOLDER; run in kubernetes/cluster

--directory D   the folder of the cluster (/var/lib/leno-kubernetes); each has one cluster
--prefix P      the name of its control groups (the name of the folder)
--families F    the addresses of nodes, pods and Services: ipv4, ipv6, or dual for both (ipv4)
`

// A mistake in the command line, and not a failure.
type mistake string

func (m mistake) Error() string { return string(m) + "\n\n" + usage }

// A status is the exit status of a program that was run for the user.
type status int

func (s status) Error() string { return fmt.Sprintf("exit status %d", int(s)) }

func main() {
	err := command(os.Args[1:])
	var ended status
	var wrong mistake
	switch {
	case err == nil:
	case errors.As(err, &ended):
		os.Exit(int(ended))
	case errors.As(err, &wrong):
		fmt.Fprintln(os.Stderr, "cluster:", err)
		os.Exit(2)
	default:
		fmt.Fprintln(os.Stderr, "cluster:", err)
		os.Exit(1)
	}
}

func command(arguments []string) error {
	c := &cluster{folder: "/var/lib/leno-kubernetes", began: time.Now()}
	flags := newFlags(c)
	if err := parse(flags, arguments); err != nil {
		return err
	}
	name, rest := flags.Arg(0), []string{}
	if flags.NArg() > 0 {
		rest = flags.Args()[1:]
	}
	var err error
	if c.folder, err = filepath.Abs(c.folder); err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	c.programs = filepath.Dir(self)

	// These take all further arguments as they are.
	switch name {
	case "":
		return mistake("no command")
	case "machine":
		return runMachine(rest[0], rest[1], rest[2])
	case "kubectl":
		return c.inControl(append([]string{c.program("kubectl")}, rest...))
	case "run":
		return c.inControl(rest)
	case "node":
		return c.onNode(rest)
	case "image":
		return writeImage(rest)
	}

	flags = newFlags(c)
	wanted := settings{}
	if name == "up" {
		flags.IntVar(&wanted.Nodes, "nodes", 2, "")
		flags.BoolVar(&wanted.ControlOnly, "control-only", false, "")
		flags.StringVar(&wanted.Prefix, "prefix", "", "")
		flags.StringVar(&wanted.Families, "families", "ipv4", "")
	}
	if err := parse(flags, rest); err != nil {
		return err
	}
	if c.folder, err = filepath.Abs(c.folder); err != nil {
		return err
	}
	many := map[string]int{"load-image": -1, "build": 1, "fake-nodes": 1, "restart": 1}[name]
	if many == -1 && flags.NArg() == 0 || many >= 0 && flags.NArg() != many {
		return mistake(fmt.Sprintf("%s: wrong number of arguments (%d)", name, flags.NArg()))
	}
	switch name {
	case "up":
		if err := wanted.complete(c.folder); err != nil {
			return err
		}
		return c.up(wanted)
	case "down":
		return c.down()
	case "status":
		return c.status()
	case "kubeconfig":
		if err := c.running(); err != nil {
			return err
		}
		fmt.Println(c.kubeconfig())
		return nil
	case "load-image":
		return c.loadImages(flags.Args())
	case "restart":
		return c.restart(flags.Arg(0))
	case "fake-nodes":
		return c.fakeNodes(flags.Arg(0))
	case "build":
		return build(flags.Arg(0))
	}
	return mistake(fmt.Sprintf("no command %q", name))
}

func newFlags(c *cluster) *flag.FlagSet {
	flags := flag.NewFlagSet("cluster", flag.ContinueOnError)
	flags.SetOutput(new(strings.Builder))
	flags.StringVar(&c.folder, "directory", c.folder, "")
	return flags
}

func parse(flags *flag.FlagSet, arguments []string) error {
	err := flags.Parse(arguments)
	if errors.Is(err, flag.ErrHelp) {
		fmt.Print(usage)
		return status(0)
	}
	if err != nil {
		return mistake(err.Error())
	}
	return nil
}

// complete checks the settings and fills in those that follow from others.
func (s *settings) complete(folder string) error {
	if s.ControlOnly {
		s.Nodes = 0
	} else if s.Nodes < 1 || s.Nodes > maxNodes {
		return mistake(fmt.Sprintf("--nodes %d: it must be 1 to %d; a control plane without nodes: --control-only", s.Nodes, maxNodes))
	}
	if s.Prefix == "" {
		s.Prefix = filepath.Base(folder)
	}
	if !isPrefix(s.Prefix) {
		return mistake(fmt.Sprintf("--prefix %q: it may have letters, digits, - and _", s.Prefix))
	}
	if _, known := families[s.Families]; !known {
		return mistake(fmt.Sprintf("--families %q: it must be ipv4, ipv6 or dual", s.Families))
	}
	return nil
}

// isPrefix reports whether control groups and networks may have this name. A dot would be an
// element of a path, and some hierarchies reserve names with one.
func isPrefix(name string) bool {
	return name != "" && strings.Trim(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_") == ""
}

// inControl becomes a program in the control plane's network.
func (c *cluster) inControl(arguments []string) error {
	if err := c.running(); err != nil {
		return err
	}
	if len(arguments) == 0 {
		return mistake("run: which program?")
	}
	program, err := exec.LookPath(arguments[0])
	if err != nil {
		return err
	}
	control, err := c.machine(control)
	if err != nil {
		return err
	}
	for name, value := range map[string]string{"KUBECONFIG": c.kubeconfig(), "KUBECACHEDIR": c.path("cache")} {
		if err := os.Setenv(name, value); err != nil {
			return err
		}
	}
	return control.within(networkOnly, func() error {
		return fmt.Errorf("%s: %w", program, syscall.Exec(program, arguments, os.Environ()))
	})
}

// onNode runs a program on a node.
func (c *cluster) onNode(arguments []string) error {
	if len(arguments) < 2 {
		return mistake("node: which node, and which program?")
	}
	if err := c.running(); err != nil {
		return err
	}
	node, err := c.machine("node" + strings.TrimPrefix(arguments[0], "node"))
	if err != nil {
		return err
	}
	return node.within(everything, func() error {
		cmd := exec.Command(arguments[1], arguments[2:]...)
		cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
		cmd.Env = append(os.Environ(), environment...)
		var ended *exec.ExitError
		if err := cmd.Run(); errors.As(err, &ended) && ended.ExitCode() >= 0 {
			return status(ended.ExitCode())
		} else {
			return err
		}
	})
}

// loadImages gives images to all nodes.
func (c *cluster) loadImages(files []string) error {
	if err := c.running(); err != nil {
		return err
	}
	var nodes []*machine
	for _, name := range c.nodes() {
		node, err := c.machine(name)
		if err != nil {
			return err
		}
		nodes = append(nodes, node)
	}
	if len(nodes) == 0 {
		return errors.New("the cluster has no nodes")
	}
	for _, file := range files {
		if err := <-atOnce(nodes, func(node *machine) error { return node.load(file) }); err != nil {
			return err
		}
	}
	return nil
}

// writeImage is the command `image`.
func writeImage(arguments []string) error {
	made := &image.Image{Files: map[string]string{}, Environment: []string{"PATH=/"}}
	for i, argument := range arguments {
		if argument == "--" {
			made.Entrypoint = arguments[i+1:]
			arguments = arguments[:i]
			break
		}
	}
	if len(arguments) < 3 || len(made.Entrypoint) == 0 {
		return mistake("image: it takes a name, the file to write, FILE=PATH, and after -- the program to start")
	}
	made.Name = arguments[0]
	for _, argument := range arguments[2:] {
		source, target, ok := strings.Cut(argument, "=")
		if !ok {
			return mistake(fmt.Sprintf("image: %q: it must be FILE=PATH", argument))
		}
		made.Files[target] = source
	}
	return made.WriteFile(arguments[1])
}
