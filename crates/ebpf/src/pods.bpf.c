// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0
//
// TCP connections of pods, in both directions, arrive at listeners that the agent opened in the pod's network. Nothing else is needed there but one rule
// and one route per address family.
//
//   out: `connect4` and `connect6` mark the sockets of programs. The pod's rule leads marked packets into a table in which every address is local. So the
//        connection arrives by the loopback interface, and `choose` gives it to the listener for calls out.
//   in:  `choose` gives what arrives by another interface to the listener for calls in. The agent connects to the program with the mark and the caller's
//        address. `net.ipv4.tcp_fwmark_accept` gives the mark to the program's socket, so its answers stay in the pod as well.
//
// All of it stays when the agent ends. Its listeners are gone then, and `listeners` is empty. A permissive pod goes on without the agent, the connections
// of an enforced one are dropped. `ingress`, `egress` and `loopback` also drop all other packets of an enforced pod, and `create` refuses sockets that
// would send past them.
//
// `connect4`, `connect6`, `create` and `setsockopt` are loaded once, the others once for each pod. All share the maps, but for `refused`.

#include <linux/bpf.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "pods/maps.h"
#include "pods/packets.h"

static __always_inline int lead(struct bpf_sock_addr *ctx, const struct address *destination)
{
	__u64 network = bpf_get_netns_cookie(ctx);
	struct network *known = bpf_map_lookup_elem(&networks, &network);
	__u32 family = is_mapped(destination) ? AF_INET : AF_INET6;
	__u32 mark = MARK;

	if (!known || !known->captured || ctx->protocol != IPPROTO_TCP || is_own(network, destination))
		return SOCK_ADDR_ALLOW;
	if (bpf_sk_storage_get(&agents, ctx->sk, 0, 0))
		return SOCK_ADDR_ALLOW;
	// Link-local addresses belong to one interface, which the loopback interface cannot stand for.
	if (family == AF_INET6 && (destination->words[0] & bpf_htonl(0xffc00000)) == bpf_htonl(0xfe800000))
		return SOCK_ADDR_ALLOW;
	if (!known->enforced && !is_listening(network, known, OUT, family))
		return SOCK_ADDR_ALLOW;
	if (bpf_setsockopt(ctx, SOL_SOCKET, SO_MARK, &mark, sizeof(mark)))
		return known->enforced ? SOCK_ADDR_REFUSE : SOCK_ADDR_ALLOW;
	return SOCK_ADDR_ALLOW;
}

SEC("cgroup/connect4")
int connect4(struct bpf_sock_addr *ctx)
{
	struct address destination = mapped(ctx->user_ip4);

	return lead(ctx, &destination);
}

SEC("cgroup/connect6")
int connect6(struct bpf_sock_addr *ctx)
{
	struct address destination = {
		.words = { ctx->user_ip6[0], ctx->user_ip6[1], ctx->user_ip6[2], ctx->user_ip6[3] },
	};

	return lead(ctx, &destination);
}

// Otherwise the compiler computes the address of a field first, which the verifier forbids.
#define FIELD(context, name) (*(volatile typeof((context)->name) *)&(context)->name)

SEC("sk_lookup")
int choose(struct bpf_sk_lookup *ctx)
{
	struct network *known = pod();
	__u32 source4 = FIELD(ctx, remote_ip4), destination4 = FIELD(ctx, local_ip4);
	struct address source = { .words = {
		FIELD(ctx, remote_ip6[0]), FIELD(ctx, remote_ip6[1]), FIELD(ctx, remote_ip6[2]), FIELD(ctx, remote_ip6[3]),
	} };
	struct address destination = { .words = {
		FIELD(ctx, local_ip6[0]), FIELD(ctx, local_ip6[1]), FIELD(ctx, local_ip6[2]), FIELD(ctx, local_ip6[3]),
	} };
	struct refused_connection *nobody;
	struct bpf_sock *listener;
	__u32 zero = 0;
	__u8 side;
	long failed;

	if (ctx->protocol != IPPROTO_TCP || !known)
		return SK_PASS;
	if (ctx->family == AF_INET) {
		source = mapped(source4);
		destination = mapped(destination4);
	}
	if (ctx->ingress_ifindex == LOOPBACK) {
		// The agent's connection to the program, or one within the pod.
		if (is_own(network, &destination))
			return SK_PASS;
		side = OUT;
	} else {
		// A connection of the pod to its own address. The kernel says that it arrived by the interface of that address.
		if (is_own(network, &source))
			return SK_PASS;
		side = IN;
	}
	listener = listener_of(network, known->generation, side, ctx->family);
	if (!listener)
		return known->enforced ? SK_DROP : SK_PASS;
	nobody = side == IN ? bpf_map_lookup_elem(&refused, &zero) : NULL;
	if (nobody && nobody->destination_port == bpf_htons(ctx->local_port) && nobody->source_port == ctx->remote_port &&
	    equals(&nobody->source, &source) && equals(&nobody->destination, &destination)) {
		nobody->destination_port = 0;
		bpf_sk_release(listener);
		return SK_DROP;
	}
	failed = bpf_sk_assign(ctx, listener, 0);
	bpf_sk_release(listener);
	return failed ? SK_DROP : SK_PASS;
}

char _license[] SEC("license") = "Dual BSD/GPL";
