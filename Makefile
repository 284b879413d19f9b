# Two commands do all the set-up on a machine with Rust, Python ≥ 3.9 and gcc:
#
#   make demo   a real torchrun job with a planted bug, diagnosed live
#   make test   every test, those with real PyTorch jobs included
#
# Both make a Python environment with PyTorch where there is none (scripts/pytorch-env says where).

SHELL := bash
CARGO ?= cargo

.PHONY: demo test test-all test-versions recordings lint bench build oracle loom nccl gpu

# Expanded only where it is needed: making the environment takes minutes, once.
VENV = $$(scripts/pytorch-env)

build:
	$(CARGO) build --release --workspace

demo: build
	@venv=$(VENV) && PATH="$$venv/bin:$$PATH" OMP_NUM_THREADS=1 \
	target/release/ddp-doctor run --on-hang kill --kill-after 2 \
	    --nproc-per-node 2 agent/python/examples/uneven_batches.py; \
	status=$$?; \
	if [ $$status -ne 75 ]; then echo "the demo ended with status $$status, not 75" >&2; exit 1; fi

# What a change has to pass. Most jobs are replayed from recordings; the live ones are those marked `quick`.
test:
	@$(TESTS)

# Every live job as well, also those that run for a minute or want the machine for themselves.
test-all: FLAGS = -- --include-ignored --skip million_programs --skip record_curves
test-all:
	@$(TESTS)

# Many tests wait more than they compute, so there are more threads than processors. All parts use one set of
# features: another one would compile the workspace again.
define TESTS
set -e; part() { local began=$$SECONDS; "$${@:2}"; echo "-- $$1: $$((SECONDS - began)) s"; }; \
venv=$(VENV); \
export DDP_DOCTOR_REQUIRE_PYTORCH=1 DDP_DOCTOR_TEST_VENV="$$venv" RUST_TEST_THREADS=$$((2 * $$(nproc))); \
part "build" $(CARGO) build --workspace --all-targets --all-features; \
part "Rust tests" $(CARGO) test --workspace --all-features --no-fail-fast $(FLAGS); \
part "Python tests" env DDP_DOCTOR_LIBRARY="$$PWD/target/debug/libddp_doctor.so" \
    "$$venv/bin/python" -m unittest discover -s agent/python/tests -t agent/python/tests
endef

# The live jobs with older versions of PyTorch: make test-versions VERSIONS="2.4.1 2.8.0". Each takes 5 GB of disk.
VERSIONS ?= 2.4.1 2.8.0 2.15.0
test-versions:
	python3 tests/versions.py --versions $(VERSIONS) $(VERSION_FLAGS)

# Records anew the live jobs whose recording is missing or stale; RECORD=all records every one.
RECORD ?= stale
recordings:
	$(CARGO) build --workspace --all-targets --all-features
	venv=$(VENV) && DDP_DOCTOR_RECORD=$(RECORD) DDP_DOCTOR_REQUIRE_PYTORCH=1 DDP_DOCTOR_TEST_VENV="$$venv" \
	    $(CARGO) test -p ddp-doctor --all-features --test truth

lint:
	$(CARGO) fmt --all -- --check
	$(CARGO) clippy --workspace --all-targets --all-features -- -D warnings
	# The C API is documented in its header; its library has the name of this one.
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --exclude ddp-doctor-capi --no-deps --all-features

# Which ones, and how thoroughly: make bench BENCHES="hooks job" or BENCHES=--quick.
bench: build
	$(CARGO) bench --bench record --no-run
	venv=$(VENV) && "$$venv/bin/python" benches/run.py $(BENCHES)

# The engine against the oracle of tests/oracle, on two cores: a million random programs, or
# ORACLE_PROGRAMS=20000 of them, from number ORACLE_FROM on.
oracle:
	$(CARGO) test --profile oracle -p ddp-doctor --test tests -- --ignored --nocapture oracle::

# The black box's protocols under the model checker, more deeply than `make test` looks at them.
loom:
	LOOM_MAX_PREEMPTIONS=$${LOOM_MAX_PREEMPTIONS:-3} \
	    $(CARGO) test --profile oracle -p ddp-doctor-agent --test loom

# What is said of NCCL's own libraries, held against these versions of them (3 GB, fetched once from PyPI);
# `make test` does with the one that comes with PyTorch.
NCCL_VERSIONS ?= 2.21.5 2.23.4 2.27.7 2.28.9 2.29.7 2.31.2 2.32.3
nccl:
	libraries=$$(scripts/nccl $(NCCL_VERSIONS)) && venv=$(VENV) && DDP_DOCTOR_TEST_VENV="$$venv" \
	    DDP_DOCTOR_TEST_NCCL="$$(tr '\n' : <<<"$$libraries")" \
	    $(CARGO) test -p ddp-doctor --test tests nccl::real -- --nocapture

# Real jobs over NCCL, where there is a GPU. Has not been run on one yet.
gpu:
	@if [ ! -e /dev/nvidiactl ] && [ ! -e /dev/dxg ]; then echo "skipped: this machine has no NVIDIA GPU"; exit; fi; \
	$(MAKE) build && venv=$(VENV) && "$$venv/bin/python" tests/gpu/run.py
