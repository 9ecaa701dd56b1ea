package main

import (
	"embed"
	"errors"
	"fmt"
	"os"
	"strings"
	"text/template"
	"time"
)

//go:embed manifests
var manifests embed.FS

// render fills in a file of `manifests`.
func render(name string, values any) (string, error) {
	parsed, err := template.New(name).Option("missingkey=error").ParseFS(manifests, "manifests/"+name)
	if err != nil {
		return "", err
	}
	var text strings.Builder
	err = parsed.ExecuteTemplate(&text, name, values)
	return text.String(), err
}

const runtimeSocket = "/run/containerd/containerd.sock"

// startRuntime starts containerd, and gives it the images of the cluster.
func (m *machine) startRuntime() error {
	// A plug-in of a test may install itself beside these.
	plugins, err := os.ReadDir(m.program("cni"))
	if err != nil {
		return err
	}
	for _, plugin := range plugins {
		if err := os.Symlink("/opt/kubernetes/cni/"+plugin.Name(), m.path("opt/cni/bin", plugin.Name())); err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
	}
	configuration, err := render("containerd.toml", nil)
	if err == nil {
		err = m.write("etc/containerd/config.toml", configuration)
	}
	if err == nil {
		err = m.start("containerd", "containerd", "--config=/etc/containerd/config.toml")
	}
	if err != nil {
		return err
	}
	if err := m.await("containerd is not ready", m.name+"-containerd", time.Minute, func() error {
		_, err := m.run(everything, nil, "/opt/kubernetes/ctr", "--address="+runtimeSocket, "version")
		return err
	}); err != nil {
		return err
	}
	for _, name := range builtImages {
		if err := m.load(m.program("images/" + name + ".tar")); err != nil {
			return err
		}
	}
	return nil
}

// load gives an image, a tar file, to the node.
func (m *machine) load(name string) error {
	file, err := os.Open(name)
	if err != nil {
		return err
	}
	defer file.Close()
	if _, err := m.run(everything, file, "/opt/kubernetes/ctr", "--address="+runtimeSocket, "--namespace=k8s.io", "images", "import", "-"); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// setUp writes the configuration of the node with this number.
func (m *machine) setUp(number int, ca *authority) error {
	var pods, routes []string
	for _, one := range m.families() {
		pods = append(pods, fmt.Sprintf(`[{"subnet": %q}]`, one.podsOf(number)))
		routes = append(routes, fmt.Sprintf(`{"dst": %q}`, one.everything))
	}
	values := map[string]string{
		"Name": m.name, "Address": m.first().nodeAddress(number), "DNS": m.first().dns,
		"Group": m.Prefix + "/" + m.name, "PodNetworks": m.each(func(one family) string { return one.pods }),
		"Pods": strings.Join(pods, ", "), "Routes": strings.Join(routes, ", "),
	}
	for source, target := range map[string]string{
		"pods.conflist": "etc/cni/net.d/10-pods.conflist",
		"kubelet.yaml":  "etc/kubernetes/kubelet.yaml",
		"proxy.yaml":    "etc/kubernetes/proxy.yaml",
	} {
		text, err := render(source, values)
		if err == nil {
			err = m.write(target, text)
		}
		if err != nil {
			return err
		}
	}
	folder := m.path("etc/kubernetes")
	if err := os.WriteFile(folder+"/ca.crt", ca.pem, 0o644); err != nil {
		return err
	}
	server, err := ca.issue(m.name, "", []string{m.name}, strings.Split(m.nodeAddresses(number), ",")...)
	if err == nil {
		err = server.save(folder + "/kubelet")
	}
	if err == nil {
		err = ca.client(folder+"/kubelet.conf", "system:node:"+m.name, "system:nodes")
	}
	if err == nil {
		err = ca.client(folder+"/proxy.conf", "system:kube-proxy", "")
	}
	return err
}

// startNode starts the kubelet and kube-proxy of the node with this number.
func (m *machine) startNode(number int) error {
	if err := m.start("kubelet", "kubelet", "--kubeconfig=/etc/kubernetes/kubelet.conf", "--config=/etc/kubernetes/kubelet.yaml",
		"--hostname-override="+m.name, "--node-ip="+m.nodeAddresses(number),
		fmt.Sprintf("--node-labels=topology.kubernetes.io/region=test,topology.kubernetes.io/zone=zone-%d", number)); err != nil {
		return err
	}
	return m.start("proxy", "kube-proxy", "--config=/etc/kubernetes/proxy.yaml")
}

// awaitNodes waits until all nodes are ready.
func (c *cluster) awaitNodes() error {
	api, err := c.api()
	if err != nil {
		return err
	}
	for _, name := range c.nodes() {
		if err := c.await(name+" is not ready", name+"-kubelet", waitLimit, func() error {
			ready, err := api.readiness()
			if err != nil {
				return err
			}
			reason, known := ready[name]
			if !known {
				return fmt.Errorf("%s has not registered", name)
			}
			if reason != "" {
				return fmt.Errorf("%s", reason)
			}
			return nil
		}); err != nil {
			return err
		}
	}
	return nil
}

// startDNS makes the cluster's name server.
func (c *cluster) startDNS(control *machine) error {
	text, err := render("dns.yaml", map[string]string{"DNS": c.first().dns})
	if err != nil {
		return err
	}
	_, err = control.run(networkOnly, strings.NewReader(text), c.program("kubectl"), "--kubeconfig="+c.kubeconfig(), "--cache-dir="+c.path("cache"),
		"apply", "--server-side", "--validate=false", "-f", "-")
	return err
}

func (c *cluster) awaitDNS() error {
	api, err := c.api()
	if err != nil {
		return err
	}
	return c.await("the name server is not ready", c.nodes()[0]+"-kubelet", waitLimit, func() error {
		count, err := api.available("kube-system", "coredns")
		if err == nil && count == 0 {
			err = fmt.Errorf("no pod of the Deployment coredns is available")
		}
		return err
	})
}
