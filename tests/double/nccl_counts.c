/* SPDX-License-Identifier: Apache-2.0 */
/* Counts calls, what operations move, and registered memory, for tests of how much there is. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "nccl.h"

enum { COUNTS = 64 };

struct count {
	const char *name;
	unsigned long long value;
};

struct traffic {
	unsigned long long messages, bytes;
};

static struct {
	pthread_mutex_t mutex;
	struct count counts[COUNTS];
	struct traffic *sent, *received; /* [peers], by the ranks of processes */
	int peers;
} own = {.mutex = PTHREAD_MUTEX_INITIALIZER};

static struct count *find(const char *name)
{
	int i = 0;

	while (i < COUNTS && own.counts[i].name && strcmp(own.counts[i].name, name) != 0)
		i++;
	if (i == COUNTS)
		die("more than %d counts", COUNTS);
	return &own.counts[i];
}

void count_add(const char *name, long long more)
{
	struct count *count;

	pthread_mutex_lock(&own.mutex);
	count = find(name);
	count->name = name;
	count->value += (unsigned long long)more;
	pthread_mutex_unlock(&own.mutex);
}

void count_registered(long long bytes)
{
	struct count *now, *most;

	count_add("registered_bytes", bytes);
	count_add("registered_bytes_most", 0);
	pthread_mutex_lock(&own.mutex);
	now = find("registered_bytes");
	most = find("registered_bytes_most");
	if (most->value < now->value)
		most->value = now->value;
	pthread_mutex_unlock(&own.mutex);
}

static void *larger(struct traffic *traffic, int peers)
{
	traffic = realloc(traffic, (size_t)peers * sizeof *traffic);
	if (!traffic)
		die("no memory");
	memset(traffic + own.peers, 0, (size_t)(peers - own.peers) * sizeof *traffic);
	return traffic;
}

void count_message(bool sent, int peer, size_t bytes)
{
	struct traffic *traffic;

	if (peer < 0)
		return;
	pthread_mutex_lock(&own.mutex);
	if (peer >= own.peers) {
		own.sent = larger(own.sent, peer + 1);
		own.received = larger(own.received, peer + 1);
		own.peers = peer + 1;
	}
	traffic = sent ? &own.sent[peer] : &own.received[peer];
	traffic->messages++;
	traffic->bytes += bytes;
	pthread_mutex_unlock(&own.mutex);
}

static unsigned long long total(const struct traffic *traffic, char what)
{
	unsigned long long peers = 0, messages = 0, bytes = 0;

	for (int i = 0; i < own.peers; i++) {
		peers += traffic[i].messages > 0;
		messages += traffic[i].messages;
		bytes += traffic[i].bytes;
	}
	return what == 'p' ? peers : what == 'm' ? messages : bytes;
}

unsigned long long double_nccl_count(const char *name)
{
	unsigned long long value;
	int i = 0;

	pthread_mutex_lock(&own.mutex);
	if (strncmp(name, "sent_", 5) == 0) {
		value = total(own.sent, name[5]);
	} else if (strncmp(name, "received_", 9) == 0) {
		value = total(own.received, name[9]);
	} else {
		while (i < COUNTS && own.counts[i].name && strcmp(own.counts[i].name, name) != 0)
			i++;
		value = i < COUNTS && own.counts[i].name ? own.counts[i].value : 0;
	}
	pthread_mutex_unlock(&own.mutex);
	return value;
}

static void write_traffic(FILE *file, const char *name, const struct traffic *traffic)
{
	for (int i = 0; i < own.peers; i++)
		if (traffic[i].messages)
			fprintf(file, "%s %d messages %llu bytes %llu\n", name, i,
				traffic[i].messages, traffic[i].bytes);
}

void counts_write(int rank)
{
	const char *folder = getenv("DOUBLE_COUNTS");
	char path[4096];
	FILE *file;

	if (!folder || !*folder || !own.counts[0].name)
		return;
	snprintf(path, sizeof path, "%s/nccl.%d", folder, rank < 0 ? 0 : rank);
	file = fopen(path, "w");
	if (!file)
		die("DOUBLE_COUNTS: %s cannot be written", path);
	for (int i = 0; i < COUNTS && own.counts[i].name; i++)
		fprintf(file, "%s %llu\n", own.counts[i].name, own.counts[i].value);
	write_traffic(file, "sent", own.sent);
	write_traffic(file, "received", own.received);
	fclose(file);
}
