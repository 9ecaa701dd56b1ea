package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"
)

// An api is a client of the cluster's API server, for the few questions that this program has.
type api struct {
	client http.Client
	server string
}

// server is the URL of the API server.
func (c *cluster) server() string {
	return "https://" + net.JoinHostPort(c.first().control, strconv.Itoa(apiPort))
}

// api makes a client that opens its connections in the control plane's network.
func (c *cluster) api() (*api, error) {
	control, err := c.machine(control)
	if err != nil {
		return nil, err
	}
	folder := control.path("etc/kubernetes")
	certificate, err := tls.LoadX509KeyPair(folder+"/kubelets.crt", folder+"/kubelets.key")
	if err != nil {
		return nil, err
	}
	ca, err := os.ReadFile(folder + "/ca.crt")
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	return &api{server: c.server(), client: http.Client{
		Timeout: 20 * time.Second,
		Transport: &http.Transport{
			TLSClientConfig: &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{certificate}},
			DialContext: func(ctx context.Context, network, address string) (connection net.Conn, err error) {
				err = control.within(networkOnly, func() error {
					connection, err = new(net.Dialer).DialContext(ctx, network, address)
					return err
				})
				return connection, err
			},
		},
	}}, nil
}

// get reads an object into `into`, unless that is nil.
func (a *api) get(path string, into any) error {
	return a.do(http.MethodGet, path, nil, into)
}

func (a *api) do(method, path string, object, into any) error {
	var body io.Reader
	if object != nil {
		data, err := json.Marshal(object)
		if err != nil {
			return err
		}
		body = bytes.NewReader(data)
	}
	request, err := http.NewRequest(method, a.server+path, body)
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", "application/json")
	answer, err := a.client.Do(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	data, err := io.ReadAll(answer.Body)
	if err != nil {
		return err
	}
	if answer.StatusCode >= 300 {
		return fmt.Errorf("%s %s: %s: %s", method, path, answer.Status, strings.TrimSpace(string(data[:min(len(data), 300)])))
	}
	if into == nil {
		return nil
	}
	return json.Unmarshal(data, into)
}

type condition struct{ Type, Status, Message string }

type nodeList struct {
	Items []struct {
		Metadata struct{ Name string }
		Status   struct{ Conditions []condition }
	}
}

// readiness maps each node to the empty string if it is ready, or to the reason why it is not.
func (a *api) readiness() (map[string]string, error) {
	var nodes nodeList
	if err := a.get("/api/v1/nodes", &nodes); err != nil {
		return nil, err
	}
	found := map[string]string{}
	for _, node := range nodes.Items {
		found[node.Metadata.Name] = "it reports no readiness"
		for _, one := range node.Status.Conditions {
			if one.Type == "Ready" && one.Status == "True" {
				found[node.Metadata.Name] = ""
			} else if one.Type == "Ready" {
				found[node.Metadata.Name] = one.Message
			}
		}
	}
	return found, nil
}

// available returns the number of available pods of a Deployment.
func (a *api) available(namespace, name string) (int, error) {
	var deployment struct {
		Status struct{ AvailableReplicas int }
	}
	err := a.get("/apis/apps/v1/namespaces/"+namespace+"/deployments/"+name, &deployment)
	return deployment.Status.AvailableReplicas, err
}
