# Every task of the project, by name. `make` alone lists them.
.DEFAULT_GOAL := help
.PHONY: help run build docs test test-long check setup e2e packages autobahn clients fuzz bench bench-peers tidy clean

# Extra flags for `make run`, `make bench` and `make bench-peers`, for pytest with `make e2e`:
#   make run ARGS='--listen 127.0.0.1:9000'
ARGS ?=

# The tools of the tests live in .cache; `scripts/setup` puts them there.
export PATH := $(CURDIR)/.cache/venv/bin:$(PATH)

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' Makefile

run: ## build the server and serve on 127.0.0.1:8080 (flags: ARGS='…')
	@scripts/need-rust
	@cargo build --release --locked -p throng
	@THRONG_PRESENCE_MEMBERS="$${THRONG_PRESENCE_MEMBERS-user}" exec target/release/throng serve $(ARGS)

docs: ## build the documentation as a site, into target/docs (ARGS='--docs target/docs' serves it)
	@docs/site/build target/docs

test: ## set up and run everything that CI runs
	@scripts/setup build
	@scripts/test

test-long: ## thousands of simulation seeds and kills, fuzzing and chaos for minutes, hundreds of upgrades
	@scripts/setup
	@scripts/test --long

check: ## formatting, lints and unit tests: the quick round
	@cargo fmt --all --check
	@scripts/tidy
	@scripts/check-dependencies
	@cargo clippy --workspace --all-targets --locked --quiet -- -D warnings
	@cargo test --workspace --locked --quiet

setup: ## install missing tools for the tests
	@scripts/setup

build:
	@cargo build --workspace --bins --locked --quiet

e2e: setup build ## end-to-end tests with real clients (pytest flags: ARGS='-k resume')
	@pytest -q -n 6 --dist loadgroup --no-loadscope-reorder tests/e2e $(ARGS)

packages: ## everything that a release has, into target/packages/release (scripts/test packages tries it)
	@scripts/setup packages
	@packaging/release target/packages
	@ls -l target/packages/release

autobahn: setup build ## the Autobahn WebSocket test suite
	@tests/autobahn/run

clients: setup build ## the tests of the JavaScript, Python and Go clients
	@clients/test

fuzz: setup ## every fuzz target, THRONG_FUZZ_SECONDS each
	@scripts/fuzz

bench: ## compare Throng with a raw send() loop, and tokens with none (ARGS: the former only)
	@cargo build --release --locked -p throng -p throng-bench
	@target/release/throng bench baseline $(ARGS)
	@test -n '$(ARGS)' || target/release/throng bench access --apply

bench-peers: ## compare Throng with other push servers; writes docs/benchmarks/peers.md and prices.md
	@bench/peers/run --to docs $(ARGS)

tidy: ## house style, links and dependency rules
	@scripts/tidy
	@scripts/check-dependencies

clean: ## remove build output and tools installed in the checkout
	@rm -rf target .cache tests/node_modules tests/.cache
