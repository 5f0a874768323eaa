# Each target sets up what it needs on a fresh Debian 12 with a Rust toolchain, git and make.

CARGO_TARGET_DIR ?= target
bench := $(CARGO_TARGET_DIR)/release/homenode-bench

.PHONY: help setup run test bench fuzz clean

help:
	@echo 'make run    mount a pool on ./mnt, copy real trees into it, verify them, measure, take it down (root)'
	@echo 'make test   format, lints, loom, benches in small, all tests'
	@echo 'make bench  every claimed number; takes minutes on a machine that does nothing else'
	@echo 'make fuzz   fuzz the decoder of FUSE requests for a minute (FUZZ_SECONDS=N for longer)'
	@echo 'make clean  remove what was built'

setup:
	@scripts/setup.sh

run: setup
	@scripts/run.sh

test: setup
	@scripts/test.sh

bench: setup
	@cargo build --release -p homenode-bench -p homenode-cli
	@$(bench) fs --json $(CARGO_TARGET_DIR)/bench-fs.json
	@$(bench) metadata --json $(CARGO_TARGET_DIR)/bench-metadata.json
	@$(bench) mount --json $(CARGO_TARGET_DIR)/bench-mount.json

fuzz: setup
	@scripts/fuzz.sh

clean:
	cargo clean
