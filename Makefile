# Everything begins with the set-up, which is quick and offline once it was done. `demo` needs a part of it.

BIN := .venv/bin
# Tests wait as long as they work: two processes per core of a small machine, where memory has room for the servers of each.
TEST_JOBS := $(or $(JOBS),$(shell awk '/^MemTotal/ { print ($$2 > 15000000 ? 4 : 2) }' /proc/meminfo 2>/dev/null || echo 2))

# What was compiled is kept, whatever the caller's environment says: each process would do it again.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help quickstart setup servers demo test nightly coverage simulate faults soak mutate versions bench fuzz wheels check types units site release hashes marks walk pictures hooks clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

quickstart: ## the first half minute: a chain on PostgreSQL alone, without Java, Kafka and Spark (FOLDER=name)
	@tools/setup.sh first
	@$(BIN)/chainctl quickstart $(if $(FOLDER),--folder "$(FOLDER)")

setup: ## make .venv and fetch what is missing (PYTHON=... chooses the interpreter)
	@tools/setup.sh all

demo: ## the whole path on this machine (INPUT=file, ORDERS=n, SEED=n, SPARK=no, DEMO_ARGS="...")
	@tools/setup.sh $(if $(filter no,$(SPARK)),light,demo)
	@$(BIN)/chainctl demo $(if $(INPUT),--input "$(INPUT)") $(if $(ORDERS),--orders $(ORDERS)) \
		$(if $(SEED),--seed $(SEED)) $(if $(filter no,$(SPARK)),--no-spark) $(DEMO_ARGS)

servers: setup
	@tools/test_servers.sh

test: servers ## the tests of a merge, in JOBS=n processes with servers of their own (PYTEST_ARGS="..." is passed on)
	@$(BIN)/python -m pytest -n $(TEST_JOBS) --dist worksteal -m "not nightly" $(PYTEST_ARGS)

nightly: servers ## every other test: each page, rivals, old servers, packaging (JOBS=n, PYTEST_ARGS="...")
	@tools/test_servers.sh nightly
	@$(BIN)/python -m pytest -n $(TEST_JOBS) --dist worksteal -m nightly $(PYTEST_ARGS)

coverage: servers ## the tests of a merge, and which lines none of them runs: fewer than the floor fail (JOBS=n)
	@$(BIN)/python -m pytest -n $(TEST_JOBS) --dist worksteal -m "not nightly" --cov --cov-report=term $(PYTEST_ARGS)

simulate: setup ## live through simulated worlds (SEEDS=n worlds from SEED=n on, in JOBS=n processes)
	@$(BIN)/python -m tests.simulation.simulate $(if $(SEEDS),--seeds $(SEEDS)) \
		$(if $(SEED),--seed $(SEED)) $(if $(JOBS),--jobs $(JOBS))

faults: servers ## the long form of the fault tests: many rounds, ten minutes or so (FAULTS_SEED=n)
	@$(BIN)/python -m pytest tests/faults -m long $(PYTEST_ARGS)

soak: servers ## an hour of open load and faults on real servers: all is judged, and nothing grows (HOURS=1, RATE=2000, SEED=n, BROKER=no)
	@SOAK_HOURS=$(or $(HOURS),1) SOAK_RATE=$(or $(RATE),2000) $(if $(SEED),FAULTS_SEED=$(SEED)) $(if $(BROKER),SOAK_BROKER=$(BROKER)) $(BIN)/python -m pytest tests/faults/test_soak.py $(PYTEST_ARGS)

mutate: servers ## small wrongs in the source, one at a time: those that no test notices (MUTATE_ARGS="--only core --at-most 40")
	@$(BIN)/python -m tests.mutate.run $(MUTATE_ARGS)

versions: servers ## the whole path over each version that is claimed, and docs/versions.md (PARTS="kafka=3.9 pyspark")
	@$(BIN)/python -m tools.versions $(PARTS)

bench: setup ## how fast it is on this machine: an hour, or four minutes (QUICK=1, BENCH_ARGS="...")
	@$(BIN)/chainctl bench $(if $(QUICK),--quick) $(BENCH_ARGS)

fuzz: setup ## readers of foreign bytes, and compiled functions under AddressSanitizer (SECONDS=3600, TARGETS="http ...")
	@tools/fuzz.sh $(or $(SECONDS),3600) $(TARGETS)

wheels: setup ## a wheel of orderchain, and one of orderchain-speed, into dist
	@$(BIN)/python -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir dist . ./speedups

check: setup ## format, lint, imports, types and unit tests, in a minute or less
	@$(BIN)/ruff format --check --quiet
	@$(BIN)/ruff check --quiet
	@$(BIN)/lint-imports --no-logo
	@$(MAKE) --no-print-directory -j 2 types units

# Side by side: the types keep one core for half a minute when nothing of them is kept.
types:
	@$(BIN)/mypy

units:
	@$(BIN)/python -m pytest -q -n $(or $(JOBS),2) --dist worksteal -m "not nightly" tests/unit

site: ## the documents as a site, in build/site, to read from the folder; a broken link or reference fails
	@tools/setup.sh site
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

release: check site ## wheel, sdist, bill of materials and hashes into dist (VERSION=0.1.0, else the tag's)
	@$(BIN)/python tools/release.py $(if $(VERSION),--version $(VERSION))

# The lock is constraints.txt: pip, which is all that the set-up needs, reads no uv.lock.
COMPILE := pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-annotate \
	--custom-compile-command 'make hashes' -c constraints.txt pyproject.toml

hashes: setup ## the files of versions with hashes, after a change of constraints.txt or pyproject.toml
	@$(BIN)/uv $(COMPILE) --extra dev --extra fuzz -o constraints-hashed.txt
	@$(BIN)/uv $(COMPILE) $(addprefix --extra ,cli local sign web) -o deploy/requirements.txt

marks: setup ## what the house is held against: files, circles, single-use modules (MARKS_ARGS=--list names them)
	@$(BIN)/python -m tools.marks $(MARKS_ARGS)

walk: setup ## follow one order through the code, over the local stack, and write it into docs
	@$(BIN)/python tools/walk.py --write

pictures: setup ## draw docs/pictures: the imports of the code, and the walk of an order
	@$(BIN)/python -m tools.pictures

hooks: setup ## have git run format, lint and imports before each commit
	@$(BIN)/pre-commit --version >/dev/null 2>&1 || $(BIN)/python -m pip install --quiet pre-commit==4.7.0
	@$(BIN)/pre-commit install

clean: ## remove .venv and every cache of this checkout; fetched jars are kept
	@rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	@rm -rf build dist spark-warehouse metastore_db derby.log artifacts
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
