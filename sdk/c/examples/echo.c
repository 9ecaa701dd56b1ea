/* Answers each call with its own body; or, if the path is `/to/NAME`, with what the function of that name answers. Start it as a function with
 * `protocol: chain`. */
#include "leno.h"

#include <stdio.h>
#include <string.h>

int main(void) {
  leno_chain *chain = leno_open();
  if (!chain) {
    fprintf(stderr, "%s\n", leno_error());
    return 1;
  }
  leno_call *call;
  while (leno_next(chain, &call) == LENO_OK) {
    leno_bytes path = leno_call_path(call);
    leno_body body = {LENO_OF_CALL, call, 0, leno_call_body(call).length};
    int result;
    if (path.length > 4 && !memcmp(path.data, "/to/", 4)) {
      leno_head head = {leno_call_method(call), {path.data + 4, path.length - 4}, {(const uint8_t *)"/", 1}, NULL, 0};
      leno_pending *pending;
      leno_answer *answer;
      result = leno_ask(chain, call, &head, &body, &pending);
      if (result == LENO_OK) result = leno_wait(pending, &answer);
      if (result != LENO_OK) {
        leno_call_free(call);
      } else {
        leno_body passed = {LENO_OF_ANSWER, answer, 0, leno_answer_body(answer).length};
        result = leno_answer_call(chain, call, leno_answer_status(answer), NULL, 0, &passed);
        leno_answer_free(answer);
      }
    } else {
      result = leno_answer_call(chain, call, 200, NULL, 0, &body);
    }
    if (result != LENO_OK) fprintf(stderr, "%s\n", leno_error());
  }
  leno_close(chain);
  return 0;
}
