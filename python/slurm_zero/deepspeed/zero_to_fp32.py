#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""python zero_to_fp32.py CHECKPOINT_DIR OUTPUT_DIR [--safe_serialization] [--max_shard_size SIZE]
[-t TAG]: writes the f32 values of the checkpoint that this file lies beside, or of another one. It
needs the package slurm_zero and torch."""

from slurm_zero.deepspeed.convert import (  # noqa: F401
    convert_zero_checkpoint_to_fp32_state_dict, get_fp32_state_dict_from_zero_checkpoint,
    load_state_dict_from_zero_checkpoint, main,
)

if __name__ == "__main__":
    main()
