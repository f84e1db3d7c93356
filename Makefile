# `make` lists the targets. GNU make 3.81 (macOS) and later.

TARGET = $(if $(CARGO_TARGET_DIR),$(CARGO_TARGET_DIR),target)
RELEASED = $(TARGET)/release/redislock.so
LIBRARY = $(TARGET)/release/libredislock.$(if $(filter Darwin,$(shell uname)),dylib,so)

.DEFAULT_GOAL = help
.PHONY: help setup build trained run demo test pictures clients chaos rounds simulate sabotage mutants fuzz sanitize soak lint bench check-bench bench-report matrix release install package package-test container-test

help: ## List these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-14s %s\n", $$1, $$2 }' Makefile

setup: ## Install missing tools: a C compiler, libclang, a Redis or Valkey server
	@scripts/setup.sh

# Replaced in one step: a running server keeps the file that it has mapped.
build: setup ## Build the module: ./redislock.so
	cargo build --release -p redislock-module --lib
	@cmp -s $(LIBRARY) redislock.so || { cp $(LIBRARY) redislock.so.new && mv redislock.so.new redislock.so; }

trained: build ## Build ./redislock-trained.so, as make release does: the module, optimized with a recorded profile of its use (about a tenth less CPU time)
	@REDIS_SERVER="$$(scripts/server.sh)" scripts/trained.sh $(LIBRARY)

run: build ## Start a server with the module in the foreground (port 6379, the next free one, or PORT=...)
	@PORT='$(PORT)' scripts/run.sh

demo: build ## Watch locks for half a minute while masters and workers fail (PICTURE=file: save a picture; WEB=1: watch it in a browser, too)
	cargo build -p redislock-demo $(if $(WEB),-p redlock-cli)
	@REDIS_SERVER="$$(scripts/server.sh)" $(TARGET)/debug/redislock-demo $(if $(WEB),--web $(TARGET)/debug/redlock,$(if $(PICTURE),--picture '$(PICTURE)'))

# Without zsh, fish, tmux and Chromium, the tests that need them are skipped, except with CI=true.
test: build ## Run all Rust tests, against a real server (REDIS_SERVER=path selects another one)
	-@scripts/setup.sh test
	@scripts/test.sh

pictures: build ## Make new pictures of redlock top and redlock serve (docs/top.svg, docs/page*.png)
	@scripts/setup.sh test
	REDLOCK_PICTURES="$(CURDIR)/docs" REDIS_SERVER="$$(scripts/server.sh)" cargo test -p redlock-cli --test tool -- \
		locks_are_shown_sorted the_page_is_used_by_keyboard

clients: build ## Run the conformance suite on the Python, Node, Go, Java and Rust clients, and the recipes (CLIENTS='python node', PLANTED=1)
	@scripts/clients.sh $(CLIENTS)

chaos: build ## Real servers and clients with faults for five minutes (SECONDS=300 SEED= FAULTS='kill pause'; REPORT=target/chaos)
	@REDIS_SERVER="$$(scripts/server.sh)" CHAOS_SECONDS='$(SECONDS)' SEED='$(SEED)' FAULTS='$(FAULTS)' REPORT='$(REPORT)' scripts/chaos.sh

rounds: build ## Repeat the tests of crashes, failovers, resharding and broken disks (CHAOS_ROUNDS=10)
	REDIS_SERVER="$$(scripts/server.sh)" CHAOS_ROUNDS=$(or $(CHAOS_ROUNDS),10) cargo test -p redislock-module --test main -- \
		--nocapture --test-threads 2 crash:: sentinel:: resharding:: partition:: disk:: interruptions::

simulate: ## Simulate client and core with faults: time, network, crashes (SEEDS=10000 FIRST=1; SEED=7: only that; NODES=5; FLAW=name)
	cargo run --release -p redislock-chaos -- simulate $(if $(SEED),--seed $(SEED),--seeds $(or $(SEEDS),10000)) \
		$(if $(FIRST),--first $(FIRST)) $(if $(NODES),--nodes $(NODES)) $(if $(FLAW),--flaw $(FLAW))

sabotage: ## Remove one protection at a time; the test that is named for it must fail (ONLY='once token-check')
	@REDIS_SERVER="$$(scripts/server.sh)" python3 sabotage/run.py $(ONLY)

mutants: ## Change one expression at a time in the code that decides about holders; a test must fail (PARTS='lock queue', SHARD=0/4)
	@SHARD='$(SHARD)' scripts/mutants.sh $(PARTS)

fuzz: build ## Fuzz arguments, saved locks, effects, RESTORE and replies (SECONDS=600 for each; TARGETS='effects replies')
	@scripts/fuzz.sh $(or $(SECONDS),600) $(TARGETS)

sanitize: build ## Run tests under Miri, AddressSanitizer and valgrind (PARTS='miri address', SUBSET='acquire waiting')
	@SUBSET='$(SUBSET)' scripts/sanitize.sh $(PARTS)

# Each waiter is a connection: both sides need a file for it. Symbols tell callgrind where a slice begins.
soak: build ## Count the instructions of slices, then ten minutes of waiters, reloads, rewrites, replicas (SECONDS=600, at least 450; WAITERS=10000)
	@scripts/setup.sh soak
	cargo build --profile profiling -p redislock-module --lib
	ulimit -n 20000 && SOAK_WAITERS=$(WAITERS) REDIS_SERVER="$$(scripts/server.sh)" REDISLOCK_SO="$(abspath $(TARGET))/profiling/$(notdir $(LIBRARY))" \
		cargo test -p redislock-module --test main -- --ignored --nocapture soak::no_slice_needs_many_instructions
	ulimit -n 20000 && SOAK_SECONDS=$(SECONDS) SOAK_WAITERS=$(WAITERS) REDIS_SERVER="$$(scripts/server.sh)" \
		cargo test -p redislock-module --test main -- --ignored --nocapture soak::memory_stays_flat_and_nothing_is_left

lint: ## Check format, width, clippy, documentation, licences and scripts; warnings are errors
	@scripts/setup.sh lint
	cargo fmt --all --check
	@scripts/width.sh
	@scripts/sentences.sh
	@if command -v python3 >/dev/null; then python3 sabotage/run.py --check; fi
	cargo clippy --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS='-D warnings' cargo doc --workspace --no-deps
	cargo deny --log-level error check licenses bans sources
	@if command -v shellcheck >/dev/null; then shellcheck scripts/*.sh packaging/debian/* .ci/run; fi

# It measures what make release makes, beside what make build makes.
MEASURED = REDISLOCK_SO='$(abspath $(RELEASED))' REDISLOCK_UNTRAINED='$(CURDIR)/redislock.so' REDIS_SERVER="$$(scripts/server.sh)"
BENCH_SECTIONS = $(MEASURED) cargo run --release -p redislock-bench -- $(filter-out peers,$(BENCH)) \
	$(if $(LOCKS),--locks $(LOCKS)) $(if $(WAITERS),--waiters $(WAITERS)) $(if $(filter 1 yes,$(KEEP)),--keep)
ADD_PEERS = $(filter-out 0 no,$(PEERS))
WANT_PEERS = $(ADD_PEERS)$(filter peers,$(BENCH))
WITH_PEERS = $(if $(WANT_PEERS),$(shell command -v python3))
SIZES = $(if $(ADD_PEERS),WORKERS='$(or $(WORKERS),2 16 64 256)' MASTERS='$(or $(MASTERS),1 5)' SECONDS='$(or $(SECONDS),2)')
bench: check-bench release ## Compare with the alternatives (BENCH='pairs memory', LOCKS=10000000, WAITERS=1000, TRAINED=no; PEERS=1: also the locks of other languages with 2 to 256 workers on one and five masters, BENCH=peers: only these, with 16 workers on one, CLIENTS='go rust', WORKERS='2 16', MASTERS='1 5', SECONDS=5, ROUNDS=3; KEEP=1: into the files of bench-report)
	@failed=0; \
	$(if $(filter-out peers,$(or $(BENCH),all)),$(BENCH_SECTIONS) || failed=1;) \
	$(if $(WITH_PEERS),$(SIZES) $(MEASURED) python3 bench/peers/run.py $(CLIENTS) || failed=1; \
		cargo run -q --release -p redislock-bench -- peers $(TARGET)/peers/results.json || failed=1;) \
	exit $$failed

# Wrong arguments end it before anything is built.
check-bench:
	@$(if $(WANT_PEERS),$(if $(WITH_PEERS),,echo 'bench: skipping the locks of other languages: python3 is missing' >&2))
	@$(if $(WITH_PEERS),$(SIZES) python3 bench/peers/run.py --check $(CLIENTS),:)

bench-report: ## Write the tables and pictures of docs/PERFORMANCE.md from bench/results.json and bench/peers/results.json
	cargo run -q --release -p redislock-bench -- report

matrix: build ## Run the end-to-end tests on Redis 7.0 and 8.0, Valkey 8.1 and 9.1 (REDIS_SERVER=path: only that)
	@scripts/matrix.sh

release: build ## Build the module and the tool as they are installed: the module with a recorded profile (TRAINED=no: without, in half the time)
	cargo build --release -p redlock-cli
	@TRAINED='$(TRAINED)' REDIS_SERVER="$$(scripts/server.sh)" scripts/release.sh $(LIBRARY)

# It builds nothing, so that it can run as root: make release && sudo make install
install: ## Install what make release has built (PREFIX=/usr/local, DESTDIR=)
	@PREFIX='$(PREFIX)' DESTDIR='$(DESTDIR)' scripts/install.sh

package: release ## Make a .deb and a .tar.gz in target/package
	@scripts/package.sh

container-test: package ## Build the container image with buildah and run its masters and exporter, as root
	@scripts/container-test.sh

package-test: package ## Install, start, upgrade and remove the .deb in Debian roots, as root (RELEASES='bookworm trixie')
	@scripts/package-test.sh $(or $(RELEASES),trixie)
