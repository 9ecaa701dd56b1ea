/* What the parking chain does with a new car, in C: it is kept, and goes on where it is. Start it in place of `boutique persist`. */
#include "leno.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

static leno_bytes text(const char *characters) {
  return (leno_bytes){(const uint8_t *)characters, strlen(characters)};
}

static int is(leno_bytes bytes, const char *characters) {
  return bytes.length == strlen(characters) && !memcmp(bytes.data, characters, bytes.length);
}

int main(void) {
  leno_chain *chain = leno_open();
  if (!chain) {
    fprintf(stderr, "%s\n", leno_error());
    return 1;
  }
  const leno_head charging = {text("POST"), text("charging"), text("/boutique.v1.Charging/Begin"), NULL, 0};
  const struct timespec service = {0, 10 * 1000 * 1000};
  leno_call *call;
  while (leno_next(chain, &call) == LENO_OK) {
    int result;
    if (is(leno_call_path(call), "/boutique.v1.Persist/Keep")) {
      nanosleep(&service, NULL);
      leno_body body = {LENO_OF_CALL, call, 0, leno_call_body(call).length};
      result = leno_forward_call(chain, call, &charging, &body);
    } else {
      result = leno_answer_call(chain, call, 404, NULL, 0, NULL);
    }
    if (result != LENO_OK) fprintf(stderr, "%s\n", leno_error());
  }
  leno_close(chain);
  return 0;
}
