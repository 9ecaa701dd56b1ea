package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// replaceAgents rolls the agents out, also if nothing has changed.
func (b bench) replaceAgents(t *testing.T) {
	t.Helper()
	b.kubectl(t, "rollout", "restart", "-n", "leno-system", "daemonset/leno-agent")
	b.awaitRollout(t, "daemonset/leno-agent")
}

// awaitRollout waits until all pods of a component of Leno are new, and ready.
func (b bench) awaitRollout(t *testing.T, component string) {
	t.Helper()
	// An agent is not replaced while the one before it drains.
	b.kubectl(t, "rollout", "status", "-n", "leno-system", component, "--timeout=300s")
}

// secret makes or replaces a Secret of Leno.
func (b bench) secret(t *testing.T, name string, data map[string]string) {
	t.Helper()
	text, err := json.Marshal(map[string]any{
		"apiVersion": "v1", "kind": "Secret", "metadata": map[string]string{"name": name, "namespace": "leno-system"}, "stringData": data,
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.try(string(text), "kubectl", "apply", "-f", "-"); err != nil {
		t.Fatal(err)
	}
}

// newRoot makes the contents of the Secret of an authority.
func newRoot(t *testing.T, from time.Time) map[string]string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := newTemplate(pkix.Name{CommonName: "another authority"})
	template.NotBefore = from
	template.URIs = []*url.URL{{Scheme: "spiffe", Host: "leno.local"}}
	template.IsCA, template.BasicConstraintsValid = true, true
	template.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageCRLSign
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := encodeKey(key)
	if err != nil {
		t.Fatal(err)
	}
	certificate := string(encode("CERTIFICATE", der))
	return map[string]string{"tls.crt": certificate, "tls.key": string(private), "ca.crt": certificate}
}

// testAuthority removes the authority, and makes another one.
func (b bench) testAuthority(t *testing.T) {
	roots := func() string {
		text := b.kubectl(t, "get", "configmap", "-n", "leno-system", "leno-ca", "-o", `jsonpath={.data.ca\.crt}`)
		return strings.ReplaceAll(text, "\r", "")
	}
	before := roots()
	next := newRoot(t, time.Now().Add(-time.Hour))
	b.unharmed(t, func() {
		b.kubectl(t, "delete", "secret", "-n", "leno-system", "leno-ca")
		b.stillFollows(t)
		if now := roots(); now != before {
			t.Errorf("the roots without the Secret: %s", now)
		}
		b.secret(t, "leno-ca", next)
		eventually(t, func() error {
			if now := roots(); !strings.Contains(now, next["ca.crt"]) {
				return fmt.Errorf("the roots of the new Secret: %s", now)
			}
			return nil
		})
		b.stillFollows(t)
	})
	// Agents that start now join with the new authority.
	b.replaceAgents(t)
	b.renewLoad(t)
	b.underLoad(t, func() { b.stillFollows(t) })
}

// testClock moves the clock of the agent of the second node, while the agent runs and before it
// starts.
func (b bench) testClock(t *testing.T) {
	library, err := os.ReadFile("/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1")
	if err != nil {
		t.Fatalf("%v: install the package faketime", err)
	}
	state := filepath.Join(b.folder, "node2/var/lib/leno")
	set := func(offset string) {
		if err := os.WriteFile(filepath.Join(state, "clock"), []byte(offset), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(state, "clock.so"), library, 0o755); err != nil {
		t.Fatal(err)
	}
	set("+0s")
	// The first node has neither file, and the right time.
	b.kubectl(t, "set", "env", "-n", "leno-system", "daemonset/leno-agent", "LD_PRELOAD=/var/lib/leno/clock.so",
		"FAKETIME_TIMESTAMP_FILE=/var/lib/leno/clock", "FAKETIME_CACHE_DURATION=1", "FAKETIME_DONT_FAKE_MONOTONIC=1")
	b.awaitRollout(t, "daemonset/leno-agent")
	b.renewLoad(t)
	b.unharmed(t, func() {
		for _, offset := range []string{"-2h", "+720h", "+0s"} {
			set(offset)
			time.Sleep(outage)
		}
		b.followsOnSecond(t)
	})
	b.unharmedOnFirst(t, func() {
		set("-2h")
		agent := b.names(t, "leno-agent", "node2")[0]
		b.killPod(t, "leno-system", agent, "leno")
		eventually(t, func() error {
			logs, err := b.try("", "kubectl", "logs", "-n", "leno-system", agent)
			if err == nil && !strings.Contains(logs, "not valid before") {
				err = fmt.Errorf("the agent does not name its clock: %s", logs)
			}
			return err
		})
		set("+0s")
		b.awaitPod(t, "leno-system", agent)
	})
	b.followsOnSecond(t)
}

// expired makes a token of the agent's account that has ended, from one that is valid.
func (b bench) expired(t *testing.T, pod string) string {
	t.Helper()
	token := strings.TrimSpace(b.kubectl(t, "create", "token", "-n", "leno-system", "leno-agent", "--audience=leno", "--bound-object-kind=Pod", "--bound-object-name="+pod))
	parts := strings.Split(token, ".")
	data, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		t.Fatal(err)
	}
	var claims map[string]any
	if err := json.Unmarshal(data, &claims); err != nil {
		t.Fatal(err)
	}
	now := time.Now().Unix()
	claims["iat"], claims["nbf"], claims["exp"] = now-7200, now-7200, now-3600
	if data, err = json.Marshal(claims); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(b.folder, control, "etc/kubernetes/tokens.key"))
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(text)
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	signed := parts[0] + "." + base64.RawURLEncoding.EncodeToString(data)
	digest := sha256.Sum256([]byte(signed))
	r, s, err := ecdsa.Sign(rand.Reader, key.(*ecdsa.PrivateKey), digest[:])
	if err != nil {
		t.Fatal(err)
	}
	signature := make([]byte, 64)
	r.FillBytes(signature[:32])
	s.FillBytes(signature[32:])
	return signed + "." + base64.RawURLEncoding.EncodeToString(signature)
}

// testExpiredToken replaces the agents by others whose token has ended.
func (b bench) testExpiredToken(t *testing.T) {
	b.secret(t, "expired", map[string]string{"token": b.expired(t, b.names(t, "leno-agent", "node1")[0])})
	defer b.kubectl(t, "delete", "secret", "-n", "leno-system", "expired")
	defer b.renewLoad(t)
	b.unharmed(t, func() {
		before := b.names(t, "leno-agent", "")
		b.kubectl(t, "patch", "-n", "leno-system", "daemonset/leno-agent", `--patch={"spec": {"template": {"spec": {"volumes": [
			{"name": "token", "projected": {"sources": [{"secret": {"name": "expired"}}]}}]}}}}`)
		eventually(t, func() error {
			for _, name := range b.names(t, "leno-agent", "") {
				logs, _ := b.try("", "kubectl", "logs", "-n", "leno-system", name, "--tail=-1")
				if !strings.Contains(strings.Join(before, " "), name) && strings.Contains(logs, "expired") {
					t.Log(logs)
					return nil
				}
			}
			return fmt.Errorf("no agent says that its token has ended")
		})
		b.kubectl(t, "rollout", "undo", "-n", "leno-system", "daemonset/leno-agent")
		b.awaitRollout(t, "daemonset/leno-agent")
		b.stillFollows(t)
	})
}
