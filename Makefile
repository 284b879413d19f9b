# On a machine with Rust, Python ≥ 3.9 and gcc, no other set-up is needed for:
#
#   make demo   a real torchrun job with a planted bug, diagnosed live
#   make test   every test, including those with real PyTorch jobs
#
# Both create a Python environment with PyTorch if there is none (scripts/pytorch-env documents where).

SHELL := bash
CARGO ?= cargo

.PHONY: demo wheels test test-install test-scopes test-all test-frameworks test-engines test-versions recordings soak fuzz lint bench hangbench build oracle oracle-digests loom nccl gpu

# Expanded only where needed, since creating the environment takes minutes, once.
VENV = $$(scripts/pytorch-env)

build:
	$(CARGO) build --release --workspace

# The features and the profile of `make test`, which then compiles nothing twice.
demo:
	$(CARGO) build --workspace --all-features
	@venv=$$(scripts/pytorch-env --active) && PATH="$$venv/bin:$$PATH" OMP_NUM_THREADS=1 \
	target/debug/ddp-doctor run --on-hang kill --kill-after 2 \
	    --nproc-per-node 2 agent/python/examples/uneven_batches.py; \
	status=$$?; \
	if [ $$status -ne 75 ]; then echo "the demo ended with status $$status, not 75" >&2; exit 1; fi

# Wheels and static programs for x86-64 and aarch64, which need neither Rust nor a compiler, in dist/.
wheels:
	scripts/wheels

# What `make wheels` built, on other systems, with other Pythons and installers, in containers and emulated; as root,
# with debootstrap (0.9 GB, once). `.ci/run` tests a wheel of the build of `make test` instead, on one other system.
test-install:
	python3 tests/install $(INSTALL)

# Reading ranks under each kernel.yama.ptrace_scope, in a virtual machine (downloads a kernel).
test-scopes:
	scripts/ptrace-scopes

# The tests that a change has to pass. Most jobs are replayed from recordings; those marked `quick` also run live.
test:
	@$(TESTS)

# All tests and every live job, including those that run for a minute or need the machine to themselves.
test-all: FLAGS = -- --include-ignored --skip million_programs --skip record_curves --skip make_the_box
test-all:
	@$(TESTS)

# More threads than processors, since many tests mostly wait; for the same reason, the Python tests run beside the
# Rust tests, in one process, whose tests share an interpreter with PyTorch. All parts use the same set of features,
# because another set would compile the workspace again; so would `--test truth` instead of a filter by name.
# Temporary files are in a directory of their own, which other users may enter: their files in /tmp must not change a
# result. Programs of tests/attach start as torchrun of the default version does.
define TESTS
set -e; part() { local began=$$SECONDS status=0; "$${@:2}" || status=$$?; echo "-- $$1: $$((SECONDS - began)) s"; return $$status; }; \
venv=$(VENV); oldest=$$(env -u DDP_DOCTOR_TEST_VENV TORCH=oldest scripts/pytorch-env); \
scratch=$$(mktemp -d); chmod 755 "$$scratch"; trap 'rm -rf "$$scratch"' EXIT; export TMPDIR="$$scratch"; \
export DDP_DOCTOR_REQUIRE_PYTORCH=1 DDP_DOCTOR_TEST_VENV="$$venv" RUST_TEST_THREADS=$$((4 * $$(nproc))); \
python() { DDP_DOCTOR_LIBRARY="$$PWD/target/debug/libddp_doctor.so" "$$venv/bin/python" -m unittest discover -s "$$1"; }; \
part "build" $(CARGO) build --workspace --all-targets --all-features; \
part "Python tests" python agent/python/tests > "$$scratch/python" 2>&1 & \
status=0; part "Rust tests" $(CARGO) test --workspace --all-features --no-fail-fast $(FLAGS) || status=$$?; \
wait $$! || status=$$?; cat "$$scratch/python"; \
part "tests of the hang benchmark" python tests/hangbench || status=$$?; \
part "live jobs with the oldest PyTorch" env DDP_DOCTOR_TEST_VENV="$$oldest" PET_STANDALONE=1 \
    DDP_DOCTOR_TEST_TORCH="$$(TORCH=oldest scripts/pytorch-env --version)" $(CARGO) test --workspace --all-features --tests \
    -- live:: --skip attach:: --skip live::nccl --skip live::layers --skip live::frameworks --skip live::engines || status=$$?; \
exit $$status
endef

# Live jobs with other versions of PyTorch: make test-versions VERSIONS="2.4.1 2.8.0". Each needs 5 GB of disk.
VERSIONS ?= 2.4.1 2.8.0 2.15.0
test-versions:
	python3 tests/versions.py --versions $(VERSIONS) $(VERSION_FLAGS)

# Live jobs of frameworks, in an environment of their own; DDP_DOCTOR_TEST_VENV=$(scripts/pytorch-env --frameworks)
# make recordings records them.
test-frameworks:
	$(CARGO) build --workspace --all-targets --all-features
	venv=$$(scripts/pytorch-env --frameworks) && DDP_DOCTOR_REQUIRE_PYTORCH=1 DDP_DOCTOR_TEST_VENV="$$venv" \
	    $(CARGO) test --workspace --all-features --test truth -- live::frameworks --include-ignored

# Live jobs of engines, in an environment of their own; DDP_DOCTOR_TEST_VENV=$(scripts/pytorch-env --engines)
# make recordings records them. ENGINES=--vllm: vLLM, in another one.
ENGINES ?= --engines
test-engines:
	$(CARGO) build --workspace --all-targets --all-features
	venv=$$(scripts/pytorch-env $(ENGINES)) && DDP_DOCTOR_REQUIRE_PYTORCH=1 DDP_DOCTOR_TEST_VENV="$$venv" \
	    $(CARGO) test --workspace --all-features --tests -- live::engines --include-ignored

# Records the live jobs whose recording is missing or stale; RECORD=all records all of them.
RECORD ?= stale
recordings:
	$(CARGO) build --workspace --all-targets --all-features
	venv=$(VENV) && DDP_DOCTOR_RECORD=$(RECORD) DDP_DOCTOR_REQUIRE_PYTORCH=1 DDP_DOCTOR_TEST_VENV="$$venv" \
	    $(CARGO) test -p ddp-doctor --all-features --test truth

# Jobs, faults and disturbances at random for MINUTES; as root with a second user.
MINUTES ?= 60
soak:
	$(CARGO) build --workspace --all-features
	python3 tests/soak.py --minutes $(MINUTES)

lint:
	$(CARGO) fmt --all -- --check
	$(CARGO) clippy --workspace --all-targets --all-features -- -D warnings
	# ddp-doctor-capi is documented in its header; its library would collide with the one of ddp-doctor.
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --exclude ddp-doctor-capi --no-deps --all-features

# BENCHES selects benchmarks and options: make bench BENCHES="hooks job", make bench BENCHES=--quick.
bench: build
	$(CARGO) bench --bench record --no-run
	venv=$(VENV) && "$$venv/bin/python" benches/run.py $(BENCHES)

# Compares ddp-doctor with what PyTorch offers without it on the programs of tests/jobs (docs/benchmark.md):
# make hangbench BENCH="--family missing groups --tool ddp-doctor pytorch". An interrupted run continues.
hangbench:
	$(CARGO) build --workspace --all-features
	venv=$(VENV) && "$$venv/bin/python" tests/hangbench $(BENCH)

# Mutates evidence of every kind: FUZZ_SECONDS of processor time for each, one kind after the other.
FUZZ_SECONDS ?= 1200
fuzz:
	FUZZ_SECONDS=$(FUZZ_SECONDS) $(CARGO) test --workspace --all-features --test tests -- --test-threads=1 --nocapture fuzz::

# Checks the engine against the oracle in tests/oracle, on two cores: ORACLE_PROGRAMS random programs (a million
# by default), from number ORACLE_FROM on.
oracle:
	$(CARGO) test --profile oracle -p ddp-doctor --test tests -- --ignored --nocapture oracle::million

# Diagnoses the executions of ORACLE_PROGRAMS of these programs (2 000 by default) from digests as from records.
oracle-digests: export ORACLE_JOURNALS = $(CURDIR)/target/oracle-journals
oracle-digests:
	rm -rf "$$ORACLE_JOURNALS"
	$(CARGO) test --profile oracle -p ddp-doctor --test tests -- --ignored oracle::executions
	$(CARGO) test --profile oracle -p ddp-doctor-coordinator --lib -- --ignored --nocapture digests_of_random_programs

# Model-checks the protocols of the black box more deeply than `make test` does.
loom:
	LOOM_MAX_PREEMPTIONS=$${LOOM_MAX_PREEMPTIONS:-3} \
	    $(CARGO) test --profile oracle -p ddp-doctor-agent --test loom

# Tests with these versions of the real NCCL (3 GB, downloaded once from PyPI); `make test` uses only the version
# that comes with PyTorch.
NCCL_VERSIONS ?= 2.21.5 2.23.4 2.27.7 2.28.9 2.29.7 2.31.2 2.32.3
nccl:
	libraries=$$(scripts/nccl $(NCCL_VERSIONS)) && venv=$(VENV) && DDP_DOCTOR_TEST_VENV="$$venv" \
	    DDP_DOCTOR_TEST_NCCL="$$(tr '\n' : <<<"$$libraries")" \
	    $(CARGO) test -p ddp-doctor --test tests nccl::real -- --nocapture

# Real jobs over NCCL, on a machine with a GPU (docs/pytorch-versions.md has the results).
gpu:
	@if [ ! -e /dev/nvidiactl ] && [ ! -e /dev/dxg ]; then echo "skipped: this machine has no NVIDIA GPU"; exit; fi; \
	$(MAKE) build && venv=$(VENV) && "$$venv/bin/python" tests/gpu/run.py
