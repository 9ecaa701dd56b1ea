// Package image writes OCI images from local files: one layer, no base, no registry. The same files
// make the same bytes.
package image

import (
	"archive/tar"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// An Image is a root file system and the process to start in it.
type Image struct {
	// Name is the reference that pods name, such as `local/web:1`.
	Name string
	// Files are the contents by their absolute path in the image; a folder includes all within it.
	Files map[string]string
	// Entrypoint is the program and its arguments.
	Entrypoint []string
	// Environment has entries `NAME=VALUE`.
	Environment []string
	// User is `UID:GID`; if empty, 65532:65532.
	User string
}

// Reference returns the name in full, as container runtimes keep it: `local/web` is
// `docker.io/local/web:latest`.
func Reference(name string) (string, error) {
	repository, tag, tagged := strings.Cut(name[strings.LastIndex(name, "/")+1:], ":")
	host, _, slash := strings.Cut(name, "/")
	if repository == "" || tagged && tag == "" || strings.ContainsAny(name, "@ ") || strings.ToLower(repository) != repository {
		return "", fmt.Errorf("image name %q: it must be REPOSITORY:TAG, in lower case", name)
	}
	if !tagged {
		name += ":latest"
	}
	switch {
	case !slash:
		return "docker.io/library/" + name, nil
	case strings.ContainsAny(host, ".:") || host == "localhost":
		return name, nil
	}
	return "docker.io/" + name, nil
}

type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int64             `json:"size"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

const (
	typeIndex    = "application/vnd.oci.image.index.v1+json"
	typeManifest = "application/vnd.oci.image.manifest.v1+json"
	typeConfig   = "application/vnd.oci.image.config.v1+json"
	typeLayer    = "application/vnd.oci.image.layer.v1.tar"
)

// Write writes the image as a tar file of an OCI image layout.
func (i *Image) Write(to io.Writer) error {
	reference, err := Reference(i.Name)
	if err != nil {
		return err
	}
	if len(i.Entrypoint) == 0 {
		return errors.New("an image needs an entrypoint")
	}
	entries, err := i.entries()
	if err != nil {
		return err
	}
	// The layer may be large: the first pass measures it, the second one writes it.
	hash := sha256.New()
	size := &counter{to: hash}
	if err := writeLayer(size, entries); err != nil {
		return err
	}
	layer := descriptor{MediaType: typeLayer, Digest: digest(hash.Sum(nil)), Size: size.bytes}

	user := i.User
	if user == "" {
		user = "65532:65532"
	}
	config := document(map[string]any{
		"architecture": "amd64",
		"os":           "linux",
		"config":       map[string]any{"User": user, "Entrypoint": i.Entrypoint, "Env": i.Environment},
		"rootfs":       map[string]any{"type": "layers", "diff_ids": []string{layer.Digest}},
	})
	manifest := document(map[string]any{
		"schemaVersion": 2,
		"mediaType":     typeManifest,
		"config":        describe(typeConfig, config),
		"layers":        []descriptor{layer},
	})
	described := describe(typeManifest, manifest)
	described.Annotations = map[string]string{"io.containerd.image.name": reference}
	index := document(map[string]any{
		"schemaVersion": 2,
		"mediaType":     typeIndex,
		"manifests":     []descriptor{described},
	})

	out := tar.NewWriter(to)
	for _, file := range []struct {
		name string
		data []byte
	}{
		{"oci-layout", []byte(`{"imageLayoutVersion":"1.0.0"}`)},
		{"index.json", index},
		{blob(described.Digest), manifest},
		{blob(describe(typeConfig, config).Digest), config},
	} {
		if err := header(out, file.name, int64(len(file.data))); err != nil {
			return err
		}
		if _, err := out.Write(file.data); err != nil {
			return err
		}
	}
	if err := header(out, blob(layer.Digest), layer.Size); err != nil {
		return err
	}
	hash.Reset()
	if err := writeLayer(io.MultiWriter(out, hash), entries); err != nil {
		return err
	}
	if digest(hash.Sum(nil)) != layer.Digest {
		return fmt.Errorf("image %s: its files changed while they were read", i.Name)
	}
	return out.Close()
}

// WriteFile writes the image to a file, which appears only when it is whole.
func (i *Image) WriteFile(name string) error {
	partial, err := os.CreateTemp(filepath.Dir(name), filepath.Base(name)+".*")
	if err != nil {
		return err
	}
	defer os.Remove(partial.Name())
	err = errors.Join(i.Write(partial), partial.Close())
	if err != nil {
		return err
	}
	return os.Rename(partial.Name(), name)
}

// An entry is a file, folder or symbolic link of the layer.
type entry struct {
	header tar.Header
	source string
}

// entries lists the layer in the order of its paths, with the folders above each file.
func (i *Image) entries() ([]entry, error) {
	found := map[string]entry{"tmp": {header: folder("tmp", 0o1777)}}
	for target, source := range i.Files {
		if !path.IsAbs(target) || path.Clean(target) != target || target == "/" {
			return nil, fmt.Errorf("path %q: a path in an image is absolute and has no `..`", target)
		}
		err := filepath.WalkDir(source, func(file string, _ fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			below, err := filepath.Rel(source, file)
			if err != nil {
				return err
			}
			// The given file itself may be a symbolic link; those within a folder are kept.
			info, err := os.Lstat(file)
			if below == "." {
				info, err = os.Stat(file)
			}
			if err != nil {
				return err
			}
			name := path.Join(target, filepath.ToSlash(below))[1:]
			next, err := newEntry(name, file, info)
			if err != nil {
				return err
			}
			found[name] = next
			for parent := path.Dir(name); parent != "."; parent = path.Dir(parent) {
				if _, ok := found[parent]; !ok {
					found[parent] = entry{header: folder(parent, 0o755)}
				}
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	entries := make([]entry, 0, len(found))
	for _, one := range found {
		entries = append(entries, one)
	}
	slices.SortFunc(entries, func(a, b entry) int { return strings.Compare(a.header.Name, b.header.Name) })
	return entries, nil
}

func newEntry(name, file string, info fs.FileInfo) (entry, error) {
	switch {
	case info.IsDir():
		return entry{header: folder(name, 0o755)}, nil
	case info.Mode()&fs.ModeSymlink != 0:
		target, err := os.Readlink(file)
		return entry{header: tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: target, Mode: 0o777}}, err
	case info.Mode().IsRegular():
		mode := int64(0o644)
		if info.Mode()&0o111 != 0 {
			mode = 0o755
		}
		return entry{header: tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: mode, Size: info.Size()}, source: file}, nil
	}
	return entry{}, fmt.Errorf("%s: neither a file, a folder nor a symbolic link", file)
}

func folder(name string, mode int64) tar.Header {
	return tar.Header{Typeflag: tar.TypeDir, Name: name + "/", Mode: mode}
}

func writeLayer(to io.Writer, entries []entry) error {
	out := tar.NewWriter(to)
	for _, one := range entries {
		if err := out.WriteHeader(&one.header); err != nil {
			return err
		}
		if one.source == "" {
			continue
		}
		file, err := os.Open(one.source)
		if err != nil {
			return err
		}
		_, err = io.Copy(out, file)
		file.Close()
		if err != nil {
			return fmt.Errorf("%s: %w", one.source, err)
		}
	}
	return out.Close()
}

// header adds the header of a blob or document of the layout.
func header(out *tar.Writer, name string, size int64) error {
	return out.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: size})
}

func document(value any) []byte {
	data, err := json.Marshal(value)
	if err != nil {
		panic(err) // Maps, slices and strings only.
	}
	return data
}

func describe(mediaType string, data []byte) descriptor {
	sum := sha256.Sum256(data)
	return descriptor{MediaType: mediaType, Digest: digest(sum[:]), Size: int64(len(data))}
}

func digest(sum []byte) string { return "sha256:" + hex.EncodeToString(sum) }

func blob(digest string) string { return "blobs/" + strings.Replace(digest, ":", "/", 1) }

type counter struct {
	to    io.Writer
	bytes int64
}

func (c *counter) Write(data []byte) (int, error) {
	n, err := c.to.Write(data)
	c.bytes += int64(n)
	return n, err
}
