# Everything that `make` is asked for sets itself up: see `make help`.
SHELL := /bin/bash
.DEFAULT_GOAL := help

GO ?= go
BIN := $(CURDIR)/.bin
GOLANGCI_LINT_VERSION := v2.12.2
GOLANGCI_LINT := $(BIN)/golangci-lint-$(GOLANGCI_LINT_VERSION)
# In the tree, because the findings it remembers name the files of the checkout they were made in.
export GOLANGCI_LINT_CACHE := $(BIN)/golangci-lint-cache
GOVULNCHECK_VERSION := v1.1.4
B ?= .
FUZZTIME ?= 20s

# Tests that draw at random, or break what they stand on: WEIR_TEST_DURATION is for how long each of them goes on. Without it each
# does a few rounds. The timeout only ends a test that hangs.
RANDOM_TESTS := Linearizable|AtOnce|ModelDoes|OneBalance|Pruning|InspectReads|Faults|Kill|Cut|Shut|Terminated|Silent|Canceled|GiveUp|Timeouts|ReadOnly|Scheduled|UnderLoad|FirstUses
# Tests that would keep make test waiting: those that call rig.Large.
LARGE_TESTS := MoreThanAThousandThatAreLate|AllThatWereCancelledTogether|SixHundredJobsAreAvailableAhead|ManyJobsHaveThePlaces|ManyJobsThatWaitForSlots|DeniedInPart|EveryLineHasItsTurn|AreChargedWhatTheyUse|ALineWhen|SlotsOfJobsWhenClients|SlotsOfJobsWhenTheServer|WhenTheLeaderIsKilled|WorkWhenTheServer|WhenLeadershipChanges|SettlementsWhenWorkers|FindsBrokenWorkers|WithoutASlot|WorkBeforeItsTurn|SchedulerRequestTwoPhaseCommit|WhoseJobsAreCancelled|InAPauseOfItsSecondAttempt
LARGE_PACKAGES := ./scheduler ./integration/faults
TIMEOUT := -timeout=30m
# Without tables for debuggers a test program is linked in two thirds of the time. Stack traces need none.
export GOFLAGS ?= -mod=readonly -ldflags=-w

.PHONY: help
help: ## Show this help
	@awk 'BEGIN {FS = ":.*## "} /^[a-z\/]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: demo
demo: postgres ## Run the LLM example: reserved calls to a budgeted API
	@$(GO) run ./examples/llm

.PHONY: demo/login
demo/login: postgres ## Run the login example: guarded sign-in over real HTTP
	@$(GO) run ./examples/login

.PHONY: demo/visitors
demo/visitors: postgres ## Run the visitors example: limits for anonymous visitors over real HTTP
	@$(GO) run ./examples/visitors

.PHONY: demo/playground
demo/playground: postgres ## Run the playground: limits to play with in the browser, until stopped
	@$(GO) run ./examples/playground

.PHONY: pictures
pictures: ## Draw the diagrams of docs/ anew
	@$(GO) run ./docs/pictures

.PHONY: weir
weir: ## Build the command weir into .bin
	cd cmd/weir && $(GO) build -o $(BIN)/weir .

.PHONY: weirvet
weirvet: ## Build the vet tool weirvet into .bin
	cd cmd/weirvet && $(GO) build -o $(BIN)/weirvet .

.PHONY: test
test: postgres sfv ## Run all tests, on servers of their own
	$(GO) test -count=1 $(TIMEOUT) ./...; code=$$?; ./scripts/absent; exit $$code

.PHONY: test/stress
test/stress: postgres ## Run the random tests and the faults for longer than make test does: DURATION=10s for each
	WEIR_TEST_DURATION=$(or $(DURATION),10s) $(GO) test -count=1 $(TIMEOUT) -parallel=8 -run '$(RANDOM_TESTS)' ./integration/...
	WEIR_TEST_DURATION=1s $(GO) test -count=1 $(TIMEOUT) -run '$(LARGE_TESTS)' $(LARGE_PACKAGES)

.PHONY: test/faults
test/faults: postgres ## Run the tests under faults, and print their rounds: killed servers, cut connections
	set -o pipefail; WEIR_TEST_DURATION=1s $(GO) test -count=1 $(TIMEOUT) -v ./integration/faults | grep -v '^=== '
	set -o pipefail; WEIR_TEST_DURATION=1s WEIR_TEST_SHARDS=5 $(GO) test -count=1 $(TIMEOUT) -v ./integration/faults | grep -v '^=== '

# What tests on a cluster, which takes longer for most: CITUS_TESTS=<regexp> picks.
CITUS_TESTS ?= ^Test
.PHONY: test/citus
test/citus: ## Run the tests on a Citus cluster, where there is a server that has it: CITUS_TESTS=<regexp> picks
	@[ -n "$$WEIR_CITUS_URL" ] || bin=$$(./scripts/citus) || exit 0; \
	set -ex; [ -n "$$WEIR_CITUS_URL" ] || export WEIR_CITUS_BIN=$$bin; \
	$(GO) test -count=1 -p=1 -parallel=8 -timeout=40m -run '$(CITUS_TESTS)' ./integration ./integration/model ./integration/citus \
		./slots ./lockout ./fair ./httplimit ./dashboard ./inspect ./weirtest; \
	WEIR_TEST_DURATION=1s $(GO) test -count=1 -p=1 -parallel=8 -timeout=40m -run '$(CITUS_TESTS)' ./scheduler ./internal/jobs/...; \
	(cd integration/databasesql && $(GO) test -count=1 -parallel=8 -timeout=20m -run '$(CITUS_TESTS)' .); \
	cd cmd/weir && $(GO) test -count=1 -run 'OfACluster' .

.PHONY: test/race
test/race: postgres ## Run all tests under the race detector
	$(GO) test -count=1 $(TIMEOUT) -race ./...

.PHONY: test/newest
test/newest: postgres ## Run all tests with the newest pgx and River
	./scripts/newest

.PHONY: test/bench
test/bench: postgres redis ## Run the tests of bench/, the comparison with others among them
	cd bench && $(GO) test -count=1 ./...

.PHONY: test/otel
test/otel: postgres ## Run the tests of otelweir/
	cd otelweir && $(GO) test -count=1 ./...

.PHONY: test/shed
test/shed: ## Run the tests of shed/, under the race detector
	cd shed && $(GO) test -count=1 -race ./...

.PHONY: test/rpc
test/rpc: postgres ## Run the tests of rpclimit/ and docs/frameworks/
	cd rpclimit && $(GO) test -count=1 ./...
	cd docs/frameworks && $(GO) test -count=1 ./...

.PHONY: test/browser
test/browser: postgres chromium ## Look at the dashboard in Chromium: WEIR_SCREENSHOTS=<folder> keeps what it looks like
	cd dashboard/browsertest && $(GO) test -count=1 ./...

.PHONY: test/weir
test/weir: postgres ## Run the tests of cmd/weir
	cd cmd/weir && $(GO) test -count=1 ./...

.PHONY: test/weirvet
test/weirvet: ## Run the tests of cmd/weirvet
	cd cmd/weirvet && $(GO) test -count=1 $(TIMEOUT) ./...

.PHONY: test/sql
test/sql: postgres ## Run the tests over database/sql: of jobs, and of sqlc, GORM, Bun and Ent in docs/orms/
	cd integration/databasesql && $(GO) test -count=1 ./...
	cd docs/orms && $(GO) test -count=1 ./...

.PHONY: test/install
test/install: ## Install the released modules as users will, from a module proxy in a folder
	cd internal/release && $(GO) test -count=1 ./...

.PHONY: test/soak
test/soak: postgres ## Run the random tests for longer: DURATION=30m for each, 16 at a time; RANDOM_TESTS=<regexp> picks
	set -o pipefail; WEIR_TEST_DURATION=$(or $(DURATION),10m) $(GO) test -count=1 -timeout=0 -parallel=16 -v -run '$(RANDOM_TESTS)' ./integration/... | grep -v '^=== '

.PHONY: test/bite
test/bite: postgres ## Break the library in one place at a time, and see a test notice each
	$(GO) run ./internal/test/bite

.PHONY: conformance
conformance: postgres ## Replay the reference implementation's outcomes; CONFORMANCE_DIR=... for another set
	$(GO) test -count=1 -v -run Conformance ./integration | grep -v '^=== '

.PHONY: bench
bench: postgres ## Run benchmarks: B=<regexp> picks, the default is all
	$(GO) test -run '^$$' -bench '$(B)' -benchmem ./...
	@./scripts/redis || echo "What compares with Redis is skipped" >&2
	cd bench && $(GO) test -run '^$$' -bench '$(B)' -benchmem ./...
	cd shed && $(GO) test -run '^$$' -bench '$(B)' -benchmem ./...

.PHONY: bench/shards
bench/shards: postgres ## Measure how many shards a limit needs, and write docs/shards.md: five minutes
	cd bench && $(GO) run ./shards -docs ../docs

.PHONY: bench/report
bench/report: postgres redis ## Compare with other rate limiters, and write docs/benchmarks.md: twenty minutes
	cd bench && $(GO) run ./report -docs ../docs

.PHONY: fuzz
fuzz: ## Run each fuzz target for FUZZTIME (20s)
	@set -e; for at in $$(grep -roE '^func Fuzz[A-Za-z]+' --include='*_test.go' . | sed 's/:func /:/'); do \
		$(GO) test -run '^$$' -fuzz "^$${at#*:}$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 1x "./$$(dirname "$${at%%:*}")"; \
	done

.PHONY: lint
lint: $(GOLANGCI_LINT) vet ## Check formatting, vet, lint, and what is linked into ratelimit
	$(GOLANGCI_LINT) run ./...
	$(GO) mod verify >/dev/null
	cd bench && $(GOLANGCI_LINT) run --config ../.golangci.yml ./...
	cd otelweir && $(GOLANGCI_LINT) run --config ../.golangci.yml ./...
	cd shed && $(GOLANGCI_LINT) run --config ../.golangci.yml ./...
	cd rpclimit && $(GOLANGCI_LINT) run --config ../.golangci.yml ./...
	cd docs/frameworks && $(GOLANGCI_LINT) run --config ../../.golangci.yml ./...
	cd docs/orms && $(GOLANGCI_LINT) run --config ../../.golangci.yml ./...
	cd dashboard/browsertest && $(GOLANGCI_LINT) run --config ../../.golangci.yml ./...
	cd cmd/weir && $(GOLANGCI_LINT) run --config ../../.golangci.yml ./...
	cd cmd/weirvet && $(GOLANGCI_LINT) run --config ../../.golangci.yml ./...
	cd integration/databasesql && $(GOLANGCI_LINT) run --config ../../.golangci.yml ./...
	cd internal/release && $(GOLANGCI_LINT) run --config ../../.golangci.yml ./...
	./scripts/deps

# Each module by itself, as go vet sees one at a time.
.PHONY: vet
vet: weirvet ## Run weirvet over all modules
	@set -e; for mod in $$(git ls-files '*go.mod'); do \
		(cd "$$(dirname "$$mod")" && $(GO) vet -vettool=$(BIN)/weirvet ./...); \
	done

.PHONY: vulncheck
vulncheck: ## Look for known vulnerabilities in what is called; needs vuln.go.dev
	$(GO) run golang.org/x/vuln/cmd/govulncheck@$(GOVULNCHECK_VERSION) ./...

.PHONY: tidy
tidy: ## Do go mod tidy in each released module, with the others as they are in the tree
	@./scripts/release tidy

.PHONY: api
api: ## Compare the exported names with those of the last release
	@./scripts/release api

.PHONY: floors
floors: ## Show that an application on the lowest versions keeps them
	./scripts/floors

$(GOLANGCI_LINT):
	@mkdir -p $(BIN)
	GOBIN=$(BIN) GOFLAGS= $(GO) install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(GOLANGCI_LINT_VERSION)
	@mv $(BIN)/golangci-lint $@

# Where only the package manager can supply a server, say so in one line.
.PHONY: postgres
postgres:
	@./scripts/postgres

.PHONY: sfv
sfv:
	@./scripts/sfv

# So that make test needs no Redis, only what compares with it asks for one.
.PHONY: redis
redis:
	@./scripts/redis

# So that make test needs no browser, only what looks at a page asks for one.
.PHONY: chromium
chromium:
	@./scripts/chromium || echo "What looks at pages is skipped" >&2
