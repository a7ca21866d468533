/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Device code on the host: the sources of CUDA kernels, compiled by an ordinary C++17 compiler, run
 * here thread by thread. What is tested is their logic and, as arithmetic is IEEE on both sides,
 * their bits; not their speed. Compile with -ffp-contract=off where nvcc gets -fmad=false.
 *
 *	#include "double/emulate.h"
 *	#include "../kernels/adamw.cu"
 *	...
 *	zero_launch(zero_device_adamw, blocks, threads, args);    kernel<<<blocks, threads>>>(args)
 *
 * A kernel's other parameters follow in the same way; blocks and threads are numbers or dim3. It is
 * done when zero_launch returns. Several threads of the program may launch at a time.
 *
 * Blocks run one after the other, and of a block a thread runs until it waits for others: at
 * __syncthreads or a function of its warp (__shfl_*_sync, __syncwarp, __ballot_sync ...). It then
 * rests on a stack of its own; a kernel that never waits costs no more than a call for each thread.
 * Blocks and threads run in their order, or shuffled if zero_emulation::order is not 0: a kernel
 * that relies on an order, or lacks a barrier, gives other values then. Threads that wait for what
 * cannot come (a barrier in one branch alone, lanes of a mask that have returned) end the program
 * with a sentence.
 *
 * Here are the qualifiers, vector types, barriers, shuffles and votes, atomics, cached loads and
 * stores, and those intrinsics on bits and rounding that our kernels use; __half and __nv_bfloat16
 * as bits with conversions that give the device's own results, NaNs (0x7fff) too. Add what is
 * missing. Not here: __shared__ memory whose size is known at launch only, __noinline__ (a word of
 * the C library), fast approximations (__expf is expf), launches from the device.
 */
#ifndef EMULATE_H
#define EMULATE_H

#include <functional>
#include <memory>
#include <vector>

#include <ucontext.h>

#include "emulate_words.h"

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/common_interface_defs.h>
#endif

struct uint3 {
	unsigned int x, y, z;
};

struct dim3 {
	unsigned int x, y, z;

	constexpr dim3(unsigned int of_x = 1, unsigned int of_y = 1, unsigned int of_z = 1)
	    : x(of_x), y(of_y), z(of_z)
	{
	}
};

inline thread_local uint3 threadIdx, blockIdx;
inline thread_local dim3 blockDim, gridDim;
static constexpr int warpSize = 32;

/* ---- blocks and threads ---------------------------------------------------------------------- */

namespace zero_emulation
{

/* Of the calling thread's launches: 0, or a seed that blocks and threads are shuffled by. */
inline thread_local uint64_t order;
/* If some_count is not 0, only so many blocks of a grid run, from number some_first on: what a grid
   for 2^33 elements does at their end can be tested without all the others. */
inline thread_local size_t some_first, some_count;

enum state : char { TO_COME, RUNS, AT_BLOCK, AT_WARP, RETURNED };

struct fiber {
	static constexpr size_t bytes = 256 * 1024; /* of which it touches what it needs */

	ucontext_t context;
	std::unique_ptr<char[]> stack;
	void *fake = nullptr; /* AddressSanitizer's */
};

struct device_thread {
	state now;
	unsigned int mask; /* AT_WARP: the lanes that it waits for */
	const char *what;  /* the function that it waits in */
	fiber *on;
	unsigned char shows[16], seen[32][16]; /* to the other lanes, and of each of them */
};

struct block {
	std::vector<device_thread> threads;
	std::vector<unsigned int> to_start, ready; /* threads, the next one last */
	unsigned int running, waiting, returned;
	unsigned int votes[3]; /* or, and, count of __syncthreads_* */
	unsigned int vote_or, vote_and, vote_count;
	std::function<void()> run;

	std::vector<std::unique_ptr<fiber>> fibers;
	std::vector<fiber *> idle;
	fiber *current;
	ucontext_t home;
	void *home_fake;
	const void *home_stack;
	size_t home_bytes;
	uint64_t state_of_order;
};

inline thread_local block self;

static inline unsigned int draw(uint64_t *state, size_t below)
{
	uint64_t z = *state += 0x9e3779b97f4a7c15;

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
	z = (z ^ z >> 27) * 0x94d049bb133111eb;
	return static_cast<unsigned int>((z ^ z >> 31) % below);
}

[[noreturn]] static inline void stuck(const char *why)
{
	int said = 0;

	fprintf(stderr, "emulated kernel, block (%u, %u, %u): %s\n", blockIdx.x, blockIdx.y,
		blockIdx.z, why);
	for (size_t t = 0; t < self.threads.size() && said < 8; t++) {
		const device_thread *thread = &self.threads[t];

		if (thread->now == AT_BLOCK || thread->now == AT_WARP)
			said += fprintf(stderr, "  thread %zu waits in %s\n", t, thread->what) > 0;
	}
	abort();
}

static inline void to_fiber(fiber *next)
{
	self.current = next;
#ifdef __SANITIZE_ADDRESS__
	__sanitizer_start_switch_fiber(&self.home_fake, next->stack.get(), fiber::bytes);
#endif
	swapcontext(&self.home, &next->context);
#ifdef __SANITIZE_ADDRESS__
	__sanitizer_finish_switch_fiber(self.home_fake, nullptr, nullptr);
#endif
}

static inline void to_home(void)
{
	fiber *from = self.current;

#ifdef __SANITIZE_ADDRESS__
	__sanitizer_start_switch_fiber(&from->fake, self.home_stack, self.home_bytes);
#endif
	swapcontext(&from->context, &self.home);
#ifdef __SANITIZE_ADDRESS__
	__sanitizer_finish_switch_fiber(from->fake, &self.home_stack, &self.home_bytes);
#endif
}

static inline void enter(unsigned int thread)
{
	const unsigned int x = blockDim.x, y = blockDim.y;

	self.running = thread;
	threadIdx = uint3{thread % x, thread / x % y, thread / x / y};
}

static inline void release(unsigned int thread)
{
	self.threads[thread].now = RUNS;
	self.ready.push_back(thread);
	self.waiting--;
}

/* All that have not returned are there. */
static inline void meet_block(void)
{
	unsigned int there = 0;

	for (const device_thread &thread : self.threads)
		there += thread.now == AT_BLOCK;
	if (!there || there + self.returned < self.threads.size())
		return;
	self.vote_or = self.votes[0];
	self.vote_and = self.votes[1];
	self.vote_count = self.votes[2];
	self.votes[0] = self.votes[2] = 0;
	self.votes[1] = 1;
	for (unsigned int t = static_cast<unsigned int>(self.threads.size()); t-- > 0;)
		release(t);
}

/* All lanes of the mask are there. */
static inline void meet_warp(unsigned int thread)
{
	const unsigned int first = thread / 32 * 32, mask = self.threads[thread].mask;

	for (unsigned int lane = 0; lane < 32; lane++) {
		if (!(mask >> lane & 1))
			continue;
		const device_thread *other = &self.threads[first + lane];

		if (other->now == RETURNED)
			stuck("a lane of the mask has returned");
		if (other->now != AT_WARP)
			return;
		if (other->mask != mask)
			stuck("lanes of one warp wait with different masks");
	}
	/* Copied now: any of them may show its next value before another has looked. */
	for (unsigned int lane = 32; lane-- > 0;) {
		if (!(mask >> lane & 1))
			continue;
		for (unsigned int other = 0; other < 32; other++)
			if (mask >> other & 1)
				memcpy(self.threads[first + lane].seen[other],
				       self.threads[first + other].shows, 16);
		release(first + lane);
	}
}

/* Runs threads until none is left to start; another fiber does when one of them waits. */
static void work(void)
{
#ifdef __SANITIZE_ADDRESS__
	__sanitizer_finish_switch_fiber(nullptr, &self.home_stack, &self.home_bytes);
#endif
	for (;;) {
		while (!self.to_start.empty()) {
			const unsigned int thread = self.to_start.back();

			self.to_start.pop_back();
			enter(thread);
			self.threads[thread].now = RUNS;
			self.run();
			self.threads[self.running].now = RETURNED;
			self.returned++;
			if (self.waiting)
				meet_block();
		}
		self.idle.push_back(self.current);
		to_home();
	}
}

static inline void wait_as(state where, unsigned int mask, const char *what)
{
	device_thread *thread = &self.threads[self.running];

	thread->now = where;
	thread->mask = mask;
	thread->what = what;
	thread->on = self.current;
	self.waiting++;
	if (where == AT_BLOCK)
		meet_block();
	else
		meet_warp(self.running);
	to_home();
}

static inline fiber *idle_fiber(void)
{
	if (self.idle.empty()) {
		std::unique_ptr<fiber> made(new fiber);

		made->stack.reset(new char[fiber::bytes]);
		getcontext(&made->context);
		made->context.uc_stack.ss_sp = made->stack.get();
		made->context.uc_stack.ss_size = fiber::bytes;
		made->context.uc_link = nullptr;
		makecontext(&made->context, work, 0);
		self.idle.push_back(made.get());
		self.fibers.push_back(std::move(made));
	}
	fiber *next = self.idle.back();
	self.idle.pop_back();
	return next;
}

static inline void run_block(void)
{
	const unsigned int count = static_cast<unsigned int>(self.threads.size());

	self.votes[0] = self.votes[2] = self.returned = self.waiting = 0;
	self.votes[1] = 1;
	for (unsigned int t = count; t-- > 0;) {
		self.threads[t].now = TO_COME;
		self.to_start.push_back(t);
	}
	for (unsigned int t = count; order && t > 1; t--)
		std::swap(self.to_start[t - 1], self.to_start[draw(&self.state_of_order, t)]);
	while (self.returned < count) {
		if (!self.to_start.empty()) {
			to_fiber(idle_fiber());
			continue;
		}
		if (self.ready.empty())
			stuck("its threads wait for each other");
		if (order)
			std::swap(self.ready.back(),
				  self.ready[draw(&self.state_of_order, self.ready.size())]);
		const unsigned int thread = self.ready.back();
		self.ready.pop_back();
		enter(thread);
		to_fiber(self.threads[thread].on);
	}
}

static inline void run_grid(dim3 blocks, dim3 threads)
{
	const size_t count = static_cast<size_t>(blocks.x) * blocks.y * blocks.z;
	const unsigned int size = threads.x * threads.y * threads.z;

	if (!count || !size || size > 1024) {
		fprintf(stderr, "emulated launch of %zu blocks of %u threads\n", count, size);
		abort();
	}
	gridDim = blocks;
	blockDim = threads;
	self.threads.resize(size);
	self.state_of_order = order;
	std::vector<size_t> turn(some_count ? some_count : count);
	for (size_t b = 0; b < turn.size(); b++)
		turn[b] = some_count ? some_first + b : b;
	for (size_t b = turn.size(); order && b > 1; b--)
		std::swap(turn[b - 1], turn[draw(&self.state_of_order, b)]);
	for (size_t b : turn) {
		blockIdx = uint3{static_cast<unsigned int>(b % blocks.x),
				 static_cast<unsigned int>(b / blocks.x % blocks.y),
				 static_cast<unsigned int>(b / blocks.x / blocks.y)};
		run_block();
	}
	self.run = nullptr;
}

static inline unsigned int lane(void)
{
	return self.running % 32;
}

static inline unsigned int existing(unsigned int mask)
{
	const size_t left = self.threads.size() - self.running / 32 * 32;

	return left < 32 ? mask & ((1u << left) - 1) : mask;
}

/* What the lanes showed: each is one of those that the thread waited for. */
template <class T> struct shown {
	const device_thread *thread;

	T operator()(unsigned int lane) const
	{
		T value;

		if (!(thread->mask >> lane & 1))
			stuck("a thread asks for the value of a lane that is not in its mask");
		memcpy(&value, thread->seen[lane], sizeof(T));
		return value;
	}
};

/* Shows `value` to the lanes of the mask, and waits for theirs. */
template <class T> static inline shown<T> show(unsigned int mask, T value, const char *what)
{
	static_assert(sizeof(T) <= 16 && std::is_trivially_copyable<T>::value, "a plain value");
	device_thread *thread = &self.threads[self.running];

	if (!(mask >> lane() & 1))
		stuck("a thread calls a function of its warp with a mask that it is not in");
	memcpy(thread->shows, &value, sizeof(T));
	wait_as(AT_WARP, existing(mask), what);
	return shown<T>{thread};
}

} // namespace zero_emulation

template <class... P, class... A>
static inline void zero_launch(void (*kernel)(P...), dim3 blocks, dim3 threads, const A &...args)
{
	zero_emulation::self.run = [kernel, &args...] { kernel(args...); };
	zero_emulation::run_grid(blocks, threads);
}

/* ---- barriers, shuffles, votes --------------------------------------------------------------- */

static inline void __syncthreads(void)
{
	zero_emulation::wait_as(zero_emulation::AT_BLOCK, 0, "__syncthreads");
}

namespace zero_emulation
{

static inline void vote(int is, const char *what)
{
	self.votes[0] |= is != 0;
	self.votes[1] &= is != 0;
	self.votes[2] += is != 0;
	wait_as(AT_BLOCK, 0, what);
}

} // namespace zero_emulation

static inline int __syncthreads_or(int is)
{
	zero_emulation::vote(is, "__syncthreads_or");
	return static_cast<int>(zero_emulation::self.vote_or);
}

static inline int __syncthreads_and(int is)
{
	zero_emulation::vote(is, "__syncthreads_and");
	return static_cast<int>(zero_emulation::self.vote_and);
}

static inline int __syncthreads_count(int is)
{
	zero_emulation::vote(is, "__syncthreads_count");
	return static_cast<int>(zero_emulation::self.vote_count);
}

static inline void __syncwarp(unsigned int mask = 0xffffffff)
{
	zero_emulation::show(mask, 0, "__syncwarp");
}

/* A lane that would read beyond its `width` lanes gets its own value, as on the device. */
template <class T> static inline T __shfl_sync(unsigned int mask, T value, int from, int width = 32)
{
	const unsigned int lane = zero_emulation::lane(), w = static_cast<unsigned int>(width);

	return zero_emulation::show(mask, value, "__shfl_sync")(
		lane / w * w + static_cast<unsigned int>(from) % w);
}

template <class T>
static inline T __shfl_xor_sync(unsigned int mask, T value, int bits, int width = 32)
{
	const unsigned int lane = zero_emulation::lane(), w = static_cast<unsigned int>(width);
	const unsigned int from = lane ^ static_cast<unsigned int>(bits);

	return zero_emulation::show(mask, value,
				    "__shfl_xor_sync")(from < (lane / w + 1) * w ? from : lane);
}

template <class T>
static inline T __shfl_down_sync(unsigned int mask, T value, unsigned int by, int width = 32)
{
	const unsigned int lane = zero_emulation::lane(), w = static_cast<unsigned int>(width);

	return zero_emulation::show(mask, value,
				    "__shfl_down_sync")(lane % w + by < w ? lane + by : lane);
}

template <class T>
static inline T __shfl_up_sync(unsigned int mask, T value, unsigned int by, int width = 32)
{
	const unsigned int lane = zero_emulation::lane(), w = static_cast<unsigned int>(width);

	return zero_emulation::show(mask, value,
				    "__shfl_up_sync")(lane % w >= by ? lane - by : lane);
}

static inline unsigned int __ballot_sync(unsigned int mask, int is)
{
	const auto of = zero_emulation::show(mask, is, "__ballot_sync");
	unsigned int votes = 0;

	mask = zero_emulation::existing(mask);
	for (unsigned int i = 0; i < 32; i++)
		if (mask >> i & 1 && of(i))
			votes |= 1u << i;
	return votes;
}

static inline int __any_sync(unsigned int mask, int is)
{
	return __ballot_sync(mask, is) != 0;
}

static inline int __all_sync(unsigned int mask, int is)
{
	return __ballot_sync(mask, is) == zero_emulation::existing(mask);
}

static inline void __threadfence(void)
{
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
}

static inline void __threadfence_block(void)
{
}

#endif
