/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Real control groups v2 of devices, as Slurm makes them: a program of the kernel's decides for the
 * processes of a group which files they may open. Only root can.
 */
#ifndef TEST_DEVICE_GROUPS_H
#define TEST_DEVICE_GROUPS_H

#include <fcntl.h>
#include <linux/bpf.h>
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

enum { NVIDIA = 195 };

/* Gives this process a /dev of its own, with files of so many GPUs. */
static inline bool own_devices(unsigned gpus)
{
	char path[32];

	if (geteuid() || unshare(CLONE_NEWNS) || mount("", "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
	    mount("dev", "/dev", "tmpfs", 0, "mode=0755") ||
	    mknod("/dev/null", S_IFCHR | 0666, makedev(1, 3)))
		return false;
	for (unsigned i = 0; i < gpus; i++) {
		snprintf(path, sizeof(path), "/dev/nvidia%u", i);
		if (mknod(path, S_IFCHR | 0666, makedev(NVIDIA, i)))
			return false;
	}
	return true;
}

/* Finds where this process is among the control groups v2. */
static inline bool find_own_group(char *path, size_t size)
{
	FILE *mounts = fopen("/proc/self/mounts", "r"), *groups = fopen("/proc/self/cgroup", "r");
	char line[1024], folder[256] = "", own[256] = "";

	while (mounts && !*folder && fgets(line, sizeof(line), mounts)) {
		char type[64] = "";

		if (sscanf(line, "%*s %255s %63s", folder, type) != 2 ||
		    strcmp(type, "cgroup2") != 0)
			*folder = '\0';
	}
	while (groups && !*own && fgets(line, sizeof(line), groups))
		sscanf(line, "0::%255s", own);
	if (mounts)
		fclose(mounts);
	if (groups)
		fclose(groups);
	return *folder && *own && snprintf(path, size, "%s%s", folder, own) < (int)size;
}

/* Allows the group to open GPUs with these minor numbers, and everything that is no GPU. */
static inline bool allow_gpus(const char *group, unsigned minors)
{
	const struct bpf_insn allow[] = {
		{.code = BPF_LDX | BPF_MEM | BPF_W,
		 .dst_reg = BPF_REG_2,
		 .src_reg = BPF_REG_1,
		 .off = offsetof(struct bpf_cgroup_dev_ctx, major)},
		{.code = BPF_LDX | BPF_MEM | BPF_W,
		 .dst_reg = BPF_REG_3,
		 .src_reg = BPF_REG_1,
		 .off = offsetof(struct bpf_cgroup_dev_ctx, minor)},
		{.code = BPF_ALU64 | BPF_MOV | BPF_K, .dst_reg = BPF_REG_0, .imm = 1},
		{.code = BPF_JMP | BPF_JNE | BPF_K, .dst_reg = BPF_REG_2, .imm = NVIDIA, .off = 3},
		{.code = BPF_ALU64 | BPF_MOV | BPF_K, .dst_reg = BPF_REG_0, .imm = (int)minors},
		{.code = BPF_ALU64 | BPF_RSH | BPF_X, .dst_reg = BPF_REG_0, .src_reg = BPF_REG_3},
		{.code = BPF_ALU64 | BPF_AND | BPF_K, .dst_reg = BPF_REG_0, .imm = 1},
		{.code = BPF_JMP | BPF_EXIT},
	};
	union bpf_attr load = {.prog_type = BPF_PROG_TYPE_CGROUP_DEVICE,
			       .insns = (uintptr_t)allow,
			       .insn_cnt = sizeof(allow) / sizeof(allow[0]),
			       .license = (uintptr_t) "GPL"};
	union bpf_attr attach = {.attach_type = BPF_CGROUP_DEVICE,
				 .attach_flags = BPF_F_ALLOW_MULTI};
	int program = (int)syscall(SYS_bpf, BPF_PROG_LOAD, &load, sizeof(load));
	int folder = open(group, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	bool ok = program >= 0 && folder >= 0;

	if (ok) {
		attach.target_fd = (uint32_t)folder;
		attach.attach_bpf_fd = (uint32_t)program;
		ok = !syscall(SYS_bpf, BPF_PROG_ATTACH, &attach, sizeof(attach));
	}
	if (program >= 0)
		close(program);
	if (folder >= 0)
		close(folder);
	return ok;
}

static inline bool enter_group(const char *group)
{
	char path[1024];
	FILE *file;

	snprintf(path, sizeof(path), "%s/cgroup.procs", group);
	file = fopen(path, "w");
	if (!file)
		return false;
	fputs("0", file);
	return fclose(file) == 0;
}

/* Makes a group in which only these GPUs may be opened, and enters it. */
static inline bool enter_new_group(const char *group, unsigned minors)
{
	return mkdir(group, 0755) == 0 && allow_gpus(group, minors) && enter_group(group);
}

#endif
