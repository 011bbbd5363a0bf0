# Installing, and the packages made of what is installed. INSTALL_DEVICE=emu puts the emulation's
# objects into the same places: the tests of the packages run the demo from there.
INSTALL_DEVICE ?= cuda
BINDIR ?= $(PREFIX)/bin
LIBDIR ?= $(PREFIX)/lib
TOOLDIR ?= $(PREFIX)/libexec/llane
SHAREDIR ?= $(PREFIX)/share
ZSHDIR ?= $(SHAREDIR)/zsh/site-functions
# The time that packages carry: the last commit's, where nothing else is asked for.
SOURCE_DATE_EPOCH ?= $(or $(shell git log -1 --format=%ct 2>/dev/null),1767225600)
PACKAGE_DIR ?= $(BUILD)/packages
PACKAGED := $(O)/packaged

# Installed programs find NCCL where the user has it. They are linked with a library that has the names
# of its calls alone, so no path of this machine is in them and NCCL need not be on it.
$(PACKAGED)/calls/libnccl.so.2: $(FAKE_NCCL)
	$(start)
	nm -D --defined-only $< | awk '$$3 ~ /^p?nccl/ { print "void " $$3 "(void);void " $$3 "(void) {}" }' | \
	    $(CC) -shared -x c - -nostdlib -Wl,-soname,libnccl.so.2 -o $@
define packaged_tool
$(PACKAGED)/llane-$(1)-gpu: $(call gpu_tool_objects,$(1)) $(PACKAGED)/calls/libnccl.so.2
	$$(start)
	$(CC) $(OPT_$(V)) -o $$@ $$(filter-out %.so.2,$$^) $$(if $$(filter measure,$(1)),,$$(filter %.so.2,$$^)) \
	    $(CUDART) -pthread -lm
endef
$(if $(HAVE_CUDA),$(foreach t,$(TOOLS),$(eval $(call packaged_tool,$(t)))))
PACKAGED_TOOLS := $(PLAIN_TOOLS:%=$(O)/llane-%) $(if $(filter emu,$(INSTALL_DEVICE)),\
    $(TOOLS:%=$(O)/emu/llane-%),$(TOOLS:%=$(PACKAGED)/llane-%-gpu))
PACKAGED_OBJECTS := $(if $(filter emu,$(INSTALL_DEVICE)),emu,cuda)

# Pages: docs/X.md is llane-X(1) where X is a command, llane-X(7) otherwise; docs/llane.md is llane(1).
COMMANDS := $(shell tools/llane help | sed -n 's/^  \([a-z]*\)  .*/\1/p')
MANUAL := $(patsubst docs/%.md,%,$(wildcard docs/*.md))
MAN_PAGES := $(addprefix $(PACKAGED)/man/,llane.1 \
    $(patsubst %,llane-%.1,$(filter $(COMMANDS),$(MANUAL))) \
    $(patsubst %,llane-%.7,$(filter-out llane $(COMMANDS),$(MANUAL))))
# A command's one line is what `llane help` says of it, another page's its title.
write_page = scripts/package/make_man $(firstword $(filter docs/%,$<) docs/config.md) $(@F) $(VERSION) "$$(tools/llane help | \
    sed -n 's/^  $(patsubst llane-%,%,$(basename $(@F)))  *//p')" >$@
$(PACKAGED)/man/llane-%.1: docs/%.md scripts/package/make_man Makefile
	$(start)
	$(write_page)
$(PACKAGED)/man/llane-%.7: docs/%.md scripts/package/make_man Makefile
	$(start)
	$(write_page)
# docs/config.md is written anew whenever it is asked for.
$(PACKAGED)/man/llane-config.7: plugin/config_table.h scripts/package/make_man Makefile
	$(start)
	$(write_page)
$(PACKAGED)/man/llane.1: docs/llane.md scripts/package/make_man Makefile
	$(start)
	$(write_page)

PLACE = O=$(O) VERSION=$(VERSION) INSTALL_DEVICE=$(INSTALL_DEVICE) DESTDIR='$(DESTDIR)' BINDIR='$(BINDIR)' \
    LIBDIR='$(LIBDIR)' TOOLDIR='$(TOOLDIR)' SHAREDIR='$(SHAREDIR)' ZSHDIR='$(ZSHDIR)' TOOLS='$(PACKAGED_TOOLS)' \
    MAN_PAGES='$(MAN_PAGES)' scripts/package/place
.PHONY: install uninstall deb wheel test-packages installable
installable: $(PACKAGED_OBJECTS) $(PACKAGED_TOOLS) $(MAN_PAGES)
	$(if $(filter emu,$(INSTALL_DEVICE))$(HAVE_CUDA),,$(error nothing to install without nvcc: set CUDA_HOME))
install: installable ## PREFIX=/usr/local DESTDIR=
	@$(PLACE) install
uninstall: ## the same PREFIX and DESTDIR
	@$(PLACE) uninstall
# What packages carry is installed into an empty root first.
PACKAGE_ROOT = $(abspath $(PACKAGED)/root-$(1)-$(INSTALL_DEVICE))
stage = rm -rf $(call PACKAGE_ROOT,$(1)) && $(MAKE) --no-print-directory install DESTDIR=$(call PACKAGE_ROOT,$(1))
deb: installable ## a Debian package in build/packages
	@scripts/deps --package
	+@$(call stage,deb) PREFIX=/usr LIBDIR=/usr/lib/$$(dpkg-architecture -qDEB_HOST_MULTIARCH) \
	    ZSHDIR=/usr/share/zsh/vendor-completions
	@mkdir -p $(PACKAGE_DIR)
	@SOURCE_DATE_EPOCH=$(SOURCE_DATE_EPOCH) scripts/package/make_deb $(call PACKAGE_ROOT,deb) $(VERSION) $(PACKAGE_DIR)
wheel: installable ## a Python wheel in build/packages
	+@$(call stage,wheel) PREFIX=/llane
	@mkdir -p $(PACKAGE_DIR)
	@SOURCE_DATE_EPOCH=$(SOURCE_DATE_EPOCH) scripts/package/make_wheel $(call PACKAGE_ROOT,wheel)/llane $(VERSION) $(PACKAGE_DIR)
# Here because `make test` takes what it finds in other folders.
PACKAGE_TESTS := $(wildcard tests/packages/test_*.sh)
test-packages: ## installs, packages and examples, from empty roots; CI runs it with ARCHS=90
	@scripts/deps --package
	+@$(MAKE) --no-print-directory INSTALL_DEVICE=emu emu tools programs installable
	+@$(if $(HAVE_CUDA),$(MAKE) --no-print-directory ARCHS='$(TEST_ARCHS)' installable \
	    $(if $(NCCL_LIB),tools-gpu gpu-tests),true)
	$(if $(HAVE_CUDA),$(if $(NCCL_LIB),,@echo 'tools-gpu and gpu-tests are not built: libnccl.so.2 not found'))
	@$(RUN_ENV) PACKAGE_VERSION=$(VERSION) PACKAGE_HAS_CUDA=$(if $(HAVE_CUDA),yes) \
	    PACKAGE_ARCHS='$(TEST_ARCHS)' SOURCE_DATE_EPOCH=$(SOURCE_DATE_EPOCH) \
	    scripts/run_tests $(O) $(PACKAGE_TESTS)
