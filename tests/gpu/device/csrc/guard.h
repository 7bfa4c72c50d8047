// What torch asks a device type for: its guard, its hooks, and its generators of random numbers.
#pragma once

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <map>

#include "counts.h"
#include "memory.h"

namespace {

// One stream a device, in which all is done once it is asked for: events are always over.
struct Guard final : c10::impl::NoOpDeviceGuardImpl<DeviceType::CUDA> {
  Device getDevice() const override { return Device(DeviceType::CUDA, current_device); }
  Device exchangeDevice(Device device) const override {
    Device before(DeviceType::CUDA, current_device);
    current_device = device.index();
    return before;
  }
  void setDevice(Device device) const override { current_device = device.index(); }
  void uncheckedSetDevice(Device device) const noexcept override { current_device = device.index(); }
  c10::Stream getStream(Device device) const noexcept override {
    const auto index = device.index() < 0 ? current_device : device.index();
    return c10::Stream(c10::Stream::DEFAULT, Device(DeviceType::CUDA, index));
  }
  c10::Stream getNewStream(Device device, int) const override { return getStream(device); }
  c10::Stream exchangeStream(c10::Stream stream) const noexcept override { return getStream(stream.device()); }
  c10::DeviceIndex deviceCount() const noexcept override { return num_devices; }
  void record(void**, const c10::Stream&, const c10::DeviceIndex, const c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void synchronizeEvent(void*) const override {}
  void synchronizeDevice(const c10::DeviceIndex) const override { tell("sync", "synchronizeDevice"); }
  void recordDataPtrOnStream(const c10::DataPtr&, const c10::Stream&) const override {}
};
C10_REGISTER_GUARD_IMPL(CUDA, Guard)

struct CUDAHooks : at::CUDAHooksInterface {
  explicit CUDAHooks(at::CUDAHooksArgs) {}
  void init() const override {}
  bool hasCUDA() const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex current_device() const override { return ::current_device; }
  c10::DeviceIndex deviceCount() const override { return num_devices; }
  void setCurrentDevice(c10::DeviceIndex device) const override { ::current_device = device; }
  c10::DeviceIndex getCurrentDevice() const override { return ::current_device; }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override {
    const auto before = ::current_device;
    ::current_device = device;
    return before;
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override { return exchangeDevice(device); }
  int getNumGPUs() const override { return num_devices; }
  bool isPinnedPtr(const void* data) const override { return is_pinned(data); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return &pinned_memory; }
  c10::Allocator* getCUDADeviceAllocator() const override { return &device_memory; }
  Device getDeviceFromPtr(void*) const override { return Device(DeviceType::CUDA, ::current_device); }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override {
    return at::detail::getDefaultCPUGenerator();
  }
  at::Generator getNewGenerator(c10::DeviceIndex) const override { return at::detail::createCPUGenerator(); }
  void deviceSynchronize(c10::DeviceIndex) const override { tell("sync", "deviceSynchronize"); }
};
using at::CUDAHooksRegistry;
using at::RegistererCUDAHooksRegistry;
REGISTER_CUDA_HOOKS(CUDAHooks)

std::map<int, at::Generator> generators;

// Each device's own random numbers, of another seed than the host's: numbers drawn on the wrong device differ.
at::Generator& generator_of(int device) {
  auto it = generators.find(device);
  if (it == generators.end()) it = generators.emplace(device, at::detail::createCPUGenerator(1234 + device)).first;
  return it->second;
}

}  // namespace
