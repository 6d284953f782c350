#!/usr/bin/env bash
# make test: every test of the project, and a reason beside each flag.
set -euo pipefail
cd "$(dirname "$0")/.."

step() { printf '\n== %s\n' "$*"; }

step "lint: gofmt, go vet, the layers"
make --no-print-directory lint

step "Go tests" # -count=1: a cached result proves nothing about this machine's kernel
go test -count=1 ./...

step "names: 100,000 made up, twice each" # the hundred of the step above would miss rare pairs
go test -count=1 -run 'TestEncodingCanBeUndoneAndFits' ./fs -rapid.checks=100000

# Tests that are long because they do one thing many times, in one goroutine: nothing in them can race.
alone='^Test(Bombs|EveryFlipped|EveryColumnHas|NoFlippedBit|CheckFinds|ColumnsOfZeros|DamagedIndex|PlantedFiles|NoMutant|RecordOfMany|ViewsAre|ViewsDecode)'

step "Go tests under the race detector"
go test -count=1 -race -skip "$alone" ./hipo/... ./materialize/... ./fs/...

step "the same on one processor" # another order of events: what waits for what, and who starves
GOMAXPROCS=1 go test -count=1 -skip "$alone" ./materialize/...

step "real mounts, real clients"
.venv/bin/python -m pytest integration
