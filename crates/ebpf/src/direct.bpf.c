// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0
//
// Hands descriptors from one end of a channel to the other. The ends are TCP sockets that the node made for a caller and a callee, each in a network
// where TCP reaches nothing. What one end sends is looked at here, counted, and put into the queue of the other end. What is not allowed goes nowhere.
//
// A message, which is what one call of `sendmsg` sends, is judged as a whole: it has an effect as a whole, or none.

#include <linux/bpf.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>

// Of the kernel's own structures, what is read here. Where it is, the kernel's type information says.
typedef struct {
	int counter;
} atomic_t;
struct sock {
	struct {
		atomic_t rmem_alloc;
	} sk_backlog;
} __attribute__((preserve_access_index));

#define CALLER 0
#define CALLEE 1
#define NOBODY 2

#define CALL 1
#define ANSWER 2
#define RELEASE 3
#define CANCEL 4

// Kinds of violations, in the order in which they are counted.
#define ALLOWED 0
#define PACKET 1
#define DESCRIPTOR 2
#define NUMBER 3
#define STALE 4
#define SLOT 5

// Calls that may be open or held at once.
#define PLACES 64
// Descriptors of a message.
#define MOST 8
// Bytes of a message's fixed part in an arena, and of the unit in which its place is counted.
#define UNIT 64
// Bytes that may be in an end's queue. Ends that answer only what they have read never come near it: 64 calls, all of them cancelled, and 64 releases
// are 3 KiB, and the kernel needs far more memory for a message than it has bytes.
#define FULL (16 * 1024)

struct descriptor {
	__u8 kind;
	__u8 zero;
	__u16 zeros;
	__u32 number;
	__u32 slot;
	__u32 length;
};

// An end of a channel.
struct end {
	__u32 channel;
	__u32 role;
};

struct identity {
	struct end end;
	// Whether its calls are refused.
	__u32 closed;
	__u32 zero;
};

struct channel {
	struct bpf_spin_lock lock;
	// Number of the last call.
	__u32 last;
	// Places of calls that are not answered.
	__u64 open;
	// Places of calls whose answer is not released.
	__u64 held;
	// Bytes of each end's own arena.
	__u64 arenas[2];
	// Most bytes of a message there, without its body.
	__u32 length;
	__u32 zero;
	// Where the kernel has the ends. This is only ever read, and what is read is never trusted.
	__u64 sockets[2];
	__u64 calls;
	__u64 answers;
	__u64 failed;
	__u64 cancelled;
	__u64 released;
	__u64 refused;
	__u64 violations[2][SLOT];
	// The numbers of the calls in each place.
	__u32 numbers[PLACES];
};

// What a message changes.
struct change {
	__u64 open;
	__u64 held;
	// 0: none.
	__u32 call;
	__u32 answers;
	__u32 failed;
	__u32 cancelled;
	__u32 released;
};

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct identity);
} identities SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32);
	__type(value, struct channel);
} channels SEC(".maps");

// Both ends of each channel, and the one that takes nothing.
struct {
	__uint(type, BPF_MAP_TYPE_SOCKHASH);
	__uint(max_entries, 2 * 16384 + 1);
	__type(key, struct end);
	__type(value, __u64);
} ends SEC(".maps");

// A verdict to drop would stick to the socket, and nothing that it sends would be looked at again. So what is not allowed is sent on a socket that sends
// nothing, and the program is told that socket's error (EINVAL).
static __always_inline int refuse(struct sk_msg_md *message)
{
	struct end nobody = { .role = NOBODY };

	return bpf_msg_redirect_hash(message, &ends, &nobody, 0);
}

// Whether an end may be given more. One end alone cannot fill the other's queue, but one that answers what it does not read can have its own filled.
static __always_inline int has_capacity(__u64 end)
{
	struct sock *socket = (struct sock *)end;
	int queued;

	return !bpf_core_read(&queued, sizeof(queued), &socket->sk_backlog.rmem_alloc.counter) && queued < FULL;
}

// Whether what a descriptor tells of lies in an arena.
static __always_inline int lies_in(struct descriptor *descriptor, struct channel *channel, __u64 arena)
{
	return descriptor->length >= UNIT && descriptor->length <= channel->length &&
	       (__u64)descriptor->slot * UNIT + descriptor->length <= arena;
}

static __always_inline int by_caller(struct descriptor *descriptor, struct channel *channel, struct change *change, int is_last)
{
	__u32 number = descriptor->number, place = number % PLACES;
	__u64 bit = 1ULL << place;
	int is_here = channel->numbers[place] == number;

	switch (descriptor->kind) {
	case CALL:
		if (!is_last)
			return PACKET;
		// The next ones after the last. Numbers wrap around.
		if (!number || number - channel->last - 1 >= PLACES || (change->open | change->held) & bit)
			return NUMBER;
		if (!lies_in(descriptor, channel, channel->arenas[CALLER]))
			return SLOT;
		change->open |= bit;
		change->call = number;
		return ALLOWED;
	case RELEASE:
		if (descriptor->slot || descriptor->length)
			return DESCRIPTOR;
		if (!(change->held & bit) || !is_here)
			return STALE;
		change->held &= ~bit;
		change->released++;
		return ALLOWED;
	case CANCEL:
		if (descriptor->slot || descriptor->length)
			return DESCRIPTOR;
		// It may have been answered meanwhile.
		if (!number || (__s32)(number - channel->last) > 0)
			return STALE;
		change->cancelled++;
		return ALLOWED;
	}
	return DESCRIPTOR;
}

static __always_inline int by_callee(struct descriptor *descriptor, struct channel *channel, struct change *change)
{
	__u32 number = descriptor->number, place = number % PLACES;
	__u64 bit = 1ULL << place;

	if (descriptor->kind != ANSWER)
		return DESCRIPTOR;
	if (!(change->open & bit) || channel->numbers[place] != number)
		return STALE;
	if (descriptor->length) {
		if (!lies_in(descriptor, channel, channel->arenas[CALLEE]))
			return SLOT;
		change->held |= bit;
		change->answers++;
	} else {
		if (descriptor->slot)
			return SLOT;
		change->failed++;
	}
	change->open &= ~bit;
	return ALLOWED;
}

SEC("sk_msg")
int judge(struct sk_msg_md *message)
{
	__u32 size = message->size, role, other, number;
	int wrong = ALLOWED, refused = 0, i;
	struct change change = {};
	struct identity *identity;
	struct channel *channel;
	void *data, *end;
	struct end to;

	if (!message->sk)
		return SK_DROP;
	identity = bpf_sk_storage_get(&identities, message->sk, 0, 0);
	if (!identity)
		return SK_DROP;
	to = identity->end;
	channel = bpf_map_lookup_elem(&channels, &to.channel);
	if (!channel)
		return SK_DROP;
	role = to.role == CALLER ? CALLER : CALLEE;
	other = role == CALLER ? CALLEE : CALLER;
	to.role = other;
	// The first message is the node's, and tells where the socket is.
	if (!channel->sockets[role]) {
		channel->sockets[role] = (__u64)bpf_skc_to_tcp_sock(message->sk);
		return refuse(message);
	}

	if (size % sizeof(struct descriptor) || size > MOST * sizeof(struct descriptor))
		wrong = PACKET;
	else if (message->data + size > message->data_end && bpf_msg_pull_data(message, 0, size, 0))
		wrong = PACKET;
	// It fails if the other end is not there any more. A later one takes its place.
	if (!has_capacity(channel->sockets[other]) || bpf_msg_redirect_hash(message, &ends, &to, BPF_F_INGRESS) != SK_PASS)
		refused = 1;

	data = message->data;
	end = message->data_end;
	bpf_spin_lock(&channel->lock);
	change.open = channel->open;
	change.held = channel->held;
#pragma unroll
	for (i = 0; i < MOST; i++) {
		struct descriptor *descriptor = data + i * sizeof(*descriptor);

		if (wrong || refused || i * sizeof(*descriptor) >= size)
			break;
		if ((void *)(descriptor + 1) > end)
			wrong = PACKET;
		else if (descriptor->zero || descriptor->zeros)
			wrong = DESCRIPTOR;
		else if (role == CALLEE)
			wrong = by_callee(descriptor, channel, &change);
		else if (identity->closed && descriptor->kind == CALL)
			refused = 1;
		else
			wrong = by_caller(descriptor, channel, &change, (i + 1) * sizeof(*descriptor) == size);
	}
	if (wrong > ALLOWED && wrong <= SLOT) {
		channel->violations[role][wrong - 1]++;
	} else if (refused) {
		channel->refused++;
	} else {
		number = change.call;
		if (number) {
			channel->last = number;
			channel->numbers[number % PLACES] = number;
			channel->calls++;
		}
		channel->open = change.open;
		channel->held = change.held;
		channel->answers += change.answers;
		channel->failed += change.failed;
		channel->cancelled += change.cancelled;
		channel->released += change.released;
	}
	bpf_spin_unlock(&channel->lock);
	return wrong || refused ? refuse(message) : SK_PASS;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
