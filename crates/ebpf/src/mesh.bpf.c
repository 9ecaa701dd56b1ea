// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0
//
// What the kernel knows of the mesh. A jail's network (its cookie) tells whose jail it is, and every function has an address by which others call it.
// So a connection from a jail is one from function to function, and `rules` holds what those may do.
//
// `connect4` and the like refuse where a connection would begin. `egress` drops what comes from sockets whose permission was withdrawn since.
// `established` and `forward` splice a TCP connection of one jail and one of another: what is sent on either is put into the queue of the other's
// receiver. The node has a socket at the other end of each, and carries what does not go that way.

#include <linux/bpf.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define AF_INET 2
#define IPPROTO_TCP 6
#define IPPROTO_UDP 17
#define SOCK_ADDR_REFUSE 0
#define SOCK_ADDR_ALLOW 1
#define RCV_SHUTDOWN 1
#define O_NONBLOCK 04000

// Of the kernel's own structures, what is read here. Where it is, the kernel's type information says.
typedef struct {
	int counter;
} atomic_t;
struct file {
	unsigned int f_flags;
} __attribute__((preserve_access_index));
struct socket {
	struct file *file;
} __attribute__((preserve_access_index));
struct sock {
	struct socket *sk_socket;
	struct {
		atomic_t rmem_alloc;
	} sk_backlog;
	__u8 sk_shutdown;
} __attribute__((preserve_access_index));
struct inet_connection_sock {
	const void *icsk_ulp_ops;
} __attribute__((preserve_access_index));
struct tcp_sock {
	struct inet_connection_sock inet_conn;
	__u32 write_seq;
	__u32 copied_seq;
	__u32 snd_una;
} __attribute__((preserve_access_index));

// Verdicts. The order matters: what is at least HTTP may begin.
#define REFUSED 0
#define HTTP 1
#define DIRECT 2

// What a function may do with another. Addresses are in network order, ports in the machine's.
struct rule_key {
	__u32 caller;
	__u32 callee;
	// 0: any that has no rule of its own.
	__u16 port;
	__u8 protocol;
	__u8 zero;
};

// Both addresses are one prefix: the whole caller, and the beginning of the callee.
struct block_key {
	__u32 prefix;
	__u32 caller;
	__u32 callee;
};

// The two ends of a TCP connection, as one of its sockets sees them.
struct ends {
	__u64 network;
	__u32 local;
	__u32 remote;
	__u16 local_port;
	__u16 remote_port;
	__u32 zero;
};

// An established socket of a program in a jail.
struct half {
	// Where the kernel has it. It may be gone: it is only ever read, and what is read is never trusted.
	__u64 socket;
	// Sequence number of the first byte that it sends.
	__u32 sends;
	// Sequence number of the first byte that it receives.
	__u32 receives;
};

// Of a socket that is spliced.
struct pair {
	// Whose queue gets what it sends.
	struct ends receiver;
	// How many bytes have gone there.
	__u64 bytes;
	// The two sockets. Others may have the same addresses later.
	struct half sends;
	struct half receives;
	// What allows it.
	struct rule_key rule;
	__u32 zero;
};

struct refusal {
	// 0: a packet of a connection that had begun.
	__u64 network;
	// Nanoseconds of CLOCK_MONOTONIC.
	__u64 at;
	struct rule_key asked;
	__u32 zero;
};

// Bytes that a receiver may have in its queue. What is more goes through TCP, which makes the sender wait.
#define FULL (1 << 20)

// The cookie of the node's own network. No rule is for it.
const volatile __u64 own_network = 0;
// Refusals that nobody was told of, because the ring was full.
__u64 untold = 0;

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u64);
	__type(value, __u32);
} jails SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1 << 20);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct rule_key);
	__type(value, __u8);
} rules SEC(".maps");

// Blocks of addresses outside of the mesh that a function may connect to, at any port. The node knows the ports.
struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, 1 << 18);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct block_key);
	__type(value, __u8);
} blocks SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 64 * 1024);
} refusals SEC(".maps");

// The function whose socket it is, for packets, which do not tell their network.
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct rule_key);
} callers SEC(".maps");

// Sockets that the node is about to connect to: their program's end is wanted.
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct ends);
	__type(value, __u8);
} expected SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_SOCKHASH);
	__uint(max_entries, 262144);
	__type(key, struct ends);
	__type(value, __u64);
} sockets SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 131072);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct ends);
	__type(value, struct half);
} halves SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 262144);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct ends);
	__type(value, struct pair);
} pairs SEC(".maps");

static __always_inline int is_loopback(__u32 address)
{
	// The unspecified address is what programs call themselves by, too.
	return !address || (bpf_ntohl(address) >> 24) == 127;
}

static __always_inline __u8 verdict(struct rule_key *key)
{
	__u8 *found = bpf_map_lookup_elem(&rules, key);

	if (!found && key->protocol == IPPROTO_TCP) {
		struct rule_key any = *key;

		any.port = 0;
		found = bpf_map_lookup_elem(&rules, &any);
	}
	if (!found && key->protocol == IPPROTO_TCP) {
		struct block_key block = { .prefix = 64, .caller = key->caller, .callee = key->callee };

		found = bpf_map_lookup_elem(&blocks, &block);
	}
	return found ? *found : REFUSED;
}

static __always_inline void tell(__u64 network, const struct rule_key *asked)
{
	struct refusal *refusal = bpf_ringbuf_reserve(&refusals, sizeof(*refusal), 0);

	if (!refusal) {
		__sync_fetch_and_add(&untold, 1);
		return;
	}
	refusal->network = network;
	refusal->at = bpf_ktime_get_ns();
	refusal->asked = *asked;
	refusal->zero = 0;
	bpf_ringbuf_submit(refusal, 0);
}

static __always_inline int may_begin(struct bpf_sock_addr *asked, __u32 address)
{
	struct rule_key key = { .callee = address, .port = bpf_ntohs(asked->user_port), .protocol = asked->protocol };
	__u64 network = bpf_get_netns_cookie(asked);
	struct rule_key *kept;
	__u32 *caller;

	if (network == own_network || is_loopback(address))
		return SOCK_ADDR_ALLOW;
	caller = bpf_map_lookup_elem(&jails, &network);
	if (caller)
		key.caller = *caller;
	if (!caller || verdict(&key) == REFUSED) {
		tell(network, &key);
		return SOCK_ADDR_REFUSE;
	}
	kept = bpf_sk_storage_get(&callers, asked->sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
	if (!kept)
		return SOCK_ADDR_REFUSE;
	*kept = key;
	return SOCK_ADDR_ALLOW;
}

// An IPv4 address in the form of IPv6 leads where the IPv4 address does. No other leads anywhere from a jail.
static __always_inline int may_begin6(struct bpf_sock_addr *asked)
{
	if (asked->user_ip6[0] || asked->user_ip6[1] || asked->user_ip6[2] != bpf_htonl(0xffff))
		return SOCK_ADDR_ALLOW;
	return may_begin(asked, asked->user_ip6[3]);
}

SEC("cgroup/connect4")
int connect4(struct bpf_sock_addr *asked)
{
	return may_begin(asked, asked->user_ip4);
}

SEC("cgroup/connect6")
int connect6(struct bpf_sock_addr *asked)
{
	return may_begin6(asked);
}

SEC("cgroup/sendmsg4")
int sendmsg4(struct bpf_sock_addr *asked)
{
	return may_begin(asked, asked->user_ip4);
}

SEC("cgroup/sendmsg6")
int sendmsg6(struct bpf_sock_addr *asked)
{
	return may_begin6(asked);
}

SEC("cgroup_skb/egress")
int egress(struct __sk_buff *packet)
{
	const int pass = 1, drop = 0;
	struct bpf_sock *socket = packet->sk;
	struct rule_key *kept;

	if (!socket)
		return pass;
	socket = bpf_sk_fullsock(socket);
	if (!socket)
		return pass;
	kept = bpf_sk_storage_get(&callers, socket, 0, 0);
	if (!kept || verdict(kept) != REFUSED)
		return pass;
	tell(0, kept);
	return drop;
}

// Whether reads wait in the kernel. Those of a socket that `forward` looks at may end early with EAGAIN, when something else happens to it (Linux 6.18:
// `tcp_bpf_recvmsg`). A program that asked not to wait knows what to do then; others would take it for an error.
static __always_inline int waits(struct tcp_sock *tcp)
{
	struct sock *socket = (struct sock *)tcp;

	return !(BPF_CORE_READ(socket, sk_socket, file, f_flags) & O_NONBLOCK);
}

// Has what a program's socket sends looked at by `forward`.
static __always_inline void join(struct bpf_sock_ops *ops, struct ends *own, int connects)
{
	struct bpf_sock *socket = ops->sk;
	struct half half = {};
	struct tcp_sock *tcp;

	if (!socket)
		return;
	tcp = bpf_skc_to_tcp_sock(socket);
	// Whoever had these addresses before is gone.
	bpf_map_delete_elem(&pairs, own);
	// A socket that is accepted has no file yet. Programs that do so for many do not wait. What was sent with the first packet (TCP Fast Open) is on its
	// way already.
	if (!tcp || (connects && waits(tcp)) || tcp->write_seq != tcp->snd_una)
		return;
	half.socket = (__u64)tcp;
	half.sends = tcp->write_seq;
	half.receives = tcp->copied_seq;
	if (bpf_map_update_elem(&halves, own, &half, BPF_ANY))
		return;
	if (bpf_sock_ops_cb_flags_set(ops, ops->bpf_sock_ops_cb_flags | BPF_SOCK_OPS_STATE_CB_FLAG) ||
	    bpf_sock_hash_update(ops, &sockets, own, BPF_ANY))
		bpf_map_delete_elem(&halves, own);
}

SEC("sockops")
int established(struct bpf_sock_ops *ops)
{
	struct ends own = {};
	__u32 *caller;

	if (ops->op != BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB && ops->op != BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB &&
	    ops->op != BPF_SOCK_OPS_STATE_CB)
		return 1;
	own.network = bpf_get_netns_cookie(ops);
	if (own.network == own_network)
		return 1;
	own.local = ops->local_ip4;
	own.remote = ops->remote_ip4;
	own.local_port = ops->local_port;
	own.remote_port = bpf_ntohl(ops->remote_port);
	switch (ops->op) {
	case BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB:
		caller = bpf_map_lookup_elem(&jails, &own.network);
		if (caller) {
			struct rule_key key = {
				.caller = *caller,
				.callee = own.remote,
				.port = own.remote_port,
				.protocol = IPPROTO_TCP,
			};

			if (verdict(&key) == DIRECT)
				join(ops, &own, 1);
		}
		break;
	case BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB:
		if (bpf_map_lookup_elem(&expected, &own))
			join(ops, &own, 0);
		break;
	case BPF_SOCK_OPS_STATE_CB:
		if (ops->args[1] == BPF_TCP_CLOSE)
			bpf_map_delete_elem(&halves, &own);
		break;
	}
	return 1;
}

// Whether a receiver has all that a sender ever sent through TCP, and has read it. Until then, nothing may go another way: it would overtake.
static __always_inline int has_read_all(struct sk_msg_md *message, struct half *sender, struct half *receiver)
{
	struct tcp_sock *sending, *receiving = (struct tcp_sock *)receiver->socket;
	__u32 copied;

	if (!message->sk)
		return 0;
	sending = bpf_skc_to_tcp_sock(message->sk);
	if (!sending || bpf_core_read(&copied, sizeof(copied), &receiving->copied_seq))
		return 0;
	return sending->write_seq - sender->sends == copied - receiver->receives;
}

// Whether a receiver goes on reading, and may be given more.
static __always_inline int has_capacity(struct half *receiver)
{
	struct sock *socket = (struct sock *)receiver->socket;
	__u8 shutdown;
	int queued;

	if (bpf_core_read(&shutdown, sizeof(shutdown), &socket->sk_shutdown) ||
	    bpf_core_read(&queued, sizeof(queued), &socket->sk_backlog.rmem_alloc.counter))
		return 0;
	return !(shutdown & RCV_SHUTDOWN) && queued < FULL;
}

// Whether the kernel encrypts what is sent on a socket, or decrypts what it receives (kTLS). What goes direct would be neither.
static __always_inline int has_layer(struct half *half)
{
	struct tcp_sock *tcp = (struct tcp_sock *)half->socket;
	const void *layer = (void *)1;

	return bpf_core_read(&layer, sizeof(layer), &tcp->inet_conn.icsk_ulp_ops) || layer;
}

static __always_inline int is_same(struct half *one, struct half *other)
{
	return one->socket == other->socket && one->sends == other->sends && one->receives == other->receives;
}

// What does not go to the receiver at once goes to the node, through TCP, and from there to the receiver.
SEC("sk_msg")
int forward(struct sk_msg_md *message)
{
	struct half *sender, *receiver;
	struct rule_key rule;
	struct ends own = {};
	struct pair *pair;

	own.network = bpf_get_netns_cookie(message);
	own.local = message->local_ip4;
	own.remote = message->remote_ip4;
	own.local_port = message->local_port;
	own.remote_port = bpf_ntohl(message->remote_port);
	pair = bpf_map_lookup_elem(&pairs, &own);
	if (!pair)
		return SK_PASS;
	sender = bpf_map_lookup_elem(&halves, &own);
	receiver = bpf_map_lookup_elem(&halves, &pair->receiver);
	if (!sender || !receiver || !is_same(sender, &pair->sends) || !is_same(receiver, &pair->receives))
		return SK_PASS;
	// What is withdrawn meanwhile goes through TCP, where `egress` and the node refuse it.
	rule = pair->rule;
	if (verdict(&rule) != DIRECT || has_layer(sender) || has_layer(receiver) || !has_capacity(receiver) || !has_read_all(message, sender, receiver))
		return SK_PASS;
	// It fails if the receiver is being closed. Then TCP tells the sender. A verdict to drop would stick to the socket.
	if (bpf_msg_redirect_hash(message, &sockets, &pair->receiver, BPF_F_INGRESS) == SK_PASS)
		__sync_fetch_and_add(&pair->bytes, message->size);
	return SK_PASS;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
