# hipofs: what one can ask for. "make" alone lists it.

GOLANGCI := github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0
EVENTS   ?= 400000
RUNS     ?= 5
FUZZTIME ?= 30s
DURATION ?= 1200
LIGHT    ?= 900

.PHONY: help demo test clients bench soak kills jobs slurm mutants damage build wheels man manual package package-test lint fuzz clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: ## mount a real file, read a column with NumPy, unmount; installs what it needs
	@scripts/setup.sh demo
	@$(MAKE) --no-print-directory build
	@scripts/guard.sh scripts/demo.sh

test: ## every test; installs what it needs
	@scripts/setup.sh clients
	@scripts/guard.sh scripts/test.sh

clients: ## readers in other languages beside NumPy, at least seven, and the examples, those of ROOT too
	@scripts/setup.sh clients all
	@$(MAKE) --no-print-directory build
	@HIPOFS_CLIENTS=required scripts/guard.sh .venv/bin/python -m pytest integration/test_clients.py integration/test_examples.py

bench: ## time, memory and work beside other readers, kept in integration/RESULTS.md; EVENTS=400000 RUNS=5 BENCH="--only pass"
	@scripts/setup.sh demo
	@$(MAKE) --no-print-directory build
	@scripts/guard.sh .venv/bin/python integration/bench.py --events $(EVENTS) --runs $(RUNS) $(BENCH)
	@scripts/manual.py

soak: ## 64 processes read a 1 GB chain in 64 MB for 20 minutes, then a slice a second for 15, kept in docs/reliability.md; DURATION=1200 LIGHT=900 SOAK="--cache 200M"
	@scripts/setup.sh demo
	@$(MAKE) --no-print-directory build
	@scripts/guard.sh .venv/bin/python integration/soak.py --seconds $(DURATION) --light $(LIGHT) $(SOAK)

kills: ## SIGKILL at 1,000 random instants, and what the next start finds, kept in docs/reliability.md; COUNT=1000
	@scripts/setup.sh demo
	@$(MAKE) --no-print-directory build
	@scripts/guard.sh .venv/bin/python integration/kills.py --count $(or $(COUNT),1000)

jobs: ## 100 batch jobs killed at random instants, and what is left of them, kept in docs/reliability.md; COUNT=100
	@scripts/setup.sh demo
	@$(MAKE) --no-print-directory build
	@scripts/guard.sh .venv/bin/python integration/jobs.py --count $(or $(COUNT),100)

slurm: ## the same by Slurm itself, where it is installed, kept in docs/reliability.md; COUNT=20
	@scripts/setup.sh demo
	@$(MAKE) --no-print-directory build
	@scripts/guard.sh scripts/slurm.sh .venv/bin/python integration/jobs.py --slurm --count $(or $(COUNT),20)

mutants: ## every mutant of small files and indexes, and 2,000 mounted beside a good file, kept in docs/reliability.md; COUNT=2000
	@scripts/setup.sh demo
	@$(MAKE) --no-print-directory build
	@scripts/guard.sh .venv/bin/python integration/mutants.py --count $(or $(COUNT),2000)

damage: ## 10,000 changed bytes in files of every codec, and which of them hipofs check finds, kept in docs/reliability.md; COUNT=10000
	@scripts/setup.sh demo
	@$(MAKE) --no-print-directory build
	@scripts/guard.sh .venv/bin/python integration/damage.py --count $(or $(COUNT),10000)

build: ## the command, build/hipofs
	CGO_ENABLED=0 go build -o build/hipofs ./cmd/hipofs

wheels: ## the Python wheels, build/wheels/*.whl
	@scripts/setup.sh demo
	@scripts/wheels.sh

man: build ## the man pages, build/man/*.1
	build/hipofs man build/man

manual: build ## the help texts into docs/manual.md, the figures of RESULTS.md into README.md
	scripts/manual.py

package: build ## deb, rpm, tarballs, wheels, SBOMs and checksums of all platforms, build/packages
	@scripts/setup.sh demo
	@scripts/package.sh

package-test: package ## what make package has made for this machine, installed in roots of their own, used, and removed
	@scripts/setup.sh test
	@HIPOFS_PACKAGES=build/packages scripts/guard.sh .venv/bin/python -m pytest integration/test_packages.py

lint: ## gofmt, go vet, the linters with the rule of the layers, known vulnerabilities
	@test -z "$$(gofmt -l .)" || { echo "not in gofmt's form:"; gofmt -l .; exit 1; }
	go vet ./...
	go run $(GOLANGCI) run ./...
	@scripts/vulncheck.sh

fuzz: ## each fuzz target in turn, kept in docs/reliability.md; FUZZTIME=30s
	@scripts/fuzz.py $(FUZZTIME)

clean: ## remove build/ and .venv/
	rm -rf build .venv
