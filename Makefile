# llane: see `make help`. Sources are found by wildcard: a new file in plugin/, kernels/ or tests/
# takes part without a line here.

V ?= release
BUILD ?= build
O := $(BUILD)/$(V)
VERSION := 0.1.0
PREFIX ?= /usr/local
CC := $(if $(filter default,$(origin CC)),gcc,$(CC))
CXX := $(if $(filter default,$(origin CXX)),g++,$(CXX))

ifneq ($(words $(CURDIR)),1)
$(error the path of this folder has a space, which make cannot work with: move it)
endif

# Make is serial unless told: use every core when the user named no -j (make 4.3 does not show
# makefiles its own -j, the command line does).
ifeq ($(MAKELEVEL),0)
ifeq ($(shell tr '\0' '\n' </proc/$$PPID/cmdline | grep -E '^(-[a-zA-Z]*j[0-9]*|--jobs.*)$$'),)
MAKEFLAGS += -j$(shell nproc)
endif
endif
.SECONDARY:
.DELETE_ON_ERROR:
.DEFAULT_GOAL := all
ifndef VERBOSE
.SILENT:
endif
# First line of a recipe; the commands themselves show with VERBOSE=1.
start = @mkdir -p $(@D) && echo '  $@'

# ---- compilers and flags ----
OPT_release := -O2 -g
OPT_debug := -O0 -g3 -DLLANE_DEBUG
OPT_asan := -O1 -g -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=undefined
OPT_tsan := -O1 -g -fsanitize=thread
ifndef OPT_$(V)
$(error V=$(V): choose release, debug, asan or tsan)
endif
comma := ,
SANITIZED := $(filter asan tsan,$(V))
WARN := -Wall -Wextra -Wpedantic -Werror
INCLUDES := -Iext-headers -Iplugin -Ikernels -I.
COMMON := $(OPT_$(V)) $(WARN) $(INCLUDES) -DLLANE_VERSION='"$(VERSION)"' -fPIC \
    -ffile-prefix-map=$(CURDIR)=. -pthread
C_FLAGS := -std=gnu11 -D_GNU_SOURCE= $(COMMON) $(CFLAGS)
CXX_FLAGS := -std=gnu++17 $(COMMON) $(CXXFLAGS)
HIDDEN := -fvisibility=hidden
# Kernels as host code: no entry/exit hooks, since a fiber switch would unbalance TSan's call stack.
KERNEL_EMU_FLAGS := -x c++ -DLLANE_EMU -Itests/emu_gpu -fno-exceptions -fno-rtti $(HIDDEN) \
    $(if $(filter tsan,$(V)),--param tsan-instrument-func-entry-exit=0)
DEPFILE = -MMD -MP -MT $@ -MF $@.d
# A test names what it needs beyond the usual in a line near its top: `// LDADD: -ldl`.
ldadd = $(shell sed -n 's,^// LDADD: *,,p' $<)
LDADD = $(filter-out %.c,$(ldadd))
# Sources among it go before the test's own, so that the dependency file describes that one.
LDADD_SOURCES = $(filter %.c,$(ldadd))
OWN_CFLAGS = $(shell sed -n 's,^// CFLAGS: *,,p' $<)

# ---- CUDA and NCCL, where they are ----
NVCC := $(firstword $(wildcard $(CUDA_HOME)/bin/nvcc) $(shell command -v nvcc) \
    $(wildcard /usr/local/cuda/bin/nvcc))
HAVE_CUDA := $(and $(NVCC),$(if $(SANITIZED),,yes))
ifneq ($(HAVE_CUDA),)
CUDA_HOME ?= $(patsubst %/bin/nvcc,%,$(realpath $(NVCC)))
CUDA_LIB := $(firstword $(patsubst %/libcudart_static.a,%,$(wildcard $(addsuffix /libcudart_static.a,\
    $(CUDA_HOME)/lib64 $(CUDA_HOME)/lib $(CUDA_HOME)/targets/$(shell uname -m)-linux/lib))))
NVCC_KNOWS := $(patsubst compute_%,%,$(shell $(NVCC) --list-gpu-arch))
# sm_70 is known to CUDA 12 and gone from CUDA 13.
FAT_ARCHS := $(filter $(if $(filter 70,$(NVCC_KNOWS)),70 75) 80 86 89 90 100 120,$(NVCC_KNOWS))
ARCHS ?= $(FAT_ARCHS)
ARCHS_KEY := $(subst $(eval) ,-,$(strip $(ARCHS)))
TEST_ARCHS := $(if $(filter file undefined,$(origin ARCHS)),90,$(ARCHS))
TEST_KEY := $(subst $(eval) ,-,$(strip $(TEST_ARCHS)))
endif
# SASS for each, and the last one's PTX for GPUs to come.
gencode = $(if $(filter native,$(1)),-arch=native,$(foreach a,$(1),\
    -gencode arch=compute_$(a),code=sm_$(a)) \
    -gencode arch=compute_$(lastword $(1)),code=compute_$(lastword $(1)))
NVCC_FLAGS := -std=c++17 -O3 $(INCLUDES) --objdir-as-tempdir \
    $(if $(HAVE_CUDA),$(if $(shell $(NVCC) --help | grep -e --compress-mode),--compress-mode=size)) \
    -Xcompiler -fPIC,-fvisibility=hidden,-fno-threadsafe-statics,-fno-exceptions,-Wall
NCCL_LIB := $(firstword $(patsubst %/libnccl.so.2,%,$(wildcard $(addsuffix /libnccl.so.2,\
    $(addprefix $(NCCL_HOME)/,lib lib64) $(CUDA_LIB) /usr/lib/$(shell uname -m)-linux-gnu \
    /usr/local/lib /usr/lib64))))
CUDART := $(CUDA_LIB)/libcudart_static.a -ldl -lrt -lpthread
NCCL_LINK := -L$(NCCL_LIB) -l:libnccl.so.2 -Wl,-rpath,$(NCCL_LIB)
HAVE_GPU := $(wildcard /dev/nvidia[0-9]*)

# ---- sources ----
PLUGIN_SRCS := $(filter-out plugin/gpu_cuda.c,$(wildcard plugin/*.c))
PLUGIN_OBJS := $(PLUGIN_SRCS:%.c=$(O)/%.o)
# What takes over a process that it is linked into stays out of unit tests.
DOOR_OBJS := $(filter $(O)/plugin/exports.o $(O)/plugin/door%,$(PLUGIN_OBJS))
MODULES_AR := $(O)/libllane-modules.a
KERNEL_SRCS := $(wildcard kernels/*.cu)
KERNEL_EMU_OBJS := $(KERNEL_SRCS:%.cu=$(O)/emu/%.o)
KERNEL_AR := $(O)/emu/libllane-kernels.a
EMU_LIB := $(O)/emu/libllane-emu.so
FAKE_NCCL := $(O)/emu/libnccl.so.2
EMU_OBJS := $(addprefix $(O)/,$(addsuffix .o,$(wildcard $(addprefix tests/emu_gpu/*.,c cc S))))
FAKE_OBJS := $(addprefix $(O)/,$(addsuffix .o,$(wildcard $(addprefix tests/fake_nccl/*.,c cc S))))
EMU_PLUGIN := $(O)/emu/libnccl-tuner-llane.so
CUDA_PLUGIN := $(if $(HAVE_CUDA),$(O)/libnccl-tuner-llane.so)
TEST_PLUGIN := $(if $(HAVE_CUDA),$(O)/cuda-$(TEST_KEY)/libnccl-tuner-llane.so)
DROP_INS := $(O)/emu/libnccl-llane.so $(if $(HAVE_CUDA),$(O)/libnccl-llane.so)
# Tools: tools/X.c, with its parts tools/X_*.c and kernels tools/X_*.cu, runs on the emulation as
# emu/llane-X and on a GPU as llane-X-gpu.
TOOLS := $(filter-out doctor watch,\
    $(foreach t,$(patsubst tools/%.c,%,$(wildcard tools/*.c)),$(if $(findstring _,$(t)),,$(t))))
# These two look at a machine and need no GPU runtime: one program for all builds.
PLAIN_TOOLS := $(patsubst tools/%.c,%,$(wildcard tools/doctor.c tools/watch.c))

.PHONY: all emu cuda tools programs
all: emu tools cuda ## everything this machine can build (default)
emu: $(EMU_PLUGIN) $(EMU_LIB) $(FAKE_NCCL) $(O)/emu/libnccl-llane.so ## the emulation alone
cuda: $(CUDA_PLUGIN) $(if $(HAVE_CUDA),$(O)/libnccl-llane.so) ## the real object (ARCHS=)
ifeq ($(HAVE_CUDA),)
	@echo "no CUDA object: $(if $(SANITIZED),V=$(V) has none,nvcc not found)"
endif
tools: emu $(TOOLS:%=$(O)/emu/llane-%) $(PLAIN_TOOLS:%=$(O)/llane-%) ## doctor, watch; demo, bench, soak and calibrate on the emulation

# ---- plugin ----
$(O)/plugin/%.o: plugin/%.c Makefile
	$(start)
	$(CC) $(C_FLAGS) $(HIDDEN) $(DEPFILE) -c $< -o $@
$(O)/plugin/gpu_cuda.o: plugin/gpu_cuda.c Makefile
	$(start)
	$(CC) $(C_FLAGS) $(HIDDEN) -isystem $(CUDA_HOME)/include $(DEPFILE) -c $< -o $@
$(O)/emu/%.o: %.cu Makefile
	$(start)
	$(CXX) $(CXX_FLAGS) $(KERNEL_EMU_FLAGS) $(DEPFILE) -c $< -o $@
$(MODULES_AR): $(filter-out $(DOOR_OBJS),$(PLUGIN_OBJS))
$(KERNEL_AR): $(KERNEL_EMU_OBJS)
$(MODULES_AR) $(KERNEL_AR):
	$(start)
	rm -f $@
	ar rcsD $@ $^

# -z nodelete: NCCL closes plugins; -z defs: leave no undefined symbol to RTLD_NOW (ASan has some).
PLUGIN_LINK = $(CC) -shared $(OPT_$(V)) -o $@ $(filter %.o,$^) -pthread -Wl,-z,nodelete \
    $(if $(filter asan,$(V)),,-Wl,-z,defs) -Wl,-z,relro,-z,noexecstack,--build-id=sha1 \
    -Wl,-soname,libnccl-tuner-llane.so -Wl,--exclude-libs,ALL \
    -Wl,--version-script=plugin/exports.map $(LDFLAGS)
$(EMU_PLUGIN): $(PLUGIN_OBJS) $(KERNEL_EMU_OBJS) $(EMU_LIB) plugin/exports.map
	$(start)
	$(PLUGIN_LINK) -L$(@D) -lllane-emu -Wl,-rpath,'$$ORIGIN' -ldl

# 1: ARCHS, 2: their name in paths. Each set has its own folder, so that they do not disturb another.
define cuda_object
$(O)/cuda-$(2)/%.o: kernels/%.cu Makefile
	$$(start)
	$$(NVCC) $$(NVCC_FLAGS) $(call gencode,$(1)) -MMD -MP -MT $$@ -MF $$@.d -c $$< -o $$@
$(O)/cuda-$(2)/tools/%.o: tools/%.cu Makefile
	$$(start)
	$$(NVCC) $$(NVCC_FLAGS) $(call gencode,$(1)) -MMD -MP -MT $$@ -MF $$@.d -c $$< -o $$@
$(O)/cuda-$(2)/libnccl-tuner-llane.so: $(PLUGIN_OBJS) $(O)/plugin/gpu_cuda.o \
    $(KERNEL_SRCS:kernels/%.cu=$(O)/cuda-$(2)/%.o) plugin/exports.map
	$$(start)
	$$(PLUGIN_LINK) $$(CUDART)
endef
ifneq ($(HAVE_CUDA),)
$(foreach k,$(sort $(ARCHS_KEY) $(TEST_KEY)),$(eval $(call cuda_object,$(subst -, ,$(k)),$(k))))
# The one in use is the one built last, whatever ARCHS it has.
.PHONY: FORCE
$(O)/libnccl-tuner-llane.so: $(O)/cuda-$(ARCHS_KEY)/libnccl-tuner-llane.so FORCE
	@cmp -s $< $@ || cp $< $@
endif

# The drop-in has no code: its NEEDED order is what it is for. The stub stands for any libnccl.
$(O)/stub/libnccl.so.2: Makefile
	$(start)
	echo 'int llane_stub;' | $(CC) -shared -x c - -nostdlib -Wl,-soname,libnccl.so.2 -o $@
$(O)/emu/libnccl-llane.so: $(EMU_PLUGIN)
$(O)/libnccl-llane.so: $(CUDA_PLUGIN)
$(DROP_INS): $(O)/stub/libnccl.so.2
	$(start)
	$(CC) -shared -nostdlib -o $@ -Wl,--no-as-needed -Wl,--allow-shlib-undefined -L$(@D) \
	    -l:libnccl-tuner-llane.so $(O)/stub/libnccl.so.2 -Wl,-rpath,'$$ORIGIN' \
	    -Wl,-soname,libnccl-llane.so -Wl,-z,noexecstack

# ---- emulated GPU, fake NCCL (default visibility: programs and plugin share them) ----
$(O)/tests/emu_gpu/%.o: C_FLAGS += $(if $(filter tsan,$(V)),--param tsan-instrument-func-entry-exit=0)
$(O)/tests/%.c.o: tests/%.c Makefile
	$(start)
	$(CC) $(TEST_FLAGS) $(DEPFILE) -c $< -o $@
$(O)/tests/%.cc.o: tests/%.cc Makefile
	$(start)
	$(CXX) $(CXX_FLAGS) -Itests/emu_gpu $(DEPFILE) -c $< -o $@
$(O)/tests/%.S.o: tests/%.S Makefile
	$(start)
	$(CC) -I. $(DEPFILE) -c $< -o $@
$(EMU_LIB): $(EMU_OBJS)
	$(start)
	$(CXX) -shared $(OPT_$(V)) -o $@ $(filter %.o,$^) -pthread -ldl -lrt \
	    -Wl,-soname,libllane-emu.so -Wl,-z,nodelete,-z,noexecstack
$(FAKE_NCCL): $(FAKE_OBJS) $(EMU_LIB) $(wildcard tests/fake_nccl/exports.map)
	$(start)
	$(CC) -shared $(OPT_$(V)) -o $@ $(filter %.o,$^) -pthread -L$(@D) -lllane-emu -ldl -lrt \
	    -Wl,-soname,libnccl.so.2 -Wl,-rpath,'$$ORIGIN' -Wl,-z,relro,-z,lazy,-z,noexecstack \
	    $(addprefix -Wl$(comma)--version-script=,$(filter %.map,$^))

# ---- test programs ----
TESTS ?= %
pick = $(filter $(TESTS),$(basename $(wildcard $(1))))
UNIT_TESTS := $(call pick,tests/unit/test_*.c tests/unit/test_*.cc tests/model/test_*.c tests/model/test_*.cc)
EMU_TESTS := $(call pick,tests/emu/test_*.c)
SCRIPT_TESTS := $(addsuffix .sh,$(call pick,$(foreach d,unit emu model,tests/$(d)/test_*.sh)))
HELPERS := $(patsubst %.c,$(O)/%,$(wildcard tests/emu/prog_*.c tests/fixtures/prog_*.c)) \
    $(patsubst %.c,$(O)/%.so,$(wildcard tests/emu/lib_*.c tests/fixtures/lib_*.c))
# Other .c files of tests/emu are linked into each of its programs.
EMU_SHARED := $(patsubst %,$(O)/%.o,$(filter-out $(addprefix tests/emu/,test_% prog_% lib_%),\
    $(wildcard tests/emu/*.c)))
# Tests that also run under a sanitizer have a line `// ALSO: tsan asan` near their top.
also = $(basename $(if $(wildcard tests/*/test_*.c),$(shell grep -lE '^// ALSO:.*\b$(1)\b' \
    $(addsuffix .c,$(UNIT_TESTS) $(EMU_TESTS)) 2>/dev/null)))
TEST_FLAGS = $(C_FLAGS) -Itests -Itests/emu_gpu -Itests/fake_nccl $(OWN_CFLAGS)
EMU_LINK := -L$(O)/emu -lllane-emu -Wl,-rpath,'$$ORIGIN/../../emu' -ldl -lrt -lm

UNIT_DEPS := Makefile $(MODULES_AR) $(KERNEL_AR) $(EMU_LIB)
UNIT_LINK = -o $@ $(LDADD_SOURCES) $< $(MODULES_AR) $(KERNEL_AR) $(LDADD) -lcmocka $(EMU_LINK)
# A unit test that asks for the fake NCCL has it built first.
$(addprefix $(O)/,$(basename $(shell grep -ls '^// LDADD:.*libnccl' $(wildcard tests/unit/test_*.c*)))): $(FAKE_NCCL)
# Has the runtime's headers where there are any, and stands in for the driver.
ifneq ($(HAVE_CUDA),)
$(O)/tests/unit/test_gpu_cuda: OWN_CFLAGS = -DHAVE_CUDA -isystem $(CUDA_HOME)/include
$(O)/tests/unit/test_gpu_cuda: LDADD = $(CUDART)
endif
$(O)/tests/%: tests/%.c $(UNIT_DEPS)
	$(start)
	$(CC) $(TEST_FLAGS) $(DEPFILE) $(UNIT_LINK)
$(O)/tests/%: tests/%.cc $(UNIT_DEPS)
	$(start)
	$(CXX) $(CXX_FLAGS) -Itests -Itests/emu_gpu $(OWN_CFLAGS) $(DEPFILE) $(UNIT_LINK)
$(EMU_TESTS:%=$(O)/%) $(filter-out %.so,$(HELPERS)): $(O)/tests/%: tests/%.c Makefile $(EMU_SHARED) $(FAKE_NCCL) \
    $(wildcard tests/emu/*/*.[ch])
	$(start)
	$(CC) $(TEST_FLAGS) $(DEPFILE) -o $@ $(LDADD_SOURCES) $< $(EMU_SHARED) \
	    $(LDADD) -lcmocka -L$(O)/emu -l:libnccl.so.2 $(EMU_LINK)
$(O)/tests/%.so: tests/%.c Makefile
	$(start)
	$(CC) $(TEST_FLAGS) $(DEPFILE) -shared -o $@ $< $(LDADD)
programs: emu $(KERNEL_AR) $(addprefix $(O)/,$(UNIT_TESTS) $(EMU_TESTS)) $(HELPERS) ## every test program

$(O)/tools/%.o: tools/%.c Makefile
	$(start)
	$(CC) $(TEST_FLAGS) $(DEPFILE) -c $< -o $@
# What doctor and watch are made of together.
DOCTOR_OBJS := $(patsubst %.c,$(O)/%.o,$(wildcard tools/doctor_*.c))
$(O)/llane-doctor: $(O)/tools/doctor.o $(DOCTOR_OBJS)
$(O)/llane-watch: $(O)/tools/watch.o $(patsubst %.c,$(O)/%.o,$(wildcard tools/watch_*.c)) $(DOCTOR_OBJS)
$(PLAIN_TOOLS:%=$(O)/llane-%):
	$(start)
	$(CC) $(OPT_$(V)) -o $@ $^ -ldl -lm
# What surrounds the ranks that these start.
rank_env = $(if $(filter bench soak,$(1)),tools/rank_env.c)
# 1: the tool. measure also launches the lane's own kernels, and no NCCL call.
gpu_tool_objects = $(patsubst %.c,$(O)/%.o,tools/$(1).c $(wildcard tools/$(1)_*.c) $(rank_env)) \
    $(patsubst %.cu,$(O)/cuda-$(ARCHS_KEY)/%.o,$(wildcard tools/$(1)_*.cu) \
    $(if $(filter measure,$(1)),$(KERNEL_SRCS:kernels/%=%))) \
    $(O)/plugin/gpu_cuda.o $(MODULES_AR)
define tool_programs
$(O)/emu/llane-$(1): $(patsubst %.c,$(O)/%.o,tools/$(1).c $(wildcard tools/$(1)_*.c) $(rank_env)) \
    $(patsubst %.cu,$(O)/emu/%.o,$(wildcard tools/$(1)_*.cu)) $(FAKE_NCCL) $(MODULES_AR) \
    $(if $(filter measure,$(1)),$(KERNEL_EMU_OBJS))
	$$(start)
	$(CC) $(OPT_$(V)) -o $$@ $$(filter %.o,$$^) $(MODULES_AR) -L$$(@D) -l:libnccl.so.2 -lllane-emu \
	    -Wl,-rpath,'$$$$ORIGIN' -pthread -ldl -lrt -lm
$(O)/llane-$(1)-gpu: $(call gpu_tool_objects,$(1))
	$$(start)
	$(CC) $(OPT_$(V)) -o $$@ $$(filter %.o,$$^) $(MODULES_AR) $(if $(filter measure,$(1)),,$(NCCL_LINK)) \
	    $(CUDART) -pthread -lm
endef
$(foreach t,$(TOOLS),$(eval $(call tool_programs,$(t))))
GPU_C := $(patsubst %.c,$(O)/%,$(wildcard tests/gpu1/*.c tests/gpun/*.c))
GPU_CU := $(patsubst %.cu,$(O)/%,$(wildcard tests/gpu1/*.cu tests/gpun/*.cu))
GPU_PROGRAMS := $(GPU_C) $(GPU_CU)
$(GPU_CU): $(O)/%: %.cu Makefile
	$(start)
	$(NVCC) $(NVCC_FLAGS) $(call gencode,$(ARCHS)) $(DEPFILE) -o $@ $<
$(GPU_C): $(O)/%: %.c Makefile $(O)/plugin/gpu_cuda.o $(MODULES_AR)
	$(start)
	$(CC) $(TEST_FLAGS) -isystem $(CUDA_HOME)/include $(DEPFILE) -o $@ $< $(O)/plugin/gpu_cuda.o \
	    $(MODULES_AR) $(LDADD) $(NCCL_LINK) $(CUDART) -lm

# ---- what people run (each looks after its dependencies first, so the work is a second make) ----
.PHONY: test demo demo-gpu tools-gpu gpu-tests test-gpu model soak fuzz lint format docs clean help
RUN_ENV = LLANE_BUILD=$(abspath $(O)) LLANE_V=$(V) LLANE_TEST_OBJECTS='$(abspath $(EMU_PLUGIN) $(TEST_PLUGIN))'
ALSO := $(if $(SANITIZED),,tsan asan)
# The sanitizers' flags are gcc's.
SANITIZER_CC := $(if $(findstring clang,$(CC)),CC=gcc CXX=g++)
test: ## build and run every test that needs no GPU; TESTS=%name picks
	@scripts/deps
	+@$(MAKE) --no-print-directory programs tools $(TEST_PLUGIN)
	+@$(foreach s,$(ALSO),$(if $(call also,$(s)),\
	    $(MAKE) --no-print-directory V=$(s) $(SANITIZER_CC) emu $(addprefix $(BUILD)/$(s)/,$(call also,$(s))) &&)) true
	@$(RUN_ENV) scripts/run_tests $(O) $(if $(filter-out \%,$(TESTS)),,scripts/check_exports) \
	    $(addprefix $(O)/,$(UNIT_TESTS) $(EMU_TESTS)) $(SCRIPT_TESTS) \
	    $(foreach s,$(ALSO),$(if $(call also,$(s)),$(BUILD)/$(s) $(addprefix $(BUILD)/$(s)/,$(call also,$(s)))))

DEMO := $(if $(and $(HAVE_GPU),$(HAVE_CUDA),$(NCCL_LIB)),gpu,emu)
demo: ## RANKS=4 ranks, sizes 8 B to 4 MiB: route and result of each, on a GPU also the time
	@scripts/deps
	+@$(MAKE) --no-print-directory $(if $(filter gpu,$(DEMO)),ARCHS=native demo-gpu,emu tools)
	@LLANE_BUILD=$(abspath $(O)) tools/llane demo $(if $(filter emu,$(DEMO)),--emulate) $(RANKS)
ifneq ($(filter tools-gpu demo-gpu gpu-tests test-gpu,$(MAKECMDGOALS)),)
ifeq ($(HAVE_CUDA),)
$(error $(MAKECMDGOALS): $(if $(SANITIZED),V=$(V) has no CUDA object,nvcc not found: set CUDA_HOME))
else ifeq ($(NCCL_LIB),)
$(error $(MAKECMDGOALS): libnccl.so.2 not found: set NCCL_HOME)
endif
endif
tools-gpu: ## bench, soak, calibrate, tune and the doctor's measuring on GPUs (ARCHS=)
tools-gpu demo-gpu: cuda $(TOOLS:%=$(O)/llane-%-gpu)
gpu-tests: $(GPU_PROGRAMS) cuda ## the programs of tests/gpu1 and tests/gpun
test-gpu: ## several ranks on one real GPU, with the installed NCCL
	@scripts/deps
	+@$(MAKE) --no-print-directory ARCHS=native gpu-tests demo-gpu
	@LLANE_BUILD=$(abspath $(O)) LLANE_V=$(V) tests/gpu1/run.sh
model: ## the deep model-checking runs (minutes, gigabytes)
	@tests/model/run_deep.sh
SECONDS ?= 600
soak: ## on the emulation, SECONDS=600: random communicators, sums, graphs, aborts and kills; no hang, no growth
	@scripts/deps
	+@$(MAKE) --no-print-directory emu $(O)/tests/emu/prog_mayhem $(O)/tests/emu/prog_ranks
	@LLANE_BUILD=$(abspath $(O)) tests/emu/mayhem $(SECONDS)
FUZZ_SECONDS ?= 60
FUZZ_CC = clang -g -O1 -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=undefined -std=gnu11 \
    -D_GNU_SOURCE -DLLANE_VERSION='"$(VERSION)"' $(INCLUDES) -Itools
# 1: the target; it begins with what it found before, and the folder of seeds 2.
fuzz_run = $(O)/fuzz/fuzz_$(1) -max_total_time=$(FUZZ_SECONDS) -max_len=10000 -timeout=10 \
    -artifact_prefix=$(O)/fuzz/$(1)_found/ $(O)/fuzz/$(1) $(2)
fuzz: ## parsers and what other ranks tell, under libFuzzer, FUZZ_SECONDS=60 each; `make test` runs their seeds
	@scripts/deps --fuzz
	+@$(MAKE) --no-print-directory $(MODULES_AR) $(KERNEL_AR) $(EMU_LIB)
	mkdir -p $(foreach t,board config doctor nccl_tuning records tuning,$(O)/fuzz/$(t) $(O)/fuzz/$(t)_found)
	tests/fuzz/make_seeds_doctor $(O)/fuzz/doctor_seeds
	$(FUZZ_CC) -o $(O)/fuzz/fuzz_doctor tests/fuzz/fuzz_doctor.c $(wildcard tools/doctor_*.c) -ldl
	$(FUZZ_CC) -o $(O)/fuzz/fuzz_nccl_tuning tests/fuzz/fuzz_nccl_tuning.c \
	    $(addprefix plugin/,nccl_tuning.c config.c log.c)
	$(FUZZ_CC) -o $(O)/fuzz/fuzz_tuning tests/fuzz/fuzz_tuning.c \
	    $(addprefix plugin/,tuning.c tuning_text.c route.c model.c)
	$(FUZZ_CC) -o $(O)/fuzz/fuzz_board tests/fuzz/fuzz_board.c \
	    $(addprefix plugin/,board.c board_rendezvous.c switch.c check.c life.c liveness.c)
	$(FUZZ_CC) -o $(O)/fuzz/fuzz_config tests/fuzz/fuzz_config.c $(addprefix plugin/,config.c log.c)
	$(FUZZ_CC) -o $(O)/fuzz/fuzz_records tests/fuzz/fuzz_records.c \
	    $(addprefix plugin/,route.c model.c tuning.c) $(MODULES_AR) $(KERNEL_AR) -L$(O)/emu \
	    -lllane-emu -Wl,-rpath,$(abspath $(O))/emu -ldl -lm -lstdc++
	$(call fuzz_run,board,tests/fuzz/seeds_board)
	$(call fuzz_run,config,tests/fuzz/seeds_config)
	$(call fuzz_run,doctor,$(O)/fuzz/doctor_seeds)
	$(call fuzz_run,nccl_tuning,tests/fuzz/seeds_nccl_tuning)
	$(call fuzz_run,records,tests/fuzz/seeds_records)
	$(call fuzz_run,tuning,tests/fuzz/seeds_tuning)
lint: ## format, clang-tidy, cppcheck, shellcheck, codespell, exports
	@scripts/deps --lint
	+@$(MAKE) --no-print-directory $(EMU_PLUGIN)
	@CUDA_HOME='$(CUDA_HOME)' LLANE_TEST_OBJECTS=$(abspath $(EMU_PLUGIN)) scripts/lint
format: ## rewrite every source as .clang-format says
	@scripts/lint --list | xargs -r clang-format -i

.PHONY: docs/config.md
docs docs/config.md: $(O)/tests/unit/test_config ## write docs/config.md anew from its table
	$< --write-doc > docs/config.md

include scripts/package/package.mk
clean: ## remove $(BUILD)
	rm -rf $(BUILD)
help: ## this
	@echo 'make [V=release|debug|asan|tsan] [ARCHS="80 90"|native] [BUILD=build] [NCCL_HOME=] [CUDA_HOME=] [VERBOSE=1]'
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(filter %Makefile %.mk,$(MAKEFILE_LIST)) | expand -t 12

-include $(shell find $(O) -name '*.d' 2>/dev/null)
