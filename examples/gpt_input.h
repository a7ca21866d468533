/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpt_input.h - the input of gpt.c: flags, a model's config.json, and text or tokens to train on.
 * Nothing here depends on ranks. A function that fails writes a sentence to `error`.
 */
#ifndef GPT_INPUT_H
#define GPT_INPUT_H

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#ifdef HAVE_JANSSON
#include <jansson.h>
#endif

enum { SENTENCE = 512 };

/* Sets the error, unless there is one already. */
__attribute__((format(printf, 2, 3))) static void complain(char *error, const char *format, ...)
{
	va_list args;

	if (error[0])
		return;
	va_start(args, format);
	vsnprintf(error, SENTENCE, format, args);
	va_end(args);
}

struct config {
	size_t layers, heads, width, context, vocab;
	double eps; /* of the layer norms */
};

struct flags {
	const char *model, *tokens, *checkpoint, *log, *export, *optimizer;
	const char **text;
	size_t texts;
	size_t layers, heads, width, context, vocab, seed;
	size_t batch, seq, steps, warmup, save_every, keep, sample;
	double lr, beta1, beta2, eps, weight_decay, clip;
	bool eval, help;
};

static const struct flags default_flags = {.layers = 4,
					   .heads = 4,
					   .width = 128,
					   .context = 256,
					   .vocab = 256,
					   .seed = 1,
					   .batch = 4,
					   .steps = 100,
					   .warmup = 10,
					   .optimizer = "adamw",
					   .save_every = 100,
					   .keep = 2,
					   .lr = 6e-4,
					   .beta1 = 0.9,
					   .beta2 = 0.95,
					   .eps = 1e-8,
					   .weight_decay = 0.1,
					   .clip = 1};

enum flag_type { COUNT, REAL, PATH, FILES, SWITCH };

/* One row for each flag, for parsing and for --help. */
struct flag {
	const char *name, *argument;
	enum flag_type type;
	size_t offset;
	double min, max;
	const char *help;
};

#define FLAG(member) offsetof(struct flags, member)

static const struct flag flag_table[] = {
	{"text", "FILE...", FILES, FLAG(text), 0, 0, "train on the bytes of these files"},
	{"tokens", "FILE", PATH, FLAG(tokens), 0, 0,
	 "train on the 16-bit little-endian tokens of this file"},
	{"model", "PATH", PATH, FLAG(model), 0, 0,
	 "start from a Hugging Face GPT-2: its folder or .safetensors file"},
	{"layers", "N", COUNT, FLAG(layers), 1, 1024,
	 "number of blocks of a model with random initial values"},
	{"heads", "N", COUNT, FLAG(heads), 1, 1024, "number of attention heads"},
	{"width", "N", COUNT, FLAG(width), 1, 1 << 20, "width of the residual stream"},
	{"context", "N", COUNT, FLAG(context), 1, 1 << 20, "number of positions"},
	{"vocab", "N", COUNT, FLAG(vocab), 2, 1 << 24, "number of different tokens"},
	{"seed", "N", COUNT, FLAG(seed), 0, 1e15, "seed of initial values and of samples"},
	{"batch", "N", COUNT, FLAG(batch), 1, 1 << 16, "sequences per step on each rank"},
	{"seq", "N", COUNT, FLAG(seq), 0, 1 << 20, "tokens per sequence, 0 for the context"},
	{"steps", "N", COUNT, FLAG(steps), 0, 1e12, "number of steps"},
	{"optimizer", "NAME", PATH, FLAG(optimizer), 0, 0,
	 "adamw, adamw8bit with moments of 8 bits, or muon for the blocks' matrices [adamw]"},
	{"lr", "X", REAL, FLAG(lr), 0, 1e3, "learning rate"},
	{"warmup", "N", COUNT, FLAG(warmup), 0, 1e12,
	 "steps in which the learning rate rises from 0"},
	{"beta1", "X", REAL, FLAG(beta1), 0, 0.999999, "AdamW's decay of the first moment"},
	{"beta2", "X", REAL, FLAG(beta2), 0, 0.999999, "AdamW's decay of the second moment"},
	{"eps", "X", REAL, FLAG(eps), 1e-30, 1, "AdamW's epsilon"},
	{"weight-decay", "X", REAL, FLAG(weight_decay), 0, 1e3,
	 "AdamW's weight decay, of matrices only"},
	{"clip", "X", REAL, FLAG(clip), 0, 1e9, "bound on the gradient norm, 0 for none"},
	{"eval", NULL, SWITCH, FLAG(eval), 0, 0, "only print the mean loss of --steps batches"},
	{"checkpoint", "DIR", PATH, FLAG(checkpoint), 0, 0,
	 "resume from the last checkpoint in DIR, if any, and save there; on SIGUSR1 and SIGTERM "
	 "save and exit with status 75"},
	{"save-every", "N", COUNT, FLAG(save_every), 0, 1e12,
	 "steps between two checkpoints, 0 for one at the end only"},
	{"keep", "N", COUNT, FLAG(keep), 0, 1e6,
	 "number of checkpoints to leave in DIR, 0 for all"},
	{"sample", "N", COUNT, FLAG(sample), 0, 1e9,
	 "after the training, print N tokens (temperature 0.8)"},
	{"export", "PATH", PATH, FLAG(export), 0, 0,
	 "after the training, write a .safetensors file and config.json beside it, or a folder "
	 "with "
	 "both"},
	{"log", "FILE", PATH, FLAG(log), 0, 0, "write a JSON line for each step"},
	{"help", NULL, SWITCH, FLAG(help), 0, 0, "print this"},
};

enum { FLAGS = sizeof(flag_table) / sizeof(flag_table[0]) };

static void print_help(void)
{
	const char *defaults = (const char *)&default_flags;

	printf("Usage: gpt (--text FILE... | --tokens FILE) [FLAG]...\n"
	       "Trains GPT-2 on the ranks that zerorun, mpirun or srun starts, or on one "
	       "alone.\n\n");
	for (size_t i = 0; i < FLAGS; i++) {
		const struct flag *f = &flag_table[i];
		const void *value = defaults + f->offset;
		char left[64];

		snprintf(left, sizeof(left), "--%s %s", f->name, f->argument ? f->argument : "");
		printf("  %-20s %s", left, f->help);
		if (f->type == COUNT)
			printf(" [%zu]", *(const size_t *)value);
		if (f->type == REAL)
			printf(" [%g]", *(const double *)value);
		printf("\n");
	}
}

static void parse_number(const struct flag *f, const char *text, void *out, char *error)
{
	char *end = NULL;
	double number;

	errno = 0;
	number = strtod(text, &end);
	if (errno || end == text || *end || !(number >= f->min && number <= f->max) ||
	    (f->type == COUNT && number != floor(number))) {
		complain(error, "--%s is \"%s\", which is not a %snumber from %.15g to %.15g",
			 f->name, text, f->type == COUNT ? "whole " : "", f->min, f->max);
	} else if (f->type == COUNT) {
		*(size_t *)out = (size_t)number;
	} else {
		*(double *)out = number;
	}
}

static const struct flag *find_flag(const char *argument, size_t length)
{
	for (size_t i = 0; i < FLAGS; i++)
		if (strlen(flag_table[i].name) == length &&
		    strncmp(flag_table[i].name, argument, length) == 0)
			return &flag_table[i];
	return NULL;
}

/* Parses --flag VALUE and --flag=VALUE. --text takes all values that follow. */
static void parse_flags(struct flags *flags, int argc, char **argv, char *error)
{
	bool shaped = false;

	for (int i = 1; i < argc && !error[0]; i++) {
		const char *name = strncmp(argv[i], "--", 2) ? "" : argv[i] + 2;
		const char *equals = strchr(name, '='), *text = equals ? equals + 1 : argv[i + 1];
		const struct flag *f =
			find_flag(name, equals ? (size_t)(equals - name) : strlen(name));
		void *out = f ? (char *)flags + f->offset : NULL;

		if (!f) {
			complain(error, "%s is not a flag; --help lists them", argv[i]);
		} else if (f->type == SWITCH) {
			*(bool *)out = true;
			if (equals)
				complain(error, "--%s takes no value", f->name);
			continue;
		} else if (!text || (!equals && strncmp(text, "--", 2) == 0)) {
			complain(error, "--%s needs a value, %s", f->name, f->argument);
		} else if (f->type == PATH) {
			*(const char **)out = text;
		} else if (f->type == FILES) {
			flags->text[flags->texts++] = text;
			for (; !equals && argv[i + 2] && strncmp(argv[i + 2], "--", 2); i++)
				flags->text[flags->texts++] = argv[i + 2];
		} else {
			parse_number(f, text, out, error);
		}
		if (f && f->offset >= FLAG(layers) && f->offset <= FLAG(vocab))
			shaped = true;
		i += !equals;
	}
	if (!flags->help && !flags->texts == !flags->tokens)
		complain(error, "one of --text and --tokens must name what to train on; --help has "
				"more");
	if (strcmp(flags->optimizer, "adamw") && strcmp(flags->optimizer, "adamw8bit") &&
	    strcmp(flags->optimizer, "muon"))
		complain(error, "--optimizer is \"%s\"; it must be adamw, adamw8bit or muon",
			 flags->optimizer);
	if (shaped && flags->model)
		complain(error,
			 "the model's shape is that of --model: leave out --layers, --heads, "
			 "--width, --context and --vocab");
}

#ifdef HAVE_JANSSON
/* Returns a positive whole number of config.json, or `fallback` if it is missing. With a
   fallback of 0 it must be there. */
static size_t config_number(const json_t *json, const char *path, const char *key, size_t fallback,
			    char *error)
{
	const json_t *item = json_object_get(json, key);

	if ((!item || json_is_null(item)) && fallback)
		return fallback;
	if (!json_is_integer(item) || json_integer_value(item) < 1 ||
	    json_integer_value(item) > 1 << 24)
		complain(error, "%s: %s is not a whole number from 1 to %d", path, key, 1 << 24);
	return (size_t)json_integer_value(item);
}

/* Refuses a value that would make a different model of the same tensors. */
static void config_expect(const json_t *json, const char *path, const char *key, const char *want,
			  char *error)
{
	json_t *item = json_object_get(json, key);
	char *text = item ? json_dumps(item, JSON_ENCODE_ANY) : NULL;

	if (text && strcmp(text, want))
		complain(error, "%s: %s is %s; only %s is built here", path, key, text, want);
	free(text);
}

static void read_config(struct config *c, const char *path, char *error)
{
	json_error_t where;
	json_t *json = json_load_file(path, JSON_REJECT_DUPLICATES, &where), *eps;

	if (!json_is_object(json)) {
		if (json)
			complain(error, "%s is not a JSON object", path);
		else if (where.line < 0) /* the text has the path */
			complain(error, "%s", where.text);
		else
			complain(error, "%s, line %d: %s", path, where.line, where.text);
		json_decref(json);
		return;
	}
	config_expect(json, path, "model_type", "\"gpt2\"", error);
	config_expect(json, path, "activation_function", "\"gelu_new\"", error);
	config_expect(json, path, "scale_attn_weights", "true", error);
	config_expect(json, path, "scale_attn_by_inverse_layer_idx", "false", error);
	config_expect(json, path, "tie_word_embeddings", "true", error);
	c->layers = config_number(json, path, "n_layer", 0, error);
	c->heads = config_number(json, path, "n_head", 0, error);
	c->width = config_number(json, path, "n_embd", 0, error);
	c->context = config_number(json, path, "n_positions", 0, error);
	c->vocab = config_number(json, path, "vocab_size", 0, error);
	if (config_number(json, path, "n_inner", 4 * c->width, error) != 4 * c->width)
		complain(error, "%s: n_inner is not 4 * n_embd, which is all that is built", path);
	eps = json_object_get(json, "layer_norm_epsilon");
	c->eps = eps ? json_number_value(eps) : 1e-5;
	if (!(c->eps > 0))
		complain(error, "%s: layer_norm_epsilon is not a positive number", path);
	json_decref(json);
}
#else
static void read_config(struct config *c, const char *path, char *error)
{
	(void)c;
	complain(error, "%s cannot be read: this program was built without jansson", path);
}
#endif

/* Finds config.json in the folder `path`, or beside the file `path`. */
static void config_path(char *out, size_t size, const char *path)
{
	struct stat info;
	const char *slash = strrchr(path, '/');

	if (stat(path, &info) == 0 && S_ISDIR(info.st_mode))
		snprintf(out, size, "%s/config.json", path);
	else
		snprintf(out, size, "%.*sconfig.json", slash ? (int)(slash + 1 - path) : 0, path);
}

static void get_config(struct config *c, const struct flags *flags, size_t *seq, char *error)
{
	char path[4096];

	*c = (struct config){flags->layers,  flags->heads, flags->width,
			     flags->context, flags->vocab, 1e-5};
	if (flags->model) {
		config_path(path, sizeof(path), flags->model);
		read_config(c, path, error);
	}
	if (error[0])
		return;
	*seq = flags->seq ? flags->seq : c->context;
	if (c->width % c->heads)
		complain(error, "the width, %zu, is not a multiple of the %zu heads", c->width,
			 c->heads);
	if (*seq > c->context)
		complain(error, "--seq is %zu; the model's context is %zu", *seq, c->context);
	if (flags->texts && c->vocab < 256)
		complain(error, "--text is bytes, 0 to 255; the vocabulary is %zu", c->vocab);
}

/* A file of the corpus, mapped: the ranks of a node share the page cache. */
struct part {
	const char *path;
	const unsigned char *bytes;
	size_t tokens;
};

struct corpus {
	struct part *part;
	size_t parts, tokens, token_bytes;
};

static void corpus_add(struct corpus *c, const char *path, char *error)
{
	struct part *part = &c->part[c->parts++];
	struct stat info;
	int fd = open(path, O_RDONLY | O_CLOEXEC);

	if (fd < 0 || fstat(fd, &info) != 0) {
		complain(error, "%s: %s", path, strerror(errno));
	} else if (!S_ISREG(info.st_mode)) {
		complain(error, "%s is not a file", path);
	} else if ((size_t)info.st_size % c->token_bytes) {
		complain(error, "%s has %zu bytes, not a whole number of 16-bit tokens", path,
			 (size_t)info.st_size);
	} else if (info.st_size > 0) {
		part->bytes = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_SHARED, fd, 0);
		if (part->bytes == MAP_FAILED)
			complain(error, "%s: %s", path, strerror(errno));
		else
			part->tokens = (size_t)info.st_size / c->token_bytes;
	}
	part->path = path;
	c->tokens += part->tokens;
	if (fd >= 0)
		close(fd);
}

static void corpus_open(struct corpus *c, const struct flags *flags, size_t seq, char *error)
{
	size_t parts = flags->texts ? flags->texts : 1;

	c->token_bytes = flags->texts ? 1 : 2;
	c->part = calloc(parts, sizeof(*c->part));
	if (!c->part) {
		complain(error, "no memory for a list of %zu files", parts);
		return;
	}
	for (size_t i = 0; i < parts; i++)
		corpus_add(c, flags->texts ? flags->text[i] : flags->tokens, error);
	if (c->tokens < seq + 1)
		complain(error, "%s has %zu tokens; a sequence of %zu needs %zu", c->part[0].path,
			 c->tokens, seq, seq + 1);
}

/* Reads `count` tokens from token `first`. A token outside the vocabulary is an error, and becomes
   0. */
static void corpus_read(const struct corpus *c, size_t first, size_t count, uint32_t *out,
			size_t vocab, char *error)
{
	const struct part *part = c->part;

	for (size_t i = 0; i < count; i++, first++) {
		const unsigned char *byte;

		for (; first >= part->tokens; part++)
			first -= part->tokens;
		byte = part->bytes + first * c->token_bytes;
		out[i] = byte[0] + (c->token_bytes == 2 ? 256u * byte[1] : 0);
		if (out[i] >= vocab) {
			complain(error, "%s: token %zu is %u; the vocabulary ends at %zu",
				 part->path, first, out[i], vocab - 1);
			out[i] = 0;
		}
	}
}
#endif
