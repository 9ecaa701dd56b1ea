# Leno: everything a newcomer needs. `make help` lists the targets.
SHELL := /bin/bash
CARGO ?= cargo

.DEFAULT_GOAL := help
.PHONY: help setup setup-checks clients ui run test test-ui test-stock-kernel test-adjacent lint deny fuzz bench bench-smoke azure conformance conformance-hbone kubernetes kubernetes-down kubernetes-programs kubernetes-recordings test-kubernetes images reference book dist clean

help: ## List the targets.
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 26

setup: ## Install what building needs (Debian packages, a wasm32 toolchain under target/), or say what is missing.
	@scripts/setup.sh

setup-checks: ## Install what tests and lints need besides.
	@scripts/setup.sh checks

ui: setup ## Build the page of the dashboard into target/ui.
	@scripts/ui.sh

run: setup ## Start the example application behind the mesh and drive it with real requests (ARGUMENTS=--containers: as images, as root).
	@scripts/ui.sh --optional
	@echo "== building leno and the example application (the first time takes 10 to 20 minutes on two cores)"
	@$(CARGO) build --release -p leno -p orders
	@target/release/orders-demo $(ARGUMENTS)

clients: setup-checks ## Install the clients of other people that tests drive the gateway with, under target/clients, or say what they need.
	@scripts/clients.sh

test: clients ## Run all tests (ARGUMENTS="-p leno --test it -- chains::": some). RUST_TEST_THREADS: tests of a program at a time.
	@scripts/ui.sh --optional
	@CARGO=$(CARGO) scripts/test.py $(ARGUMENTS)

test-ui: setup-checks ## Check the page of the dashboard: format, unit tests, and all views in Chromium (ARGUMENTS=--quick: some).
	@CARGO=$(CARGO) scripts/test-ui.sh $(ARGUMENTS)

test-stock-kernel: setup-checks ## Run the tests of jails as root on a stock Debian kernel, in QEMU without /dev/kvm (ARGUMENTS="crates/leno/tests/it/rooms.rs -- share": some).
	@CARGO=$(CARGO) scripts/stock-kernel.sh $(ARGUMENTS)

test-adjacent: setup-checks ## Run the tests of many nodes with control plane and nodes of two releases (REVISION=TAG: not the commit before this one).
	@CARGO=$(CARGO) scripts/adjacent-release.sh $(REVISION)

lint: setup-checks ## Check format, lints, scripts, spelling, links, prose and the documentation of the crates.
	@$(CARGO) fmt --all --check
	@$(CARGO) fmt --manifest-path guest/Cargo.toml --check
	@scripts/lint-text.sh
	@$(CARGO) clippy --release --workspace --all-targets -- -D warnings
	@RUSTDOCFLAGS="-D warnings" $(CARGO) doc --quiet --release --workspace --no-deps

deny: ## Check licences, sources and the dependency rules of the architecture.
	@"$$(CARGO=$(CARGO) scripts/cargo-deny.sh)" check bans licenses sources

fuzz: ## Run every fuzz target for a minute (SECONDS=5 TARGETS="yaml wire": otherwise).
	@CARGO=$(CARGO) scripts/fuzz.sh $(or $(SECONDS),60) $(TARGETS)

bench: setup ## Measure on this machine: a fresh sandbox per request, and whole hops beside Envoy; reports go to target/bench/.
	@mkdir -p target/bench
	@$(CARGO) build --profile dist -p leno -p leno-bench
	@target/dist/leno-bench sandbox --json target/bench/sandbox.json
	@target/dist/leno-bench hop --json target/bench/hop.json --markdown target/bench/hop.md

bench-smoke: setup ## Check in under two minutes that the hot path has not become much slower.
	@$(CARGO) build --release -p leno -p leno-bench
	@target/release/leno-bench smoke

azure: setup ## Replay a workload of Azure Functions without a mesh, with Leno and with Envoys (ARGUMENTS="--trace FOLDER": a real one, for hours).
	@mkdir -p target/bench
	@$(CARGO) build --profile dist -p leno -p leno-bench
	@target/dist/leno-bench azure $(or $(ARGUMENTS),--quick) --json target/bench/azure.json

conformance: setup-checks ## Run h2spec, gRPC interop, the Connect suite, Autobahn and the trace-context suite against the gateway and a whole hop.
	@$(CARGO) build --release -p leno
	@conformance/run

# Istio's server listens at all addresses, so the tests need a separate network.
HBONE_TESTS = test --release --offline -p leno-proxy -p leno-node --lib istio
conformance-hbone: setup-checks ## Test tunnels to pods (HBONE) with Istio's own client and server, as root; these are built the first time.
	@$(WITH_GO) CGO_ENABLED=0 go build -C conformance/hbone -trimpath -o "$(CURDIR)/target/conformance/hbone/" \
	  istio.io/istio/pkg/test/echo/cmd/client istio.io/istio/pkg/test/echo/cmd/server
	@$(CARGO) $(HBONE_TESTS) --no-run
	@LENO_HBONE_PROGRAMS="$(CURDIR)/target/conformance/hbone" \
	  unshare --net sh -c 'ip link set lo up && exec $(CARGO) $(HBONE_TESTS)'

# The folder of its programs, which several working copies may share.
KUBERNETES ?= $(CURDIR)/target/kubernetes
WITH_GO = PATH="$$(dirname "$$(scripts/go.sh)"):$$PATH"

kubernetes-programs:
	@scripts/setup.sh kubernetes
	@$(WITH_GO) go run -C kubernetes/cluster . build "$(KUBERNETES)"

kubernetes: kubernetes-programs ## Start a Kubernetes of two nodes for tests, as root; its programs are built the first time.
	@"$(KUBERNETES)/cluster" up
	@echo 'try: $(KUBERNETES)/cluster kubectl get pods -A; all commands: $(KUBERNETES)/cluster --help; end it: make kubernetes-down'

kubernetes-down: ## End the Kubernetes of `make kubernetes`.
	@"$(KUBERNETES)/cluster" down

test-kubernetes: kubernetes-programs ## Test on a Kubernetes of two nodes, as root, and write kubernetes/REPORT.md.
	@CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUSTFLAGS="-C target-feature=+crt-static" \
	  $(CARGO) build --release --target x86_64-unknown-linux-gnu -p leno-cni
	@PROGRAMS="$(KUBERNETES)" $(CARGO) test --release -p leno-controller --test documents -- --nocapture
	@$(CARGO) build --release -p leno -p leno-controller -p boutique -p orders
	@$(CARGO) test --release -p leno --test it --no-run
	@$(WITH_GO) PROGRAMS="$(KUBERNETES)" LENO_PROGRAMS="$(CURDIR)/target/release" LENO_CASES="$$(realpath "$$($(CARGO) test --release -p leno --test it --no-run 2>&1 | sed -n 's/^ *Executable .*(\(.*\))$$/\1/p')")" LENO_CNI="$(CURDIR)/target/x86_64-unknown-linux-gnu/release/leno-cni" REPORT="$(CURDIR)/kubernetes/REPORT.md" go test -C kubernetes/cluster -count=1 -timeout=30m -v ./...

kubernetes-recordings: kubernetes-programs ## Record anew, as root, the conversations with an API server that the controller's tests replay.
	@CARGO=$(CARGO) kubernetes/controller/tests/record.sh "$(KUBERNETES)"

book: ## Build the book (docs/) into target/book; mdBook is built from source the first time.
	@"$$(CARGO=$(CARGO) scripts/mdbook.sh)" build book

dist: setup ui ## Build packages into target/packages: .deb, static tarball, OCI image layout (PROFILE=release: a quick build).
	@CARGO=$(CARGO) PROFILE=$(PROFILE) scripts/dist.sh

images: setup ui ## Build the image for Kubernetes into target/images, as an OCI layout, and print its digest (PROFILE=release: a quick build).
	@CARGO=$(CARGO) PROFILE=$(PROFILE) PROGRAMS=$(PROGRAMS) scripts/images.sh

reference: setup ## Write docs/reference anew from the configuration types and the metrics, and the dashboards from these.
	@LENO_BLESS=1 $(CARGO) test --quiet -p leno-config reference
	@LENO_BLESS=1 $(CARGO) test --quiet -p leno-telemetry reference
	@scripts/dashboards.py

clean: ## Remove everything that was built.
	@$(CARGO) clean
	@rm -rf guest/target
