// Every operation without an entry of its own: what CUDA would refuse is refused, then the CPU's kernel runs.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "counts.h"
#include "guard.h"
#include "memory.h"

namespace {

// Their indices may lie on the host; CUDA copies them over, which is told.
const std::set<std::string> by_indices = {"aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_"};

// For the results' shapes, or a number, the host has to wait.
const std::set<std::string> waits = {
    "aten::_local_scalar_dense", "aten::nonzero", "aten::masked_select", "aten::equal", "aten::is_nonzero",
    "aten::_unique2", "aten::unique_dim", "aten::unique_consecutive", "aten::unique_dim_consecutive",
    "aten::_unique", "aten::bincount", "aten::histc", "aten::linalg_eigh"};

// Calls `action` with every tensor of `value`.
template <class Action>
void each_tensor(const c10::IValue& value, const Action& action) {
  if (value.isTensor()) {
    action(value.toTensor());
  } else if (value.isTensorList()) {
    for (const at::Tensor& t : value.toTensorVector()) action(t);
  } else if (value.isOptionalTensorList()) {
    for (const std::optional<at::Tensor>& t : value.toOptionalTensorVector())
      if (t) action(*t);
  }
}

// `value` with every tensor replaced by what `action` makes of it.
template <class Action>
c10::IValue with_tensors(const c10::IValue& value, const Action& action) {
  if (value.isTensor()) return c10::IValue(action(value.toTensor()));
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& t : value.toTensorVector()) list.push_back(action(t));
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const std::optional<at::Tensor>& t : value.toOptionalTensorVector())
      list.push_back(t ? std::optional<at::Tensor>(action(*t)) : std::nullopt);
    return list;
  }
  return value;
}

// The device of an operation's tensors, if it has any on one. Fails where CUDA would: tensors on two devices, of which
// only numbers (of no dimension) may be.
std::optional<Device> checked_device(
    const std::string& name, const c10::FunctionSchema& schema, const c10::IValue* arguments) {
  std::optional<Device> device;
  std::string of_host;
  for (size_t i = 0; i < schema.arguments().size(); i++) {
    each_tensor(arguments[i], [&](const at::Tensor& t) {
      if (!t.defined()) return;
      if (t.is_cuda()) {
        TORCH_CHECK(
            !device || *device == t.device() || t.dim() == 0, "Expected all tensors to be on the same device, but got ",
            *device, " and ", t.device(), " (", name, ")");
        device = t.device();
      } else if (t.dim() > 0) {
        of_host = schema.arguments()[i].name();
      }
    });
  }
  if (device && !of_host.empty()) {
    if (by_indices.count(schema.name())) {
      tell("h2d-index", name);
    } else {
      TORCH_CHECK(
          false, "Expected all tensors to be on the same device, but got ", of_host, " is on cpu, different from other "
          "tensors on ", *device, " (when checking argument in method ", name, ")");
    }
  }
  return device;
}

void tell_waits(const std::string& name, const c10::FunctionSchema& schema, const c10::IValue* arguments) {
  const auto& bare = schema.name();
  if (waits.count(bare)) tell("sync", name);
  if (by_indices.count(bare)) {
    // A mask of places is a question how many there are.
    for (size_t i = 0; i < schema.arguments().size(); i++)
      if (arguments[i].isOptionalTensorList())
        each_tensor(arguments[i], [&](const at::Tensor& t) {
          if (t.defined() && (t.scalar_type() == at::kBool || t.scalar_type() == at::kByte)) tell("sync", name + "(mask)");
        });
  }
  if (bare == "aten::repeat_interleave") {
    bool has_size = false;
    for (size_t i = 0; i < schema.arguments().size(); i++)
      has_size |= schema.arguments()[i].name() == "output_size" && !arguments[i].isNone();
    if (!has_size) tell("sync", name + "(no output_size)");
  }
}

void fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  const std::string name = schema.name() + (schema.overload_name().empty() ? "" : "." + schema.overload_name());
  const size_t num_arguments = schema.arguments().size(), first = stack->size() - num_arguments;
  auto* arguments = stack->data() + first;
  auto device = checked_device(name, schema, arguments);
  count(name);
  tell_waits(name, schema, arguments);

  struct Pair {
    at::Tensor cuda, cpu;
  };
  std::vector<Pair> pairs;
  auto to_host = [&](const at::Tensor& t) -> at::Tensor {
    if (!t.defined() || !t.is_cuda()) return t;
    for (auto& pair : pairs)
      if (pair.cuda.is_same(t)) return pair.cpu;
    pairs.push_back({t, on_host(t)});
    return pairs.back().cpu;
  };
  for (size_t i = 0; i < num_arguments; i++) {
    if (arguments[i].isDevice() && arguments[i].toDevice().is_cuda()) {
      device = arguments[i].toDevice();
      arguments[i] = c10::IValue(host_device);
    } else {
      arguments[i] = with_tensors(arguments[i], to_host);
    }
  }
  Device target = device.value_or(Device(DeviceType::CUDA, current_device));
  if (target.index() < 0) target = Device(DeviceType::CUDA, current_device);
  if (op.hasTag(at::Tag::nondeterministic_seeded)) {
    // The host's generator is left alone: other threads draw from it meanwhile.
    bool is_seeded = false;
    for (size_t i = 0; i < num_arguments; i++) {
      if (schema.arguments()[i].name() != "generator") continue;
      if (arguments[i].isNone()) arguments[i] = c10::IValue(generator_of(target.index()));
      is_seeded = true;
    }
    TORCH_CHECK(is_seeded, name, " draws random numbers and takes no generator: the pretended GPU needs a kernel of its own");
  }
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
  // What an operation has resized has other memory now.
  for (auto& pair : pairs)
    if (pair.cpu.storage().data() != pair.cuda.storage().data() || pair.cpu.sizes() != pair.cuda.sizes() ||
        pair.cpu.strides() != pair.cuda.strides())
      become(pair.cuda, relabelled(pair.cpu, target));
  auto to_device = [&](const at::Tensor& t) -> at::Tensor {
    if (!t.defined() || t.is_cuda()) return t;
    for (auto& pair : pairs)
      if (pair.cpu.is_same(t)) return pair.cuda;
    return relabelled(t, target);
  };
  for (size_t i = stack->size() - schema.returns().size(); i < stack->size(); i++)
    (*stack)[i] = with_tensors((*stack)[i], to_device);
}

}  // namespace
