/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels of the device, as nvcc made them; the assembler finds the file from the build
   folder. */
#include "kernels.h"

#ifdef ZERO_DEVICE_FATBIN
__asm__(".pushsection .rodata\n"
	".balign 64\n"
	".globl zero_device_image\n"
	".hidden zero_device_image\n"
	".type zero_device_image, %object\n"
	"zero_device_image:\n"
	".incbin \"" ZERO_DEVICE_FATBIN "\"\n"
	".size zero_device_image, . - zero_device_image\n"
	".popsection\n");
#endif
