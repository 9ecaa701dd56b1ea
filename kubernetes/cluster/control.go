package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"fmt"
	"os"
)

const dataStore = "http://127.0.0.1:2379"

// certify writes the certificates of the control plane, and the configuration of its clients.
func (c *cluster) certify(control *machine) (*authority, error) {
	ca, err := newAuthority(c.server())
	if err != nil {
		return nil, err
	}
	folder := control.path("etc/kubernetes")
	if err := os.WriteFile(folder+"/ca.crt", ca.pem, 0o644); err != nil {
		return nil, err
	}
	var addresses []string
	for _, one := range c.families() {
		addresses = append(addresses, one.control, one.api)
	}
	for _, one := range []struct {
		file, user, group string
		names, addresses  []string
	}{
		{
			file: "apiserver", user: "kube-apiserver",
			names: []string{
				"kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local",
			},
			addresses: append(addresses, "127.0.0.1"),
		},
		// The API server as a client: of kubelets, and of aggregated APIs.
		{file: "kubelets", user: "kube-apiserver-kubelet-client", group: "system:masters"},
		{file: "front-proxy", user: "front-proxy"},
	} {
		issued, err := ca.issue(one.user, one.group, one.names, one.addresses...)
		if err == nil {
			err = issued.save(folder + "/" + one.file)
		}
		if err != nil {
			return nil, err
		}
	}
	if err := writeTokenKeys(folder); err != nil {
		return nil, err
	}
	for file, user := range map[string][2]string{
		c.kubeconfig():               {"admin", "system:masters"},
		folder + "/controllers.conf": {"system:kube-controller-manager", ""},
		folder + "/scheduler.conf":   {"system:kube-scheduler", ""},
	} {
		if err := ca.client(file, user[0], user[1]); err != nil {
			return nil, err
		}
	}
	return ca, nil
}

// writeTokenKeys makes the pair of keys for the tokens of service accounts.
func writeTokenKeys(folder string) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	private, err := encodeKey(key)
	if err != nil {
		return err
	}
	public, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
	if err != nil {
		return err
	}
	if err := os.WriteFile(folder+"/tokens.key", private, 0o600); err != nil {
		return err
	}
	return os.WriteFile(folder+"/tokens.pub", encode("PUBLIC KEY", public), 0o644)
}

// client writes the configuration of a client of the API server.
func (a *authority) client(file, user, group string) error {
	issued, err := a.issue(user, group, nil)
	if err != nil {
		return err
	}
	return os.WriteFile(file, a.kubeconfig(issued), 0o600)
}

// startServers starts the data store and the API server, which waits for it.
func (c *cluster) startServers(control *machine) error {
	if err := control.start("etcd", "etcd", "--data-dir=/var/lib/etcd",
		"--listen-client-urls="+dataStore, "--advertise-client-urls="+dataStore,
		"--listen-peer-urls=http://127.0.0.1:2380", "--initial-advertise-peer-urls=http://127.0.0.1:2380",
		"--initial-cluster=default=http://127.0.0.1:2380",
		// The data need not outlive the machine.
		"--unsafe-no-fsync"); err != nil {
		return err
	}
	const folder = "/etc/kubernetes"
	address := c.first().control
	return control.start("apiserver", "kube-apiserver",
		"--etcd-servers="+dataStore,
		"--bind-address="+address, "--advertise-address="+address, fmt.Sprintf("--secure-port=%d", apiPort),
		"--tls-cert-file="+folder+"/apiserver.crt", "--tls-private-key-file="+folder+"/apiserver.key",
		"--client-ca-file="+folder+"/ca.crt",
		"--kubelet-client-certificate="+folder+"/kubelets.crt", "--kubelet-client-key="+folder+"/kubelets.key",
		"--kubelet-certificate-authority="+folder+"/ca.crt", "--kubelet-preferred-address-types=InternalIP",
		"--requestheader-client-ca-file="+folder+"/ca.crt", "--requestheader-allowed-names=front-proxy",
		"--requestheader-username-headers=X-Remote-User", "--requestheader-group-headers=X-Remote-Group",
		"--requestheader-extra-headers-prefix=X-Remote-Extra-",
		"--proxy-client-cert-file="+folder+"/front-proxy.crt", "--proxy-client-key-file="+folder+"/front-proxy.key",
		// This machine routes Services by way of a node: APIs are called at their pods.
		"--enable-aggregator-routing=true",
		"--service-account-issuer=https://kubernetes.default.svc.cluster.local",
		"--service-account-key-file="+folder+"/tokens.pub", "--service-account-signing-key-file="+folder+"/tokens.key",
		"--service-cluster-ip-range="+c.each(func(one family) string { return one.services }),
		"--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction", "--allow-privileged=true")
}

// startControllers starts the clients of the API server that run the cluster.
func (c *cluster) startControllers(control *machine) error {
	const folder = "/etc/kubernetes"
	client := func(name string) []string {
		return []string{
			"--kubeconfig=" + folder + "/" + name, "--authentication-kubeconfig=" + folder + "/" + name,
			"--authorization-kubeconfig=" + folder + "/" + name, "--bind-address=127.0.0.1", "--leader-elect=false",
			// The usual bound of 20 requests a second delays the first start by five seconds.
			"--kube-api-qps=1000", "--kube-api-burst=1000",
		}
	}
	arguments := append([]string{"kube-controller-manager"}, client("controllers.conf")...)
	arguments = append(arguments,
		"--use-service-account-credentials=true", "--service-account-private-key-file="+folder+"/tokens.key",
		"--root-ca-file="+folder+"/ca.crt",
		// The ranges of pods are in the configuration of the nodes.
		"--controllers=*,-node-ipam-controller,-certificatesigningrequest-signing-controller",
		// A lost node is found within ten seconds.
		"--node-monitor-period=1s", "--node-monitor-grace-period=8s")
	if err := control.start("controllers", arguments...); err != nil {
		return err
	}
	return control.start("scheduler", append([]string{"kube-scheduler"}, client("scheduler.conf")...)...)
}

// awaitServers waits until the API server answers and has its roles.
func (c *cluster) awaitServers() error {
	api, err := c.api()
	if err != nil {
		return err
	}
	return c.await("the API server is not ready", control+"-apiserver", waitLimit, func() error {
		return api.get("/readyz", nil)
	})
}
