# Each target sets up what it needs on a fresh Debian 12 with a Rust toolchain, git and make.

CARGO_TARGET_DIR ?= target
bench := $(CARGO_TARGET_DIR)/release/homenode-bench

export PREFIX DESTDIR HOMENODE_BINARY

.PHONY: help setup run test figures mutants bench loom fuzz crash soak engines build install uninstall deb lab lab-test clean

help:
	@echo 'Targets that build first install Debian packages, among them PostgreSQL, Redis and Chromium (scripts/setup.sh).'
	@echo 'make run        homenode demo: real trees verified, everything measured beside tmpfs; a table and a page (root; RING=1: with rings)'
	@echo 'make test       format, lints, loom, benches in small, all tests'
	@echo 'make figures    the papers'"'"' figures, simulated, into docs/figures; a minute and the build'
	@echo 'make mutants    breaks each module of the policy in turn: some simulated figure must change; minutes'
	@echo 'make bench      the claimed numbers but those of guests, durable pools and whole programs; minutes, on a machine that does nothing else'
	@echo 'make loom       every interleaving model of the lock-free code, with the one that takes minutes'
	@echo 'make fuzz       fuzz the decoders of what comes from outside, ten minutes in all (FUZZ_SECONDS=N)'
	@echo 'make crash      a million crash states of durable pools, and faults that must be found among them'
	@echo 'make soak       mixed load on mounts of memory and of a disk, by each transport (root; SOAK_MINUTES=30)'
	@echo 'make engines    HDFS, Spark, Redis, etcd, Kafka and Ray on mounts: full, lost, verified, beside tmpfs and disk (root; 15 minutes)'
	@echo 'make install    the command, its mount helper, man pages, completions and systemd units (PREFIX=/usr/local)'
	@echo 'make uninstall  remove what make install installed'
	@echo 'make deb        a Debian package of it'
	@echo 'make lab        guests with several NUMA nodes: fetch what they need into a cache (docs/lab.md)'
	@echo 'make lab-test   the tests in such guests, of the lab and the filesystem; takes an hour'
	@echo 'make clean      remove what was built'

setup:
	@scripts/setup.sh

run: setup
	@scripts/run.sh

test: setup
	@scripts/test.sh

figures: setup
	@cargo build --release -p homenode-cli
	@$(CARGO_TARGET_DIR)/release/homenode simulate figures --out docs/figures

mutants: setup
	@scripts/mutants.py

bench: setup
	@cargo build --release -p homenode-bench -p homenode-cli -p homenode-client
	@$(bench) fs --json $(CARGO_TARGET_DIR)/bench-fs.json
	@$(bench) metadata --json $(CARGO_TARGET_DIR)/bench-metadata.json
	@$(bench) mount --json $(CARGO_TARGET_DIR)/bench-mount.json
	@$(bench) blk --json $(CARGO_TARGET_DIR)/bench-blk.json --figure $(CARGO_TARGET_DIR)/bench-blk.svg
	@$(bench) cache --json $(CARGO_TARGET_DIR)/bench-cache.json
	@$(bench) preload --json $(CARGO_TARGET_DIR)/bench-preload.json
	@$(bench) affinity --only daemon --json $(CARGO_TARGET_DIR)/bench-affinity.json

loom: setup
	@scripts/loom.sh --include-ignored

fuzz: setup
	@scripts/fuzz.sh

crash: setup
	@HOMENODE_CRASH_STATES=$${HOMENODE_CRASH_STATES:-1000000} cargo test -p homenode-engine --test crash -- --nocapture

soak: setup
	@scripts/soak.sh

engines: setup
	@cargo build --release -p homenode-cli
	@scripts/engines.sh

# HOMENODE_BINARY=FILE takes that one instead of building it: for packagers, and for root without a Rust toolchain.
build:
ifndef HOMENODE_BINARY
	@scripts/setup.sh
	@cargo build --release -p homenode-cli -p homenode-client
endif

install: build
	@scripts/install.sh install

uninstall:
	@scripts/install.sh uninstall

deb: build
	@scripts/deb.sh

lab:
	@lab/prepare

lab-test: setup lab
	@cargo build --release -p homenode-cli -p homenode-bench -p homenode-client
	@cargo build --release -p homenode --example pinned_writers --example disks --example stamped
	@lab/test-lab

clean:
	cargo clean
