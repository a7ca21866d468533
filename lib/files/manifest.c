/* SPDX-License-Identifier: Apache-2.0 */
#include "files/input.h"

#include <stdlib.h>

void manifest_free(struct zero_manifest *manifest)
{
	if (!manifest)
		return;
	for (size_t i = 0; manifest->teams && i < manifest->team_count; i++)
		free(manifest->teams[i].ranks);
	for (size_t i = 0; manifest->tensors && i < manifest->tensor_count; i++) {
		free(manifest->tensors[i].name);
		free(manifest->tensors[i].group);
	}
	for (int i = 0; manifest->files && i < manifest->world; i++)
		free(manifest->files[i].name);
	free(manifest->teams);
	free(manifest->tensors);
	free(manifest->files);
	free(manifest->library);
	free(manifest->allgather);
	free(manifest);
}

int manifest_world(const struct zero_manifest *manifest, const struct zero_manifest_tensor *tensor)
{
	return tensor->team < 0 ? manifest->world : manifest->teams[tensor->team].count;
}
