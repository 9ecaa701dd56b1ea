/* Functions that hand each other memory: `protocol: chain`.
 *
 * A program opens its chain, takes one call after the other, and answers each. A body that it writes is in a buffer, which others read where it is; one
 * that it was sent is passed on where it is, by naming the call or the answer that it came with. All functions may be called by many threads at once;
 * a call, a pending call, an answer and a buffer are used by one thread at a time. A program that forks must not use the chain in the child.
 *
 * Memory that a function returns is to be read only, and is there for as long as what it was asked of. Functions that take something over free it
 * whatever they return. Texts do not end with a zero; their length is given. */
#ifndef LENO_H
#define LENO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What functions return. `leno_error` says more. */
enum {
  LENO_OK = 0,
  LENO_ENDED = 1,   /* The link to the node has ended. */
  LENO_FULL = 2,    /* This program's arena is full. */
  LENO_FAILED = 3,  /* Whoever had to answer has failed. */
  LENO_INVALID = 4, /* An argument is not what it has to be. */
};

typedef struct leno_chain leno_chain;
typedef struct leno_call leno_call;
typedef struct leno_pending leno_pending;
typedef struct leno_answer leno_answer;
typedef struct leno_buffer leno_buffer;

typedef struct {
  const uint8_t *data;
  size_t length;
} leno_bytes;

/* A header field. The name is in lower case. */
typedef struct {
  leno_bytes name, value;
} leno_field;

/* What a call goes to, and its fields, in an array. */
typedef struct {
  leno_bytes method, authority, path;
  const leno_field *fields;
  size_t field_count;
} leno_head;

/* The body of a message that is sent: `length` bytes, `start` bytes from the beginning of what `of` points to. */
enum {
  LENO_NONE = 0,      /* No body. */
  LENO_COPY = 1,      /* Bytes anywhere, which are copied. */
  LENO_BUFFER = 2,    /* A leno_buffer, which must not be written to any more. It may be sent again, and freed at any time. */
  LENO_OF_CALL = 3,   /* The body of a leno_call, which may be the one that is answered. */
  LENO_OF_ANSWER = 4, /* The body of a leno_answer. */
};
typedef struct {
  int kind;
  const void *of;
  size_t start, length;
} leno_body;

/* Waits until the node connects to where the variable PORT says. NULL: an error. */
leno_chain *leno_open(void);
/* Over a connected socket (SOCK_SEQPACKET), which is taken over. NULL: an error. */
leno_chain *leno_open_socket(int socket);
/* Whether what needs memory waits while the arena is full, rather than fail with LENO_FULL. At first it fails. */
void leno_wait_when_full(leno_chain *chain, bool wait);
/* Frees it. What came of it goes on, and has to be freed by itself. */
void leno_close(leno_chain *chain);
/* What was wrong with the latest function that failed on this thread, as text that ends with a zero. */
const char *leno_error(void);

/* Waits for the next call. */
int leno_next(leno_chain *chain, leno_call **call);
leno_bytes leno_call_method(const leno_call *call);
leno_bytes leno_call_authority(const leno_call *call);
leno_bytes leno_call_path(const leno_call *call);
leno_bytes leno_call_body(const leno_call *call);
/* Writes the first `most` fields, and returns how many there are. */
size_t leno_call_fields(const leno_call *call, leno_field *into, size_t most);
/* Whether nobody waits for the answer any more. It has to be answered or freed even so. */
bool leno_call_is_cancelled(const leno_call *call);
/* Frees a call without an answer: it has failed. */
void leno_call_free(leno_call *call);

/* Answers a call, which is taken over. */
int leno_answer_call(leno_chain *chain, leno_call *call, int status, const leno_field *fields, size_t field_count,
                     const leno_body *body);
/* Has another function answer a call, which is taken over. */
int leno_forward_call(leno_chain *chain, leno_call *call, const leno_head *head, const leno_body *body);

/* Calls a function, for the sake of the call `parent`, or NULL. Several calls may be under way at once. */
int leno_ask(leno_chain *chain, const leno_call *parent, const leno_head *head, const leno_body *body,
             leno_pending **pending);
/* Waits for the answer to a call, which is taken over. */
int leno_wait(leno_pending *pending, leno_answer **answer);
/* Waits for the first answer to any of these calls, says which it was, and takes that call over; its place is NULL then. Places that are NULL already
 * are left out. */
int leno_wait_any(leno_pending **pending, size_t count, size_t *which, leno_answer **answer);
/* Cancels a call. */
void leno_pending_free(leno_pending *pending);

int leno_answer_status(const leno_answer *answer);
leno_bytes leno_answer_body(const leno_answer *answer);
size_t leno_answer_fields(const leno_answer *answer, leno_field *into, size_t most);
void leno_answer_free(leno_answer *answer);

/* Memory for a body. What is in it is left from before. NULL: the arena is full. */
leno_buffer *leno_buffer_new(leno_chain *chain, size_t length);
uint8_t *leno_buffer_data(leno_buffer *buffer);
void leno_buffer_free(leno_buffer *buffer);

#ifdef __cplusplus
}
#endif

#endif
