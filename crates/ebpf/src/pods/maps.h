// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0
//
// Types, maps and questions that all programs of `pods.bpf.c` share.

#define AF_UNIX 1
#define AF_INET 2
#define AF_INET6 10
#define AF_NETLINK 16
#define AF_PACKET 17
#define AF_ALG 38
#define SOL_PACKET 263
#define PACKET_QDISC_BYPASS 20
#define SOL_XDP 283
#define CAP_NET_ADMIN 12
#define EAFNOSUPPORT 97
#define SOL_SOCKET 1
#define SO_MARK 36
#define SOCK_RAW 3
#define ETH_P_IP 0x0800
#define ETH_P_ARP 0x0806
#define ETH_P_IPV6 0x86dd
#define PACKET_OTHERHOST 3
#define IPPROTO_HOPOPTS 0
#define IPPROTO_ICMP 1
#define IPPROTO_TCP 6
#define IPPROTO_UDP 17
#define IPPROTO_FRAGMENT 44
#define IPPROTO_ICMPV6 58
#define SYN 0x02
#define ACK 0x10
#define LOOPBACK 1
#define SOCK_ADDR_REFUSE 0
#define SOCK_ADDR_ALLOW 1
#define TCX_NEXT -1
#define TCX_DROP 2

// The port of tunnels to pods (HBONE). The agent listens there, and no program need do.
#define TUNNELS 15008

// Leads back into the pod. `MARK` of leno-ebpf.
#define MARK 0x4c656e6f

// In network order. An IPv4 address has the form ::ffff:a.b.c.d.
struct address {
	__u32 words[4];
};

// A pod's network. The rest is what the agent puts back at the end.
struct network {
	// Whether connections out of the pod are led to the agent.
	__u8 captured;
	__u8 enforced;
	// Each agent has listeners of the next generation. Those of the one before still have connections that begin.
	__u8 generation;
	__u8 before;
};

#define OUT 0
#define IN 1
struct listener_key {
	__u64 network;
	__u8 side;
	__u8 generation;
	__u16 zero;
	__u32 family;
};

struct own_key {
	__u64 network;
	struct address address;
};

struct peer_key {
	__u32 prefix;
	__u32 network[2];
	// In network order. 0: any.
	__u16 port;
	__u16 zero;
	struct address address;
};

// The variants of `DropReason` of leno-ebpf.
enum reason {
	PASS = 0,
	NO_AGENT = 1,
	TCP = 2,
	UDP = 3,
	ICMP = 4,
	PROTOCOL = 5,
	FRAME = 6,
	FRAGMENT = 7,
	FORWARDED = 8,
	SPOOFED = 9,
	FAMILY = 10,
};
struct drop_key {
	__u64 network;
	__u32 reason;
	__u32 zero;
};

struct packet {
	struct address source;
	struct address destination;
	__u32 family;
	__u16 source_port;
	__u16 destination_port;
	__u8 protocol;
	__u8 is_fragment;
	// The flags of TCP, or the type of ICMP.
	__u8 kind;
};

// A connection that an agent has opened for a program of a pod, by its local address.
struct caller_key {
	struct address address;
	__u32 port;
};
struct caller {
	__u64 network;
	// The agent that has opened it: it is alive if it has the listeners of this generation.
	__u8 generation;
	__u8 length;
	__u8 zero[6];
	__u8 uid[64];
};

// The connection that a port without a program refuses.
struct refused_connection {
	struct address source;
	struct address destination;
	__u16 source_port;
	__u16 destination_port;
};

// The cookie of the pod's network.
const volatile __u64 network = 0;

// Where the kernel's own structures have their fields. The agent reads it once from the kernel's type information, which has megabytes: libbpf would read it
// for each pod.
struct offsets {
	// Of `sock`, `socket`, `sock_common`.
	__u32 sk_socket;
	__u32 file;
	__u32 skc_listener;
	// Of `task_struct`, `nsproxy`, `net`, `task_struct`, `cred`.
	__u32 nsproxy;
	__u32 net_ns;
	__u32 net_cookie;
	__u32 cred;
	__u32 cap_effective;
};
const volatile struct offsets offsets = {};

#define FIELD_OF(structure, name, into) bpf_probe_read_kernel(&(into), sizeof(into), (const void *)(structure) + offsets.name)

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u64);
	__type(value, struct network);
} networks SEC(".maps");

// The kernel removes a listener that is closed, also by the end of its process.
struct {
	__uint(type, BPF_MAP_TYPE_SOCKHASH);
	__uint(max_entries, 65536);
	__type(key, struct listener_key);
	__type(value, __u64);
} listeners SEC(".maps");

// The addresses of pods.
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct own_key);
	__type(value, __u8);
} own SEC(".maps");

// With whom an enforced pod may exchange datagrams.
struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, 1 << 18);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct peer_key);
	__type(value, __u8);
} peers SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1 << 18);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct drop_key);
	__type(value, __u64);
} drops SEC(".maps");

// The agent's sockets. A mark would not do: a program with CAP_NET_RAW may set any.
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC | BPF_F_CLONE);
	__type(key, int);
	__type(value, __u8);
} agents SEC(".maps");

// No program reads it. Two agents, one of which takes over from the other, know the callers of each other's connections by it.
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1 << 18);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct caller_key);
	__type(value, struct caller);
} callers SEC(".maps");

// `ingress` tells `choose`, which the same processor calls for the same packet.
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct refused_connection);
} refused SEC(".maps");

static __always_inline struct address mapped(__u32 address)
{
	return (struct address){ .words = { 0, 0, bpf_htonl(0xffff), address } };
}

static __always_inline int is_mapped(const struct address *address)
{
	return !address->words[0] && !address->words[1] && address->words[2] == bpf_htonl(0xffff);
}

// Whether an address is the pod's own, or one of its loopback interface.
static __always_inline int is_own(__u64 network, const struct address *address)
{
	struct own_key key = { .network = network, .address = *address };
	__u32 last = bpf_ntohl(address->words[3]);

	// The unspecified address is what programs call themselves by, too.
	if (is_mapped(address) && (!last || last >> 24 == 127))
		return 1;
	if (!address->words[0] && !address->words[1] && !address->words[2] && last <= 1)
		return 1;
	return bpf_map_lookup_elem(&own, &key) != NULL;
}

static __always_inline struct bpf_sock *listener_of(__u64 network, __u8 generation, __u8 side, __u32 family)
{
	struct listener_key key = { .network = network, .side = side, .generation = generation, .family = family };

	return bpf_map_lookup_elem(&listeners, &key);
}

static __always_inline int is_listening(__u64 network, const struct network *known, __u8 side, __u32 family)
{
	struct bpf_sock *listener = listener_of(network, known->generation, side, family);

	if (!listener)
		return 0;
	bpf_sk_release(listener);
	return 1;
}

static __always_inline void count_drop(__u64 network, __u32 reason)
{
	struct drop_key key = { .network = network, .reason = reason };
	__u64 *count = bpf_map_lookup_elem(&drops, &key);

	if (count)
		__sync_fetch_and_add(count, 1);
}

// The state of the pod, for the programs that each pod has.
static __always_inline struct network *pod(void)
{
	__u64 key = network;

	return bpf_map_lookup_elem(&networks, &key);
}

static __always_inline int equals(const struct address *a, const struct address *b)
{
	return a->words[0] == b->words[0] && a->words[1] == b->words[1] && a->words[2] == b->words[2] &&
	       a->words[3] == b->words[3];
}
