/* SPDX-License-Identifier: Apache-2.0 */
/* On what, and when, it was measured. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include "record.h"

/* The value behind the first "key ... : value" of a file under /proc. */
static void proc_value(const char *path, const char *key, char *value, size_t size)
{
	FILE *file = fopen(path, "re");
	char line[512];

	snprintf(value, size, "unknown");
	while (file && fgets(line, sizeof(line), file)) {
		const char *colon = strchr(line, ':');

		if (!colon || strncmp(line, key, strlen(key)))
			continue;
		colon += 1 + strspn(colon + 1, " \t");
		snprintf(value, size, "%.*s", (int)strcspn(colon, "\n"), colon);
		break;
	}
	if (file)
		fclose(file);
}

/* SOURCE_DATE_EPOCH makes a page that can be built again to the last byte. */
static void date_of(char *text, size_t size)
{
	const char *epoch = getenv("SOURCE_DATE_EPOCH");
	time_t when = epoch && *epoch ? (time_t)atoll(epoch) : time(NULL);
	struct tm utc;

	text[0] = '\0';
	if (gmtime_r(&when, &utc))
		strftime(text, size, "%Y-%m-%d %H:%M UTC", &utc);
}

struct machine machine_now(void)
{
	struct machine m = {.cores = sysconf(_SC_NPROCESSORS_ONLN)};
	char kilobytes[64], library[MPI_MAX_LIBRARY_VERSION_STRING];
	struct utsname name;
	int length;

	proc_value("/proc/cpuinfo", "model name", m.cpu, sizeof(m.cpu));
	proc_value("/proc/meminfo", "MemTotal", kilobytes, sizeof(kilobytes));
	snprintf(m.memory, sizeof(m.memory), "%.1f GB", atof(kilobytes) * 1024 / 1e9);
	if (!uname(&name))
		snprintf(m.kernel, sizeof(m.kernel), "%s %s", name.sysname, name.release);
	MPI_Get_library_version(library, &length);
	/* The first words are the name; others go on about who built it and where. */
	snprintf(m.mpi, sizeof(m.mpi), "%.*s", (int)strcspn(library, ",\n"), library);
	date_of(m.date, sizeof(m.date));
	return m;
}
