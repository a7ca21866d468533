/* SPDX-License-Identifier: Apache-2.0 */
/* All kernels of the device, for one image. */
#include "adamw.cu"
#include "adamw_8bit.cu"
#include "cast.cu"
#include "copy_many.cu"
#include "fill.cu"
#include "muon.cu"
#include "norm2.cu"
#include "philox.cu"
#include "step_rule.cu"
#include "sum.cu"
