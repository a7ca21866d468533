/* SPDX-License-Identifier: Apache-2.0 */
/* The control plane: ranks are processes on this machine. The results of their collectives are
   compared with what each rank computes alone. */
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include "control_ranks.h"

enum { TEAMS = 8, STEPS = 60 };

/* ---- data of ranks --------------------------------------------------------------------------- */

/* A rank's value in a step. All ranks can compute it. */
static uint64_t value_of(int step, int rank, size_t i)
{
	uint64_t state = seed ^ (uint64_t)step << 40 ^ (uint64_t)rank << 20 ^ i;

	return next_random(&state) >> (next_random(&state) % 60);
}

static void fill(uint8_t *data, size_t bytes, int step, int rank)
{
	uint64_t state = seed + (uint64_t)step * 1000 + (uint64_t)rank;

	for (size_t i = 0; i < bytes; i++)
		data[i] = i % 8 ? (uint8_t)(data[i - 1] * 5 + 1) : (uint8_t)next_random(&state);
}

/* ---- teams and their operations -------------------------------------------------------------- */

struct team {
	struct zero_net_team *team; /* NULL if this rank is not a member */
	int ranks[RANKS];
	size_t count;
};

/* Makes the same teams on all ranks: one of all ranks, then random ones, one of them twice. */
static void make_teams(struct zero_net *net, const struct trial *trial, struct team *teams,
		       uint64_t *state)
{
	for (int t = 0; t < TEAMS; t++) {
		struct team *team = &teams[t];
		bool member = false;

		team->team = NULL;
		team->count = 0;
		for (int rank = 0; rank < trial->world; rank++)
			if (!t || random_below(state, 3))
				team->ranks[team->count++] = rank;
		if (!team->count)
			team->ranks[team->count++] = (int)random_below(state, (size_t)trial->world);
		if (t == TEAMS - 1)
			*team = teams[t - 1];
		for (size_t i = 0; i < team->count; i++)
			member |= team->ranks[i] == trial->rank;
		team->team = NULL;
		if (member)
			check(!zero_net_ops.team_new(net, team->ranks, team->count, &team->team),
			      "%s", zero_last_error());
	}
	/* The team of all ranks may also be the one that joining made. */
	if (random_below(state, 2))
		teams[0].team = world_team;
}

static void expected_max(const struct team *team, int step, size_t count, uint64_t *values)
{
	memset(values, 0, ZERO_NET_VALUES * sizeof(*values));
	for (size_t i = 0; i < team->count; i++)
		for (size_t v = 0; v < count; v++) {
			uint64_t word = value_of(step, team->ranks[i], v);

			values[v] = word > values[v] ? word : values[v];
		}
}

static void begin_max(const struct team *team, int rank, int step, size_t count)
{
	uint64_t mine[ZERO_NET_VALUES];

	for (size_t v = 0; v < count; v++)
		mine[v] = value_of(step, rank, v);
	check(!zero_net_ops.begin_max(team->team, mine, count), "%s", zero_last_error());
	memset(mine, 0xee, sizeof(mine));
}

static void check_max(const struct team *team, int step, size_t count, const uint64_t *got)
{
	uint64_t want[ZERO_NET_VALUES];

	expected_max(team, step, count, want);
	for (size_t v = 0; v < count; v++)
		check(got[v] == want[v], "step %d, value %zu of %zu: %llx, not %llx", step, v,
		      count, (unsigned long long)got[v], (unsigned long long)want[v]);
}

static void try_max(const struct team *team, int rank, int step, size_t count)
{
	uint64_t got[ZERO_NET_VALUES];
	size_t which = 7;

	memset(got, 0xcc, sizeof(got));
	begin_max(team, rank, step, count);
	check(!zero_net_ops.finish_max(&team->team, 1, &which, got), "%s", zero_last_error());
	check(which == 0, "%zu", which);
	check_max(team, step, count, got);
}

static void try_allgather(const struct team *team, int rank, int step, size_t bytes)
{
	uint8_t *send = malloc(bytes + 1), *want = malloc(bytes + 1);
	uint8_t *recv = malloc(team->count * bytes + 1);

	memset(recv, 0xcc, team->count * bytes + 1);
	fill(send, bytes, step, rank);
	check(!zero_net_ops.allgather(team->team, send, recv, bytes), "%s", zero_last_error());
	for (size_t i = 0; i < team->count; i++) {
		fill(want, bytes, step, team->ranks[i]);
		check(!memcmp(recv + i * bytes, want, bytes), "step %d: rank %d's %zu bytes", step,
		      team->ranks[i], bytes);
	}
	check(recv[team->count * bytes] == 0xcc, "step %d: too much", step);
	free(send);
	free(want);
	free(recv);
}

static void try_broadcast(const struct team *team, int rank, int step, size_t bytes, size_t root)
{
	uint8_t *data = malloc(bytes + 1), *want = malloc(bytes + 1);

	memset(data, 0xcc, bytes + 1);
	fill(want, bytes, step, team->ranks[root]);
	if (rank == team->ranks[root])
		memcpy(data, want, bytes);
	check(!zero_net_ops.broadcast(team->team, data, bytes, (int)root), "%s", zero_last_error());
	check(!memcmp(data, want, bytes), "step %d: %zu bytes of %zu", step, bytes, root);
	check(data[bytes] == 0xcc, "step %d: too much", step);
	free(data);
	free(want);
}

/* Often small, sometimes more than the buffers of a connection hold. */
static size_t random_bytes(uint64_t *state)
{
	static const size_t limits[] = {4, 100, 5000, 5000, 300000};

	return random_below(state, limits[random_below(state, 5)]);
}

/* Begins a maximum in all teams of this rank, in random order. Half of the ranks finish whichever
   is done first; the others finish them one by one. */
static void try_many(const struct team *teams, const struct trial *trial, int step, size_t count)
{
	uint64_t own = seed + (uint64_t)step * 64 + (uint64_t)trial->rank, got[ZERO_NET_VALUES];
	struct zero_net_team *open[TEAMS];
	size_t begun[TEAMS], left = 0, which;

	for (size_t t = 0; t < TEAMS; t++)
		if (teams[t].team)
			begun[left++] = t;
	for (size_t i = left; i > 1; i--) {
		size_t other = random_below(&own, i), t = begun[other];

		begun[other] = begun[i - 1];
		begun[i - 1] = t;
	}
	for (size_t i = 0; i < left; i++) {
		begin_max(&teams[begun[i]], trial->rank, step, count);
		open[i] = teams[begun[i]].team;
	}
	while (left) {
		size_t some = trial->rank % 2 ? left : 1;

		check(!zero_net_ops.finish_max(open, some, &which, got), "%s", zero_last_error());
		check(which < some, "%zu of %zu", which, some);
		check_max(&teams[begun[which]], step, count, got);
		begun[which] = begun[--left];
		open[which] = open[left];
	}
}

static void random_steps(struct zero_net *net, const struct trial *trial)
{
	uint64_t state = seed, own = seed + (uint64_t)trial->rank;
	struct team teams[TEAMS];

	make_teams(net, trial, teams, &state);
	for (int step = 0; step < STEPS; step++) {
		const struct team *team = &teams[random_below(&state, TEAMS)];
		size_t what = random_below(&state, 4),
		       count = random_below(&state, ZERO_NET_VALUES + 1);
		size_t bytes = random_bytes(&state), root = random_below(&state, team->count);

		if (!random_below(&own, 50))
			sleep_for(0.01);
		if (what == 0)
			try_many(teams, trial, step, count);
		else if (team->team && what == 1)
			try_max(team, trial->rank, step, count);
		else if (team->team && what == 2)
			try_allgather(team, trial->rank, step, bytes);
		else if (team->team)
			try_broadcast(team, trial->rank, step, bytes, root);
	}
}

START_TEST(all_agree)
{
	static const int worlds[] = {1, 2, 3, 12, 2, 7, RANKS};
	struct trial trial = {.program = random_steps,
			      .world = worlds[_i],
			      .elsewhere = _i >= 4,
			      .seconds = HANG};

	seed += (uint64_t)_i;
	run(&trial, -1);
}
END_TEST

/* A connection to a node that is down ends. */
static void check_sockets(struct zero_net *net)
{
	pthread_mutex_lock(&net->lock);
	for (const struct zero_link *link = net->links; link; link = link->next) {
		unsigned timeout_ms = 0;
		socklen_t size = sizeof(timeout_ms);

		check(!getsockopt(link->fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &timeout_ms, &size) &&
			      timeout_ms == 9000,
		      "%u ms to rank %d", timeout_ms, link->rank);
	}
	pthread_mutex_unlock(&net->lock);
}

/* Megabytes are sent to a rank that waits for them to be sent. */
static void large_steps(struct zero_net *net, const struct trial *trial)
{
	struct team all = {.team = world_team, .count = (size_t)trial->world};

	for (int rank = 0; rank < trial->world; rank++)
		all.ranks[rank] = rank;
	check_sockets(net);
	while (trial->rank == trial->odd && !atomic_load(&shared->done))
		sleep_for(0.001);
	for (int step = 0; step < 3; step++) {
		try_broadcast(&all, trial->rank, step, 8 << 20, (size_t)step % all.count);
		/* What it sends is more than connections hold, and it waits for none of them. */
		if (!trial->rank)
			atomic_store(&shared->done, 1);
	}
	try_allgather(&all, trial->rank, 3, 1 << 17);
}

START_TEST(large)
{
	/* Two levels. */
	struct trial trial = {.program = large_steps, .world = 13, .odd = 1, .seconds = HANG};

	run(&trial, -1);
}
END_TEST

/* ---- connections that are not of the job ----------------------------------------------------- */

static int dial(int rank)
{
	struct sockaddr_in place = {.sin_family = AF_INET,
				    .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
				    .sin_port = htons(shared->at[rank].port)};
	int fd = socket(AF_INET, SOCK_STREAM, 0);

	ck_assert_int_ge(fd, 0);
	ck_assert_msg(!connect(fd, (void *)&place, sizeof(place)), "%s", strerror(errno));
	return fd;
}

/* The rank sends no answer and closes the connection. */
static void must_end(int fd, const char *who)
{
	struct pollfd one = {.fd = fd, .events = POLLIN};
	char byte;

	ck_assert_msg(poll(&one, 1, HANG * 1000) == 1, "%s: still connected", who);
	ck_assert_msg(recv(fd, &byte, 1, 0) <= 0, "%s: is answered", who);
	close(fd);
}

/* Hellos are late when time passes, and a new connection has the rank look at its clock. */
static void wait_for_end(int fd)
{
	struct pollfd one = {.fd = fd, .events = POLLIN};

	while (poll(&one, 1, 10) < 1) {
		advance_clock(6);
		close(dial(0));
	}
	must_end(fd, "an idle connection");
}

static struct zero_hello good_hello(int from, int to)
{
	struct zero_hello hello = {.magic = "zeronet", .version = 3, .rank = from, .wanted = to};

	zero_hello_prove(&hello, shared->at[0].cookie);
	return hello;
}

static void send_bytes(int fd, const void *data, size_t bytes)
{
	/* The rank may close the connection before all bytes are sent. */
	send(fd, data, bytes, MSG_NOSIGNAL);
}

/* Hellos with one wrong field each. */
static void wrong_hellos(int to)
{
	struct zero_hello hello[7];
	int fds[7];

	for (int i = 0; i < 7; i++)
		hello[i] = good_hello(2, to);
	hello[0].magic[0] = 'Z';
	hello[1].version = 1;
	hello[3].wanted = to + 1;
	hello[4].rank = to;
	hello[5].rank = 1000;
	hello[6].rank = -1;
	for (int i = 0; i < 7; i++)
		zero_hello_prove(&hello[i], shared->at[0].cookie);
	hello[2].proof[7] ^= 1;
	for (int i = 0; i < 7; i++) {
		fds[i] = dial(to);
		send_bytes(fds[i], &hello[i], sizeof(hello[i]));
	}
	for (int i = 0; i < 7; i++)
		must_end(fds[i], "a wrong hello");
}

static void send_bad_hellos(const struct trial *trial)
{
	struct zero_hello hello;
	uint8_t noise[3000];
	uint64_t state = seed;
	int idle[100], half, garbled, deaf, answered;

	get_address((void *)trial, 0, &(struct zero_address){0});
	hello = good_hello(1, 0);
	for (size_t i = 0; i < sizeof(noise); i++)
		noise[i] = (uint8_t)next_random(&state);
	for (int i = 0; i < 100; i++)
		idle[i] = dial(0);
	half = dial(0);
	send_bytes(half, &hello, sizeof(hello) / 2);
	garbled = dial(0);
	send_bytes(garbled, noise, sizeof(noise));
	/* One valid peer closes its connection after the answer, another never reads the answer. */
	answered = dial(0);
	send_bytes(answered, &hello, sizeof(hello));
	deaf = dial(1);
	hello = good_hello(2, 1);
	send_bytes(deaf, &hello, sizeof(hello));
	ck_assert_int_eq(recv(answered, noise, sizeof(noise), 0), sizeof(struct zero_hello_reply));
	atomic_store(&shared->done, 1);
	close(answered);
	wrong_hellos(0);
	wrong_hellos(1);
	must_end(garbled, "noise");
	for (int i = 0; i < 100; i++)
		wait_for_end(idle[i]);
	wait_for_end(half);
	close(deaf);
	atomic_store(&shared->done, 2);
}

static void steps_among_bad_hellos(struct zero_net *net, const struct trial *trial)
{
	struct zero_net_team *all = world_team;
	uint64_t running = 1;
	int pending = 0;
	size_t which;

	while (atomic_load(&shared->done) < 1)
		sleep_for(0.001);
	/* Only so many may be about to say hello. */
	pthread_mutex_lock(&net->lock);
	for (int i = 0; i < ZERO_NET_PENDING; i++)
		pending += net->pending[i].fd >= 0;
	pthread_mutex_unlock(&net->lock);
	check(pending <= 64, "%d pending connections", pending);
	random_steps(net, trial);
	/* The ranks continue until all of them see that the parent is done. */
	while (running) {
		running = atomic_load(&shared->done) < 2;
		check(!zero_net_ops.begin_max(all, &running, 1), "%s", zero_last_error());
		check(!zero_net_ops.finish_max(&all, 1, &which, &running), "%s", zero_last_error());
		sleep_for(0.001);
	}
}

START_TEST(bad_hellos)
{
	struct trial trial = {.program = steps_among_bad_hellos, .world = 4, .seconds = HANG};

	trial.beside = send_bad_hellos;
	run(&trial, -1);
}
END_TEST

/* ---- networks -------------------------------------------------------------------------------- */

static zero_status get_elsewhere(void *context, int rank, struct zero_address *address)
{
	(void)rank;
	*address = *(const struct zero_address *)context;
	return ZERO_OK;
}

START_TEST(offered)
{
	struct zero_net_config config = {
		.rank = 1, .world = 2, .seconds = 0.1, .address = get_elsewhere};
	struct zero_address own, other;
	struct zero_net *net = zero_net_new(), *alone;
	struct zero_net_team *team;

	setenv("NCCL_SOCKET_IFNAME", "=lo", 1);
	ck_assert(!zero_net_ops.listen(net, &own));
	ck_assert_int_ge(own.count, 1);
	ck_assert_uint_eq(own.at[0].family, 4);
	ck_assert(!memcmp(own.at[0].bytes, "\x7f\0\0\1", 4));
	ck_assert_uint_ne(own.port, 0);
	zero_net_close(net);
	setenv("NCCL_SOCKET_IFNAME", "no-such", 1);
	alone = zero_net_new();
	ck_assert(!zero_net_ops.listen(alone, &other));
	ck_assert_uint_eq(other.count, 0);
	ck_assert(memcmp(own.cookie, other.cookie, sizeof(own.cookie)));
	unsetenv("NCCL_SOCKET_IFNAME");
	net = zero_net_new();
	ck_assert(!zero_net_ops.listen(net, &own));
	snprintf(other.node, sizeof(other.node), "elsewhere");
	config.context = &other;
	ck_assert(!zero_net_ops.join(net, &config));
	ck_assert_int_eq(zero_net_ops.team_new(net, NULL, 0, &team), ZERO_E_COMM);
	ck_assert_msg(!strncmp(zero_last_error(), "rank 0 (node elsewhere) offers no address", 41),
		      "%s", zero_last_error());
	ck_assert_int_eq(zero_last_error_rank(), 0);
	ck_assert_int_ne(zero_last_error_status(), ZERO_OK);
	zero_net_close(net);
	zero_net_close(alone);
	zero_net_close(NULL);
}
END_TEST

int main(void)
{
	TCase *tcase = tcase_create("control");

	tcase_add_test(tcase, offered);
	tcase_add_loop_test(tcase, all_agree, 0, 7);
	tcase_add_test(tcase, large);
	tcase_add_test(tcase, bad_hellos);
	return run_all(tcase);
}
