# Every target makes what it needs first; see scripts/bootstrap.sh.
ENV      := ./scripts/with-env.sh
CHECK    := $(ENV) --no-java dev
SOURCES  := connector broker_sim jobs scripts tests bench fuzz examples
PYTEST   ?= python -m tests.at_once
# Extra arguments for pytest, e.g. make test ARGS="tests/wire -x"
ARGS     ?=
SPARKS   ?= 4.0 4.1 4.3
# Of make spark-test: --ends for only the lowest packages on the oldest Python and the highest on the newest, and no kills
ENDS     ?=
# Of make test, ci-test and long-test: 2/3 for the second of three parts of the files
PART     ?=
# How long make fuzz takes
SECONDS  ?= 300
# Of make chaos: sim or real; the seed of an earlier run, to see it again; how many processes to kill, instead of SECONDS
BACKEND  ?= sim
# Where its tables are: local or s3, an emulator that fails, too
STORAGE  ?= local
SEED     ?=
KILLS    ?=

.DEFAULT_GOAL := help
.PHONY: help venv check fetch test ci-test long-fetch long-test all-tests other-sparks spark-test kill-test chaos change-data worlds stress option-test fuzz bench bench-against docs figures site lock wheel clean

help: ## This list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' Makefile

venv: ## The environment with everything for development: .venv, Delta jars
	@$(ENV) dev true

check: ## Format, lint, types, import contracts, spelling, habits of prose, generated documents
	@$(CHECK) ruff format --check $(SOURCES)
	@$(CHECK) ruff check $(SOURCES)
	@$(CHECK) mypy
	@$(CHECK) lint-imports --no-cache
	@$(CHECK) codespell --skip tests/golden --ignore-words-list committs,droped,nam,strng,unknow $(SOURCES) docs conf README.md CHANGELOG.md Makefile spark-submit.sh
	@$(CHECK) python -m scripts.prose
	@$(CHECK) sh -c 'for page in options errors answers; do python -m scripts.pages $$page | diff -u docs/$$page.md - || { echo "docs/$$page.md is not what the code says: run make docs" >&2; exit 1; }; done'
	@$(CHECK) sh -c 'python -m tests.semantics_page | diff -u docs/semantics.md - || { echo "docs/semantics.md is not what the tests say: run make docs" >&2; exit 1; }'

fetch: ## What the tests need besides packages: RocketMQ, PostgreSQL, object stores, schemas, a browser, an archive of Spark's classes
	@$(ENV) --maven dev python -m tests.real_broker.harness fetch
	@$(ENV) dev sh -c 'python -m tests.helpers.jvm_archive & \
	  python -m tests.postgres.server && python -m tests.object_stores.server && python -m tests.helpers.kubernetes && \
	  python -m tests.helpers.browser && wait $$!'

test: fetch ## All tests but the long ones, the real RocketMQ broker included
	@PART=$(PART) $(ENV) dev $(PYTEST) $(ARGS)

ci-test: fetch ## make test, and beside it make spark-test for the oldest and newest, as CI runs them
	@PART=$(PART) $(ENV) dev $(PYTEST) --sparks $(ARGS)

long-fetch: fetch ## What the tests marked long need besides: other RocketMQs, Go's client, YARN, Hadoop's part for S3, Debezium, Canal
	@$(CHECK) python -m tests.go_client.program
	@$(ENV) --maven dev sh -c 'python -m tests.real_broker.harness fetch --all && python -m tests.helpers.hadoop && python -m tests.change_data.real.feeder'

long-test: long-fetch ## The tests marked long: processes that are killed, Spark clusters, Java's and Go's clients, all pages; PART=2/3
	@PART=$(PART) $(ENV) dev $(PYTEST) --long $(ARGS)

all-tests: long-fetch ## make ci-test and make long-test at once, which takes less time than one after the other
	@$(ENV) dev $(PYTEST) --all $(ARGS)

other-sparks: ## The environments of make spark-test
	@for each in $(SPARKS); do $(ENV) spark-$$each true || exit 1; done

spark-test: wheel fetch ## The wheel on every Python found, with its lowest and highest packages; it and the tests marked every_spark on other Sparks: SPARKS="4.0 4.3"
	@$(ENV) dev python -m tests.packaging.platform_check dist/pyspark_rocketmq-*.whl
	@$(ENV) dev python -m tests.packaging.python_check $(ENDS) dist/pyspark_rocketmq-*.whl
	@for each in $(SPARKS); do \
	  $(ENV) spark-$$each python -m tests.packaging.platform_check dist/pyspark_rocketmq-*.whl && \
	  $(ENV) spark-$$each python -m pytest -q -m "every_spark and not real" -p no:cacheprovider \
	    -o filterwarnings=default --disable-warnings tests/end_to_end $(ARGS) || exit 1; \
	done
	@$(if $(ENDS),,$(ENV) spark-$(firstword $(SPARKS)) python -m pytest -q -m "every_spark and real" -p no:cacheprovider \
	  -o filterwarnings=default --disable-warnings tests/end_to_end/test_kill.py)

option-test: ## Show that the test of each option fails where the option is ignored: ARGS="topic readFrom"
	@$(ENV) dev python -m tests.ignored_options $(ARGS)

kill-test: ## Kill the consumer 3 times at each step of a batch, simulator and real broker
	@$(ENV) --maven dev python -m tests.real_broker.harness fetch
	@KILLS_PER_POINT=3 $(ENV) dev $(PYTEST) tests/end_to_end/test_kill.py $(ARGS)

chaos: SECONDS = 900
chaos: ## Break everything around 3 applications of a group: SECONDS=900 or KILLS=200, BACKEND=sim STORAGE=s3 SEED=7 ARGS="--faults swap"
	@$(ENV) --maven dev python -m tests.real_broker.harness fetch
	@$(ENV) dev python -m tests.applications.chaos --seconds $(SECONDS) $(if $(KILLS),--kills $(KILLS)) --backend $(BACKEND) --storage $(STORAGE) $(if $(SEED),--seed $(SEED)) $(ARGS)

change-data: SECONDS = 600
change-data: ## Keep tables equal to those of a real PostgreSQL, by Debezium, Canal's classes and a real RocketMQ: SECONDS=600 SEED=7
	@$(ENV) --maven dev sh -c 'python -m tests.real_broker.harness fetch && python -m tests.postgres.server && python -m tests.change_data.real.feeder'
	@$(ENV) dev python -m tests.change_data.real.proof --seconds $(SECONDS) $(if $(SEED),--seed $(SEED)) $(ARGS)

worlds: WORLDS = 100000
worlds: ## Simulate commits within a batch in many faulty worlds: WORLDS=100000 takes minutes; SEED=7 for one of them
	@$(CHECK) env WORLDS=$(WORLDS) $(if $(SEED),WORLD=$(SEED)) python -m pytest -q -p no:cacheprovider -m long tests/simulation $(ARGS)

stress: SECONDS = 600
stress: ## Read a stream while its topics and brokers change at random, on the simulator: SECONDS=600 SEED=7
	@$(CHECK) python -m tests.source.stress --seconds $(SECONDS) $(if $(SEED),--seed $(SEED)) $(ARGS)

fuzz: ## Feed mutated bytes to everything that reads foreign ones: SECONDS=300, ARGS="frames --seed 7"
	@$(CHECK) python -m fuzz --seconds $(SECONDS) $(ARGS)

bench: ## Measure against the platform's and the broker's own ceilings
	@$(ENV) --maven dev python -m tests.real_broker.harness fetch
	@$(ENV) dev python -m bench $(ARGS) --write

bench-against: ## Measure this work tree's speed beside another one's: OTHER=../before, ARGS="--only source"
	@$(ENV) --maven dev python -m tests.real_broker.harness fetch
	@$(ENV) dev python -m bench.against $(OTHER) $(ARGS)

docs: ## Write docs/options.md, errors.md and answers.md from the code, semantics.md and change-facts.md from the tests
	@$(CHECK) sh -c 'for page in options errors answers; do python -m scripts.pages $$page > docs/$$page.md.part && mv docs/$$page.md.part docs/$$page.md || exit 1; done'
	@$(CHECK) sh -c 'python -m tests.semantics_page > docs/semantics.md.part && mv docs/semantics.md.part docs/semantics.md'
	@$(CHECK) sh -c 'python -m tests.facts_page > docs/change-facts.md.part && mv docs/change-facts.md.part docs/change-facts.md'

figures: ## How large the project is, beside how large it should be at most
	@$(CHECK) python scripts/figures.py

site: ## The documentation as a site in dist/site
	@$(CHECK) env NO_MKDOCS_2_WARNING=1 mkdocs build --quiet

lock: ## Pin the dependencies of pyproject.toml and of the tests' programs with hashes (needs uv and npm)
	uv pip compile pyproject.toml --extra spark --extra prometheus --extra charts $(LOCK) --output-file requirements/runtime.txt
	uv pip compile pyproject.toml --extra spark --extra prometheus --extra charts --extra dev $(LOCK) \
	  --constraints requirements/runtime.txt --output-file requirements/dev.txt
	for each in emulators kubernetes; do \
	  uv pip compile requirements/$$each.in $(LOCK) --output-file requirements/$$each.txt; \
	done
	npm install --prefix requirements/azurite --package-lock-only --omit-lockfile-registry-resolved --ignore-scripts
	for each in $(SPARKS); do \
	  uv pip compile pyproject.toml requirements/spark-$$each.in --extra prometheus $(LOCK) --output-file requirements/spark-$$each.txt; \
	done

LOCK := --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links --no-header --quiet

wheel: ## Build the wheel into dist/
	@$(CHECK) python -m build --wheel --no-isolation --outdir dist

clean: ## Remove everything that was made here, downloads included
	rm -rf .venv .cache dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache spark-warehouse metastore_db derby.log
