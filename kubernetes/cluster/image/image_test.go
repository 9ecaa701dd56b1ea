package image

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestReference(t *testing.T) {
	for name, wanted := range map[string]string{
		"web":                    "docker.io/library/web:latest",
		"web:1":                  "docker.io/library/web:1",
		"local/web:1":            "docker.io/local/web:1",
		"leno.dev/web":           "leno.dev/web:latest",
		"localhost/web:1":        "localhost/web:1",
		"127.0.0.1:5000/a/web:1": "127.0.0.1:5000/a/web:1",
	} {
		if got, err := Reference(name); err != nil || got != wanted {
			t.Errorf("%s: %s (%v), not %s", name, got, err, wanted)
		}
	}
	for _, name := range []string{"", "local/", "web:", "Web:1", "web@sha256:00", "a web:1", ":1"} {
		if got, err := Reference(name); err == nil {
			t.Errorf("%q: %s, and not an error", name, got)
		}
	}
}

// tree makes files whose order, times and permissions differ by variant.
func tree(t *testing.T, variant int) string {
	t.Helper()
	folder := t.TempDir()
	names := []string{"program", "share/b.txt", "share/a/c.txt"}
	if variant == 1 {
		slices.Reverse(names)
	}
	for _, name := range names {
		file := filepath.Join(folder, name)
		mode := os.FileMode(0o600 + variant*0o040)
		if name == "program" {
			mode |= 0o100
		}
		err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o700+os.FileMode(variant)*0o055), os.WriteFile(file, []byte("contents of "+name), mode))
		if err == nil {
			when := time.Unix(int64(1_000_000_000+variant), 0)
			err = os.Chtimes(file, when, when)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("b.txt", filepath.Join(folder, "share/link")); err != nil {
		t.Fatal(err)
	}
	return folder
}

func example(folder string) *Image {
	return &Image{
		Name:        "local/example:1",
		Files:       map[string]string{"/bin/program": folder + "/program", "/usr/share/example": folder + "/share"},
		Entrypoint:  []string{"/bin/program", "serve"},
		Environment: []string{"PATH=/bin"},
	}
}

func TestSameFilesMakeTheSameBytes(t *testing.T) {
	var made [2]bytes.Buffer
	for variant := range made {
		if err := example(tree(t, variant)).Write(&made[variant]); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(made[0].Bytes(), made[1].Bytes()) {
		t.Error("the images differ")
	}
}

// contents reads a tar file: a regular file is its contents, a link its target.
func contents(t *testing.T, data []byte) map[string]string {
	t.Helper()
	found := map[string]string{}
	for reader := tar.NewReader(bytes.NewReader(data)); ; {
		header, err := reader.Next()
		if err == io.EOF {
			return found
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(reader)
		if err != nil {
			t.Fatal(err)
		}
		found[header.Name] = header.Linkname + string(text)
	}
}

func TestLayoutIsComplete(t *testing.T) {
	var made bytes.Buffer
	if err := example(tree(t, 0)).Write(&made); err != nil {
		t.Fatal(err)
	}
	layout := contents(t, made.Bytes())
	read := func(name string, into any) {
		t.Helper()
		if err := json.Unmarshal([]byte(layout[name]), into); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	// A blob has the digest and size that its descriptor says.
	verified := func(one descriptor) string {
		t.Helper()
		text := layout[blob(one.Digest)]
		if found := describe(one.MediaType, []byte(text)); found.Digest != one.Digest || found.Size != one.Size {
			t.Fatalf("%v is %v", one, found)
		}
		return blob(one.Digest)
	}
	var index struct{ Manifests []descriptor }
	read("index.json", &index)
	if name := index.Manifests[0].Annotations["io.containerd.image.name"]; name != "docker.io/local/example:1" {
		t.Errorf("name %q", name)
	}
	var manifest struct {
		Config descriptor
		Layers []descriptor
	}
	read(verified(index.Manifests[0]), &manifest)
	var config struct {
		Config struct {
			User       string
			Entrypoint []string
		}
		Rootfs struct {
			DiffIDs []string `json:"diff_ids"`
		}
	}
	read(verified(manifest.Config), &config)
	if config.Config.User != "65532:65532" || !slices.Equal(config.Config.Entrypoint, []string{"/bin/program", "serve"}) {
		t.Errorf("configuration %+v", config)
	}
	if !slices.Equal(config.Rootfs.DiffIDs, []string{manifest.Layers[0].Digest}) {
		t.Errorf("layers %v and %v", config.Rootfs.DiffIDs, manifest.Layers)
	}
	files := contents(t, []byte(layout[verified(manifest.Layers[0])]))
	for name, wanted := range map[string]string{
		"bin/program":               "contents of program",
		"usr/share/example/b.txt":   "contents of share/b.txt",
		"usr/share/example/a/c.txt": "contents of share/a/c.txt",
		"usr/share/example/link":    "b.txt",
	} {
		if files[name] != wanted {
			t.Errorf("%s: %q, not %q", name, files[name], wanted)
		}
	}
	for _, name := range []string{"bin/", "tmp/", "usr/", "usr/share/", "usr/share/example/a/"} {
		if _, ok := files[name]; !ok {
			t.Errorf("no folder %s", name)
		}
	}
}

func TestWrongImagesAreRefused(t *testing.T) {
	folder := tree(t, 0)
	for wanted, change := range map[string]func(*Image){
		"REPOSITORY:TAG": func(i *Image) { i.Name = "local/Example" },
		"an entrypoint":  func(i *Image) { i.Entrypoint = nil },
		"absolute":       func(i *Image) { i.Files["bin/other"] = folder + "/program" },
		"no `..`":        func(i *Image) { i.Files["/bin/../other"] = folder + "/program" },
		"no such file":   func(i *Image) { i.Files["/bin/other"] = folder + "/missing" },
		"neither a file": func(i *Image) { i.Files["/null"] = "/dev/null" },
	} {
		made := example(folder)
		change(made)
		target := filepath.Join(t.TempDir(), "image.tar")
		if err := made.WriteFile(target); err == nil || !strings.Contains(err.Error(), wanted) {
			t.Errorf("%v, and not an error with %q", err, wanted)
		}
		if entries, _ := os.ReadDir(filepath.Dir(target)); len(entries) > 0 {
			t.Errorf("%v is left", entries)
		}
	}
}
