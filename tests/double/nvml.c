/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A double of NVIDIA's libnvidia-ml.so.1 for machines without GPUs. It reads the file <node>.gpus
 * in the folder ZERO_DOUBLE_NVML, by default the folder of this library. <node> is SLURMD_NODENAME,
 * so that each node of a test cluster on one machine has its own GPUs, or else "default". Without
 * the file, every call fails as without a driver.
 *
 * Lines, in the order of the GPUs; sizes may end in K, M or G; '#' starts a comment line:
 *
 *   gpu UUID FREE TOTAL MODEL...   a GPU
 *   at MINOR BUS                   ... above is at this PCI address, and its file is
 *   /dev/nvidiaMINOR: it
 *                                  is hidden from a process whose control groups deny that file
 *   hidden                         ... above is hidden from every process
 *   mig UUID FREE TOTAL MODEL...   the next instance of the GPU above, which is then in MIG mode
 *   gap                            an unused instance number of the GPU above
 *   lost UUID                      a GPU that has fallen off the bus
 *   facts UUID                     a GPU whose model is a description of the calling process
 *   wedge CALL [UUID]              that NVML call never returns (for that GPU only)
 *   stuck CALL [UUID]              ... and only SIGKILL ends the process
 *   die CALL [UUID]                ... ends the process
 *   wait CALL [UUID]               ... takes until the file "stuck" is removed
 *   fail CALL CODE [UUID]          ... returns that error
 *
 * A call that never returns, or waits, writes the number of its process to the file "stuck".
 *
 * Built with -DOLD_DRIVER, the library has no functions for MIG and places.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum {
	NVML_SUCCESS = 0,
	NVML_ERROR_UNINITIALIZED = 1,
	NVML_ERROR_INVALID_ARGUMENT = 2,
	NVML_ERROR_NOT_SUPPORTED = 3,
	NVML_ERROR_NO_PERMISSION = 4,
	NVML_ERROR_NOT_FOUND = 6,
	NVML_ERROR_INSUFFICIENT_SIZE = 7,
	NVML_ERROR_DRIVER_NOT_LOADED = 9,
	NVML_ERROR_GPU_IS_LOST = 15,
	NVML_ERROR_UNKNOWN = 999,
};

/* A GPU or an instance; NVML's handles point here. */
struct nvmlDevice_st {
	char uuid[96];
	char model[96];
	unsigned long long free, total;
	char bus[32]; /* "": it has no place */
	unsigned minor;
	bool hidden;
	bool lost;
	bool partitioned;
	struct nvmlDevice_st *parent; /* NULL: a GPU */
	unsigned index;               /* of the GPU, or of the instance on it */
};
typedef struct nvmlDevice_st *nvmlDevice_t;

typedef struct {
	unsigned long long total, free, used;
} nvmlMemory_t;

typedef struct {
	char busIdLegacy[16];
	unsigned domain, bus, device, pciDeviceId, pciSubSystemId;
	char busId[32];
} nvmlPciInfo_t;

enum trouble { WEDGE, STUCK, DIE, WAIT, FAIL };

struct rule {
	enum trouble trouble;
	char call[64];
	int number; /* an error */
	char uuid[96];
};

enum { DEVICES = 512, RULES = 32, INSTANCES = 7 };

/* As in NVML, the state belongs to the process. */
static struct {
	pthread_mutex_t mutex;
	unsigned inits;
	struct nvmlDevice_st device[DEVICES];
	unsigned devices, gpus, next_instance;
	struct nvmlDevice_st *gpu;
	struct rule rule[RULES];
	unsigned rules;
	char folder[4000];
	char wrong[128]; /* an error of the file */
} nvml = {.mutex = PTHREAD_MUTEX_INITIALIZER};

static bool parse_size(const char *text, unsigned long long *size)
{
	char *end;

	errno = 0;
	*size = strtoull(text, &end, 10);
	if (end == text || errno)
		return false;
	switch (*end) {
	case 'G':
		*size *= 1024;
		/* fall through */
	case 'M':
		*size *= 1024;
		/* fall through */
	case 'K':
		*size *= 1024;
		end++;
	}
	return !*end;
}

static struct nvmlDevice_st *add_device(const char *uuid)
{
	struct nvmlDevice_st *device;

	if (nvml.devices == DEVICES)
		return NULL;
	device = &nvml.device[nvml.devices++];
	memset(device, 0, sizeof(*device));
	snprintf(device->uuid, sizeof(device->uuid), "%s", uuid);
	return device;
}

static bool add_gpu(const char *uuid)
{
	nvml.gpu = add_device(uuid);
	if (!nvml.gpu)
		return false;
	nvml.gpu->index = nvml.gpus++;
	nvml.next_instance = 0;
	return true;
}

static bool add_instance(const char *uuid)
{
	struct nvmlDevice_st *instance;

	if (!nvml.gpu || nvml.next_instance == INSTANCES)
		return false;
	nvml.gpu->partitioned = true;
	instance = uuid ? add_device(uuid) : NULL;
	if (instance) {
		instance->parent = nvml.gpu;
		instance->index = nvml.next_instance;
	}
	nvml.next_instance++;
	return instance || !uuid;
}

/* Describes the process: users, groups, folder, session, signals, descriptors. */
static void read_facts(char *facts, size_t size)
{
	uid_t user[3] = {0};
	gid_t group[3] = {0};
	char folder[16] = "?", descriptors[32] = "";
	sigset_t blocked;
	int handled = 0, signals = 0;

	getresuid(&user[0], &user[1], &user[2]);
	getresgid(&group[0], &group[1], &group[2]);
	if (!getcwd(folder, sizeof(folder)))
		folder[0] = '?';
	sigprocmask(SIG_SETMASK, NULL, &blocked);
	for (int i = 1; i < NSIG; i++) {
		struct sigaction action = {.sa_handler = SIG_DFL};

		sigaction(i, NULL, &action);
		handled += action.sa_handler != SIG_DFL;
		signals += sigismember(&blocked, i) == 1;
	}
	for (int i = 0; i < 1024 && strlen(descriptors) + 8 < sizeof(descriptors); i++) {
		if (fcntl(i, F_GETFD) >= 0)
			sprintf(descriptors + strlen(descriptors), ",%d", i);
	}
	snprintf(facts, size, "%u %u %u %u %u %u %s %s %s %d %d %s", user[0], user[1], user[2],
		 group[0], group[1], group[2], folder, getsid(0) == getpid() ? "leads" : "follows",
		 prctl(PR_GET_DUMPABLE, 0, 0, 0, 0) ? "open" : "closed", handled, signals,
		 descriptors + 1);
}

static bool find_trouble(const char *word, enum trouble *trouble)
{
	static const char *const words[] = {
		[WEDGE] = "wedge", [STUCK] = "stuck", [DIE] = "die", [WAIT] = "wait"};

	for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
		if (strcmp(word, words[i]) != 0)
			continue;
		*trouble = (enum trouble)i;
		return true;
	}
	return false;
}

static bool read_line(const char *line)
{
	char word[8], a[96], b[96], c[96], model[96];
	int n = sscanf(line, "%7s %95s %95s %95s %95[^\n]", word, a, b, c, model);
	struct rule rule = {0};

	if (n <= 0 || word[0] == '#')
		return true;
	if (n == 1 && strcmp(word, "hidden") == 0 && nvml.gpu) {
		nvml.gpu->hidden = true;
		return true;
	}
	if (n == 1 && strcmp(word, "gap") == 0)
		return add_instance(NULL);
	if (n == 3 && strcmp(word, "at") == 0) {
		if (!nvml.gpu)
			return false;
		nvml.gpu->minor = (unsigned)atoi(a);
		snprintf(nvml.gpu->bus, sizeof(nvml.gpu->bus), "%.31s", b);
		return true;
	}
	if (n == 2 && strcmp(word, "lost") == 0) {
		if (!add_gpu(a))
			return false;
		nvml.gpu->lost = true;
		return true;
	}
	if (n == 2 && strcmp(word, "facts") == 0) {
		if (!add_gpu(a))
			return false;
		read_facts(nvml.gpu->model, sizeof(nvml.gpu->model));
		return true;
	}
	if (n == 5 && (strcmp(word, "gpu") == 0 || strcmp(word, "mig") == 0)) {
		struct nvmlDevice_st *device;

		if (!(word[0] == 'g' ? add_gpu(a) : add_instance(a)))
			return false;
		device = &nvml.device[nvml.devices - 1];
		memcpy(device->model, model, sizeof(model));
		return parse_size(b, &device->free) && parse_size(c, &device->total);
	}
	if (strcmp(word, "fail") == 0 && (n == 3 || n == 4)) {
		rule.trouble = FAIL;
		rule.number = atoi(b);
		if (n == 4)
			memcpy(rule.uuid, c, sizeof(c));
	} else if (!find_trouble(word, &rule.trouble) || (n != 2 && n != 3)) {
		return false;
	} else if (n == 3) {
		memcpy(rule.uuid, b, sizeof(b));
	}
	if (nvml.rules == RULES)
		return false;
	snprintf(rule.call, sizeof(rule.call), "%.63s", a);
	nvml.rule[nvml.rules++] = rule;
	return true;
}

/* Opens the file, as a driver does. No driver has made those of a test, but a denied one says so
   first. */
static bool is_denied(unsigned minor)
{
	char path[32];
	int file;

	snprintf(path, sizeof(path), "/dev/nvidia%u", minor);
	file = open(path, O_RDWR | O_CLOEXEC);
	if (file >= 0)
		close(file);
	return file < 0 && errno == EPERM;
}

/* Hides the GPUs that this process may not open; the others are numbered without them. */
static void hide_others(void)
{
	nvml.gpus = 0;
	for (unsigned i = 0; i < nvml.devices; i++) {
		struct nvmlDevice_st *device = &nvml.device[i];

		if (device->parent)
			continue;
		device->hidden |= device->bus[0] && is_denied(device->minor);
		device->index = device->hidden ? ~0U : nvml.gpus++;
	}
}

static int read_file(void)
{
	const char *folder = getenv("ZERO_DOUBLE_NVML");
	const char *node = getenv("SLURMD_NODENAME");
	char path[4096], line[512];
	int status = NVML_SUCCESS, number = 0;
	int length = folder ? (int)strlen(folder) : 0;
	Dl_info self;
	FILE *file;

	if (!folder) {
		if (!dladdr(&nvml, &self) || !strrchr(self.dli_fname, '/'))
			return NVML_ERROR_DRIVER_NOT_LOADED;
		folder = self.dli_fname;
		length = (int)(strrchr(folder, '/') - folder);
	}
	snprintf(nvml.folder, sizeof(nvml.folder), "%.*s", length, folder);
	snprintf(path, sizeof(path), "%s/%.64s.gpus", nvml.folder, node ? node : "default");
	file = fopen(path, "re");
	if (!file)
		return NVML_ERROR_DRIVER_NOT_LOADED;
	nvml.devices = nvml.gpus = nvml.rules = 0;
	nvml.gpu = NULL;
	while (!status && fgets(line, sizeof(line), file)) {
		number++;
		if (!read_line(line)) {
			snprintf(nvml.wrong, sizeof(nvml.wrong),
				 "%.80s:%d: not a line of this file", path, number);
			status = NVML_ERROR_UNKNOWN;
		}
	}
	fclose(file);
	hide_others();
	return status;
}

static bool about(const struct rule *rule, const struct nvmlDevice_st *device)
{
	return !rule->uuid[0] || (device && strcmp(rule->uuid, device->uuid) == 0);
}

/* Under another name first, so that whoever finds the file finds it whole. */
static void write_process(char *path, size_t size)
{
	char hidden[4096];
	FILE *file;

	snprintf(path, size, "%s/stuck", nvml.folder);
	snprintf(hidden, sizeof(hidden), "%s/.stuck", nvml.folder);
	file = fopen(hidden, "we");
	if (!file)
		return;
	fprintf(file, "%d\n", (int)getpid());
	fclose(file);
	rename(hidden, path);
}

/*
 * Acts as a driver that sleeps in the kernel: signals are blocked, and after vfork the caller waits
 * in the kernel until the child ends, which it does after 20 s.
 */
static void be_stuck(void)
{
	struct timespec time = {20, 0};
	sigset_t all;
	pid_t child;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, NULL);
	child = vfork();
	if (child == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		nanosleep(&time, NULL);
		_exit(EXIT_SUCCESS);
	}
	/* sanitizers replace vfork by fork */
	waitpid(child, NULL, 0);
	_exit(EXIT_FAILURE);
}

/* Applies the rules of the file to a call. */
static int follow_rules(const char *call, const struct nvmlDevice_st *device)
{
	int status = NVML_SUCCESS;

	for (unsigned i = 0; i < nvml.rules; i++) {
		const struct rule *rule = &nvml.rule[i];
		const struct timespec moment = {.tv_nsec = 1000000};
		char path[4096];

		if (strcmp(rule->call, call) != 0 || !about(rule, device))
			continue;
		if (rule->trouble == WEDGE || rule->trouble == STUCK || rule->trouble == WAIT)
			write_process(path, sizeof(path));
		switch (rule->trouble) {
		case WEDGE:
			for (;;)
				pause();
		case STUCK:
			be_stuck();
			break;
		case DIE:
			kill(getpid(), SIGKILL);
			break;
		case WAIT:
			while (access(path, F_OK) == 0)
				nanosleep(&moment, NULL);
			break;
		case FAIL:
			status = rule->number;
		}
	}
	return status;
}

static int enter(const char *call)
{
	return nvml.inits ? follow_rules(call, NULL) : NVML_ERROR_UNINITIALIZED;
}

static int enter_device(const char *call, const struct nvmlDevice_st *device)
{
	int status;

	if (!nvml.inits)
		return NVML_ERROR_UNINITIALIZED;
	if (device < nvml.device || device >= nvml.device + nvml.devices)
		return NVML_ERROR_INVALID_ARGUMENT;
	status = follow_rules(call, device);
	if (status)
		return status;
	return device->lost || (device->parent && device->parent->lost) ? NVML_ERROR_GPU_IS_LOST
									: NVML_SUCCESS;
}

static int copy(const char *text, char *out, unsigned size)
{
	if (!out)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (strlen(text) >= size)
		return NVML_ERROR_INSUFFICIENT_SIZE;
	memcpy(out, text, strlen(text) + 1);
	return NVML_SUCCESS;
}

int nvmlInit_v2(void);
int nvmlInit_v2(void)
{
	int status = NVML_SUCCESS;

	pthread_mutex_lock(&nvml.mutex);
	if (!nvml.inits)
		status = read_file();
	pthread_mutex_unlock(&nvml.mutex);
	if (!status)
		status = follow_rules("nvmlInit_v2", NULL);
	if (status)
		return status;
	pthread_mutex_lock(&nvml.mutex);
	nvml.inits++;
	pthread_mutex_unlock(&nvml.mutex);
	return NVML_SUCCESS;
}

int nvmlShutdown(void);
int nvmlShutdown(void)
{
	int status = enter("nvmlShutdown");

	if (status)
		return status;
	pthread_mutex_lock(&nvml.mutex);
	nvml.inits--;
	pthread_mutex_unlock(&nvml.mutex);
	return NVML_SUCCESS;
}

const char *nvmlErrorString(int status);
const char *nvmlErrorString(int status)
{
	switch (status) {
	case NVML_SUCCESS:
		return "Success";
	case NVML_ERROR_UNINITIALIZED:
		return "Uninitialized";
	case NVML_ERROR_INVALID_ARGUMENT:
		return "Invalid Argument";
	case NVML_ERROR_NOT_SUPPORTED:
		return "Not Supported";
	case NVML_ERROR_NO_PERMISSION:
		return "Insufficient Permissions";
	case NVML_ERROR_NOT_FOUND:
		return "Not Found";
	case NVML_ERROR_INSUFFICIENT_SIZE:
		return "Insufficient Size";
	case NVML_ERROR_DRIVER_NOT_LOADED:
		return "Driver Not Loaded";
	case NVML_ERROR_GPU_IS_LOST:
		return "GPU is lost";
	}
	return nvml.wrong[0] ? nvml.wrong : "Unknown Error";
}

int nvmlDeviceGetCount_v2(unsigned *count);
int nvmlDeviceGetCount_v2(unsigned *count)
{
	int status = enter("nvmlDeviceGetCount_v2");

	if (!status)
		*count = nvml.gpus;
	return status;
}

static nvmlDevice_t find(const struct nvmlDevice_st *parent, unsigned index)
{
	for (unsigned i = 0; i < nvml.devices; i++)
		if (nvml.device[i].parent == parent && nvml.device[i].index == index)
			return &nvml.device[i];
	return NULL;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *device);
int nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *device)
{
	nvmlDevice_t found;
	int status;

	if (!nvml.inits)
		return NVML_ERROR_UNINITIALIZED;
	if (index >= nvml.gpus)
		return NVML_ERROR_INVALID_ARGUMENT;
	found = find(NULL, index);
	status = enter_device("nvmlDeviceGetHandleByIndex_v2", found);
	if (!status)
		*device = found;
	return status;
}

int nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned size);
int nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned size)
{
	int status = enter_device("nvmlDeviceGetUUID", device);

	return status ? status : copy(device->uuid, uuid, size);
}

int nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned size);
int nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned size)
{
	int status = enter_device("nvmlDeviceGetName", device);

	return status ? status : copy(device->model, name, size);
}

int nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory);
int nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
	int status = enter_device("nvmlDeviceGetMemoryInfo", device);

	if (status)
		return status;
	/* The sum of all instances is for administrators. */
	if (device->partitioned && geteuid() != 0)
		return NVML_ERROR_NO_PERMISSION;
	memory->total = device->total;
	memory->free = device->free;
	memory->used = device->total - device->free;
	return NVML_SUCCESS;
}

#ifndef OLD_DRIVER
int nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci);
int nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
	int status = enter_device("nvmlDeviceGetPciInfo_v3", device);

	if (status)
		return status;
	if (!device->bus[0])
		return NVML_ERROR_NOT_SUPPORTED;
	memset(pci, 0, sizeof(*pci));
	memcpy(pci->busId, device->bus, sizeof(pci->busId));
	return NVML_SUCCESS;
}

int nvmlDeviceGetMinorNumber(nvmlDevice_t device, unsigned *minor);
int nvmlDeviceGetMinorNumber(nvmlDevice_t device, unsigned *minor)
{
	int status = enter_device("nvmlDeviceGetMinorNumber", device);

	if (status)
		return status;
	if (!device->bus[0])
		return NVML_ERROR_NOT_SUPPORTED;
	*minor = device->minor;
	return NVML_SUCCESS;
}

int nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned *current, unsigned *pending);
int nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned *current, unsigned *pending)
{
	int status = enter_device("nvmlDeviceGetMigMode", device);

	if (status)
		return status;
	/* A100, H100, H200 and their like have it. */
	if (device->parent || (!device->partitioned && !strstr(device->model, "00")))
		return NVML_ERROR_NOT_SUPPORTED;
	*current = *pending = device->partitioned;
	return NVML_SUCCESS;
}

int nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned *count);
int nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned *count)
{
	int status = enter_device("nvmlDeviceGetMaxMigDeviceCount", device);

	if (!status)
		*count = INSTANCES;
	return status;
}

int nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned index,
					nvmlDevice_t *instance);
int nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned index, nvmlDevice_t *instance)
{
	int status = enter_device("nvmlDeviceGetMigDeviceHandleByIndex", device);
	nvmlDevice_t found;

	if (status)
		return status;
	if (!device->partitioned)
		return NVML_ERROR_NOT_SUPPORTED;
	if (index >= INSTANCES)
		return NVML_ERROR_INVALID_ARGUMENT;
	found = find(device, index);
	if (!found)
		return NVML_ERROR_NOT_FOUND;
	*instance = found;
	return NVML_SUCCESS;
}
#endif
