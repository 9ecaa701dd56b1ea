package main

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"leno.dev/kubernetes/cluster/image"
)

// A part is one Go module below `programs`, and the programs that come from it.
type part struct {
	name string
	// module is the one whose version go.mod pins.
	module string
	// packages by the file to build from each.
	packages map[string]string
	// tags leave out what a cluster for tests has no use for.
	tags string
	// links are further names of the program.
	links []string
	// version is set in these variables of the program.
	version []string
	// minutes of two cores that the first build takes, about.
	minutes int
}

const (
	containerdModule = "github.com/containerd/containerd/v2"
	pluginsModule    = "github.com/containernetworking/plugins"
)

var parts = []part{
	{name: "etcd", module: "go.etcd.io/etcd/server/v3", packages: map[string]string{"etcd": "go.etcd.io/etcd/server/v3"}, minutes: 1},
	{name: "cni", module: pluginsModule, packages: map[string]string{
		"cni/bridge":     pluginsModule + "/plugins/main/bridge",
		"cni/host-local": pluginsModule + "/plugins/ipam/host-local",
		"cni/loopback":   pluginsModule + "/plugins/main/loopback",
		"cni/portmap":    pluginsModule + "/plugins/meta/portmap",
	}, minutes: 1},
	{name: "coredns", module: "github.com/coredns/coredns", packages: map[string]string{"coredns": "github.com/coredns/coredns"}, minutes: 2},
	{name: "kwok", module: "sigs.k8s.io/kwok", packages: map[string]string{"kwok": "sigs.k8s.io/kwok/cmd/kwok"}, minutes: 2},
	{name: "containerd", module: containerdModule, packages: map[string]string{
		"containerd":              containerdModule + "/cmd/containerd",
		"containerd-shim-runc-v2": containerdModule + "/cmd/containerd-shim-runc-v2",
		"ctr":                     containerdModule + "/cmd/ctr",
	}, tags: "no_btrfs,no_devmapper,no_tracing,no_zfs", version: []string{containerdModule + "/version.Version"}, minutes: 4},
	{name: "helm", module: "helm.sh/helm/v4", packages: map[string]string{"helm": "helm.sh/helm/v4/cmd/helm"}, minutes: 3},
	{name: "kubernetes", module: "k8s.io/kubernetes", packages: map[string]string{"kubernetes": "."},
		links:   []string{"kube-apiserver", "kube-controller-manager", "kube-proxy", "kube-scheduler", "kubectl", "kubelet"},
		version: []string{"k8s.io/component-base/version.gitVersion", "k8s.io/client-go/pkg/version.gitVersion"}, minutes: 15},
}

// builtImages are made from built programs, for every node.
var builtImages = []string{"pause", "coredns"}

// A builder builds programs into a folder. A program is built anew only if its sources, Go or the
// flags differ from those it was built from.
type builder struct {
	folder string
	goSum  string
}

// build builds this program, those of all parts, and the images.
func build(folder string) error {
	folder, err := filepath.Abs(folder)
	if err != nil {
		return err
	}
	for _, below := range []string{"cni", "images"} {
		if err := os.MkdirAll(filepath.Join(folder, below), 0o755); err != nil {
			return err
		}
	}
	compiler, err := exec.Command("go", "env", "GOVERSION", "GOARCH").Output()
	if err != nil {
		return fmt.Errorf("go: %w", err)
	}
	b := builder{folder, string(compiler)}
	for _, own := range []string{"cluster", "pause"} {
		source := map[string]string{"cluster": "."}[own]
		if source == "" {
			source = "./" + own
		}
		if err := b.compile(".", source, own, "", ""); err != nil {
			return err
		}
	}
	for _, one := range parts {
		if err := b.part(one); err != nil {
			return fmt.Errorf("%s: %w", one.name, err)
		}
	}
	return b.images()
}

// part builds one part, unless it is built.
func (b builder) part(p part) error {
	module := filepath.Join("programs", p.name)
	sum, err := sumOf(module, b.goSum, fmt.Sprint(p))
	if err != nil {
		return err
	}
	stamp := filepath.Join(b.folder, "."+p.name)
	if was, err := os.ReadFile(stamp); err == nil && string(was) == sum {
		return nil
	}
	version, err := output(module, "go", "list", "-m", "-f", "{{.Version}}", p.module)
	if err != nil {
		return err
	}
	fmt.Printf("== building %s %s (the first time takes about %s on two cores)\n", p.name, version, count(p.minutes, "minute", "minutes"))
	began := time.Now()
	flags := "-s -w"
	for _, variable := range p.version {
		flags += " -X " + variable + "=" + version
	}
	if p.name == "kubernetes" {
		numbers := strings.Split(strings.TrimPrefix(version, "v"), ".")
		flags += " -X k8s.io/component-base/version.gitMajor=" + numbers[0] + " -X k8s.io/component-base/version.gitMinor=" + numbers[1]
	}
	for target, source := range p.packages {
		if err := b.compile(module, source, target, flags, p.tags); err != nil {
			return err
		}
	}
	if p.name == "kwok" {
		if err := b.stages(module); err != nil {
			return err
		}
	}
	for _, link := range p.links {
		name := filepath.Join(b.folder, link)
		if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if err := os.Symlink(p.name, name); err != nil {
			return err
		}
	}
	fmt.Printf("   %.0f s\n", time.Since(began).Seconds())
	return os.WriteFile(stamp, []byte(sum), 0o644)
}

// stages joins kwok's descriptions of fake nodes and pods, which are in its module, into one file.
func (b builder) stages(module string) error {
	sources, err := output(module, "go", "list", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/kwok")
	if err != nil {
		return err
	}
	var all []byte
	for _, name := range stages {
		data, err := os.ReadFile(filepath.Join(sources, "kustomize/stage", name))
		if err != nil {
			return err
		}
		all = append(append(all, "---\n"...), data...)
	}
	return os.WriteFile(filepath.Join(b.folder, "kwok.yaml"), all, 0o644)
}

// compile builds one program, and shows how many packages it has compiled.
func (b builder) compile(module, source, target, linkFlags, tags string) error {
	all, err := output(module, "go", "list", "-deps", "-tags="+tags, source)
	if err != nil {
		return err
	}
	total := strings.Count(all, "\n") + 1
	// The name appears once the program is whole: one that runs keeps its file.
	partial := filepath.Join(b.folder, target+".partial")
	cmd := exec.Command("go", "build", "-v", "-trimpath", "-mod=readonly", "-buildvcs=false", "-ldflags="+linkFlags, "-tags="+tags, "-o", partial, source)
	cmd.Dir = module
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off")
	lines, err := cmd.StderrPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	var last []string
	done, shown := 0, time.Now()
	for scanner := bufio.NewScanner(lines); scanner.Scan(); {
		done++
		last = append(last[max(0, len(last)-20):], scanner.Text())
		if time.Since(shown) > 10*time.Second {
			shown = time.Now()
			fmt.Printf("   %s: %d of at most %d packages\n", target, done, total)
		}
	}
	if err := cmd.Wait(); err != nil {
		return fmt.Errorf("go build %s: %w\n%s", source, err, strings.Join(last, "\n"))
	}
	return os.Rename(partial, filepath.Join(b.folder, target))
}

// images makes the images of every node from their programs.
func (b builder) images() error {
	for _, name := range builtImages {
		made := image.Image{
			Name:       "local/" + name + ":1",
			Files:      map[string]string{"/" + name: filepath.Join(b.folder, name)},
			Entrypoint: []string{"/" + name},
		}
		if err := made.WriteFile(filepath.Join(b.folder, "images", name+".tar")); err != nil {
			return err
		}
	}
	return nil
}

// sumOf identifies the files of a folder, and some texts.
func sumOf(folder string, texts ...string) (string, error) {
	hash := sha256.New()
	for _, text := range texts {
		fmt.Fprintln(hash, text)
	}
	err := filepath.WalkDir(folder, func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		data, err := os.ReadFile(name)
		fmt.Fprintf(hash, "%s %d\n%s", name, len(data), data)
		return err
	})
	return hex.EncodeToString(hash.Sum(nil)), err
}

// output is the output of a program, without the space around it.
func output(folder string, arguments ...string) (string, error) {
	cmd := exec.Command(arguments[0], arguments[1:]...)
	cmd.Dir = folder
	var errors strings.Builder
	cmd.Stderr = &errors
	data, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s: %w\n%s", strings.Join(arguments, " "), err, errors.String())
	}
	return strings.TrimSpace(string(data)), nil
}
