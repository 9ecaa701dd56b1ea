package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// A machine is the control plane's or a node's: a process that is the first one of a process
// namespace, with its own network, mounts, host name, /etc, /opt, /run and /var. Each node thus has
// the usual paths. When that process ends, the kernel ends all others of the machine and drops its
// mounts, interfaces and rules.
type machine struct {
	*cluster
	name  string
	init  process
	cmd   *exec.Cmd
	stops map[string]*exec.Cmd
}

// private are the folders that each machine has for itself.
var private = []string{"etc", "opt", "run", "var"}

// Folders of a machine that its programs expect.
var folders = []string{
	"etc/cni/net.d", "etc/kubernetes", "etc/ssl", "etc/alternatives", "opt/cni/bin", "opt/kubernetes",
	"run/lock", "var/lib/cni", "var/lib/kubelet", "var/log/containers", "var/log/pods", "var/cache", "sysctl",
}

// tunables are the settings of the whole kernel that the kubelet changes. Each machine gets files
// in their place with the values that the kubelet wants, so that the kernel keeps its own.
var tunables = map[string]string{
	"kernel/keys/root_maxbytes": "25000000",
	"kernel/keys/root_maxkeys":  "1000000",
	"kernel/panic":              "10",
	"kernel/panic_on_oops":      "1",
	"vm/overcommit_memory":      "1",
	"vm/panic_on_oom":           "0",
}

func (m *machine) path(elements ...string) string {
	return m.cluster.path(append([]string{m.name}, elements...)...)
}

// write makes a file of the machine, by its path inside.
func (m *machine) write(name, contents string) error {
	file := m.path(name)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	return os.WriteFile(file, []byte(contents), 0o644)
}

// prepare makes the files of the machine.
func (m *machine) prepare() error {
	for _, folder := range folders {
		if err := os.MkdirAll(m.path(folder), 0o755); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(m.path("var/tmp"), 0o755); err != nil {
		return err
	}
	if err := os.Chmod(m.path("var/tmp"), 0o777|os.ModeSticky); err != nil {
		return err
	}
	if err := os.Symlink("/run", m.path("var/run")); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	for _, name := range []string{"passwd", "group", "nsswitch.conf", "protocols", "services"} {
		contents, err := os.ReadFile("/etc/" + name)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err == nil {
			err = m.write("etc/"+name, string(contents))
		}
		if err != nil {
			return err
		}
	}
	for name, contents := range map[string]string{
		"etc/hostname":    m.name + "\n",
		"etc/hosts":       "127.0.0.1 localhost\n::1 localhost\n",
		"etc/resolv.conf": "",
		"etc/machine-id":  machineID(m.cluster.folder, m.name) + "\n",
	} {
		if err := m.write(name, contents); err != nil {
			return err
		}
	}
	for name, value := range tunables {
		if err := m.write("sysctl/"+name, value+"\n"); err != nil {
			return err
		}
	}
	return nil
}

// boot starts the first process of the machine and waits until its mounts are in place.
func (m *machine) boot() error {
	if err := m.prepare(); err != nil {
		return err
	}
	group, err := m.makeControlGroups()
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	log, err := os.Create(m.logFile(m.name))
	if err != nil {
		return err
	}
	defer log.Close()
	ready, theirs, err := os.Pipe()
	if err != nil {
		return err
	}
	defer ready.Close()

	m.cmd = exec.Command(self, "machine", m.cluster.folder, m.name, m.programs)
	m.cmd.Stdout, m.cmd.Stderr = log, log
	m.cmd.ExtraFiles = []*os.File{theirs}
	m.cmd.Dir = "/"
	m.cmd.SysProcAttr = &syscall.SysProcAttr{
		Setsid:     true,
		Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWNET | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC,
	}
	if group != nil {
		defer group.Close()
		m.cmd.SysProcAttr.UseCgroupFD, m.cmd.SysProcAttr.CgroupFD = true, int(group.Fd())
	}
	err = m.cmd.Start()
	theirs.Close()
	if err != nil {
		return fmt.Errorf("cannot make namespaces for %s: %w", m.name, err)
	}
	if m.init, err = m.record(m.name, m.cmd); err != nil {
		return err
	}
	if said, _ := io.ReadAll(ready); string(said) != "ready" {
		return failure{m.name + " did not start", m.logFile(m.name)}
	}
	return nil
}

// record writes the process to its file, and waits for its end, so that it does not stay a zombie.
func (c *cluster) record(name string, cmd *exec.Cmd) (process, error) {
	p, err := newProcess(cmd.Process.Pid)
	if err == nil {
		err = p.write(c.processFile(name))
	}
	if err != nil {
		cmd.Process.Kill()
		cmd.Wait()
		return p, fmt.Errorf("%s: %w", name, err)
	}
	go cmd.Wait()
	return p, nil
}

// machine finds a machine of a cluster that runs.
func (c *cluster) machine(name string) (*machine, error) {
	p, err := readProcess(c.processFile(name))
	if err != nil {
		return nil, fmt.Errorf("%s: no such machine in %s; `cluster status` lists them", name, c.folder)
	}
	if !p.alive() {
		return nil, failure{name + " has ended", c.logFile(name)}
	}
	return &machine{cluster: c, name: name, init: p}, nil
}

// Namespaces to enter: the network only, or the machine as a whole.
var (
	networkOnly = []string{"net"}
	everything  = []string{"ipc", "uts", "net", "pid", "mnt"}
)

// The first thread is the one of the main function, and never enters namespaces: it would stay in
// them, because it ends only with the program.
func init() { runtime.LockOSThread() }

// within runs a function on a thread in namespaces of the machine. Processes that it starts are in
// them too.
func (m *machine) within(kinds []string, do func() error) error {
	result := make(chan error)
	go func() {
		// Never unlocked: the thread ends with this function, and no other one gets it.
		runtime.LockOSThread()
		err := m.enter(kinds)
		if err == nil {
			err = do()
		}
		result <- err
	}()
	return <-result
}

// enter moves the calling thread into namespaces of the machine.
func (m *machine) enter(kinds []string) error {
	if !m.init.alive() {
		return failure{m.name + " has ended", m.logFile(m.name)}
	}
	files := make([]*os.File, len(kinds))
	for i, kind := range kinds {
		file, err := os.Open(fmt.Sprintf("/proc/%d/ns/%s", m.init.pid, kind))
		if err != nil {
			return err
		}
		defer file.Close()
		files[i] = file
	}
	// A thread that shares its working directory cannot enter a mount namespace.
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return err
	}
	for i, file := range files {
		if err := unix.Setns(int(file.Fd()), 0); err != nil {
			return fmt.Errorf("cannot enter the %s namespace of %s: %w", kinds[i], m.name, err)
		}
	}
	return nil
}

// environment of programs on a machine.
var environment = []string{
	"PATH=/opt/kubernetes:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
	"HOME=/nonexistent", "TMPDIR=/var/tmp",
}

// start starts a component of the machine, which goes on after this program has ended.
func (m *machine) start(component string, arguments ...string) error {
	name := m.name + "-" + component
	log, err := os.Create(m.logFile(name))
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command("/opt/kubernetes/"+arguments[0], arguments[1:]...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Env, cmd.Dir = environment, "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := m.within(everything, cmd.Start); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	// Not on the machine, whose /proc has other identifiers.
	_, err = m.record(name, cmd)
	return err
}

// run runs a program on the machine to its end; an error has its output.
func (m *machine) run(kinds []string, input io.Reader, arguments ...string) (string, error) {
	var output strings.Builder
	err := m.within(kinds, func() error {
		cmd := exec.Command(arguments[0], arguments[1:]...)
		cmd.Stdin, cmd.Stdout, cmd.Stderr = input, &output, &output
		cmd.Env, cmd.Dir = environment, "/"
		return cmd.Run()
	})
	if err != nil {
		return output.String(), fmt.Errorf("%s on %s: %w: %s", filepath.Base(arguments[0]), m.name, err, strings.TrimSpace(output.String()))
	}
	return output.String(), nil
}

// runMachine is the first process of a machine: it mounts the machine's files, and then only takes
// leave of children whose parents have ended.
func runMachine(folder, name, programs string) error {
	ready := os.NewFile(3, "ready")
	if err := mountMachine(filepath.Join(folder, name), programs); err != nil {
		return err
	}
	if err := unix.Sethostname([]byte(name)); err != nil {
		return err
	}
	children := make(chan os.Signal, 1)
	signal.Notify(children, syscall.SIGCHLD)
	// A signal to the group of a terminal is not for this process.
	signal.Ignore(syscall.SIGINT, syscall.SIGHUP, syscall.SIGTERM)
	if _, err := ready.WriteString("ready"); err != nil {
		return err
	}
	ready.Close()
	for range children {
		for {
			if pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil); pid <= 0 || err != nil {
				break
			}
		}
	}
	return nil
}

func mountMachine(folder, programs string) error {
	mount := func(source, target, kind string, flags uintptr) error {
		if err := unix.Mount(source, target, kind, flags, ""); err != nil {
			return fmt.Errorf("cannot mount %s at %s: %w", source, target, err)
		}
		return nil
	}
	if err := mount("none", "/", "", unix.MS_REC|unix.MS_PRIVATE); err != nil {
		return err
	}
	// The folders may be below one that a mount is about to hide: they are opened before.
	opened := map[string]string{}
	for at, name := range map[string]string{
		"machine": folder, "programs": programs, "alternatives": "/etc/alternatives", "ssl": "/etc/ssl",
	} {
		fd, err := unix.Open(name, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err == unix.ENOENT && at != "machine" && at != "programs" {
			continue
		}
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		opened[at] = "/proc/self/fd/" + strconv.Itoa(fd)
	}
	for _, name := range private {
		if err := mount(filepath.Join(opened["machine"], name), "/"+name, "", unix.MS_BIND); err != nil {
			return err
		}
	}
	for at, target := range map[string]string{"programs": "/opt/kubernetes", "alternatives": "/etc/alternatives", "ssl": "/etc/ssl"} {
		if opened[at] == "" {
			continue
		}
		if err := mount(opened[at], target, "", unix.MS_BIND); err != nil {
			return err
		}
	}
	if err := mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC); err != nil {
		return err
	}
	// eBPF programs and maps that a node pins are its own, and go with it.
	if err := mount("bpf", "/sys/fs/bpf", "bpf", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC); err != nil && !errors.Is(err, unix.ENOENT) {
		return err
	}
	for name := range tunables {
		if err := mount(filepath.Join(opened["machine"], "sysctl", name), "/proc/sys/"+name, "", unix.MS_BIND); err != nil {
			return err
		}
	}
	return nil
}
