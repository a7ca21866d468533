/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the fuzz targets share. A target is a function of some bytes that ends the process if a
 * promise of what it calls is broken; libFuzzer calls it, or main.c with files.
 */
#ifndef ZERO_FUZZ_H
#define ZERO_FUZZ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define must(what, ...)                                                            \
	do {                                                                       \
		if (!(what)) {                                                     \
			fprintf(stderr, "%s:%d: %s: ", __FILE__, __LINE__, #what); \
			fprintf(stderr, __VA_ARGS__);                              \
			fputc('\n', stderr);                                       \
			abort();                                                   \
		}                                                                  \
	} while (0)

/* The input as it is taken apart. */
struct fuzz {
	const uint8_t *at;
	size_t left;
};

static inline unsigned fuzz_byte(struct fuzz *fuzz)
{
	if (!fuzz->left)
		return 0;
	fuzz->left--;
	return *fuzz->at++;
}

/* Small ones are as likely as large ones. */
static inline uint64_t fuzz_number(struct fuzz *fuzz)
{
	unsigned bytes = fuzz_byte(fuzz) % 9;
	uint64_t number = 0;

	while (bytes--)
		number = number << 8 | fuzz_byte(fuzz);
	return number;
}

static inline void *fuzz_copy(const void *bytes, size_t size)
{
	char *copy = malloc(size + 1);

	must(copy, "no memory");
	memcpy(copy, bytes, size);
	copy[size] = '\0';
	return copy;
}

/*
 * What comes before the next line "@@", or all that is left: malloc'ed with a NUL behind it, so
 * that a sanitizer sees what reads beyond. NULL: nothing is left.
 */
static inline char *fuzz_part(struct fuzz *fuzz, size_t *length)
{
	static const char line[] = "\n@@\n";
	const size_t size = sizeof(line) - 1;
	const uint8_t *end = fuzz->left ? memmem(fuzz->at, fuzz->left, line, size) : NULL;
	char *part;

	*length = end ? (size_t)(end - fuzz->at) : fuzz->left;
	if (!fuzz->left)
		return NULL;
	part = fuzz_copy(fuzz->at, *length);
	fuzz->at += *length + (end ? size : 0);
	fuzz->left -= *length + (end ? size : 0);
	return part;
}

/* The same, for what is a string: up to the first NUL. */
static inline char *fuzz_text(struct fuzz *fuzz)
{
	size_t length;

	return fuzz_part(fuzz, &length);
}

/* A buffer for a sentence, full of what no sentence has. */
static inline char *fuzz_why(size_t size)
{
	char *why = malloc(size);

	must(why, "no memory");
	memset(why, 0x01, size);
	return why;
}

/* What is printed where people read: terminated, and nothing in it that a terminal obeys. */
static inline void fuzz_clean(const char *text, size_t size)
{
	size_t length = strnlen(text, size);

	must(length < size, "no end within %zu bytes", size);
	for (size_t i = 0; i < length; i++) {
		unsigned char byte = (unsigned char)text[i], next = (unsigned char)text[i + 1];

		must(byte >= 0x20 && byte != 0x7f, "byte %u is 0x%02x of: %s", (unsigned)i, byte,
		     text);
		must(byte != 0xc2 || (next & 0xe0) != 0x80, "U+00%02X in: %s", next, text);
	}
}

/* The same, and that something is said. */
static inline void fuzz_sentence(const char *why, size_t size)
{
	fuzz_clean(why, size);
	must(size < 2 || *why, "nothing is said");
}

#endif
