/* The part of `leno.js` that is in C. It needs Node-API only, so it is built with the headers of Node.js, and no package.
 *
 * Each thing of libleno is an external value with a pointer to it, which is null once it was taken over or freed. What waits runs on a thread of
 * libuv's pool, and ends in a promise. */
#include <node_api.h>
#include <stdlib.h>
#include <string.h>

#include "leno.h"

typedef enum { CHAIN, CALL, PENDING, ANSWER } Kind;

typedef struct {
  Kind kind;
  void *pointer;
} Handle;

static void free_pointer(Kind kind, void *pointer) {
  switch (kind) {
    case CHAIN: leno_close(pointer); break;
    case CALL: leno_call_free(pointer); break;
    case PENDING: leno_pending_free(pointer); break;
    case ANSWER: leno_answer_free(pointer); break;
  }
}

static void finalize(napi_env env, void *data, void *hint) {
  Handle *handle = data;
  if (handle->pointer) free_pointer(handle->kind, handle->pointer);
  free(handle);
}

static napi_value wrap(napi_env env, Kind kind, void *pointer) {
  Handle *handle = calloc(1, sizeof *handle);
  handle->kind = kind;
  handle->pointer = pointer;
  napi_value value;
  napi_create_external(env, handle, finalize, NULL, &value);
  return value;
}

static napi_value error(napi_env env, int code, const char *text) {
  static const char *codes[] = {"OK", "ENDED", "FULL", "FAILED", "INVALID"};
  napi_value name, message, made;
  napi_create_string_utf8(env, codes[code], NAPI_AUTO_LENGTH, &name);
  napi_create_string_utf8(env, text, NAPI_AUTO_LENGTH, &message);
  napi_create_error(env, name, message, &made);
  return made;
}

static napi_value fail(napi_env env, int code, const char *text) {
  napi_throw(env, error(env, code, text));
  return NULL;
}

/* The thing behind a value; null, and an exception, if it is none of this kind. */
static void *unwrap(napi_env env, napi_value value, Kind kind, Handle **found) {
  napi_valuetype type;
  Handle *handle = NULL;
  napi_typeof(env, value, &type);
  if (type == napi_external) napi_get_value_external(env, value, (void **)&handle);
  if (!handle || handle->kind != kind || !handle->pointer) {
    fail(env, LENO_INVALID, "it is closed, or something else");
    return NULL;
  }
  if (found) *found = handle;
  return handle->pointer;
}

/* What waits. */
typedef struct {
  Kind kind; /* CHAIN opens, CALL takes the next call, ANSWER waits for an answer */
  void *of, *result;
  int code;
  char text[256];
  napi_deferred deferred;
  napi_async_work work;
  napi_ref keeps;
} Wait;

static void execute(napi_env env, void *data) {
  Wait *wait = data;
  switch (wait->kind) {
    case CHAIN:
      wait->result = leno_open();
      wait->code = wait->result ? LENO_OK : LENO_INVALID;
      break;
    case CALL: wait->code = leno_next(wait->of, (leno_call **)&wait->result); break;
    default: wait->code = leno_wait(wait->of, (leno_answer **)&wait->result); break;
  }
  if (wait->code != LENO_OK) strncpy(wait->text, leno_error(), sizeof wait->text - 1);
}

static void complete(napi_env env, napi_status status, void *data) {
  Wait *wait = data;
  napi_value value;
  if (wait->code == LENO_OK) {
    napi_resolve_deferred(env, wait->deferred, wrap(env, wait->kind, wait->result));
  } else if (wait->kind == CALL && wait->code == LENO_ENDED) {
    napi_get_null(env, &value);
    napi_resolve_deferred(env, wait->deferred, value);
  } else {
    napi_reject_deferred(env, wait->deferred, error(env, wait->code, wait->text));
  }
  if (wait->keeps) napi_delete_reference(env, wait->keeps);
  napi_delete_async_work(env, wait->work);
  free(wait);
}

static napi_value begin(napi_env env, Kind kind, void *of, napi_value keeps) {
  Wait *wait = calloc(1, sizeof *wait);
  wait->kind = kind;
  wait->of = of;
  napi_value promise, name;
  napi_create_promise(env, &wait->deferred, &promise);
  napi_create_string_utf8(env, "leno", NAPI_AUTO_LENGTH, &name);
  if (keeps) napi_create_reference(env, keeps, 1, &wait->keeps);
  napi_create_async_work(env, NULL, name, execute, complete, wait, &wait->work);
  napi_queue_async_work(env, wait->work);
  return promise;
}

#define ARGUMENTS(count)      \
  napi_value arguments[count]; \
  size_t given = count;        \
  napi_get_cb_info(env, info, &given, arguments, NULL, NULL)

static napi_value do_open(napi_env env, napi_callback_info info) { return begin(env, CHAIN, NULL, NULL); }

static napi_value do_next(napi_env env, napi_callback_info info) {
  ARGUMENTS(1);
  void *chain = unwrap(env, arguments[0], CHAIN, NULL);
  return chain ? begin(env, CALL, chain, arguments[0]) : NULL;
}

static napi_value do_wait(napi_env env, napi_callback_info info) {
  ARGUMENTS(1);
  Handle *handle;
  void *pending = unwrap(env, arguments[0], PENDING, &handle);
  if (!pending) return NULL;
  handle->pointer = NULL;
  return begin(env, ANSWER, pending, NULL);
}

static napi_value text(napi_env env, leno_bytes bytes) {
  napi_value value;
  napi_create_string_latin1(env, bytes.length ? (const char *)bytes.data : "", bytes.length, &value);
  return value;
}

static void set(napi_env env, napi_value object, const char *name, napi_value value) {
  napi_set_named_property(env, object, name, value);
}

static napi_value number(napi_env env, double is) {
  napi_value value;
  napi_create_double(env, is, &value);
  return value;
}

/* Fields as pairs of texts. */
static napi_value pairs(napi_env env, const leno_field *fields, size_t count) {
  napi_value list;
  napi_create_array_with_length(env, count, &list);
  for (size_t place = 0; place < count; place++) {
    napi_value pair;
    napi_create_array_with_length(env, 2, &pair);
    napi_set_element(env, pair, 0, text(env, fields[place].name));
    napi_set_element(env, pair, 1, text(env, fields[place].value));
    napi_set_element(env, list, place, pair);
  }
  return list;
}

/* What there is to know of a call or an answer. */
static napi_value do_describe(napi_env env, napi_callback_info info) {
  ARGUMENTS(1);
  Handle *handle = NULL;
  napi_get_value_external(env, arguments[0], (void **)&handle);
  if (!handle || !handle->pointer) return fail(env, LENO_INVALID, "it is closed");
  int is_call = handle->kind == CALL;
  napi_value object;
  napi_create_object(env, &object);
  size_t count = is_call ? leno_call_fields(handle->pointer, NULL, 0) : leno_answer_fields(handle->pointer, NULL, 0);
  leno_field *fields = calloc(count + 1, sizeof *fields);
  if (is_call) {
    leno_call_fields(handle->pointer, fields, count);
    set(env, object, "method", text(env, leno_call_method(handle->pointer)));
    set(env, object, "authority", text(env, leno_call_authority(handle->pointer)));
    set(env, object, "path", text(env, leno_call_path(handle->pointer)));
    set(env, object, "length", number(env, leno_call_body(handle->pointer).length));
  } else {
    leno_answer_fields(handle->pointer, fields, count);
    set(env, object, "status", number(env, leno_answer_status(handle->pointer)));
    set(env, object, "length", number(env, leno_answer_body(handle->pointer).length));
  }
  set(env, object, "headers", pairs(env, fields, count));
  free(fields);
  return object;
}

/* A copy of the body of a call or an answer. (In place, a program that writes to it would be killed.) */
static napi_value do_copy(napi_env env, napi_callback_info info) {
  ARGUMENTS(1);
  Handle *handle = NULL;
  napi_get_value_external(env, arguments[0], (void **)&handle);
  if (!handle || !handle->pointer) return fail(env, LENO_INVALID, "it is closed");
  leno_bytes body = handle->kind == CALL ? leno_call_body(handle->pointer) : leno_answer_body(handle->pointer);
  napi_value copy;
  napi_create_buffer_copy(env, body.length, body.length ? (const void *)body.data : "", NULL, &copy);
  return copy;
}

static napi_value do_is_cancelled(napi_env env, napi_callback_info info) {
  ARGUMENTS(1);
  napi_value value;
  void *call = unwrap(env, arguments[0], CALL, NULL);
  if (!call) return NULL;
  napi_get_boolean(env, leno_call_is_cancelled(call), &value);
  return value;
}

static napi_value do_close(napi_env env, napi_callback_info info) {
  ARGUMENTS(1);
  Handle *handle = NULL;
  napi_get_value_external(env, arguments[0], (void **)&handle);
  if (handle && handle->pointer) {
    void *pointer = handle->pointer;
    handle->pointer = NULL;
    free_pointer(handle->kind, pointer);
  }
  return NULL;
}

/* Texts and fields for one call of libleno. */
typedef struct {
  char *memory[256];
  size_t count;
  leno_field fields[100];
  leno_head head;
  leno_body body;
} Lent;

static void give_back(Lent *lent) {
  while (lent->count) free(lent->memory[--lent->count]);
  free(lent);
}

static leno_bytes lend(napi_env env, Lent *lent, napi_value value) {
  size_t length = 0;
  if (napi_get_value_string_latin1(env, value, NULL, 0, &length) != napi_ok) return (leno_bytes){NULL, 0};
  char *copy = malloc(length + 1);
  napi_get_value_string_latin1(env, value, copy, length + 1, &length);
  lent->memory[lent->count++] = copy;
  return (leno_bytes){(uint8_t *)copy, length};
}

/* At most as many fields as fit; 0 and an exception: there are more. */
static int lend_fields(napi_env env, Lent *lent, napi_value list) {
  uint32_t count = 0;
  napi_get_array_length(env, list, &count);
  if (count > sizeof lent->fields / sizeof *lent->fields) {
    fail(env, LENO_INVALID, "at most 100 header fields");
    return 0;
  }
  for (uint32_t place = 0; place < count; place++) {
    napi_value pair, name, value;
    napi_get_element(env, list, place, &pair);
    napi_get_element(env, pair, 0, &name);
    napi_get_element(env, pair, 1, &value);
    lent->fields[place] = (leno_field){lend(env, lent, name), lend(env, lent, value)};
  }
  lent->head.fields = lent->fields;
  lent->head.field_count = count;
  return 1;
}

/* A body: nothing, bytes, or [call or answer, start, length]. */
static int lend_body(napi_env env, Lent *lent, napi_value value) {
  bool is_array = false, is_buffer = false;
  napi_is_array(env, value, &is_array);
  napi_is_buffer(env, value, &is_buffer);
  if (is_buffer) {
    void *data;
    lent->body.kind = LENO_COPY;
    napi_get_buffer_info(env, value, &data, &lent->body.length);
    lent->body.of = data;
  } else if (is_array) {
    napi_value of, start, length;
    Handle *handle = NULL;
    int64_t from = 0, bytes = 0;
    napi_get_element(env, value, 0, &of);
    napi_get_element(env, value, 1, &start);
    napi_get_element(env, value, 2, &length);
    napi_get_value_external(env, of, (void **)&handle);
    napi_get_value_int64(env, start, &from);
    napi_get_value_int64(env, length, &bytes);
    if (!handle || !handle->pointer || from < 0 || bytes < 0) {
      fail(env, LENO_INVALID, "the body is of something that is closed");
      return 0;
    }
    lent->body = (leno_body){handle->kind == CALL ? LENO_OF_CALL : LENO_OF_ANSWER, handle->pointer, from, bytes};
  }
  return 1;
}

static napi_value done(napi_env env, int code) { return code == LENO_OK ? NULL : fail(env, code, leno_error()); }

/* answer(chain, call, status, fields, body) */
static napi_value do_answer(napi_env env, napi_callback_info info) {
  ARGUMENTS(5);
  Handle *handle;
  int32_t status = 0, code = LENO_OK;
  void *chain = unwrap(env, arguments[0], CHAIN, NULL);
  void *call = chain ? unwrap(env, arguments[1], CALL, &handle) : NULL;
  if (!call) return NULL;
  napi_get_value_int32(env, arguments[2], &status);
  Lent *lent = calloc(1, sizeof *lent);
  int good = lend_fields(env, lent, arguments[3]) && lend_body(env, lent, arguments[4]);
  if (good) {
    handle->pointer = NULL;
    code = leno_answer_call(chain, call, status, lent->fields, lent->head.field_count, &lent->body);
  }
  give_back(lent);
  return good ? done(env, code) : NULL;
}

/* [method, authority, path], fields and body */
static int lend_head(napi_env env, Lent *lent, napi_value *arguments) {
  napi_value method, authority, path;
  napi_get_element(env, arguments[0], 0, &method);
  napi_get_element(env, arguments[0], 1, &authority);
  napi_get_element(env, arguments[0], 2, &path);
  lent->head.method = lend(env, lent, method);
  lent->head.authority = lend(env, lent, authority);
  lent->head.path = lend(env, lent, path);
  return lend_fields(env, lent, arguments[1]) && lend_body(env, lent, arguments[2]);
}

/* forward(chain, call, [method, authority, path], fields, body) */
static napi_value do_forward(napi_env env, napi_callback_info info) {
  ARGUMENTS(5);
  Handle *handle;
  int code = LENO_OK;
  void *chain = unwrap(env, arguments[0], CHAIN, NULL);
  void *call = chain ? unwrap(env, arguments[1], CALL, &handle) : NULL;
  if (!call) return NULL;
  Lent *lent = calloc(1, sizeof *lent);
  int good = lend_head(env, lent, arguments + 2);
  if (good) {
    handle->pointer = NULL;
    code = leno_forward_call(chain, call, &lent->head, &lent->body);
  }
  give_back(lent);
  return good ? done(env, code) : NULL;
}

/* ask(chain, parent or null, [method, authority, path], fields, body) */
static napi_value do_ask(napi_env env, napi_callback_info info) {
  ARGUMENTS(5);
  napi_valuetype type;
  leno_pending *pending = NULL;
  void *parent = NULL, *chain = unwrap(env, arguments[0], CHAIN, NULL);
  if (!chain) return NULL;
  napi_typeof(env, arguments[1], &type);
  if (type == napi_external && !(parent = unwrap(env, arguments[1], CALL, NULL))) return NULL;
  Lent *lent = calloc(1, sizeof *lent);
  int good = lend_head(env, lent, arguments + 2);
  int code = good ? leno_ask(chain, parent, &lent->head, &lent->body, &pending) : LENO_OK;
  give_back(lent);
  if (!good) return NULL;
  return code == LENO_OK ? wrap(env, PENDING, pending) : done(env, code);
}

NAPI_MODULE_INIT() {
  static const struct {
    const char *name;
    napi_callback function;
  } functions[] = {
      {"open", do_open},           {"next", do_next},         {"wait", do_wait},
      {"describe", do_describe},   {"copy", do_copy},         {"isCancelled", do_is_cancelled},
      {"close", do_close},         {"answer", do_answer},     {"forward", do_forward},
      {"ask", do_ask},
  };
  for (size_t place = 0; place < sizeof functions / sizeof *functions; place++) {
    napi_value function;
    napi_create_function(env, functions[place].name, NAPI_AUTO_LENGTH, functions[place].function, NULL, &function);
    set(env, exports, functions[place].name, function);
  }
  return exports;
}
