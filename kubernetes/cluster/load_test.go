package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// callers load the servers of servers.yaml.
var callers = []string{"calm/load1", "calm/load2", "strict/load1", "strict/load2"}

// intruder loads the enforced server, and may never get in.
const intruder = "plain/rogue"

// A count of requests of one kind.
type tally struct{ passed, failed int }

// output is what the program of a pod with one container printed, from the files of its node: kubectl
// costs more, and needs the API server.
func (b bench) output(pod string) (string, error) {
	pattern := filepath.Join(b.folder, "node*/var/log/pods", strings.Replace(pod, "/", "_", 1)+"_*/*/*.log")
	files, err := filepath.Glob(pattern)
	if err != nil || len(files) == 0 {
		return "", fmt.Errorf("%s has printed nothing (%v)", pod, err)
	}
	// The files of an earlier pod of this name stay for a moment.
	newest := slices.MaxFunc(files, func(a, b string) int { return modified(a).Compare(modified(b)) })
	text, err := os.ReadFile(newest)
	return string(text), err
}

func modified(file string) time.Time {
	info, err := os.Stat(file)
	if err != nil {
		return time.Time{}
	}
	return info.ModTime()
}

// counts reads the newest counts of a caller: by new connections, by a kept one, and the lines and
// ends of a long answer.
func (b bench) counts(t *testing.T, caller string) map[string]tally {
	t.Helper()
	var found map[string]tally
	eventually(t, func() error {
		output, err := b.output(caller)
		if err != nil {
			return err
		}
		at := strings.LastIndex(output, "counts ")
		if at < 0 {
			return fmt.Errorf("%s has no counts: %s", caller, output)
		}
		line, _, _ := strings.Cut(output[at:], "\n")
		var fresh, kept, stream tally
		if _, err := fmt.Sscanf(line, "counts fresh %d %d kept %d %d stream %d %d", &fresh.passed, &fresh.failed,
			&kept.passed, &kept.failed, &stream.passed, &stream.failed); err != nil {
			return fmt.Errorf("%s: %w: %s", caller, err, line)
		}
		found = map[string]tally{"fresh": fresh, "kept": kept, "stream": stream}
		return nil
	})
	return found
}

// underLoad does something while callers load the servers. It returns how many requests of each
// caller and kind failed from the beginning until all callers get answers again, and fails if the
// intruder got in.
func (b bench) underLoad(t *testing.T, do func()) map[string]int {
	t.Helper()
	before := map[string]map[string]tally{}
	for _, caller := range append(callers, intruder) {
		before[caller] = b.counts(t, caller)
	}
	do()
	during := map[string]map[string]tally{}
	for _, caller := range callers {
		during[caller] = b.counts(t, caller)
	}
	failed := map[string]int{}
	requests := 0
	for _, caller := range callers {
		var after map[string]tally
		eventually(t, func() error {
			after = b.counts(t, caller)
			for kind, now := range after {
				if now.passed < during[caller][kind].passed+10 {
					return fmt.Errorf("%s %s does not go on: %v after %v", caller, kind, now, during[caller][kind])
				}
			}
			return nil
		})
		for kind, now := range after {
			requests += max(0, now.passed-before[caller][kind].passed)
			if number := now.failed - before[caller][kind].failed; number > 0 {
				failed[caller+" "+kind] = number
			}
		}
	}
	for kind, now := range b.counts(t, intruder) {
		if now.passed != before[intruder][kind].passed {
			t.Errorf("the enforced pod let %d requests of a plain pod in (%s)", now.passed-before[intruder][kind].passed, kind)
		}
		if now.failed == before[intruder][kind].failed {
			t.Errorf("the plain pod sent no requests (%s)", kind)
		}
	}
	t.Logf("%d requests and lines passed; failed: %v", requests, failed)
	return failed
}

// renewLoad starts the callers anew. Long answers that an agent served which has been replaced end a
// minute later, and connections from before an enrolment are not judged.
func (b bench) renewLoad(t *testing.T) {
	t.Helper()
	b.kubectl(t, "delete", "-f", "testdata/load.yaml", "--now", "--timeout=120s")
	b.kubectl(t, "apply", "-f", "testdata/load.yaml")
}

// unharmed fails if a request failed meanwhile.
func (b bench) unharmed(t *testing.T, do func()) {
	t.Helper()
	for what, number := range b.underLoad(t, do) {
		t.Errorf("%s: %d failed\n%s", what, number, b.failures(what))
	}
}

// failures are the last failures that a caller printed.
func (b bench) failures(what string) string {
	caller, kind, _ := strings.Cut(what, " ")
	output, _ := b.output(caller)
	var found []string
	for line := range strings.Lines(output) {
		if strings.Contains(line, "failed "+kind) {
			found = append(found, line)
		}
	}
	return strings.Join(found[max(0, len(found)-5):], "")
}

// processesOf finds the processes of a pod, by the name of their program.
func (b bench) processesOf(t *testing.T, namespace, pod, program string) []process {
	t.Helper()
	uid := b.kubectl(t, "get", "pod", "-n", namespace, pod, "-o", "jsonpath={.metadata.uid}")
	var found []process
	for _, pid := range b.members(t) {
		groups, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
		command, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		file, _, _ := strings.Cut(string(command), "\x00")
		if strings.Contains(string(groups), uid) && filepath.Base(file) == program {
			if one, err := newProcess(pid); err == nil {
				found = append(found, one)
			}
		}
	}
	return found
}

// killPod ends the program of a pod by SIGKILL.
func (b bench) killPod(t *testing.T, namespace, pod, program string) {
	t.Helper()
	found := b.processesOf(t, namespace, pod, program)
	if len(found) == 0 {
		t.Fatalf("%s/%s has no process of %s", namespace, pod, program)
	}
	for _, one := range found {
		if err := one.kill(); err != nil {
			t.Fatal(err)
		}
	}
}

// names lists the pods of a component of Leno.
func (b bench) names(t *testing.T, component, node string) []string {
	t.Helper()
	arguments := []string{"get", "pods", "-n", "leno-system", "-l", "app.kubernetes.io/name=" + component, "-o", "jsonpath={.items[*].metadata.name}"}
	if node != "" {
		arguments = append(arguments, "--field-selector=spec.nodeName="+node)
	}
	names := strings.Fields(b.kubectl(t, arguments...))
	slices.Sort(names)
	return names
}

// away ends a component of the cluster, does something, and starts it again.
func (b bench) away(t *testing.T, name string, do func()) {
	t.Helper()
	c := &cluster{folder: b.folder, programs: b.programs}
	if err := c.open(); err != nil {
		t.Fatal(err)
	}
	machine, component, _ := strings.Cut(name, "-")
	on, err := c.machine(machine)
	if err != nil {
		t.Fatal(err)
	}
	one, err := readProcess(c.processFile(name))
	if err != nil {
		t.Fatal(err)
	}
	command, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", one.pid))
	if err != nil {
		t.Fatal(err)
	}
	arguments := strings.Split(strings.TrimSuffix(string(command), "\x00"), "\x00")
	arguments[0] = filepath.Base(arguments[0])
	if err := one.kill(); err != nil {
		t.Fatal(err)
	}
	if !one.gone(limit) {
		t.Fatalf("%s does not end", name)
	}
	do()
	if err := on.start(component, arguments...); err != nil {
		t.Fatal(err)
	}
}
