package main

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"
)

// A report lists the cases that ran on a real cluster, and how they ended.
type report struct {
	began time.Time
	lock  sync.Mutex
	cases []result
}

type result struct {
	name, outcome string
	took          time.Duration
}

// run runs a case as a subtest, and records it. A case after a failed one runs only if it does not
// depend on it: `essential` ends the test.
func (r *report) run(t *testing.T, name string, essential bool, do func(*testing.T)) {
	t.Helper()
	began := time.Now()
	outcome := "failed"
	t.Run(name, func(t *testing.T) {
		t.Cleanup(func() {
			if !t.Failed() {
				outcome = "passed"
			}
		})
		do(t)
	})
	r.lock.Lock()
	r.cases = append(r.cases, result{name, outcome, time.Since(began)})
	r.lock.Unlock()
	if essential && outcome != "passed" {
		t.FailNow()
	}
}

// write writes the report to a file of Markdown.
func (r *report) write(file, programs string) error {
	failed := 0
	var rows strings.Builder
	for _, one := range r.cases {
		if one.outcome != "passed" {
			failed++
		}
		fmt.Fprintf(&rows, "| %s | %s | %.1f s |\n", one.name, one.outcome, one.took.Seconds())
	}
	versions, err := exec.Command(programs+"/kubectl", "version", "--client").Output()
	if err != nil {
		return err
	}
	kubernetes, _, _ := strings.Cut(strings.TrimPrefix(string(versions), "Client Version: "), "\n")
	kernel, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		return err
	}
	text := fmt.Sprintf(`# Report of the tests on Kubernetes

`+"`make test-kubernetes`"+` wrote this page. It ran %d cases; %d failed.

| | |
|---|---|
| commit | %s |
| date | %s |
| Kubernetes | %s, two nodes, IPv4 and IPv6 |
| Linux | %s |

| case | result | time |
|---|---|---|
%s`, len(r.cases), failed, commit(), r.began.UTC().Format("2006-01-02 15:04 UTC"), kubernetes, strings.TrimSpace(string(kernel)), rows.String())
	return os.WriteFile(file, []byte(text), 0o644)
}

// commit names the last commit that changed `kubernetes/`, apart from this report, and says if
// there are changes since.
func commit() string {
	git := func(arguments ...string) string {
		output, err := exec.Command("git", append([]string{"-C", ".."}, arguments...)...).Output()
		if err != nil {
			return "unknown: " + err.Error()
		}
		return strings.TrimSpace(string(output))
	}
	sources := []string{"--", ".", ":!REPORT.md"}
	text := git(append([]string{"log", "-1", "--format=%H %s"}, sources...)...)
	hash, subject, _ := strings.Cut(text, " ")
	if git(append([]string{"status", "--porcelain"}, sources...)...) != "" {
		subject += ", with changes that are not committed"
	}
	return fmt.Sprintf("`%s` %s", hash, subject)
}
