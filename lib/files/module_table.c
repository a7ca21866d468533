/* SPDX-License-Identifier: Apache-2.0 */
/* The module's table. */
#include "files/manifest.h"
#include "files/safetensors.h"
#include "files/report_content.h"

static const struct zero_files_ops ops = {
	.abi = ZERO_MODULE_ABI,
	.open = files_open,
	.close = files_free,
	.count = files_count,
	.tensor = files_tensor,
	.find = files_find,
	.header = files_header,
	.index = files_index,
	.checksum_blocks = files_checksum_blocks,
	.checksum = files_checksum,
	.manifest_format = manifest_format,
	.manifest_read = manifest_read,
	.manifest_parse = manifest_parse,
	.manifest_shard = manifest_shard,
	.manifest_free = manifest_free,
	.report_json = zero_report_json,
};

const void *zero_module_files(const struct zero_core *core)
{
	zero_core = core;
	return &ops;
}
