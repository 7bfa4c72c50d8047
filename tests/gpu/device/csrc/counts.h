// What is counted, and what is told to whoever watches.
#pragma once

#include <atomic>
#include <map>
#include <mutex>
#include <string>

namespace {

std::mutex counts_lock;
std::map<std::string, long> counts;

using Watcher = void (*)(const char* kind, const char* op);
std::atomic<Watcher> watcher{nullptr};

void count(const std::string& name) {
  std::lock_guard<std::mutex> held(counts_lock);
  counts[name]++;
}

// Names of what is told begin with "!", so that counts of operations and of these stay apart.
void tell(const char* kind, const std::string& op) {
  count(std::string("!") + kind + " " + op);
  if (Watcher told = watcher.load()) told(kind, op.c_str());
}

}  // namespace
