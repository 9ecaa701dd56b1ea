// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0
//
// Packets of enforced pods, for `pods.bpf.c`: all are dropped that do not pass the agent, and that the agent has not allowed. `ingress` also has ports
// without a program refuse connections, in any pod.

// Refuses sockets of an enforced pod whose packets `egress` does not see, or that leave by other means: those of AF_PACKET can bypass it, those of AF_XDP,
// AF_VSOCK and AF_SMC always do. Who may administer the network anyway may look at its packets (tcpdump on the node).
SEC("fmod_ret/security_socket_create")
int create(__u64 *arguments)
{
	int family = (int)arguments[0], is_kernels = (int)arguments[3], result = (int)arguments[4];
	const void *task = (const void *)bpf_get_current_task(), *at = NULL;
	__u64 network = 0, capabilities = 0;
	struct network *known;

	if (result || is_kernels || family == AF_UNIX || family == AF_INET || family == AF_INET6 || family == AF_NETLINK ||
	    family == AF_ALG)
		return result;
	if (FIELD_OF(task, nsproxy, at) || FIELD_OF(at, net_ns, at) || FIELD_OF(at, net_cookie, network))
		return 0;
	known = bpf_map_lookup_elem(&networks, &network);
	if (!known || !known->enforced)
		return 0;
	if (family == AF_PACKET && !FIELD_OF(task, cred, at) && !FIELD_OF(at, cap_effective, capabilities) &&
	    capabilities & 1 << CAP_NET_ADMIN)
		return 0;
	count_drop(network, FAMILY);
	return -EAFNOSUPPORT;
}

// Where the kernel does not have `create`: refuses the options by which those of AF_PACKET and AF_XDP bypass `egress`. System calls of 32-bit programs do
// not arrive here.
SEC("cgroup/setsockopt")
int setsockopt(struct bpf_sockopt *ctx)
{
	__u64 network = bpf_get_netns_cookie(ctx);
	int bypasses = (ctx->level == SOL_PACKET && ctx->optname == PACKET_QDISC_BYPASS) || ctx->level == SOL_XDP;
	struct network *known = bypasses ? bpf_map_lookup_elem(&networks, &network) : NULL;

	if (known && known->enforced) {
		count_drop(network, FAMILY);
		return SOCK_ADDR_REFUSE;
	}
	// The kernel takes the program's own value, of any length.
	ctx->optlen = 0;
	return SOCK_ADDR_ALLOW;
}

#define LOAD(at, into) bpf_skb_load_bytes_relative(skb, at, &(into), sizeof(into), BPF_HDR_START_NET)

static __always_inline int parse(struct __sk_buff *skb, struct packet *packet)
{
	__u32 offset;

	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		struct {
			__u8 version_and_length;
			__u8 service;
			__u16 length;
			__u16 id;
			__u16 fragment;
			__u8 hops;
			__u8 protocol;
			__u16 checksum;
			__u32 source;
			__u32 destination;
		} ip;

		if (LOAD(0, ip))
			return 0;
		packet->family = AF_INET;
		packet->source = mapped(ip.source);
		packet->destination = mapped(ip.destination);
		packet->protocol = ip.protocol;
		// More fragments, or the offset.
		packet->is_fragment = (ip.fragment & bpf_htons(0x3fff)) != 0;
		offset = (ip.version_and_length & 15) * 4;
	} else if (skb->protocol == bpf_htons(ETH_P_IPV6)) {
		struct {
			__u32 flow;
			__u16 length;
			__u8 next;
			__u8 hops;
			struct address source;
			struct address destination;
		} ip;

		if (LOAD(0, ip))
			return 0;
		packet->family = AF_INET6;
		packet->source = ip.source;
		packet->destination = ip.destination;
		packet->protocol = ip.next;
		offset = sizeof(ip);
		// Reports of multicast listeners have these options.
		if (ip.next == IPPROTO_HOPOPTS) {
			struct {
				__u8 next;
				__u8 length;
			} options;

			if (LOAD(offset, options))
				return 0;
			packet->protocol = options.next;
			offset += (options.length + 1) * 8;
		}
		packet->is_fragment = packet->protocol == IPPROTO_FRAGMENT;
	} else {
		return 0;
	}
	if (packet->is_fragment)
		return 1;
	if (packet->protocol == IPPROTO_TCP || packet->protocol == IPPROTO_UDP) {
		struct {
			__u16 source;
			__u16 destination;
		} ports;

		if (LOAD(offset, ports))
			return 0;
		packet->source_port = ports.source;
		packet->destination_port = ports.destination;
	}
	if (packet->protocol == IPPROTO_TCP)
		return !LOAD(offset + 13, packet->kind);
	if (packet->protocol == IPPROTO_ICMP || packet->protocol == IPPROTO_ICMPV6)
		return !LOAD(offset, packet->kind);
	return 1;
}

static __always_inline int may_exchange(const struct address *remote, __u16 port)
{
	struct peer_key key = {
		.prefix = 32 * 7,
		.network = { network >> 32, (__u32)network },
		.port = port,
		.address = *remote,
	};

	if (bpf_map_lookup_elem(&peers, &key))
		return 1;
	key.port = 0;
	return bpf_map_lookup_elem(&peers, &key) != NULL;
}

// Where the kernel has a socket, as a number: the verifier lets nobody read through a pointer of this kind.
static __always_inline void *location(struct bpf_sock *socket)
{
	void *at = NULL;

	bpf_probe_read_kernel(&at, sizeof(at), &socket);
	return at;
}

// Whether the kernel itself has made a socket, such as that which answers packets without a connection.
static __always_inline int is_kernels(struct bpf_sock *socket)
{
	void *outer = NULL, *file = NULL;

	if (FIELD_OF(location(socket), sk_socket, outer) || !outer)
		return 0;
	return !FIELD_OF(outer, file, file) && !file;
}

static __always_inline int is_listener(void *socket, __u8 generation, __u32 family)
{
	struct bpf_sock *listener = listener_of(network, generation, IN, family);
	int same;

	if (!listener)
		return 0;
	same = location(listener) == socket;
	bpf_sk_release(listener);
	return same;
}

static __always_inline int is_agents(const struct network *known, struct bpf_sock *socket)
{
	// The program cannot send by it, nor receive.
	if (socket->state == BPF_TCP_TIME_WAIT)
		return 1;
	if (socket->state == BPF_TCP_NEW_SYN_RECV) {
		__u32 family = socket->family;
		__u8 now = known->generation, before = now - 1;
		void *listener = NULL;

		if (FIELD_OF(location(socket), skc_listener, listener))
			return 0;
		return is_listener(listener, now, family) || is_listener(listener, before, family);
	}
	return bpf_sk_storage_get(&agents, socket, 0, 0) != NULL;
}

static __always_inline int drop(__u32 reason)
{
	count_drop(network, reason);
	return TCX_DROP;
}

// Solicitations and advertisements of neighbours and routers, and reports of the multicast groups that these need.
static __always_inline int is_discovery(const struct packet *packet)
{
	return packet->protocol == IPPROTO_ICMPV6 &&
	       ((packet->kind >= 133 && packet->kind <= 136) || (packet->kind >= 130 && packet->kind <= 132) ||
		packet->kind == 143);
}

// Unreachable (also: too big), time exceeded, parameter problem.
static __always_inline int is_error(const struct packet *packet)
{
	if (packet->protocol == IPPROTO_ICMP)
		return packet->kind == 3 || packet->kind == 11 || packet->kind == 12;
	return packet->protocol == IPPROTO_ICMPV6 && packet->kind >= 1 && packet->kind <= 4;
}

static __always_inline __u32 by_protocol(const struct packet *packet)
{
	switch (packet->protocol) {
	case IPPROTO_TCP:
		return TCP;
	case IPPROTO_UDP:
		return UDP;
	case IPPROTO_ICMP:
	case IPPROTO_ICMPV6:
		return ICMP;
	}
	return PROTOCOL;
}

static __always_inline int is_internet(struct bpf_sock *socket)
{
	return socket->family == AF_INET || socket->family == AF_INET6;
}

SEC("tcx/egress")
int egress(struct __sk_buff *skb)
{
	struct bpf_sock *socket = skb->sk;
	struct network *known = pod();
	struct packet packet = {};
	int kernels;

	if (!known || !known->enforced)
		return TCX_NEXT;
	if (skb->ingress_ifindex)
		return drop(FORWARDED);
	if (skb->vlan_present || (socket && !is_internet(socket)))
		return drop(FRAME);
	if (skb->protocol == bpf_htons(ETH_P_ARP))
		return socket ? drop(FRAME) : TCX_NEXT;
	if (!parse(skb, &packet))
		return drop(FRAME);
	if (packet.is_fragment)
		return drop(FRAGMENT);
	if (packet.protocol == IPPROTO_TCP && socket && is_agents(known, socket))
		return TCX_NEXT;
	if (packet.protocol == IPPROTO_UDP && may_exchange(&packet.destination, packet.destination_port))
		return TCX_NEXT;
	// Resets and acknowledgements of connections that are gone, and answers to a flood.
	kernels = 1;
	if (socket) {
		socket = bpf_sk_fullsock(socket);
		kernels = socket && is_kernels(socket);
	}
	if (kernels && (packet.protocol == IPPROTO_TCP || is_discovery(&packet)))
		return TCX_NEXT;
	return drop(by_protocol(&packet));
}

// The socket to which a packet goes.
static __always_inline struct bpf_sock *find(struct __sk_buff *skb, const struct packet *packet, int to_nobody)
{
	struct bpf_sock_tuple tuple = {};

	if (packet->family == AF_INET) {
		tuple.ipv4.saddr = to_nobody ? packet->destination.words[3] : packet->source.words[3];
		tuple.ipv4.daddr = packet->destination.words[3];
		tuple.ipv4.sport = to_nobody ? 0 : packet->source_port;
		tuple.ipv4.dport = packet->destination_port;
		return bpf_skc_lookup_tcp(skb, &tuple, sizeof(tuple.ipv4), BPF_F_CURRENT_NETNS, 0);
	}
	__builtin_memcpy(tuple.ipv6.saddr, to_nobody ? &packet->destination : &packet->source, sizeof(tuple.ipv6.saddr));
	__builtin_memcpy(tuple.ipv6.daddr, &packet->destination, sizeof(tuple.ipv6.daddr));
	tuple.ipv6.sport = to_nobody ? 0 : packet->source_port;
	tuple.ipv6.dport = packet->destination_port;
	return bpf_skc_lookup_tcp(skb, &tuple, sizeof(tuple.ipv6), BPF_F_CURRENT_NETNS, 0);
}

// Has `choose` refuse a connection to a port at which no program listens. The listeners of the pod are those that a connection of its own would find.
static __always_inline void tell_refusal(struct __sk_buff *skb, const struct packet *packet)
{
	struct bpf_sock *listener = find(skb, packet, 1);
	int is_served = packet->destination_port == bpf_htons(TUNNELS);
	struct refused_connection *nobody;
	__u32 zero = 0;

	if (listener) {
		bpf_sk_release(listener);
		is_served = 1;
	}
	nobody = bpf_map_lookup_elem(&refused, &zero);
	if (!nobody)
		return;
	if (is_served) {
		nobody->destination_port = 0;
		return;
	}
	nobody->source = packet->source;
	nobody->destination = packet->destination;
	nobody->source_port = packet->source_port;
	nobody->destination_port = packet->destination_port;
}

static __always_inline int arrives(struct __sk_buff *skb, const struct packet *packet, const struct network *known)
{
	struct bpf_sock *socket;
	int agents;

	if ((packet->kind & (SYN | ACK)) == SYN) {
		if (!is_listening(network, known, IN, packet->family))
			return known->enforced ? drop(NO_AGENT) : TCX_NEXT;
		if (is_own(network, &packet->destination))
			tell_refusal(skb, packet);
		return TCX_NEXT;
	}
	if (!known->enforced)
		return TCX_NEXT;
	socket = find(skb, packet, 0);
	// The kernel resets a connection that nobody has.
	if (!socket)
		return TCX_NEXT;
	agents = socket->state == BPF_TCP_LISTEN || is_agents(known, socket);
	bpf_sk_release(socket);
	return agents ? TCX_NEXT : drop(TCP);
}

SEC("tcx/ingress")
int ingress(struct __sk_buff *skb)
{
	struct network *known = pod();
	struct packet packet = {};
	int enforced;

	if (!known || skb->pkt_type == PACKET_OTHERHOST)
		return TCX_NEXT;
	enforced = known->enforced;
	if (!parse(skb, &packet)) {
		int passes = !enforced || (skb->protocol == bpf_htons(ETH_P_ARP) && !skb->vlan_present);

		return passes ? TCX_NEXT : drop(FRAME);
	}
	if (enforced && packet.is_fragment)
		return drop(FRAGMENT);
	if (enforced && is_own(network, &packet.source) && !is_discovery(&packet))
		return drop(SPOOFED);
	if (packet.protocol == IPPROTO_TCP && !packet.is_fragment)
		return arrives(skb, &packet, known);
	if (!enforced || is_discovery(&packet) || is_error(&packet))
		return TCX_NEXT;
	if (packet.protocol == IPPROTO_UDP && may_exchange(&packet.source, packet.source_port))
		return TCX_NEXT;
	return drop(by_protocol(&packet));
}

// What is sent by the loopback interface of an enforced pod. A program that may make its own packets could have the kernel send answers to any address.
SEC("tcx/egress")
int loopback(struct __sk_buff *skb)
{
	struct bpf_sock *socket = skb->sk;
	struct network *known = pod();
	struct packet packet = {};

	if (!known || !known->enforced)
		return TCX_NEXT;
	if (socket && !is_internet(socket))
		return drop(FRAME);
	if (!parse(skb, &packet))
		return TCX_NEXT;
	if (packet.protocol == IPPROTO_TCP && !packet.is_fragment && (packet.kind & (SYN | ACK)) == SYN) {
		// The agent would answer to another machine. It connects to the program with a client's address itself.
		if (!is_own(network, &packet.source) && !(socket && is_agents(known, socket)))
			return drop(SPOOFED);
		// The program tries again until there is an agent.
		if (skb->mark == MARK && !is_own(network, &packet.destination) &&
		    !is_listening(network, known, OUT, packet.family))
			return drop(NO_AGENT);
	}
	if (packet.protocol == IPPROTO_ICMP || packet.protocol == IPPROTO_ICMPV6 || !socket)
		return TCX_NEXT;
	socket = bpf_sk_fullsock(socket);
	if (socket && socket->type == SOCK_RAW && !is_kernels(socket))
		return drop(by_protocol(&packet));
	return TCX_NEXT;
}
