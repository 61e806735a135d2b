# make demo    the whole thing on real data: a pair, three applications, a Spark job, a kill -9 and the count at the end
#              make demo ARGS=topics: orders, a group that shares them, a dead letter, and kills
#              make demo ARGS=replicas: readers of two replicas, kills of a replica and of the active
# make test    all tests but the long ones, in three processes, as most of a test is waiting. A test that fails runs
#              once more alone, and is red if it fails again.
#              make test-fast: the tests that need no sockets, in under a minute
#              make test-browser: the gateway's console in Debian's chromium
#              make test-long: the tests that take hours, in parts of at most 20 minutes (make test-long PART=sim-3;
#              ARGS=--list names the parts)
#              make test-long-report: what the long tests have proved for this commit, and for each package as it is
# make bench   benchmarks side by side with other programs; results in benchmarks/results
# make check   lint, types, the fast tests and 50 seeds, in about three minutes: before each commit
# make docs    the pages, the reference and the changelog as a site with a search, in artifacts/site; needs no PySpark
# make pins    writes ops/requirements.txt anew, by the Python of the image: the newest versions that
#              pyproject.toml allows, with hashes
# make lint    ruff and mypy --strict        make sim SEEDS=n    the simulator        make soak    a hundred rounds of kill -9
#
# Needs Linux with glibc, Python 3.11 or newer, and make. Everything else is installed into .venv by the first target you run.

PYTHON ?= python3.11
VENV   := .venv
BIN    := $(VENV)/bin
SEEDS  ?= 500
ROUNDS ?= 100
EXTRAS := cli,postgres,zookeeper,metrics,gateway,spark,test
ARGS   ?=
PART   ?=
ALONE  := { echo "make: these failed beside the others; they run once more, alone" && $(BIN)/python -m pytest --last-failed --last-failed-no-failures none; }
TYPED  := chp/chp server/chp_server client/chp_client tests benchmarks examples

.PHONY: demo check test test-fast test-browser test-long test-long-report docs bench lint sim soak pins clean

$(VENV)/.installed: pyproject.toml
	@command -v $(PYTHON) >/dev/null || { echo "make: $(PYTHON) is not installed; install Python 3.11 or newer, or name it: make PYTHON=python3"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing into $(VENV) (PySpark is large: a few minutes the first time) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[$(EXTRAS)]"
	@touch $@

$(VENV)/.installed-lint: $(VENV)/.installed
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[lint]"
	@touch $@

$(VENV)/.installed-bench: $(VENV)/.installed
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[bench]"
	@touch $@

demo: $(VENV)/.installed
	@$(BIN)/python -m examples.rates.demo $(ARGS)

check: lint test-fast
	$(BIN)/python -m tests.sim --seeds 50

test: $(VENV)/.installed
	$(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder -m "not long" $(ARGS) || $(ALONE)

test-long: $(VENV)/.installed
	$(BIN)/python -m tests.long $(PART) $(ARGS)

test-long-report: $(VENV)/.installed
	@$(BIN)/python -m tests.long --report

test-browser: $(VENV)/.installed
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[browser]"
	$(BIN)/python -m pytest tests/wire/test_gateway_console.py $(ARGS)

test-fast: $(VENV)/.installed
	$(BIN)/python -m pytest -n 2 -m "not slow and not spark and not long" tests/unit tests/scenarios tests/wire/test_golden_frames.py tests/wire/test_golden_chp2.py $(ARGS)

bench: $(VENV)/.installed-bench
	$(BIN)/python -m benchmarks $(ARGS)

docs:
	@test -x $(VENV)-docs/bin/python || $(PYTHON) -m venv $(VENV)-docs
	@$(VENV)-docs/bin/python -m pip install --quiet --disable-pip-version-check -e ".[docs]"
	$(VENV)-docs/bin/python docs/site/make.py --out artifacts/site $(ARGS)

lint: $(VENV)/.installed-lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy $(TYPED)

sim: $(VENV)/.installed
	$(BIN)/python -m tests.sim --seeds $(SEEDS) $(ARGS)

soak: $(VENV)/.installed
	$(BIN)/python -m tests.process.soak --rounds $(ROUNDS) --output benchmarks/results/soak.json $(ARGS)

pins:
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check 'pip-tools>=7.5'
	CUSTOM_COMPILE_COMMAND='make pins' $(BIN)/pip-compile --quiet --upgrade --generate-hashes --strip-extras \
		--no-emit-index-url --no-emit-trusted-host --no-emit-find-links --no-emit-options --build-deps-for wheel \
		--extra cli --extra metrics --extra gateway --output-file ops/requirements.txt pyproject.toml

clean:
	rm -rf $(VENV) artifacts .pytest_cache .mypy_cache .ruff_cache
