// The device "hpu" of tests: its memory is the host's, and every operator runs on the CPU, but a tensor there is as far
// away as on a real accelerator: an operator that is given tensors of both places raises. Counts bytes.
// Streams and events exist and do nothing; copies are done when they are asked for.
#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/detail/HPUHooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/as_strided_cpu_dispatch.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>

namespace {

using c10::Device;
using c10::DeviceIndex;
using c10::Stream;
constexpr auto kHere = c10::DeviceType::HPU;
constexpr DeviceIndex kDevices = 8;
constexpr size_t kAlignment = 64;  // as the CPU's allocator, so that results are the CPU's bit for bit

// One process is one rank with one device: the counters are the process's.
std::atomic<int64_t> allocated{0}, peak{0}, limit{int64_t{1} << 40}, to_device{0}, to_host{0};
thread_local DeviceIndex current_device = 0;
thread_local c10::StreamId current_stream = 0;
thread_local bool computing = false;  // the copies of an operator that runs on the CPU are no transfers

struct Block {
  void* memory;
  int64_t bytes;
};

void give_back(void* context) {
  auto* block = static_cast<Block*>(context);
  allocated -= block->bytes;
  std::free(block->memory);
  delete block;
}

void raise_peak(int64_t now) {
  auto seen = peak.load();
  while (now > seen && !peak.compare_exchange_weak(seen, now)) {
  }
}

struct Memory final : c10::DeviceAllocator {
  c10::DataPtr allocate(size_t bytes) override {
    const Device where(kHere, current_device);
    if (bytes == 0) return {nullptr, where};
    const auto now = allocated.fetch_add(static_cast<int64_t>(bytes)) + static_cast<int64_t>(bytes);
    if (now > limit) {
      allocated -= static_cast<int64_t>(bytes);
      TORCH_CHECK_WITH(OutOfMemoryError, false, "hpu out of memory: ", bytes, " bytes wanted, ", now, " of ", limit.load());
    }
    void* memory = nullptr;
    TORCH_CHECK(posix_memalign(&memory, kAlignment, bytes) == 0, "the host has no memory left");
    raise_peak(now);
    return {memory, new Block{memory, static_cast<int64_t>(bytes)}, &give_back, where};
  }
  void copy_data(void* target, const void* source, std::size_t bytes) const override {
    std::memcpy(target, source, bytes);
  }
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override {}
  void recordStream(const c10::DataPtr&, Stream) override {}
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(DeviceIndex) override {
    c10::CachingDeviceAllocator::DeviceStats stats;
    stats.allocated_bytes[0].current = allocated;
    stats.allocated_bytes[0].peak = peak;
    return stats;
  }
  void resetAccumulatedStats(DeviceIndex) override {}
  void resetPeakStats(DeviceIndex) override { peak = allocated.load(); }
  std::pair<size_t, size_t> getMemoryInfo(DeviceIndex) override { return {limit - allocated, limit}; }
};
Memory memory;
REGISTER_ALLOCATOR(kHere, &memory)

struct Guard final : c10::impl::DeviceGuardImplInterface {
  static constexpr c10::DeviceType static_type = kHere;
  c10::DeviceType type() const override { return kHere; }
  Device getDevice() const override { return {kHere, current_device}; }
  Device exchangeDevice(Device next) const override {
    const auto before = getDevice();
    current_device = next.index();
    return before;
  }
  void setDevice(Device next) const override { current_device = next.index(); }
  void uncheckedSetDevice(Device next) const noexcept override { current_device = next.index(); }
  DeviceIndex deviceCount() const noexcept override { return kDevices; }
  Stream getStream(Device where) const override { return Stream(Stream::UNSAFE, where, current_stream); }
  Stream getDefaultStream(Device where) const override { return Stream(Stream::UNSAFE, where, 0); }
  Stream getNewStream(Device where, int) const override {
    static std::atomic<c10::StreamId> last{0};
    return Stream(Stream::UNSAFE, where, ++last);
  }
  Stream exchangeStream(Stream next) const override {
    const auto before = getStream(next.device());
    current_stream = next.id();
    return before;
  }
  void record(void** event, const Stream&, const DeviceIndex, const c10::EventFlag) const override { *event = &memory; }
  void block(void*, const Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  bool queryStream(const Stream&) const override { return true; }
  void synchronizeStream(const Stream&) const override {}
  void synchronizeEvent(void*) const override {}
  void synchronizeDevice(const DeviceIndex) const override {}
};
C10_REGISTER_GUARD_IMPL(HPU, Guard)

struct Hooks final : at::HPUHooksInterface {
  explicit Hooks(at::HPUHooksArgs = {}) {}
  void init() const override {}
  bool hasHPU() const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  DeviceIndex deviceCount() const override { return kDevices; }
  DeviceIndex getCurrentDevice() const override { return current_device; }
  void setCurrentDevice(DeviceIndex next) const override { current_device = next; }
  DeviceIndex exchangeDevice(DeviceIndex next) const override { return std::exchange(current_device, next); }
  DeviceIndex maybeExchangeDevice(DeviceIndex next) const override { return exchangeDevice(next); }
  at::Allocator* getPinnedMemoryAllocator() const override { return c10::GetAllocator(c10::DeviceType::CPU); }
  bool isPinnedPtr(const void*) const override { return false; }
  Device getDeviceFromPtr(void*) const override { return {kHere, 0}; }
};

// A tensor of the CPU over the memory of one of the device.
at::Tensor on_cpu(const at::Tensor& tensor) {
  const auto elements = static_cast<int64_t>(tensor.storage().nbytes() / tensor.element_size());
  auto* data = tensor.storage().mutable_data();
  return at::from_blob(data, {elements}, at::TensorOptions().dtype(tensor.dtype()).device(at::kCPU))
      .as_strided(tensor.sizes(), tensor.strides(), tensor.storage_offset());
}

at::Tensor empty(c10::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                 std::optional<Device> where, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  const c10::OptionalDeviceGuard guard(where && where->has_index() ? where : std::nullopt);
  return at::detail::empty_generic(size, &memory, c10::DispatchKeySet(c10::DispatchKey::HPU),
                                   c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(c10::IntArrayRef size, c10::IntArrayRef stride, std::optional<at::ScalarType> dtype,
                         std::optional<at::Layout>, std::optional<Device> where, std::optional<bool>) {
  const c10::OptionalDeviceGuard guard(where && where->has_index() ? where : std::nullopt);
  return at::detail::empty_strided_generic(size, stride, &memory, c10::DispatchKeySet(c10::DispatchKey::HPU),
                                           c10::dtype_or_default(dtype));
}

at::Tensor copy_from(const at::Tensor& source, const at::Tensor& target, bool) {
  if (target.numel() == 0) return target;
  const auto bytes = static_cast<int64_t>(target.nbytes());
  if (!computing && source.is_hpu() != target.is_hpu()) (target.is_hpu() ? to_device : to_host) += bytes;
  auto there = target.is_hpu() ? on_cpu(target) : target;
  there.copy_(source.is_hpu() ? on_cpu(source) : source);
  return target;
}

at::Tensor copy_from_and_resize(const at::Tensor& source, const at::Tensor& target) {
  target.resize_(source.sizes());
  return copy_from(source, target, false);
}

at::Scalar read_scalar(const at::Tensor& tensor) { return at::_local_scalar_dense(on_cpu(tensor)); }

at::Tensor as_strided(const at::Tensor& tensor, c10::IntArrayRef size, c10::IntArrayRef stride,
                      std::optional<int64_t> offset) {
  return at::native::as_strided_tensorimpl(tensor, size, stride, offset);
}

at::Tensor view(const at::Tensor& tensor, c10::IntArrayRef size) { return at::native::view(tensor, size); }

at::Tensor reshape_alias(const at::Tensor& tensor, c10::IntArrayRef size, c10::IntArrayRef stride) {
  return at::native::as_strided_tensorimpl(tensor, size, stride, tensor.storage_offset());
}

const at::Tensor& resize(const at::Tensor& tensor, c10::IntArrayRef size, std::optional<at::MemoryFormat>) {
  const auto bytes = static_cast<size_t>(c10::multiply_integers(size)) * tensor.element_size();
  auto* storage = tensor.storage().unsafeGetStorageImpl();
  if (storage->nbytes() < bytes) {
    auto larger = memory.allocate(bytes);
    if (storage->nbytes()) std::memcpy(larger.get(), storage->data(), storage->nbytes());
    storage->set_data_ptr_noswap(std::move(larger));
    storage->set_nbytes(bytes);
  }
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous(size);
  return tensor;
}

at::Tensor& set_storage(at::Tensor& tensor, at::Storage storage, int64_t offset, c10::IntArrayRef size,
                        c10::IntArrayRef stride) {
  auto* self = tensor.unsafeGetTensorImpl();
  self->set_storage_keep_dtype(std::move(storage));
  self->set_storage_offset(offset);
  self->set_sizes_and_strides(size, stride.empty() ? at::infer_dense_strides(size, c10::IntArrayRef{}) : stride.vec());
  return tensor;
}

at::Tensor convolution(const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                       c10::IntArrayRef stride, c10::IntArrayRef padding, c10::IntArrayRef dilation, bool transposed,
                       c10::IntArrayRef output_padding, int64_t groups) {
  TORCH_CHECK(input.device() == weight.device(), "Expected all tensors to be on the same device: convolution of ",
              input.device(), " with ", weight.device());
  std::optional<at::Tensor> added;
  if (bias && bias->defined()) added = on_cpu(*bias);
  const auto result = at::convolution(on_cpu(input), on_cpu(weight), added, stride, padding, dilation, transposed,
                                      output_padding, groups);
  computing = true;
  auto here = result.to(input.device());
  computing = false;
  return here;
}

void record_stream(at::Tensor&, Stream) {}

struct Places {
  bool here = false, cpu = false;
  void see(const at::Tensor& tensor) {
    if (!tensor.defined()) return;
    if (tensor.is_hpu()) here = true;
    // A number in a tensor may go everywhere, as on other devices.
    else if (tensor.device().is_cpu() && tensor.dim() > 0) cpu = true;
  }
};

void on_the_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& name = op.schema().name();
  const auto arguments = torch::jit::last(*stack, op.schema().arguments().size());
  Places places;
  for (const auto& argument : arguments) {
    if (argument.isTensor()) places.see(argument.toTensor());
    // Indices may lie on the CPU: they are a list of optional tensors, no list of tensors.
    if (argument.isTensorList())
      for (const auto& tensor : argument.toTensorVector()) places.see(tensor);
  }
  const bool indexing = name == "aten::index_put_" || name == "aten::_index_put_impl_";
  TORCH_CHECK(indexing || !(places.here && places.cpu),
              "Expected all tensors to be on the same device, but found at least two devices, hpu and cpu! (", name, ")");
  const bool outer = computing;
  computing = true;
  try {
    at::native::cpu_fallback(op, stack);
  } catch (...) {
    computing = outer;
    throw;
  }
  computing = outer;
}

}  // namespace

namespace at {
C10_REGISTER_TYPED_CLASS(HPUHooksRegistry, "HPUHooks", Hooks)
}

TORCH_LIBRARY_IMPL(aten, HPU, m) {
  m.impl("empty.memory_format", empty);
  m.impl("empty_strided", empty_strided);
  m.impl("_copy_from", copy_from);
  m.impl("_copy_from_and_resize", copy_from_and_resize);
  m.impl("_local_scalar_dense", read_scalar);
  m.impl("as_strided", as_strided);
  m.impl("view", view);
  m.impl("_reshape_alias", reshape_alias);
  m.impl("resize_", resize);
  m.impl("set_.source_Storage_storage_offset", set_storage);
  m.impl("convolution_overrideable", convolution);
  m.impl("record_stream", record_stream);
}
TORCH_LIBRARY_IMPL(_, HPU, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&on_the_cpu>()); }

TORCH_LIBRARY(fake_accelerator, m) {
  m.def("counters() -> int[]", []() -> std::vector<int64_t> { return {allocated, peak, to_device, to_host}; });
  m.def("reset() -> ()", []() {
    peak = allocated.load();
    to_device = to_host = 0;
  });
  m.def("limit(int bytes) -> ()", [](int64_t bytes) { limit = bytes; });
}
