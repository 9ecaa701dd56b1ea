// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0
//
// Runs in a jail's network when a TCP connection arrives and the kernel looks for its listener. Every connection arrives there, whatever its address,
// because every address is the jail's own. What is for the loopback addresses goes where it always does: to the program's own listeners. All other
// connections go to the node's listener, on whatever port.

#include <linux/bpf.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define AF_INET 2
#define IPPROTO_TCP 6

struct {
	__uint(type, BPF_MAP_TYPE_SOCKMAP);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} listener SEC(".maps");

SEC("sk_lookup")
int intercept(struct bpf_sk_lookup *lookup)
{
	const __u32 first = 0;
	struct bpf_sock *socket;
	long failed;

	if (lookup->family != AF_INET || lookup->protocol != IPPROTO_TCP)
		return SK_PASS;
	if ((bpf_ntohl(lookup->local_ip4) >> 24) == 127)
		return SK_PASS;
	socket = bpf_map_lookup_elem(&listener, &first);
	if (!socket)
		return SK_DROP;
	failed = bpf_sk_assign(lookup, socket, 0);
	bpf_sk_release(socket);
	return failed ? SK_DROP : SK_PASS;
}

// The helpers are for programs that say so.
char LICENSE[] SEC("license") = "Dual BSD/GPL";
