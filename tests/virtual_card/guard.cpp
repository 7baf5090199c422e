// A device guard and hooks for CUDA in a build of PyTorch without CUDA: one device, one stream, and nothing ever runs.
// With them fake tensors on "cuda" run forward and backward.

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

namespace {

using c10::Device;
using c10::DeviceIndex;
using c10::DeviceType;
using c10::Stream;

DeviceIndex index_of(Device device) { return device.index() < 0 ? 0 : device.index(); }

struct PaperGuard final : public c10::impl::DeviceGuardImplInterface {
  static thread_local DeviceIndex current;
  DeviceType type() const override { return DeviceType::CUDA; }
  Device exchangeDevice(Device device) const override {
    const auto before = current;
    current = index_of(device);
    return {DeviceType::CUDA, before};
  }
  Device getDevice() const override { return {DeviceType::CUDA, current}; }
  void setDevice(Device device) const override { current = index_of(device); }
  void uncheckedSetDevice(Device device) const noexcept override { current = index_of(device); }
  Stream getStream(Device device) const override {
    return Stream(Stream::DEFAULT, Device(DeviceType::CUDA, index_of(device)));
  }
  Stream getNewStream(Device device, int) const override { return getStream(device); }
  Stream exchangeStream(Stream stream) const override { return getStream(stream.device()); }
  DeviceIndex deviceCount() const noexcept override { return 1; }
  void record(void**, const Stream&, const DeviceIndex, const c10::EventFlag) const override {}
  void block(void*, const Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void destroyEvent(void*, const DeviceIndex) const noexcept override {}
  bool queryStream(const Stream&) const override { return true; }
  void synchronizeStream(const Stream&) const override {}
  void synchronizeEvent(void*) const override {}
  void recordDataPtrOnStream(const c10::DataPtr&, const Stream&) const override {}
};

thread_local DeviceIndex PaperGuard::current = 0;
C10_REGISTER_GUARD_IMPL(CUDA, PaperGuard);

}  // namespace

namespace at {

struct PaperHooks final : public CUDAHooksInterface {
  explicit PaperHooks(CUDAHooksArgs) {}
  void init() const override {}
  bool hasCUDA() const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  DeviceIndex deviceCount() const override { return 1; }
  DeviceIndex current_device() const override { return 0; }
  DeviceIndex getCurrentDevice() const override { return 0; }
  void setCurrentDevice(DeviceIndex) const override {}
  DeviceIndex exchangeDevice(DeviceIndex) const override { return 0; }
  DeviceIndex maybeExchangeDevice(DeviceIndex) const override { return 0; }
  const Generator& getDefaultGenerator(DeviceIndex) const override { return detail::getDefaultCPUGenerator(); }
};

C10_REGISTER_TYPED_CLASS(CUDAHooksRegistry, "CUDAHooks", PaperHooks)

}  // namespace at
