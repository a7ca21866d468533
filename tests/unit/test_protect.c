/* SPDX-License-Identifier: Apache-2.0 */
/* Partners, names of files, and what is refused as a node's folder. */
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "protect/leftover.h"
#include "protect/protect_internal.h"
#include "unit.h"

enum { RANKS_MAX = 64 };

/* ---- partners -------------------------------------------------------------------------------- */

struct cluster {
	size_t ranks[RANKS_MAX], of[RANKS_MAX], world;
	uint64_t switch_of_node[RANKS_MAX], switches[RANKS_MAX];
	struct zero_nodes nodes;
	int partners[RANKS_MAX];
};

/* Ranks of nodes in blocks, or dealt out in turn. */
static void make(struct cluster *cluster, size_t count, size_t world, size_t in_switch, bool blocks)
{
	*cluster = (struct cluster){.world = world};
	cluster->nodes =
		(struct zero_nodes){.count = count, .ranks = cluster->ranks, .of = cluster->of};
	for (size_t rank = 0; rank < world; rank++) {
		size_t node = blocks ? rank * count / world : rank % count;

		cluster->of[rank] = node;
		cluster->ranks[node]++;
		cluster->switches[rank] = 1 + node / in_switch;
	}
	ck_assert_int_eq(
		zero_protect_partners(&cluster->nodes, cluster->switches, world, cluster->partners),
		ZERO_OK);
}

START_TEST(partners_are_on_other_nodes)
{
	struct cluster cluster;

	for (size_t count = 1; count <= 9; count++)
		for (size_t world = count; world <= 4 * count + 1; world++)
			for (size_t in_switch = 1; in_switch <= count; in_switch++) {
				make(&cluster, count, world, in_switch, _i);
				for (size_t rank = 0; rank < world; rank++) {
					int partner = cluster.partners[rank];

					if (count == 1) {
						ck_assert_int_eq(partner, -1);
						continue;
					}
					ck_assert(partner >= 0 && (size_t)partner < world);
					ck_assert_uint_ne(cluster.of[partner], cluster.of[rank]);
				}
			}
}
END_TEST

/* With as many ranks on each node each rank keeps the copies of one other. */
START_TEST(each_is_a_partner_once)
{
	struct cluster cluster;

	for (size_t count = 2; count <= 9; count++)
		for (size_t each = 1; each <= 4; each++) {
			int seen[RANKS_MAX] = {0};

			make(&cluster, count, count * each, 2, _i);
			for (size_t rank = 0; rank < cluster.world; rank++)
				seen[cluster.partners[rank]]++;
			for (size_t rank = 0; rank < cluster.world; rank++)
				ck_assert_int_eq(seen[rank], 1);
		}
}
END_TEST

/* Where no switch has more than half of the nodes. */
START_TEST(partners_are_on_other_switches)
{
	struct cluster cluster;

	for (size_t in_switch = 1; in_switch <= 4; in_switch++)
		for (size_t count = 2 * in_switch; count <= 12; count++) {
			make(&cluster, count, count * 2, in_switch, _i);
			for (size_t rank = 0; rank < cluster.world; rank++)
				ck_assert_uint_ne(cluster.switches[cluster.partners[rank]],
						  cluster.switches[rank]);
		}
}
END_TEST

/* ---- names ----------------------------------------------------------------------------------- */

START_TEST(names_are_read_as_they_are_written)
{
	uint64_t random = (uint64_t)_i + 1;

	for (int i = 0; i < 200; i++) {
		char text[ZERO_PROTECT_NAME_BYTES];
		struct zero_protect_name name, again;

		random = random * 6364136223846793005U + 1442695040888963407U;
		name = (struct zero_protect_name){.token = random,
						  .rank = (int32_t)(random >> 33),
						  .slot = (random >> 5) & 1,
						  .copy = (random >> 6) & 1,
						  .record = (random >> 7) & 1};
		zero_protect_format(&name, text);
		ck_assert(zero_protect_parse(text, &again));
		ck_assert(again.token == name.token && again.rank == name.rank &&
			  again.slot == name.slot && again.copy == name.copy &&
			  again.record == name.record);
		/* Another character anywhere is another name, or none. */
		text[random % strlen(text)] = '!';
		ck_assert(!zero_protect_parse(text, &again));
	}
}
END_TEST

START_TEST(other_names_are_none_of_ours)
{
	static const char *const others[] = {
		"",
		".",
		"latest",
		"0123456789abcdef-00000001-0-own.shard.new",
		"0123456789abcdef-00000001-2-own.shard",
		"0123456789abcdef-1-0-own.shard",
		"0123456789abcdef-00000001-0-mine.shard",
		"0123456789abcdef-00000001-0-own.shards",
		" 123456789abcdef-00000001-0-own.shard",
	};
	struct zero_protect_name name;

	for (size_t i = 0; i < COUNT_OF(others); i++)
		ck_assert_msg(!zero_protect_parse(others[i], &name), "'%s'", others[i]);
}
END_TEST

/* ---- folders --------------------------------------------------------------------------------- */

static char base[64];

static char *in_base(const char *name)
{
	static char path[256];

	snprintf(path, sizeof(path), "%s/%s", base, name);
	return path;
}

static char *user_folder(void)
{
	char name[32];

	snprintf(name, sizeof(name), "zero-%u", (unsigned)geteuid());
	return in_base(name);
}

static void begin(void)
{
	snprintf(base, sizeof(base), "/tmp/zero-test-protect.XXXXXX");
	ck_assert(mkdtemp(base));
	setenv("SLURM_JOB_ID", "17", 1);
	setenv("ZERO_RUN", "0123456789abcdef0123456789abcdef", 1);
}

static void end(void)
{
	char command[128];

	snprintf(command, sizeof(command), "rm -rf %s", base);
	ck_assert_int_eq(system(command), 0);
}

static void is_refused(const char *words)
{
	struct zero_protect_folder folder;

	ck_assert_int_ne(zero_protect_folder_open(&folder, base, 5), ZERO_OK);
	ck_assert_msg(strstr(zero_last_error(), words), "%s", zero_last_error());
	zero_protect_folder_close(&folder);
}

START_TEST(a_folder_is_private_and_goes)
{
	struct zero_protect_name name = {.token = 1, .record = 1};
	struct zero_protect_folder folder;
	struct stat info;
	char got[4];

	ck_assert_int_eq(zero_protect_folder_open(&folder, base, 5), ZERO_OK);
	ck_assert(!fstat(folder.fd, &info) && (info.st_mode & 07777) == 0700);
	ck_assert(strstr(folder.path, "/17/0123456789abcdef0123456789abcdef-0000000000000005"));
	ck_assert_int_eq(zero_protect_file_put(&folder, &name, "abc", 4), ZERO_OK);
	ck_assert_int_eq(zero_protect_file_read(&folder, &name, 1, got, 3), ZERO_OK);
	ck_assert_str_eq(got, "bc");
	ck_assert_int_ne(zero_protect_file_read(&folder, &name, 2, got, 3), ZERO_OK);
	zero_protect_folder_close(&folder);
	zero_protect_remove(base, "17", "0123456789abcdef0123456789abcdef");
	ck_assert(access(user_folder(), F_OK));
}
END_TEST

START_TEST(links_and_open_folders_are_refused)
{
	char other[256];

	snprintf(other, sizeof(other), "%s", in_base("other"));
	ck_assert(!mkdir(other, 0700));
	ck_assert(!symlink(other, user_folder()));
	is_refused("cannot open the folder");
	ck_assert(!unlink(user_folder()) && !mkdir(user_folder(), 0755));
	is_refused("has the mode 755");
	ck_assert(!rmdir(user_folder()));
	if (geteuid() == 0) {
		ck_assert(!mkdir(user_folder(), 0700) && !chown(user_folder(), 1, 1));
		is_refused("belongs to user 1");
	}
}
END_TEST

/* What is not a word of an identifier never becomes a path. */
START_TEST(names_of_the_environment_are_words)
{
	struct zero_protect_folder folder;

	setenv("SLURM_JOB_ID", "../../17", 1);
	setenv("ZERO_RUN", "a/b", 1);
	ck_assert_int_eq(zero_protect_folder_open(&folder, base, 5), ZERO_OK);
	ck_assert(strstr(folder.path, "/local/job-0000000000000005"));
	zero_protect_folder_close(&folder);
}
END_TEST

static void put_link(struct zero_protect_folder *folder, const struct zero_protect_name *name)
{
	char text[ZERO_PROTECT_NAME_BYTES], path[512];

	zero_protect_format(name, text);
	snprintf(path, sizeof(path), "%s/%s", folder->path, text);
	ck_assert(!symlink(in_base("target"), path));
}

START_TEST(files_are_no_links)
{
	struct zero_protect_name name = {.token = 2};
	struct zero_protect_folder folder;
	int fd;

	ck_assert_int_eq(zero_protect_folder_open(&folder, base, 5), ZERO_OK);
	put_link(&folder, &name);
	ck_assert_int_ne(zero_protect_file_open(&folder, &name, true, &fd), ZERO_OK);
	ck_assert_int_ne(zero_protect_file_open(&folder, &name, false, &fd), ZERO_OK);
	ck_assert(access(in_base("target"), F_OK));
	zero_protect_folder_close(&folder);
}
END_TEST

/* ---- connections ----------------------------------------------------------------------------- */

static int connect_to(const struct zero_address *address)
{
	struct sockaddr_in to = {.sin_family = AF_INET,
				 .sin_port = htons(address->port),
				 .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	ck_assert(fd >= 0 && !connect(fd, (struct sockaddr *)&to, sizeof(to)));
	return fd;
}

static int count_threads(void)
{
	DIR *folder = opendir("/proc/self/task");
	int count = 0;

	while (readdir(folder))
		count++;
	closedir(folder);
	return count - 2;
}

/* Another user, who has no cookie, takes a few threads and descriptors at most, and keeps nobody
   away who has it. */
START_TEST(strangers_take_little)
{
	enum { MANY = 200, FEW = 20 };
	struct zero_protect_folder folder;
	struct zero_protect_server server = {.folder = &folder, .rank = 3, .cookie = "secret"};
	struct zero_address own = {.node = "here"};
	struct zero_hello hello = {.magic = "zeronet", .version = 3, .wanted = 3};
	struct zero_hello_reply reply = {.rank = -1};
	int strangers[MANY], fd, before = count_threads(), most = 0;
	char why[200];

	ck_assert_int_eq(zero_protect_folder_open(&folder, base, 5), ZERO_OK);
	ck_assert(zero_address_listen(&server.listening, &own, NULL, why, sizeof(why)));
	ck_assert_int_eq(zero_protect_serve(&server), ZERO_OK);
	for (int i = 0; i < MANY; i++) {
		strangers[i] = connect_to(&own);
		usleep(1000);
		most = count_threads() > most ? count_threads() : most;
	}
	ck_assert_msg(most - before < FEW, "%d threads", most - before);
	fd = connect_to(&own);
	zero_hello_prove(&hello, server.cookie);
	ck_assert(zero_socket_send(fd, &hello, sizeof(hello), 0));
	ck_assert(zero_socket_receive(fd, &reply, sizeof(reply)));
	ck_assert_int_eq(reply.rank, 3);
	/* and it stays */
	for (int i = 0; i < MANY; i++) {
		close(strangers[i]);
		strangers[i] = connect_to(&own);
	}
	ck_assert(zero_socket_send(fd, &(struct zero_protect_request){.kind = ZERO_PROTECT_GET},
				   sizeof(struct zero_protect_request), 0));
	ck_assert(zero_socket_receive(fd, &(struct zero_protect_answer){0},
				      sizeof(struct zero_protect_answer)));
	for (int i = 0; i < MANY; i++)
		close(strangers[i]);
	close(fd);
	zero_protect_serve_end(&server);
	zero_protect_folder_close(&folder);
}
END_TEST

int main(void)
{
	TCase *tcase = tcase_create("protect"), *folders = tcase_create("folders");

	tcase_add_loop_test(tcase, partners_are_on_other_nodes, 0, 2);
	tcase_add_loop_test(tcase, each_is_a_partner_once, 0, 2);
	tcase_add_loop_test(tcase, partners_are_on_other_switches, 0, 2);
	tcase_add_loop_test(tcase, names_are_read_as_they_are_written, 0, 8);
	tcase_add_test(tcase, other_names_are_none_of_ours);
	tcase_add_checked_fixture(folders, begin, end);
	tcase_add_test(folders, a_folder_is_private_and_goes);
	tcase_add_test(folders, links_and_open_folders_are_refused);
	tcase_add_test(folders, names_of_the_environment_are_words);
	tcase_add_test(folders, files_are_no_links);
	tcase_add_test(folders, strangers_take_little);
	return run_cases(tcase, folders, NULL);
}
