# SPDX-License-Identifier: Apache-2.0
"""DeepSpeed programs that nobody edits: its engine, zero.Init and GatheredParameters on libzero."""
