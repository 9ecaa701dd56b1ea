// Command pause holds the namespaces of a pod until it gets a signal to end.
package main

import (
	"os"
	"os/signal"
	"syscall"
)

func main() {
	end := make(chan os.Signal, 1)
	signal.Notify(end, syscall.SIGINT, syscall.SIGTERM)
	// With a shared process namespace, orphans of the pod's containers become its children.
	signal.Ignore(syscall.SIGCHLD)
	<-end
}
