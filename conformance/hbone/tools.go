//go:build tools

// Package tools pins Istio's client and server of HBONE.
package tools

import (
	_ "istio.io/istio/pkg/test/echo/cmd/client"
	_ "istio.io/istio/pkg/test/echo/cmd/server"
)
