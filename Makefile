# outbox_drainer: build and install with PostgreSQL's PGXS. `make help` lists the targets.

PG_CONFIG ?= pg_config
BUILD ?= build

# These goals bring their own PostgreSQL or need none, so they work before pg_config is installed. Other
# goals of the same command line are given to a make of their own, which reads PGXS.
helper_goals := help clean demo check check-long bench unit soak lint

ifneq ($(filter $(helper_goals),$(MAKECMDGOALS)),)

.NOTPARALLEL:
.PHONY: $(MAKECMDGOALS)

help:
	@echo 'make                    build the extension (PG_CONFIG=path: for that PostgreSQL; WERROR=1: warnings are errors;'
	@echo '                        INJECT=1: a test build, with outbox_drainer.inject_fault)'
	@echo 'make install            install it into that PostgreSQL'
	@echo 'make installcheck       regression and isolation tests against a running server that preloads it'
	@echo 'make demo               show it at work with a throwaway PostgreSQL and RabbitMQ'
	@echo 'make check              run every test with throwaway servers; ends with "N passed, N failed"'
	@echo 'make check-long         the same with the long variants of the tests'
	@echo 'make bench              measure, alone on the machine, and write bench/results (SCENARIO=name: only that one)'
	@echo 'make unit               unit tests only (CMake, GoogleTest)'
	@echo 'make soak               the deterministic simulation for long (SEED=n STEPS=n; the last line depends on these alone)'
	@echo 'make lint               formatting, layer rules, clang-tidy'
	@echo 'make clean              remove what was built'

clean:
	rm -rf $(BUILD) outbox_drainer.so

demo:
	@PG_CONFIG='$(PG_CONFIG)' scripts/install-packages.sh demo
	@PG_CONFIG='$(PG_CONFIG)' scripts/sandbox.sh --install demo/run

check:
	@PG_CONFIG='$(PG_CONFIG)' scripts/install-packages.sh check
	@PG_CONFIG='$(PG_CONFIG)' scripts/sandbox.sh scripts/check.sh

check-long:
	@PG_CONFIG='$(PG_CONFIG)' scripts/install-packages.sh check-long
	@PG_CONFIG='$(PG_CONFIG)' OUTBOX_TEST_LONG=1 scripts/sandbox.sh scripts/check.sh

bench:
	@PG_CONFIG='$(PG_CONFIG)' scripts/install-packages.sh bench
	@mkdir -p bench/results
	@PG_CONFIG='$(PG_CONFIG)' scripts/sandbox.sh --install --results bench/results bench/run $(SCENARIO)

unit:
	cmake -S . -B $(BUILD)/unit -DCMAKE_BUILD_TYPE=Debug
	cmake --build $(BUILD)/unit -j 2
	ctest --test-dir $(BUILD)/unit --output-on-failure -j 2

# Optimised, and only what it needs.
soak:
	@cmake -S . -B $(BUILD)/soak -DCMAKE_BUILD_TYPE=Release >/dev/null
	@cmake --build $(BUILD)/soak -j 2 --target drain_soak_test >/dev/null
	@OUTBOX_SEED='$(SEED)' OUTBOX_SOAK_STEPS='$(or $(STEPS),1000000)' $(BUILD)/soak/drain_soak_test

lint:
	@BUILD='$(BUILD)' scripts/lint.sh

$(filter-out $(helper_goals),$(MAKECMDGOALS)):
	$(MAKE) $@

else

ifeq ($(shell command -v $(PG_CONFIG)),)
$(error $(PG_CONFIG) not found. Install the PostgreSQL server headers (Debian: postgresql-server-dev-15) \
or name the server's own pg_config: make PG_CONFIG=/path/to/pg_config)
endif

PGXS := $(shell $(PG_CONFIG) --pgxs)
ifeq ($(wildcard $(PGXS)),)
$(error $(PG_CONFIG) knows no server headers: $(PGXS) is missing. Install them (Debian: \
postgresql-server-dev-15) or name another one: make PG_CONFIG=/path/to/pg_config)
endif

pg_version := $(shell $(PG_CONFIG) --version)
pg_major := $(shell echo '$(pg_version)' | sed 's/^PostgreSQL \([0-9]*\).*/\1/')
ifneq ($(shell test '$(pg_major)' -ge 15 && echo ok),ok)
$(error outbox_drainer needs PostgreSQL 15 or newer; $(PG_CONFIG) belongs to $(pg_version))
endif

EXTENSION := outbox_drainer
# The one place of the version is the control file.
EXTVERSION := $(shell sed -n "s/^default_version *= *'\(.*\)'.*/\1/p" $(EXTENSION).control)
ifeq ($(EXTVERSION),)
$(error $(EXTENSION).control names no default_version)
endif

MODULE_big := outbox_drainer
sources := $(sort $(wildcard $(addsuffix /*.cpp,src/core src/amqp src/postgres src/worker)))
OBJS := $(sources:src/%.cpp=$(BUILD)/%.o)

sql_parts := $(sort $(wildcard src/sql/*.sql))
DATA_built := $(BUILD)/$(EXTENSION)--$(EXTVERSION).sql

# -isystem comes before the -I that PGXS adds for the same folder: the server's headers are not ours to warn
# about. They use `register`, which C++17 dropped, and count on volatile variables, which C++20 deprecates.
PG_CPPFLAGS = -Isrc -isystem $(includedir_server) -DOUTBOX_DRAINER_VERSION='"$(EXTVERSION)"'
PG_CXXFLAGS = -std=c++20 -Wall -Wextra -Wno-register -Wno-deprecated-volatile -Wno-unknown-warning-option
ifdef WERROR
PG_CXXFLAGS += -Werror
endif

# A test build, whose drainers can be made to fail (src/postgres/inject_fault.hpp). What differs in it is compiled
# anew when INJECT has changed since.
inject_stamp := $(BUILD)/inject
injectable := $(shell grep -lE 'inject_fault\.hpp|OUTBOX_DRAINER_INJECT' $(sources))
ifdef INJECT
PG_CPPFLAGS += -DOUTBOX_DRAINER_INJECT
endif
$(shell mkdir -p $(BUILD) && echo '$(INJECT)' | cmp -s - $(inject_stamp) || echo '$(INJECT)' >$(inject_stamp))

# PGXS links with the C compiler, so the C++ library is named here. The version script hides all but the
# entry points; -fvisibility=hidden would do the same but hides PostgreSQL 15's magic block too.
exports := src/exports.map
SHLIB_LINK = -lrabbitmq -lcares -lssl -lcrypto -lstdc++ -Wl,--version-script=$(exports)

# Bitcode serves only to inline functions into JIT code, and PGXS would compile it without our C++ flags.
override with_llvm := no

REGRESS := $(sort $(patsubst sql/%.sql,%,$(wildcard sql/*.sql)))
ISOLATION := $(sort $(patsubst test/isolation/specs/%.spec,%,$(wildcard test/isolation/specs/*.spec)))
ISOLATION_OPTS := --inputdir=test/isolation --outputdir=$(BUILD)/isolation

include $(PGXS)

# A module for test/t/121_late_commit_variants.pl: drainers that break the claim's rule in one step, around
# the product's own objects.
test_module := $(BUILD)/test/late_commits.so
test_objects := $(patsubst %.cpp,$(BUILD)/%.o,$(wildcard test/late_commits/*.cpp))
tested_objects := $(addprefix $(BUILD)/,core/fresh_lane.o $(addprefix postgres/,guard.o outbox_table.o \
	session.o signals.o statement.o transaction.o writers.o))

.PHONY: objects
objects: $(OBJS) $(test_objects)

$(OBJS): $(BUILD)/%.o: src/%.cpp $(EXTENSION).control Makefile
	@$(MKDIR_P) $(@D)
	$(COMPILE.cc) -MMD -MP -o $@ $<

$(injectable:src/%.cpp=$(BUILD)/%.o): $(inject_stamp)

$(test_objects): $(BUILD)/%.o: %.cpp Makefile
	@$(MKDIR_P) $(@D)
	$(COMPILE.cc) -MMD -MP -o $@ $<

-include $(OBJS:.o=.d) $(test_objects:.o=.d)

$(shlib): $(exports)

$(test_module): $(test_objects) $(tested_objects) $(exports)
	$(CXX) $(CXXFLAGS) -shared -o $@ $(filter %.o,$^) $(LDFLAGS) -Wl,--version-script=$(exports)

.PHONY: install-test-module
install-test-module: $(test_module)
	$(INSTALL_SHLIB) $< '$(DESTDIR)$(pkglibdir)/'

# Built whole or not at all: a half-written file must not look up to date.
$(DATA_built): $(sql_parts) $(EXTENSION).control Makefile
	@$(MKDIR_P) $(@D)
	cat $(sql_parts) > $@.new
	mv $@.new $@

endif
