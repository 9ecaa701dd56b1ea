// Counts the requests to each path, in data that all instances of one function's extensions share, and tells the function by the
// header `x-count`. Written against the ABI itself, with nothing but wasi-libc.

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define IMPORT(name) extern "C" __attribute__((import_module("env"), import_name(#name)))
#define EXPORT(name) extern "C" __attribute__((export_name(#name)))

enum Status : uint32_t { Ok = 0, NotFound = 1, CasMismatch = 8 };
enum Action : uint32_t { Continue = 0 };
constexpr uint32_t RequestHeaders = 0;

IMPORT(proxy_log) Status proxy_log(uint32_t level, const char *text, size_t length);
IMPORT(proxy_get_property) Status proxy_get_property(const char *path, size_t length, char **value, size_t *size);
IMPORT(proxy_get_shared_data)
Status proxy_get_shared_data(const char *key, size_t length, char **value, size_t *size, uint32_t *number);
IMPORT(proxy_set_shared_data)
Status proxy_set_shared_data(const char *key, size_t length, const char *value, size_t size, uint32_t number);
IMPORT(proxy_replace_header_map_value)
Status proxy_replace_header_map_value(uint32_t list, const char *name, size_t length, const char *value, size_t size);

EXPORT(proxy_abi_version_0_2_1) void proxy_abi_version_0_2_1() {}
EXPORT(proxy_on_memory_allocate) void *proxy_on_memory_allocate(size_t size) { return malloc(size); }

namespace {

/// One more than there were. Another request may be faster, and then this one tries again.
uint32_t count(const char *key, size_t length) {
  for (;;) {
    char *value = nullptr;
    size_t size = 0;
    uint32_t number = 0, counted = 0;
    if (proxy_get_shared_data(key, length, &value, &size, &number) == Ok && size == sizeof counted) {
      memcpy(&counted, value, sizeof counted);
    }
    free(value);
    counted++;
    switch (proxy_set_shared_data(key, length, reinterpret_cast<const char *>(&counted), sizeof counted, number)) {
    case CasMismatch:
      continue;
    case Ok:
      return counted;
    default:
      return 0; // No space for another path.
    }
  }
}

} // namespace

EXPORT(proxy_on_request_headers) Action proxy_on_request_headers(uint32_t, uint32_t, uint32_t) {
  static const char path[] = "request\0url_path", name[] = "x-count";
  char *value = nullptr;
  size_t size = 0;
  if (proxy_get_property(path, sizeof path - 1, &value, &size) != Ok) {
    return Continue;
  }
  char text[16];
  int length = snprintf(text, sizeof text, "%u", count(value, size));
  free(value);
  proxy_replace_header_map_value(RequestHeaders, name, sizeof name - 1, text, length);
  return Continue;
}
