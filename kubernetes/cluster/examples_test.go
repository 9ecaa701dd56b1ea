package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// testExamples runs the applications of `examples` as Deployments.
func (b bench) testExamples(t *testing.T, r *report, programs string) {
	r.run(t, "boutique runs as Deployments, and each function lets in its callers only", false, func(t *testing.T) {
		b.loadImage(t, "local/boutique:1", filepath.Join(programs, "boutique"))
		b.stages(t, "shop", "boutique", b.visitShop, "../../examples/boutique/mesh/shop/policies.yaml")
	})
	r.run(t, "orders run as Deployments with tokens and limits", false, func(t *testing.T) {
		var names []string
		for _, name := range []string{"frontend-api", "order-service", "inventory-service"} {
			names = append(names, filepath.Join(programs, name))
		}
		b.loadImage(t, "local/orders:1", names...)
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		folder := "../../examples/orders/kubernetes/"
		policies := withKey(t, folder+"policies.yaml", key)
		t.Cleanup(func() { b.kubectl(t, "delete", "--ignore-not-found", "-f", folder+"mesh.yaml") })
		users := 0
		b.stages(t, "orders", "orders", func(t *testing.T, judged bool) {
			users++
			b.order(t, judged, key, fmt.Sprint("user-", users))
		}, folder+"mesh.yaml", policies)
	})
}

// stages starts an application, and checks it as it is, enrolled, with its documents, and enforced.
func (b bench) stages(t *testing.T, namespace, application string, check func(t *testing.T, judged bool), documents ...string) {
	rollout := func() {
		for _, name := range strings.Fields(b.kubectl(t, "get", "deployments", "-n", namespace, "-o", "name")) {
			b.kubectl(t, "rollout", "status", "-n", namespace, name, "--timeout=120s")
		}
	}
	b.kubectl(t, "apply", "-k", "../../examples/"+application+"/kubernetes")
	rollout()
	check(t, false)
	b.kubectl(t, "label", "namespace", namespace, "leno.dev/mesh=enabled")
	check(t, false)
	// The connections from before are not judged: this ends them.
	b.kubectl(t, "rollout", "restart", "-n", namespace, "deployment")
	rollout()
	for _, file := range documents {
		b.kubectl(t, "apply", "-f", file)
	}
	for _, condition := range []string{"Accepted", "Programmed"} {
		b.kubectl(t, "wait", "-n", namespace, "policies.leno.dev", "--all", "--for=condition="+condition, "--timeout=120s")
	}
	check(t, true)
	b.kubectl(t, "label", "namespace", namespace, "leno.dev/mode=enforced")
	check(t, true)
	// The kubelet's probes pass without a rule.
	b.kubectl(t, "wait", "-n", namespace, "deployment", "--all", "--for=condition=Available", "--timeout=60s")
	b.kubectl(t, "delete", "namespace", namespace, "--timeout=120s")
}

// ask sends a request to a Service from outside the mesh: its status and body.
func (b bench) ask(t *testing.T, namespace, service, path string, options ...string) (string, string) {
	t.Helper()
	address := b.kubectl(t, "get", "service", "-n", namespace, service, "-o", "jsonpath={.spec.clusterIP}")
	command := append([]string{"run", "curl", "-sS", "--max-time", "20", "-w", "\n%{http_code}", "http://" + address + path}, options...)
	output, err := b.try("", command...)
	if err != nil {
		return err.Error(), ""
	}
	end := strings.LastIndex(output, "\n")
	return output[end+1:], output[:end]
}

// answered waits until a request has this status and this part of a body.
func (b bench) answered(t *testing.T, status, part, namespace, service, path string, options ...string) {
	t.Helper()
	eventually(t, func() error {
		got, body := b.ask(t, namespace, service, path, options...)
		if got != status || !strings.Contains(body, part) {
			return fmt.Errorf("%s%s: %s %q, not %s %q", service, path, got, body, status, part)
		}
		return nil
	})
}

// visitShop buys something in the shop, whose pages need all its functions.
func (b bench) visitShop(t *testing.T, judged bool) {
	visit := func(status, part, path string, options ...string) {
		t.Helper()
		b.answered(t, status, part, "shop", "frontend", path, append(options, "-H", "cookie: user=anna; currency=EUR")...)
	}
	visit("200", "EUR 32.02", "/")
	visit("200", "Boils a litre", "/product/tea-kettle")
	visit("302", "", "/cart", "--data", "product_id=tea-kettle&quantity=2")
	visit("200", "2 x Kettle EUR 32.02", "/cart")
	form := "email=a@shop.example&street=Way&city=Town&country=Land&zip_code=1234&card_number=4111-1111-1111-1111&card_month=1&card_year=2039&card_code=123"
	visit("200", "Order order-", "/cart/checkout", "--data", form)
	visit("200", "Total: EUR 0.00", "/cart")
	// Past the frontend, and at a path that no rule names.
	b.answered(t, map[bool]string{false: "200", true: "403"}[judged], "", "shop", "cart", "/boutique.v1.Cart/GetCart", "--data", "")
	b.answered(t, map[bool]string{false: "404", true: "403"}[judged], "", "shop", "frontend", "/elsewhere")
}

// order orders something as a user, and tries what is not allowed.
func (b bench) order(t *testing.T, judged bool, key *ecdsa.PrivateKey, user string) {
	// With policies a request has one status, without them another.
	as := func(token, with, without, path string, options ...string) {
		t.Helper()
		status := map[bool]string{true: with, false: without}[judged]
		b.answered(t, status, "", "orders", "frontend-api", path, append(options, "-H", "authorization: Bearer "+token)...)
	}
	customer, administrator := token(t, key, user), token(t, key, user+"-admin", "admin")
	order := []string{"--json", fmt.Sprintf(`{"id": "%s", "item": "lamp", "quantity": 2}`, user)}
	as("none", "401", "200", "/whoami")
	as(customer, "201", "201", "/orders", order...)
	as(customer, "403", "200", "/orders/"+user)
	as(customer, "403", "200", "/stock/lamp")
	as(customer, "403", "200", "/admin")
	as(administrator, "200", "200", "/admin")
	b.answered(t, map[bool]string{false: "404", true: "403"}[judged], "", "orders", "order-service", "/orders/none")
	if !judged {
		return
	}
	b.answered(t, "200", `"user":"`+user+`"`, "orders", "frontend-api", "/whoami", "-H", "authorization: Bearer "+customer)
	as(customer, "429", "", "/whoami")
	as(administrator, "200", "", "/admin")
}

// token is a token of the issuer of the orders, for a user with roles.
func token(t *testing.T, key *ecdsa.PrivateKey, user string, roles ...string) string {
	encode := func(part map[string]any) string {
		text, err := json.Marshal(part)
		if err != nil {
			t.Fatal(err)
		}
		return base64.RawURLEncoding.EncodeToString(text)
	}
	text := encode(map[string]any{"alg": "ES256", "kid": "example"}) + "." + encode(map[string]any{
		"iss": "https://login.orders.example", "aud": "orders", "sub": user, "roles": roles,
		"exp": time.Now().Add(time.Hour).Unix(),
	})
	hash := sha256.Sum256([]byte(text))
	r, s, err := ecdsa.Sign(rand.Reader, key, hash[:])
	if err != nil {
		t.Fatal(err)
	}
	var signature [64]byte
	r.FillBytes(signature[:32])
	s.FillBytes(signature[32:])
	return text + "." + base64.RawURLEncoding.EncodeToString(signature[:])
}

// withKey copies policies with the public half of a key in place of the one in them.
func withKey(t *testing.T, file string, key *ecdsa.PrivateKey) string {
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	point, err := key.PublicKey.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	for name, half := range map[string][]byte{"x": point[1:33], "y": point[33:]} {
		field := regexp.MustCompile(`"` + name + `": "[^"]+"`)
		if !field.Match(text) {
			t.Fatalf("%s: no %s of a key", file, name)
		}
		text = field.ReplaceAll(text, fmt.Appendf(nil, `"%s": "%s"`, name, base64.RawURLEncoding.EncodeToString(half)))
	}
	copied := filepath.Join(t.TempDir(), "policies.yaml")
	if err := os.WriteFile(copied, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return copied
}
