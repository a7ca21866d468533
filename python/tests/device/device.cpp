// SPDX-License-Identifier: Apache-2.0
/*
 * A device for torch on machines without GPUs: PrivateUse1 over the stand-in for CUDA's driver
 * (tests/double/cuda.h), whose memory, streams and events it has. An operation is the CPU's, on
 * copies, and each copy is a node of the current stream, which it holds meanwhile: so the
 * stand-in's clocks see what another stream does with the same bytes without an order between
 * them, whatever the timing.
 */
#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/Allocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <cuda.h>
#include <dlfcn.h>
#include <atomic>
#include <future>
#include <mutex>
#include <string>
#include <vector>

using at::Tensor;
using c10::Device;
using c10::DeviceIndex;
using c10::Stream;

static constexpr auto KIND = c10::DeviceType::PrivateUse1;

/* ---- the driver ------------------------------------------------------------------------------ */

static void need(CUresult result, const char *what)
{
	TORCH_CHECK(result == CUDA_SUCCESS, what, " returned ", (int)result);
}

/* The name is looked for in the stand-in, which is loaded by its name as the library does. */
template <typename F> static F *find(const char *name)
{
	static void *library = dlopen("libcuda.so.1", RTLD_NOW);
	void *found = library ? dlsym(library, name) : nullptr;

	TORCH_CHECK(found, "the stand-in for CUDA has no ", name);
	return (F *)found;
}

#define CALL(name, ...)                                                \
	do {                                                           \
		static auto *const function = find<decltype(name)>(#name); \
		enter();                                               \
		need(function(__VA_ARGS__), #name);                    \
	} while (0)

/* The context of the device is current in each thread that calls. */
static void enter()
{
	static thread_local bool entered;
	static CUcontext context = [] {
		CUcontext made;

		need(find<decltype(cuInit)>("cuInit")(0), "cuInit");
		need(find<decltype(cuDevicePrimaryCtxRetain)>("cuDevicePrimaryCtxRetain")(&made, 0),
		     "cuDevicePrimaryCtxRetain");
		return made;
	}();

	if (!entered)
		need(find<CUresult(CUcontext)>("cuCtxPushCurrent_v2")(context), "cuCtxPushCurrent");
	entered = true;
}

static std::mutex lock;
static std::vector<CUstream> streams; /* by their ids in torch; 0 is the default one */
static thread_local int64_t current;

static int64_t new_stream()
{
	std::lock_guard<std::mutex> guard(lock);
	CUstream stream;

	CALL(cuStreamCreateWithPriority, &stream, CU_STREAM_NON_BLOCKING, 0);
	streams.push_back(stream);
	return (int64_t)streams.size() - 1;
}

static CUstream stream_of(int64_t id)
{
	std::lock_guard<std::mutex> guard(lock);

	return streams.at((size_t)id);
}

static void synchronize(int64_t id)
{
	CALL(cuStreamSynchronize, stream_of(id));
}

static CUevent record(CUstream stream)
{
	CUevent event;

	CALL(cuEventCreate, &event, CU_EVENT_DISABLE_TIMING);
	CALL(cuEventRecord, event, stream);
	return event;
}

static void delete_event(CUevent event)
{
	static auto *const function = find<CUresult(CUevent)>("cuEventDestroy_v2");

	enter();
	need(function(event), "cuEventDestroy");
}

/* ---- memory: in the order of the stream that is current when it is allocated ----------------- */

static std::atomic<size_t> held; /* bytes of all blocks */

struct Block {
	CUdeviceptr data;
	size_t bytes;
	CUstream stream;
	std::vector<CUstream> users; /* see record_stream */
};

static void free_block(void *context)
{
	Block *block = (Block *)context;

	for (CUstream user : block->users) {
		CUevent event = record(user);

		CALL(cuStreamWaitEvent, block->stream, event, 0);
		delete_event(event);
	}
	CALL(cuMemFreeAsync, block->data, block->stream);
	held -= block->bytes;
	delete block;
}

struct Memory final : c10::Allocator {
	c10::DataPtr allocate(size_t bytes) override
	{
		static CUmemoryPool pool = [] {
			CUmemPoolProps props = {};
			CUmemoryPool made;

			props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
			props.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
			CALL(cuMemPoolCreate, &made, &props);
			return made;
		}();
		CUstream stream = stream_of(current);
		CUdeviceptr data;

		if (!bytes)
			return {nullptr, Device(KIND, 0)};
		CALL(cuMemAllocFromPoolAsync, &data, bytes, pool, stream);
		held += bytes;
		return {(void *)data, new Block{data, bytes, stream, {}}, free_block, Device(KIND, 0)};
	}

	c10::DeleterFnPtr raw_deleter() const override
	{
		return free_block;
	}

	void copy_data(void *, const void *, size_t) const override
	{
		TORCH_CHECK(false, "copy_data");
	}
};

static Memory memory;
REGISTER_ALLOCATOR(KIND, &memory);

/* ---- the guard of its streams, and hooks ----------------------------------------------------- */

struct Guard final : c10::impl::DeviceGuardImplInterface {
	static Stream make(int64_t id)
	{
		return Stream(Stream::UNSAFE, Device(KIND, 0), id);
	}

	c10::DeviceType type() const override { return KIND; }
	Device exchangeDevice(Device) const override { return Device(KIND, 0); }
	Device getDevice() const override { return Device(KIND, 0); }
	void setDevice(Device) const override {}
	void uncheckedSetDevice(Device) const noexcept override {}
	Stream getStream(Device) const override { return make(current); }
	Stream getDefaultStream(Device) const override { return make(0); }
	Stream getNewStream(Device, int = 0) const override { return make(new_stream()); }
	Stream getStreamFromGlobalPool(Device, bool = false) const override
	{
		return make(new_stream());
	}
	void *getStreamNativeHandle(const Stream stream) const override
	{
		return stream_of(stream.id());
	}
	DeviceIndex deviceCount() const noexcept override { return 1; }
	bool queryEvent(void *) const override { return true; }
	bool queryStream(const Stream &) const override { return false; }
	void synchronizeStream(const Stream &stream) const override { synchronize(stream.id()); }
	void synchronizeDevice(const DeviceIndex) const override { synchronize(current); }

	Stream exchangeStream(Stream stream) const override
	{
		int64_t before = current;

		current = stream.id();
		return make(before);
	}

	void record(void **event, const Stream &stream, const DeviceIndex,
		    const c10::EventFlag) const override
	{
		if (*event)
			delete_event((CUevent)*event);
		*event = ::record(stream_of(stream.id()));
	}

	void block(void *event, const Stream &stream) const override
	{
		if (event)
			CALL(cuStreamWaitEvent, stream_of(stream.id()), (CUevent)event, 0);
	}

	void destroyEvent(void *event, const DeviceIndex) const noexcept override
	{
		if (event)
			delete_event((CUevent)event);
	}

	void recordDataPtrOnStream(const c10::DataPtr &data, const Stream &stream) const override
	{
		Block *block = (Block *)data.get_context();
		CUstream user = stream_of(stream.id());

		if (data.get_deleter() == free_block && user != block->stream)
			block->users.push_back(user);
	}
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

struct Hooks final : at::PrivateUse1HooksInterface {
	bool isBuilt() const override { return true; }
	bool isAvailable() const override { return true; }
	bool hasPrimaryContext(DeviceIndex) const override { return true; }
	DeviceIndex deviceCount() const override { return 1; }
	DeviceIndex getCurrentDevice() const override { return 0; }
	void setCurrentDevice(DeviceIndex) const override {}
	DeviceIndex exchangeDevice(DeviceIndex) const override { return 0; }
	DeviceIndex maybeExchangeDevice(DeviceIndex) const override { return 0; }
	const at::Generator &getDefaultGenerator(DeviceIndex) const override
	{
		static at::Generator made = at::globalContext().defaultGenerator(at::kCPU);
		return made;
	}
};

/* ---- operations ------------------------------------------------------------------------------ */

/* What a copy reads and writes on the device, from its node's beginning to its end. */
struct Node {
	struct Operand {
		CUdeviceptr data;
		size_t bytes;
		bool write;
		void *host; /* where the stand-in has it */
	};

	std::vector<Operand> operands;
	std::promise<void> begun, end;

	static void run(void *context)
	{
		static auto *const reach = find<void *(CUdeviceptr, size_t, bool)>("double_cuda_reach");
		Node *node = (Node *)context;
		auto end = node->end.get_future();

		for (Operand &o : node->operands)
			o.host = reach(o.data, o.bytes, o.write);
		node->begun.set_value();
		end.wait();
		delete node;
	}
};

static size_t extent(const Tensor &tensor)
{
	size_t last = 0;

	for (int64_t i = 0; i < tensor.dim(); i++)
		last += (size_t)((tensor.size(i) - 1) * tensor.stride(i));
	return tensor.numel() ? (last + 1) * tensor.element_size() : 0;
}

static thread_local std::string operation; /* of which a copy is a part; "": it is the whole */

static void add(Node *node, const Tensor &tensor, bool write)
{
	if (tensor.device().type() == KIND)
		node->operands.push_back(
			{(CUdeviceptr)tensor.const_data_ptr(), extent(tensor), write, nullptr});
}

/* The tensor in the host's memory, as the operand says that is next. */
static Tensor shown(const Tensor &tensor, const Node::Operand *&next)
{
	if (tensor.device().type() != KIND)
		return tensor;
	TORCH_CHECK(next->host, operation, next->write ? " writes " : " reads ", next->bytes,
		    " bytes at ", next->data, ", which are not there in the order of the stream");
	return at::from_blob((next++)->host, tensor.sizes(), tensor.strides(), [](void *) {},
			     tensor.options().device(at::kCPU));
}

static Tensor copy_from(const Tensor &self, const Tensor &dst, bool)
{
	Node *node = new Node;
	const Node::Operand *next;

	if (!self.numel()) {
		delete node;
		return dst;
	}
	add(node, self, false);
	add(node, dst, true);
	auto begun = node->begun.get_future();
	CALL(cuLaunchHostFunc, stream_of(current), Node::run, node);
	begun.wait();
	next = node->operands.data();
	try {
		at::AutoDispatchBelowADInplaceOrView guard;
		Tensor from = shown(self, next), to = shown(dst, next);

		to.copy_(from);
	} catch (...) {
		node->end.set_value();
		throw;
	}
	node->end.set_value();
	/* As CUDA does; but not what a kernel reads by itself. */
	if (dst.device().type() != KIND && operation.empty())
		synchronize(current);
	return dst;
}

static Tensor empty_memory_format(c10::IntArrayRef size, std::optional<at::ScalarType> dtype,
				  std::optional<at::Layout>, std::optional<Device>,
				  std::optional<bool>, std::optional<at::MemoryFormat> format)
{
	return at::detail::empty_generic(size, &memory,
					 c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
					 c10::dtype_or_default(dtype), format);
}

static Tensor empty_strided(c10::IntArrayRef size, c10::IntArrayRef stride,
			    std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
			    std::optional<Device>, std::optional<bool>)
{
	return at::detail::empty_strided_generic(size, stride, &memory,
						 c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
						 c10::dtype_or_default(dtype));
}

static Tensor copy_from_and_resize(const Tensor &self, const Tensor &dst)
{
	if (self.sizes() != dst.sizes()) {
		Tensor fresh = empty_memory_format(self.sizes(), dst.scalar_type(), {}, {}, {}, {});

		dst.unsafeGetTensorImpl()->set_storage_keep_dtype(fresh.storage());
		dst.unsafeGetTensorImpl()->set_storage_offset(0);
		dst.unsafeGetTensorImpl()->set_sizes_contiguous(self.sizes());
	}
	return copy_from(self, dst, false);
}

static Tensor reshape_alias(const Tensor &self, c10::IntArrayRef size, c10::IntArrayRef stride)
{
	return at::native::as_strided_tensorimpl(self, size, stride, self.storage_offset());
}

static at::Scalar local_scalar(const Tensor &self)
{
	Tensor host = at::empty(self.sizes(), self.options().device(at::kCPU));

	operation.clear();
	copy_from(self, host, false);
	return host.item();
}

static void record_stream(Tensor &self, Stream stream)
{
	Guard().recordDataPtrOnStream(self.storage().data_ptr(), stream);
}

static void on_host(const c10::OperatorHandle &op, torch::jit::Stack *stack)
{
	std::string before = operation;

	operation = op.schema().name();
	try {
		at::native::cpu_fallback(op, stack);
	} catch (...) {
		operation = before;
		throw;
	}
	operation = before;
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m)
{
	m.fallback(torch::CppFunction::makeFromBoxedFunction<&on_host>());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m)
{
	m.impl("empty.memory_format", empty_memory_format);
	m.impl("empty_strided", empty_strided);
	m.impl("as_strided", at::native::as_strided_tensorimpl);
	m.impl("view", at::native::view);
	m.impl("_reshape_alias", reshape_alias);
	m.impl("_copy_from", copy_from);
	m.impl("_copy_from_and_resize", copy_from_and_resize);
	m.impl("_local_scalar_dense", local_scalar);
	m.impl("record_stream", record_stream);
}

extern "C" size_t standin_held()
{
	return held;
}

/* Called once, before anything else: makes the default stream. Returns what is wrong, or NULL. */
extern "C" const char *standin_open()
{
	static std::string wrong;

	try {
		new_stream();
		at::RegisterPrivateUse1HooksInterface(new Hooks);
	} catch (const std::exception &error) {
		wrong = error.what();
		return wrong.c_str();
	}
	return nullptr;
}
