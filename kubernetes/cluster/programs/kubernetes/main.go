// Command kubernetes is all programs of a Kubernetes cluster in one binary, which links them once
// instead of six times. The name it is called by, or its first argument, chooses the program.
package main

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	kubectl "k8s.io/kubectl/pkg/cmd"
	kubectlerrors "k8s.io/kubectl/pkg/cmd/util"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

// programs maps the name of each program to a function that runs it and returns its exit status.
var programs = map[string]func() int{
	"kube-apiserver":          serve(apiserver.NewAPIServerCommand),
	"kube-controller-manager": serve(controllermanager.NewControllerManagerCommand),
	"kube-proxy":              serve(proxy.NewProxyCommand),
	"kube-scheduler":          serve(func() *cobra.Command { return scheduler.NewSchedulerCommand() }),
	"kubelet": serve(func() *cobra.Command {
		return kubelet.NewKubeletCommand(context.Background())
	}),
	"kubectl": func() int {
		// Prints errors as kubectl does, without the usage; exits by itself on one.
		kubectlerrors.CheckErr(cli.RunNoErrOutput(kubectl.NewDefaultKubectlCommand()))
		return 0
	},
}

func serve(command func() *cobra.Command) func() int {
	return func() int { return cli.Run(command()) }
}

func main() {
	run := programs[filepath.Base(os.Args[0])]
	if run == nil && len(os.Args) > 1 {
		run = programs[os.Args[1]]
		os.Args = os.Args[1:]
	}
	if run == nil {
		names := slices.Sorted(maps.Keys(programs))
		fmt.Fprintln(os.Stderr, "usage: kubernetes PROGRAM …, where PROGRAM is one of:", strings.Join(names, ", "))
		os.Exit(2)
	}
	os.Exit(run())
}
