# SPDX-License-Identifier: Apache-2.0
# What an admin may edit. It is installed only where there is none yet, and uninstalled only if it is
# still as it was installed; an edited line for plugstack.conf gets a name that Slurm does not read.
# The pristine zero.yaml is beside the documentation.
EXTRA_DIST += etc/zero.yaml examples/job_submit.lua
doc_DATA = etc/zero.yaml examples/job_submit.lua
slurm_conf = etc/zero.yaml
# Without a plugin, Slurm would complain about the line on each command.
if HAVE_SLURM
if HAVE_YAML
slurm_conf += etc/zero.conf
endif
endif

# Bash looks for it there, by the name of the command.
bashcompletiondir = $(datadir)/bash-completion/completions
dist_bashcompletion_DATA = etc/completions/zerorun

CLEANFILES += etc/zero.conf
etc/zero.conf: Makefile
	$(AM_V_GEN)$(MKDIR_P) etc && echo 'optional $(libdir)/slurm/spank_zero.so' >$@.new && mv $@.new $@

# For each file of slurm_conf: where it is ($$from) and where it goes ($$to).
EACH_SLURM_CONF = \
	for file in $(slurm_conf); do \
		from=$$file; test -f "$$from" || from=$(srcdir)/$$file; \
		case $$file in \
		*.conf) to='$(DESTDIR)$(slurmconfdir)/plugstack.conf.d' ;; \
		*) to='$(DESTDIR)$(slurmconfdir)' ;; \
		esac; \
		to=$$to/$${file\#\#*/};

install-data-local: $(slurm_conf)
	@$(EACH_SLURM_CONF) \
		if test -e "$$to"; then \
			cmp -s "$$from" "$$to" || echo " $$to is left as it is"; \
			case $$file in *.conf) grep -qF '$(libdir)/slurm/spank_zero.so' "$$to" || \
				echo " $$to does not name $(libdir)/slurm/spank_zero.so" >&2 ;; esac; \
		else \
			echo " $(INSTALL_DATA) $$from $$to"; \
			$(MKDIR_P) "$${to%/*}" && $(INSTALL_DATA) "$$from" "$$to" || exit 1; \
		fi; \
	done

# Nobody links what is loaded at run time, so that libtool's notes about it go.
install-data-hook:
	rm -f '$(DESTDIR)$(modulesdir)'/zero_*.la '$(DESTDIR)$(libdir)/slurm/spank_zero.la' \
		'$(DESTDIR)$(modulesdir)/python/slurm_zero/_zero.abi3.la'

# libtool would find in its notes what to remove; Python leaves compiled files in the package.
uninstall-local:
	@$(EACH_SLURM_CONF) \
		if cmp -s "$$from" "$$to"; then \
			echo " rm -f $$to"; rm -f "$$to"; \
		elif test -e "$$to"; then \
			case $$to in *.conf) mv "$$to" "$$to.saved"; to=$$to.saved ;; esac; \
			echo " $$to was edited: it stays"; \
		fi; \
	done
	rm -f '$(DESTDIR)$(modulesdir)'/zero_*.so '$(DESTDIR)$(libdir)/slurm/spank_zero.so'
	rm -rf '$(DESTDIR)$(modulesdir)/python/slurm_zero'

uninstall-hook:
	-rmdir '$(DESTDIR)$(slurm_zero_infodir)' '$(DESTDIR)$(modulesdir)/python' \
		'$(DESTDIR)$(modulesdir)' '$(DESTDIR)$(docdir)' 2>/dev/null
