# Short names for what a contributor does often. Everything real is in ./skerry, scripts/ and bench/.
PYTHON ?= python3

.PHONY: check generate requirements bench

check: ## all gates and tests
	./skerry test

generate: ## everything that is generated and checked in
	$(PYTHON) scripts/generate_sync.py
	$(PYTHON) scripts/generate_docs.py

requirements: ## rows of docs/requirements.md that no test names
	$(PYTHON) scripts/requirements.py

bench: ## speed, beside its floors; ONLY=name for one row
	$(PYTHON) -m bench $(ONLY)
