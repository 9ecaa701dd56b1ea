package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// testCases sends the cases of `tests/cases` from pods to pods. The program that reads the tables
// drives it: the test `it` of the crate leno.
func (b bench) testCases(t *testing.T, r *report) {
	program := os.Getenv("LENO_CASES")
	if program == "" {
		t.Log("LENO_CASES is not set: the table of cases is not sent over pods. `make test-kubernetes` sets it.")
		return
	}
	r.run(t, "the table of cases is decided alike over pods", false, func(t *testing.T) {
		echo := filepath.Join(t.TempDir(), "echo")
		build := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-o", echo, "./echo")
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if output, err := build.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, output)
		}
		b.loadImage(t, "local/echo:1", echo)
		cases := exec.Command(program, "--exact", "cases::pods::every_case_is_decided_alike_over_pods", "--nocapture")
		cases.Env = append(os.Environ(), "LENO_CASES_CLUSTER="+filepath.Join(b.programs, "cluster"), "LENO_CASES_DIRECTORY="+b.folder)
		output, err := cases.CombinedOutput()
		t.Logf("%s", output)
		if err != nil {
			t.Error(err)
		}
	})
}
